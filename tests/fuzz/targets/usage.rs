//! Answers of engines.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| proxy::fuzz::usage::run(data));
