//! A name that stands for several peers, as that of a headless Service does: each address is a peer of its own, so that
//! what one tells and what is then asked of it come from the same.

use std::{net::SocketAddr, time::Duration};

use futures_util::future::join_all;
use reqwest::Url;
use tokio::{net::lookup_host, time::timeout};

/// `peers`, with one URL an address where a name has several. Who cannot be looked up in `limit` stays as it is, and
/// fails when it is asked. Names of https are those of certificates, and stay.
pub(super) async fn expand(peers: Vec<String>, limit: Duration) -> Vec<String> {
    let expand = |peer: String| async move {
        let found = match target(&peer) {
            Some((host, port)) => timeout(limit, lookup_host((host, port))).await,
            None => return vec![peer],
        };
        match found {
            Ok(Ok(addresses)) => by_address(&peer, &addresses.collect::<Vec<_>>()),
            Ok(Err(_)) | Err(_) => vec![peer],
        }
    };
    join_all(peers.into_iter().map(expand)).await.concat()
}

/// Name and port to look up.
fn target(peer: &str) -> Option<(String, u16)> {
    let url = Url::parse(peer).ok().filter(|url| url.scheme() == "http")?;
    let name = url.domain()?.to_owned();
    Some((name, url.port_or_known_default()?))
}

/// `peer` at each of `addresses`, of the family of the first alone: one of two families is the same peer twice.
fn by_address(peer: &str, addresses: &[SocketAddr]) -> Vec<String> {
    let Some(first) = addresses.first() else { return vec![peer.to_owned()] };
    let mut same: Vec<_> = addresses.iter().filter(|at| at.is_ipv4() == first.is_ipv4()).map(SocketAddr::ip).collect();
    same.sort_unstable();
    same.dedup();
    if same.len() < 2 {
        return vec![peer.to_owned()];
    }
    let at = |ip| {
        let mut url = Url::parse(peer).ok()?;
        url.set_ip_host(ip).ok()?;
        Some(url.as_str().trim_end_matches('/').to_owned())
    };
    same.into_iter().filter_map(at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addresses(texts: &[&str]) -> Vec<SocketAddr> {
        texts.iter().map(|text| SocketAddr::new(text.parse().unwrap(), 1)).collect()
    }

    #[test]
    fn a_name_with_several_addresses_is_several_peers() {
        let found = addresses(&["10.0.0.2", "10.0.0.1", "10.0.0.2", "fd00::1", "fd00::2"]);
        assert_eq!(by_address("http://a.b:8092", &found), ["http://10.0.0.1:8092", "http://10.0.0.2:8092"]);
        let found = addresses(&["fd00::2", "10.0.0.2", "fd00::1"]);
        assert_eq!(by_address("http://a.b/x", &found), ["http://[fd00::1]/x", "http://[fd00::2]/x"]);
    }

    #[test]
    fn a_name_with_one_address_keeps_it_to_itself() {
        for found in [&[][..], &["10.0.0.1"], &["::1", "127.0.0.1"], &["10.0.0.1", "10.0.0.1"]] {
            assert_eq!(by_address("http://a.b:8092/", &addresses(found)), ["http://a.b:8092/"]);
        }
    }

    #[tokio::test]
    async fn what_is_not_looked_up_stays() {
        let peers =
            ["http://10.0.0.1:8092", "http://[::1]:8092", "https://a.invalid", "http://a.invalid:1", "nonsense"];
        let peers: Vec<_> = peers.map(str::to_owned).into();
        assert_eq!(expand(peers.clone(), Duration::from_secs(30)).await, peers);
    }
}
