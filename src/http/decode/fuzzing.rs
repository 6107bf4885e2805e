//! Entry point for the fuzz target: whatever the fast way makes of a body, the library makes of it.

use serde::de::DeserializeOwned;

use super::{
    decode, decode_fast, integers,
    wire::{LoadQuery, OutputBlockRequest, PeerRequest, Prompted, ReservationRequest, ReserveRequest, SelectRequest},
    workers::{self, WorkerRequest},
};

/// Decodes `body` as every request, and as bare arrays.
///
/// # Panics
/// When the fast way and the library disagree.
pub fn requests(body: &[u8]) {
    agree::<SelectRequest>(body);
    agree::<ReserveRequest>(body);
    agree::<ReservationRequest>(body);
    agree::<LoadQuery>(body);
    decode::<WorkerRequest>(body).ok();
    workers::patch(body).ok();
    decode::<OutputBlockRequest>(body).ok();
    decode::<PeerRequest>(body).ok();
    array::<u32>(body);
    array::<i64>(body);
}

fn agree<T: DeserializeOwned + Prompted + std::fmt::Debug>(body: &[u8]) {
    if let Some(fast) = decode_fast::<T>(body) {
        let library = decode::<T>(body).map(|value| format!("{value:?}"));
        assert_eq!(Ok(format!("{fast:?}")), library);
    }
}

fn array<T: integers::Integer + DeserializeOwned + PartialEq + std::fmt::Debug>(text: &[u8]) {
    if text.first() == Some(&b'[')
        && let Some((values, end)) = integers::parse::<T>(text, 0)
    {
        let mut stream = serde_json::Deserializer::from_slice(text).into_iter::<Vec<T>>();
        assert_eq!(stream.next().and_then(Result::ok), Some(values));
        assert_eq!(stream.byte_offset(), end);
    }
}
