//! Finds the data of server-sent events in a stream that passes in pieces.
//!
//! Lines end in LF, CR or both; of their fields only `data` matters, a blank line ends an event (the HTML standard, 9.2.6).

use std::sync::LazyLock;

use memchr::memchr2;
use memchr::memmem::Finder;

use super::json::Json;

const DATA: &[u8] = b"data:";

/// The names of which one at least stands in data that tells something.
static TELLING: LazyLock<[Finder<'static>; 2]> =
    LazyLock::new(|| [b"\"usage\"", b"\"error\""].map(Finder::new));

/// Which part of a line the next byte belongs to.
#[derive(Clone, Copy, Debug)]
enum Line {
    /// So many bytes of [`DATA`], and nothing else, have come.
    Start(usize),
    Data,
    Other,
}

/// Where in a stream the last piece ended.
#[derive(Debug)]
pub(super) struct Events {
    json: Json,
    line: Line,
    /// A line feed would belong to the carriage return before it.
    after_return: bool,
    in_event: bool,
    begun: u64,
}

impl Events {
    /// At the start of a stream.
    pub(super) fn new() -> Self {
        let json = Json::default();
        Self { json, line: Line::Start(0), after_return: false, in_event: false, begun: 0 }
    }

    /// Takes the next piece. HOT: O(bytes), no allocation.
    pub(super) fn feed(&mut self, mut piece: &[u8]) {
        while let Some((&byte, rest)) = piece.split_first() {
            if let Some(rest) = self.pass_over(piece) {
                piece = rest;
                continue;
            }
            if std::mem::take(&mut self.after_return) && byte == b'\n' {
                piece = rest;
                continue;
            }
            piece = match self.line {
                Line::Start(matched) => {
                    self.start(matched, byte);
                    rest
                }
                Line::Data | Line::Other => self.rest_of_line(piece),
            };
        }
    }

    /// Events with data that have begun.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    /// What the data said.
    pub(super) fn json(&self) -> &Json {
        &self.json
    }

    /// What follows an event that is here whole, one line of data and the blank one, and tells nothing: nearly all are so.
    fn pass_over<'a>(&mut self, piece: &'a [u8]) -> Option<&'a [u8]> {
        if self.in_event || self.after_return || !matches!(self.line, Line::Start(0)) {
            return None;
        }
        let data = piece.strip_prefix(DATA)?;
        let (text, end) = data.split_at(memchr2(b'\n', b'\r', data)?);
        let rest = end.strip_prefix(b"\n\n")?;
        if TELLING.iter().any(|name| name.find(text).is_some()) {
            return None;
        }
        self.begun += 1;
        Some(rest)
    }

    fn start(&mut self, matched: usize, byte: u8) {
        if matches!(byte, b'\n' | b'\r') {
            if matched == 0 {
                self.in_event = false;
                self.json.begin();
            }
            self.end_line(byte);
        } else if DATA.get(matched) != Some(&byte) {
            self.line = Line::Other;
        } else if matched + 1 < DATA.len() {
            self.line = Line::Start(matched + 1);
        } else {
            self.line = Line::Data;
            self.begun += u64::from(!std::mem::replace(&mut self.in_event, true));
        }
    }

    fn rest_of_line<'a>(&mut self, piece: &'a [u8]) -> &'a [u8] {
        let (text, rest) = piece.split_at(memchr2(b'\n', b'\r', piece).unwrap_or(piece.len()));
        if let Line::Data = self.line {
            self.json.feed(text);
        }
        let Some((&end, rest)) = rest.split_first() else { return rest };
        self.end_line(end);
        rest
    }

    fn end_line(&mut self, end: u8) {
        self.after_return = end == b'\r';
        self.line = Line::Start(0);
    }
}
