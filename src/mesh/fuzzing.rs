//! Entry point of the fuzz target: what peers send, without sockets.

use super::{
    repair,
    wire::{beacon, decode_session, decode_slot, encode_session, encode_slot, hashes::MAX_HASHES},
};
use crate::selection::replication::BookingChange;

/// Reads `data` as one kind of message; the first byte chooses which.
///
/// # Panics
/// When what was read is not written the same again, or a limit does not hold.
pub fn mesh(data: &[u8]) {
    let [kind, payload @ ..] = data else { return };
    match kind % 4 {
        0 => slot(payload),
        1 => session(payload),
        2 => envelope(payload),
        _ => drop(repair::fuzz_answer(payload)),
    }
}

fn slot(payload: &[u8]) {
    let Ok(message) = decode_slot(payload) else { return };
    if let BookingChange::Admitted(admission) = &message.event.change {
        assert!(admission.sequence.len() <= MAX_HASHES);
    }
    let frames = encode_slot(&message.event, message.router_id);
    let again = decode_slot(&frames[1]).expect("what was written can be read");
    assert_eq!((again.event, again.router_id), (message.event, message.router_id));
}

fn session(payload: &[u8]) {
    let Ok(event) = decode_session(payload) else { return };
    let frames = encode_session(&event);
    assert_eq!(decode_session(&frames[1]).expect("what was written can be read"), event);
}

fn envelope(payload: &[u8]) {
    match beacon::Envelope::decode(payload) {
        Ok(envelope) => {
            assert_eq!(envelope.version, beacon::WIRE_VERSION);
            let partitions = envelope.beacon.iter().flat_map(|beacon| &beacon.partitions);
            assert!(partitions.clone().count() <= beacon::MAX_PARTITIONS);
            assert!(partitions.into_iter().all(|partition| partition.origins.len() <= beacon::MAX_ORIGINS));
            let frames = envelope.encode();
            assert_eq!(beacon::Envelope::decode(&frames[1]).expect("what was written can be read"), envelope);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The seeds are read as what they are named after, so that a fuzz run starts from messages that are whole.
    #[test]
    fn seeds_are_read() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/seeds/mesh");
        let mut read = [0; 4];
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let data = std::fs::read(&path).unwrap();
            mesh(&data);
            let [kind, payload @ ..] = &data[..] else { panic!("{path:?} is empty") };
            let is_whole = match kind {
                0 => decode_slot(payload).is_ok(),
                1 => decode_session(payload).is_ok(),
                2 => beacon::Envelope::decode(payload).is_ok(),
                _ => repair::fuzz_answer(payload).is_some(),
            };
            read[usize::from(*kind)] += u32::from(is_whole);
        }
        assert!(read.iter().all(|&count| count > 0) && read[0] >= 5, "{read:?}");
    }
}
