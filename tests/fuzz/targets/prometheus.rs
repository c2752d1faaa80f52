//! Pages of metrics.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| proxy::fuzz::prometheus::run(data));
