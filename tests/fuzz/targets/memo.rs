//! Bodies whose beginning is known.
#![no_main]

#[path = "../oracles/memo.rs"]
mod memo;

libfuzzer_sys::fuzz_target!(|data: &[u8]| memo::run(data));
