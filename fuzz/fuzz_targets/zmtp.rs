//! Both ends of the ZMTP codec: greeting, READY, commands and message assembly, in pieces of any size.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| pointsman::events::transport::fuzzing::zmtp(data));
