//! Lists of models.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| proxy::fuzz::models::run(data));
