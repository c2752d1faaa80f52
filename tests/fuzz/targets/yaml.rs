//! YAML as a tree.
#![no_main]

#[path = "../oracles/json.rs"]
mod json;
#[path = "../oracles/yaml.rs"]
mod yaml;

libfuzzer_sys::fuzz_target!(|data: &[u8]| yaml::run(data));
