//! Bodies that the router edits.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| proxy::fuzz::edits::run(data));
