//! What peers of the mesh send: bookings, sessions, our own envelopes, and answers to questions for state.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| pointsman::mesh::fuzzing::mesh(data));
