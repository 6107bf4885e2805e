//! Names of the cluster's DNS.

use std::{
    net::{IpAddr, Ipv4Addr, UdpSocket},
    time::Duration,
};

/// Service of the cluster's DNS, as `tests/cluster/coredns.yaml` has it.
pub const CLUSTER_DNS: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 96, 0, 10));

/// IPv4 addresses of a name, asked of the DNS server at `server`.
///
/// # Errors
/// That no answer came within 2 s, or one that is none.
pub fn resolve(server: IpAddr, name: &str) -> Result<Vec<IpAddr>, String> {
    let mut query = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        query.push(u8::try_from(label.len()).map_err(|e| e.to_string())?);
        query.extend_from_slice(label.as_bytes());
    }
    query.extend_from_slice(&[0, 0, 1, 0, 1]);
    let ask = || -> std::io::Result<Vec<u8>> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.set_read_timeout(Some(Duration::from_secs(2)))?;
        socket.send_to(&query, (server, 53))?;
        let mut answer = vec![0; 1500];
        let length = socket.recv(&mut answer)?;
        answer.truncate(length);
        Ok(answer)
    };
    let answer = ask().map_err(|e| e.to_string())?;
    let count = usize::from(u16::from_be_bytes([answer[6], answer[7]]));
    let mut addresses = Vec::new();
    let mut at = query.len();
    for _ in 0..count {
        // The name: a pointer of two bytes, or labels that end with an empty one.
        while answer[at] != 0 && answer[at] < 0xc0 {
            at += usize::from(answer[at]) + 1;
        }
        at += if answer[at] == 0 { 1 } else { 2 };
        let length = usize::from(u16::from_be_bytes([answer[at + 8], answer[at + 9]]));
        let data = &answer[at + 10..at + 10 + length];
        if let (1, Ok(bytes)) = (answer[at + 1], <[u8; 4]>::try_from(data)) {
            addresses.push(IpAddr::from(bytes));
        }
        at += 10 + length;
    }
    Ok(addresses)
}
