//! Documents of Kubernetes and llm-d.
#![no_main]

#[path = "../oracles/documents.rs"]
mod documents;

libfuzzer_sys::fuzz_target!(|data: &[u8]| documents::run(data));
