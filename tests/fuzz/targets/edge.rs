//! What clients write into heads.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| proxy::fuzz::edge::run(data));
