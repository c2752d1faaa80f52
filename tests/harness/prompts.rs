//! Request bodies: of an exact size, of an exact number of blocks, sharing a prefix or nothing.

/// What a content-free chat body begins with.
const CHAT_START: &str = r#"{"model":"m","messages":[{"role":"user","content":""#;
const CHAT_END: &str = r#""}]}"#;

/// `length` bytes of words drawn from `seed`: another seed shares no 64-byte stretch.
pub fn text(seed: u64, length: usize) -> String {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ 0xD1B5_4A32_D192_ED03;
    let mut text = String::with_capacity(length + 16);
    while text.len() < length {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.push_str(&format!("{:08x} ", state >> 32));
    }
    text.truncate(length);
    text
}

/// A chat body with this user message; `content` must need no escapes.
pub fn chat(content: &str) -> String {
    format!("{CHAT_START}{content}{CHAT_END}")
}

/// A chat body of exactly `bytes` bytes, its text drawn from `seed`.
pub fn chat_of_size(seed: u64, bytes: usize) -> String {
    let room = bytes.checked_sub(CHAT_START.len() + CHAT_END.len());
    chat(&text(seed, room.expect("a chat body has at least 56 bytes")))
}

/// A chat body with a cold prompt of 4 KB: shares no block with another seed.
pub fn cold(seed: u64) -> String {
    chat(&text(seed, 4096))
}

/// A completions body with a cold prompt of 4 KB.
pub fn cold_completion(seed: u64) -> String {
    format!(r#"{{"model":"m","prompt":"{}"}}"#, text(seed, 4096))
}

/// `body` with members put before its closing brace, e.g. `,"stream":true`.
pub fn with(body: &str, members: &str) -> String {
    format!("{}{members}}}", body.strip_suffix('}').expect("a body ends with a brace"))
}
