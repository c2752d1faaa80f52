//! Configurations.
#![no_main]

#[path = "../oracles/config.rs"]
mod configurations;

libfuzzer_sys::fuzz_target!(|data: &[u8]| configurations::run(data));
