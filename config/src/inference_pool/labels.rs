//! What a label's key and value may be.

/// What a key must be.
pub(super) const KEY: &str =
    "a label's key is [DOMAIN/]NAME, the name 1 to 63 characters of A-Z a-z 0-9 . _ -";
/// What a value must be.
pub(super) const VALUE: &str =
    "a label's value is up to 63 characters of A-Z a-z 0-9 . _ -, the first and the last a letter or a digit";

const NAME_BYTES_MAX: usize = 63;
const DOMAIN_BYTES_MAX: usize = 253;

/// Whether a text is a key: a name, perhaps after a domain and a slash.
pub(super) fn is_key(text: &str) -> bool {
    let (domain, name) = text.split_once('/').map_or((None, text), |(domain, name)| (Some(domain), name));
    is_name(name) && domain.is_none_or(is_domain)
}

/// Whether a text is a value: a name or nothing.
pub(super) fn is_value(text: &str) -> bool {
    text.is_empty() || is_name(text)
}

fn is_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    text.len() <= NAME_BYTES_MAX && is_framed(text) && text.bytes().all(inner)
}

fn is_domain(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_label = |label: &str| is_framed(label) && label.bytes().all(inner);
    text.len() <= DOMAIN_BYTES_MAX && text.split('.').all(is_label)
}

/// Whether a letter or digit stands at both ends.
fn is_framed(text: &str) -> bool {
    let ends = [text.bytes().next(), text.bytes().next_back()];
    ends.iter().all(|byte| byte.is_some_and(|byte| byte.is_ascii_alphanumeric()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_and_values_are_those_of_the_cluster() {
        let longest = "a".repeat(NAME_BYTES_MAX);
        let too_long = "a".repeat(NAME_BYTES_MAX + 1);
        for key in ["app", "a", "llm-d.ai/role", "a.b/c_d.e-f", "App", &longest] {
            assert!(is_key(key), "{key}");
        }
        for key in ["", "/a", "a/", "-a", "a-", "A.b/c", "a..b/c", "a b", "a/b/c", "ä", &too_long] {
            assert!(!is_key(key), "{key}");
        }
        for value in ["", "v1", "8000", "a_b.c", &longest] {
            assert!(is_value(value), "{value}");
        }
        for value in ["-", "a/b", "a ", ".a", &too_long] {
            assert!(!is_value(value), "{value}");
        }
    }
}
