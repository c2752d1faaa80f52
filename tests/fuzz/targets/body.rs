//! Bodies of requests.
#![no_main]

#[path = "../oracles/body.rs"]
mod body;
#[path = "../oracles/json.rs"]
mod json;

libfuzzer_sys::fuzz_target!(|data: &[u8]| body::run(data));
