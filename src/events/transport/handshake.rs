//! The ZMTP handshake as data: greeting, READY, and which socket types fit together (NULL mechanism).

use bytes::{BufMut, Bytes, BytesMut};

use super::codec::{ProtocolError, put_command, split_command};

/// Bytes of a greeting.
pub(super) const GREETING_SIZE: usize = 64;

/// The socket types spoken here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SocketKind {
    /// Subscribes.
    Sub,
    /// Publishes.
    Pub,
    /// Exchanges with a ROUTER.
    Dealer,
}

impl SocketKind {
    /// Its name on the wire.
    fn name(self) -> &'static str {
        match self {
            Self::Sub => "SUB",
            Self::Pub => "PUB",
            Self::Dealer => "DEALER",
        }
    }

    /// Types it may talk to.
    fn fits(self, peer: &[u8]) -> bool {
        match self {
            Self::Sub => matches!(peer, b"PUB" | b"XPUB"),
            Self::Pub => matches!(peer, b"SUB" | b"XSUB"),
            Self::Dealer => matches!(peer, b"ROUTER" | b"DEALER" | b"REP"),
        }
    }
}

/// The greeting of ours: ZMTP 3.1, NULL.
pub(super) fn greeting() -> [u8; GREETING_SIZE] {
    let mut bytes = [0; GREETING_SIZE];
    bytes[0] = 0xff;
    bytes[9] = 0x7f;
    bytes[10] = 3;
    bytes[11] = 1;
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

/// Reads the peer's greeting: its minor version once all bytes are there. Bytes that cannot begin a greeting are
/// refused at once, so that a peer of another protocol does not hold the connection until the deadline.
pub(super) fn read_greeting(input: &[u8]) -> Result<Option<u8>, ProtocolError> {
    if input.first().is_some_and(|&byte| byte != 0xff) || input.get(9).is_some_and(|&byte| byte & 1 == 0) {
        return Err(ProtocolError::Signature);
    }
    if let Some(&major) = input.get(10)
        && major < 3
    {
        return Err(ProtocolError::Version(major));
    }
    let Some(greeting) = input.get(..GREETING_SIZE) else { return Ok(None) };
    let mechanism = greeting[12..32].split(|&byte| byte == 0).next().unwrap_or_default();
    if mechanism != b"NULL" {
        return Err(ProtocolError::Mechanism(printable(mechanism)));
    }
    // A later major version must speak 3.1 with us, as ZMTP asks of it.
    Ok(Some(if greeting[10] > 3 { 1 } else { greeting[11] }))
}

/// Appends our READY.
pub(super) fn put_ready(out: &mut BytesMut, kind: SocketKind) {
    let mut body = BytesMut::new();
    let mut property = |name: &str, value: &[u8]| {
        body.put_u8(name.len() as u8);
        body.put_slice(name.as_bytes());
        body.put_u32(value.len() as u32);
        body.put_slice(value);
    };
    property("Socket-Type", kind.name().as_bytes());
    if kind == SocketKind::Dealer {
        property("Identity", b"");
    }
    put_command(out, "READY", &body);
}

/// Checks the peer's first command.
pub(super) fn read_ready(kind: SocketKind, body: &Bytes) -> Result<(), ProtocolError> {
    let (name, body) = split_command(body)?;
    match &name[..] {
        b"READY" => {}
        b"ERROR" => return Err(ProtocolError::Refused(printable(body.get(1..).unwrap_or_default()))),
        _ => return Err(ProtocolError::NotReady),
    }
    let mut rest = &body[..];
    let mut socket_type = None;
    while !rest.is_empty() {
        let (name, value, tail) = read_property(rest).ok_or(ProtocolError::Command("READY"))?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            socket_type = Some(value);
        }
        rest = tail;
    }
    match socket_type {
        Some(peer) if kind.fits(peer) => Ok(()),
        peer => Err(ProtocolError::SocketType(printable(peer.unwrap_or_default()))),
    }
}

/// Name and value of the first property, and what follows it.
fn read_property(input: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (&length, rest) = input.split_first()?;
    let (name, rest) = rest.split_at_checked(usize::from(length))?;
    let (size, rest) = rest.split_first_chunk::<4>()?;
    let (value, rest) = rest.split_at_checked(usize::try_from(u32::from_be_bytes(*size)).ok()?)?;
    Some((name, value, rest))
}

/// A peer's text, short and safe to log.
fn printable(bytes: &[u8]) -> String {
    bytes.iter().take(64).map(|&byte| if (0x20..0x7f).contains(&byte) { char::from(byte) } else { '?' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The body of the READY frame in `out`.
    fn ready_body(kind: SocketKind) -> Bytes {
        let mut out = BytesMut::new();
        put_ready(&mut out, kind);
        out.freeze().slice(2..)
    }

    #[test]
    fn our_greeting_is_read_back_as_3_1_and_waits_for_its_last_byte() {
        let bytes = greeting();
        for length in 0..GREETING_SIZE {
            assert_eq!(read_greeting(&bytes[..length]), Ok(None));
        }
        assert_eq!(read_greeting(&bytes), Ok(Some(1)));
    }

    #[test]
    fn other_protocols_versions_and_mechanisms_are_named() {
        assert_eq!(read_greeting(b"GET / HTTP/1.1"), Err(ProtocolError::Signature));
        let mut old = greeting();
        old[10] = 1;
        assert_eq!(read_greeting(&old[..11]), Err(ProtocolError::Version(1)));
        let mut curve = greeting();
        curve[12..17].copy_from_slice(b"CURVE");
        assert_eq!(read_greeting(&curve), Err(ProtocolError::Mechanism("CURVE".into())));
        let mut newer = greeting();
        (newer[10], newer[11]) = (4, 0);
        assert_eq!(read_greeting(&newer), Ok(Some(1)));
    }

    #[test]
    fn only_fitting_socket_types_are_accepted() {
        use SocketKind::{Dealer, Pub, Sub};
        for (ours, theirs, fits) in
            [(Sub, Pub, true), (Pub, Sub, true), (Dealer, Dealer, true), (Sub, Sub, false), (Dealer, Pub, false)]
        {
            assert_eq!(read_ready(ours, &ready_body(theirs)).is_ok(), fits, "{ours:?} with {theirs:?}");
        }
        assert_eq!(read_ready(Sub, &ready_body(Sub)), Err(ProtocolError::SocketType("SUB".into())));
    }

    #[test]
    fn refusals_and_broken_metadata_are_errors() {
        let refused = Bytes::from_static(b"\x05ERROR\x0bnot welcome");
        assert_eq!(read_ready(SocketKind::Sub, &refused), Err(ProtocolError::Refused("not welcome".into())));
        assert_eq!(read_ready(SocketKind::Sub, &Bytes::from_static(b"\x04PING")), Err(ProtocolError::NotReady));
        let whole = ready_body(SocketKind::Pub);
        // Without any property the socket type is missing; cut anywhere else the metadata is malformed.
        for length in 7..whole.len() {
            assert_eq!(
                read_ready(SocketKind::Sub, &whole.slice(..length)),
                Err(ProtocolError::Command("READY")),
                "{length}"
            );
        }
    }
}
