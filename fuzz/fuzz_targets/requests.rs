//! Bodies of requests: the parser of long integer arrays and the splitter against `serde_json` alone.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| pointsman::http::decode::fuzzing::requests(data));
