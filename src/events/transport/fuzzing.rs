//! Entry points for the fuzz targets: the protocol without sockets.

use super::{
    handshake::SocketKind,
    session::{Incoming, Session},
};

/// Feeds `data` to one side of a connection, cut into pieces, until it ends or breaks the protocol. The first byte
/// chooses the socket type, the second the size of the pieces.
///
/// # Panics
/// When a limit does not hold.
pub fn zmtp(data: &[u8]) {
    const MAX_FRAME: usize = 4 << 10;
    const MAX_MESSAGE: usize = 8 << 10;
    let [kind, piece, stream @ ..] = data else { return };
    let mut session = match kind % 3 {
        0 => Session::new(SocketKind::Sub, MAX_FRAME, MAX_MESSAGE),
        1 => Session::new(SocketKind::Dealer, MAX_FRAME, MAX_MESSAGE),
        _ => Session::for_publisher(),
    };
    let mut consumed_total = 0;
    for piece in stream.chunks(usize::from(*piece).max(1)) {
        session.feed(piece);
        loop {
            match session.next() {
                Ok(Some(Incoming::Message(message, consumed))) => {
                    let size: usize = message.iter().map(|frame| frame.len()).sum();
                    assert!(size <= MAX_MESSAGE.max(64 << 10) && size <= consumed, "{size} bytes of {consumed}");
                    consumed_total += consumed;
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    return;
                }
            }
        }
        assert!(session.space().capacity() <= 2 * (stream.len() + (256 << 10)), "memory follows what arrived");
        if let Some(control) = session.take_control() {
            assert!(control.len() < 16 << 10, "answers are bounded");
        }
    }
    assert!(consumed_total <= stream.len());
}

#[cfg(test)]
mod tests {
    /// The seeds reach what they are named after, so that a fuzz run starts deep in the protocol.
    #[test]
    fn seeds_keep_the_limits() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/zmtp");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            super::zmtp(&std::fs::read(entry.unwrap().path()).unwrap());
            count += 1;
        }
        assert!(count >= 12, "{count} seeds");
    }
}
