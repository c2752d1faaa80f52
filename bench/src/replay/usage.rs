//! Finds an answer's `usage` as its bytes go by: in a JSON answer, or in the events of a stream.

use serde::Deserialize;

/// Bytes of a line that are kept; a longer line is an answer's text, not its usage.
const LINE_BYTES_MAX: usize = 4 << 20;

/// What an answer says that it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) prompt_tokens: u64,
    pub(super) cached_tokens: u64,
}

/// Takes chunks, keeps a line.
#[derive(Debug, Default)]
pub(super) struct UsageFinder {
    line: Vec<u8>,
    found: Option<Usage>,
}

impl UsageFinder {
    /// Takes the next bytes.
    pub(super) fn push(&mut self, chunk: &[u8]) {
        for piece in chunk.split_inclusive(|&byte| byte == b'\n') {
            if self.line.len() + piece.len() <= LINE_BYTES_MAX {
                self.line.extend_from_slice(piece);
            }
            if piece.ends_with(b"\n") {
                self.end_line();
            }
        }
    }

    /// The last usage that was said.
    pub(super) fn finish(mut self) -> Option<Usage> {
        self.end_line();
        self.found
    }

    fn end_line(&mut self) {
        let line = self.line.strip_prefix(b"data: ").unwrap_or(&self.line);
        if let Ok(Answer { usage: Some(said) }) = serde_json::from_slice(line) {
            let cached = said.prompt_tokens_details.and_then(|details| details.cached_tokens);
            self.found =
                Some(Usage { prompt_tokens: said.prompt_tokens, cached_tokens: cached.unwrap_or(0) });
        }
        self.line.clear();
    }
}

#[derive(Deserialize)]
struct Answer {
    usage: Option<Said>,
}

#[derive(Deserialize)]
struct Said {
    prompt_tokens: u64,
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    cached_tokens: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn usage_is_found_however_the_bytes_are_cut() {
        let whole = r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}}"#;
        let stream = format!("data: {{\"choices\":[]}}\n\ndata: {whole}\n\ndata: [DONE]\n\n");
        let want = Some(Usage { prompt_tokens: 9, cached_tokens: 4 });
        let bare = r#"{"usage":{"prompt_tokens":9,"prompt_tokens_details":null}}"#;
        for (text, want) in [
            (whole, want),
            (stream.as_str(), want),
            (bare, Some(Usage { prompt_tokens: 9, cached_tokens: 0 })),
            (r#"{"usage":null}"#, None),
            ("", None),
        ] {
            for bytes in 1..80 {
                let mut finder = UsageFinder::default();
                text.as_bytes().chunks(bytes).for_each(|chunk| finder.push(chunk));
                assert_eq!(finder.finish(), want, "{text} by {bytes}");
            }
        }
    }
}
