//! Finds the `usage` of a JSON document that passes in pieces.
//!
//! No parser and no buffer: it follows strings, depth and the few objects on the way to the figures, and keeps where it
//! is between two pieces, so a cut may lie anywhere and memory does not grow with the answer. A text that says `usage`
//! inside a string, or in an object where no engine puts it, is passed over.

use memchr::memchr2;

use super::Usage;

/// Bytes of the longest name that is looked for.
const NAME_BYTES_MAX: usize = 28;
/// Objects on the way to the deepest figure: document, response, usage, details.
const WAY_MAX: usize = 4;

/// An object on the way to the figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Place {
    #[default]
    Document,
    /// `response` of OpenAI's Responses, `message` of Anthropic's Messages.
    Wrapper,
    Usage,
    Details,
}

/// A member that matters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Name {
    #[default]
    Other,
    Wrapper,
    Usage,
    Error,
    /// Tokens of the prompt; the details of it.
    Prompt,
    Details,
    Cached,
    Completion,
    /// Anthropic's, which its prompt tokens leave out.
    CacheRead,
    CacheCreation,
}

impl Name {
    fn of(text: &[u8]) -> Self {
        match text {
            b"usage" => Self::Usage,
            b"response" | b"message" => Self::Wrapper,
            b"error" => Self::Error,
            b"prompt_tokens" | b"input_tokens" => Self::Prompt,
            b"prompt_tokens_details" | b"input_tokens_details" => Self::Details,
            b"cached_tokens" => Self::Cached,
            b"completion_tokens" | b"output_tokens" => Self::Completion,
            b"cache_read_input_tokens" => Self::CacheRead,
            b"cache_creation_input_tokens" => Self::CacheCreation,
            _ => Self::Other,
        }
    }
}

/// A member's value as far as it has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Number {
    #[default]
    None,
    Whole(u32),
    /// Not a whole number, or one that is no count of tokens.
    Bad,
}

/// What a string is read for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Text {
    /// No string is open.
    #[default]
    None,
    Passed,
    Name,
}

/// What the last `usage` said.
#[derive(Clone, Copy, Debug, Default)]
struct Figures {
    prompt: Option<u32>,
    cached: Option<u32>,
    completion: Option<u32>,
    cache_read: Option<u32>,
    cache_creation: Option<u32>,
}

/// Where in a document the last piece ended.
#[derive(Debug, Default)]
pub(super) struct Json {
    way: [Place; WAY_MAX],
    /// Objects of `way` that are open.
    deep: usize,
    /// Further objects and lists that are open and do not matter.
    aside: u32,
    is_over: bool,
    text: Text,
    is_escaped: bool,
    expects_name: bool,
    name: Name,
    spelled: [u8; NAME_BYTES_MAX],
    /// Bytes of `spelled`; above its room for a name that cannot match.
    spelled_bytes: usize,
    number: Number,
    figures: Figures,
    has_error: bool,
}

impl Json {
    /// Takes the next piece. HOT: `usage/mod.rs` has the figures. O(bytes), no allocation.
    pub(super) fn feed(&mut self, mut piece: &[u8]) {
        while let Some((&byte, rest)) = piece.split_first() {
            piece = match self.text {
                Text::None => {
                    self.byte(byte);
                    rest
                }
                _ => self.string(piece),
            };
        }
    }

    /// Another document begins; what is known stays.
    pub(super) fn begin(&mut self) {
        let (figures, has_error) = (self.figures, self.has_error);
        *self = Self { figures, has_error, ..Self::default() };
    }

    /// Whether an error stood where the answer should.
    pub(super) fn has_error(&self) -> bool {
        self.has_error
    }

    /// The figures of the last `usage` that tells of a prompt.
    pub(super) fn usage(&self) -> Option<Usage> {
        let Figures { prompt, cached, completion, cache_read, cache_creation } = self.figures;
        let beside = cache_read.unwrap_or(0).saturating_add(cache_creation.unwrap_or(0));
        let prompt_tokens = prompt?.saturating_add(beside);
        let cached_tokens = cache_read.or(cached).filter(|&cached| cached <= prompt_tokens);
        (prompt_tokens > 0).then_some(Usage { prompt_tokens, cached_tokens, completion_tokens: completion })
    }

    fn byte(&mut self, byte: u8) {
        if self.aside > 0 {
            return self.byte_aside(byte);
        }
        match byte {
            b'"' => self.open_text(),
            b'{' => self.open_object(),
            b'[' => self.aside = 1,
            b'}' | b']' => self.close(),
            b',' => {
                self.settle();
                self.expects_name = true;
            }
            b':' => self.expects_name = false,
            b'0'..=b'9' => self.digit(byte - b'0'),
            b' ' | b'\t' | b'\r' | b'\n' => {}
            _ => self.number = Number::Bad,
        }
    }

    fn byte_aside(&mut self, byte: u8) {
        match byte {
            b'"' => self.text = Text::Passed,
            b'{' | b'[' => self.aside = self.aside.saturating_add(1),
            b'}' | b']' => self.aside -= 1,
            _ => {}
        }
    }

    fn open_text(&mut self) {
        let is_name = self.expects_name && self.deep > 0;
        self.text = if is_name { Text::Name } else { Text::Passed };
        self.spelled_bytes = 0;
    }

    /// Reads on in a string; gives what follows.
    fn string<'a>(&mut self, piece: &'a [u8]) -> &'a [u8] {
        if std::mem::take(&mut self.is_escaped) {
            return &piece[1..];
        }
        let end = memchr2(b'"', b'\\', piece).unwrap_or(piece.len());
        let (text, rest) = piece.split_at(end);
        self.spell(text);
        match rest.split_first() {
            None => rest,
            Some((b'"', rest)) => {
                self.close_text();
                rest
            }
            Some((_, rest)) => {
                self.is_escaped = true;
                // A name that is looked for has no escapes.
                self.spelled_bytes = NAME_BYTES_MAX + 1;
                rest
            }
        }
    }

    fn spell(&mut self, text: &[u8]) {
        if self.text == Text::Name {
            let from = self.spelled_bytes;
            self.spelled_bytes = from.saturating_add(text.len());
            if let Some(room) = self.spelled.get_mut(from..self.spelled_bytes) {
                room.copy_from_slice(text);
            }
        }
    }

    fn close_text(&mut self) {
        if std::mem::take(&mut self.text) == Text::Name {
            self.name = self.spelled.get(..self.spelled_bytes).map_or(Name::Other, Name::of);
        }
    }

    fn open_object(&mut self) {
        match self.place_within() {
            Some(place) if self.deep < WAY_MAX => {
                self.way[self.deep] = place;
                self.deep += 1;
                (self.expects_name, self.name) = (true, Name::Other);
                if place == Place::Usage {
                    self.figures = Figures::default();
                }
            }
            _ => self.aside = 1,
        }
    }

    /// What an object that opens here is; `None` for one that does not matter.
    fn place_within(&mut self) -> Option<Place> {
        let Some(outer) = self.deep.checked_sub(1) else {
            return (!self.is_over).then_some(Place::Document);
        };
        match (self.way[outer], self.name) {
            (Place::Document, Name::Error) => {
                self.has_error = true;
                None
            }
            (Place::Document, Name::Wrapper) => Some(Place::Wrapper),
            (Place::Document | Place::Wrapper, Name::Usage) => Some(Place::Usage),
            (Place::Usage, Name::Details) => Some(Place::Details),
            _ => None,
        }
    }

    fn close(&mut self) {
        self.settle();
        self.deep = self.deep.saturating_sub(1);
        self.is_over = self.deep == 0;
        self.expects_name = false;
    }

    fn digit(&mut self, digit: u8) {
        let more = |so_far: u32| so_far.checked_mul(10)?.checked_add(digit.into());
        self.number = match self.number {
            Number::None => Number::Whole(digit.into()),
            Number::Whole(so_far) => more(so_far).map_or(Number::Bad, Number::Whole),
            Number::Bad => Number::Bad,
        };
    }

    /// A member has ended: takes its value if it is one of the figures.
    fn settle(&mut self) {
        let (name, number) = (std::mem::take(&mut self.name), std::mem::take(&mut self.number));
        let (Number::Whole(count), Some(inner)) = (number, self.deep.checked_sub(1)) else { return };
        let figures = &mut self.figures;
        let figure = match (self.way[inner], name) {
            (Place::Usage, Name::Prompt) => &mut figures.prompt,
            (Place::Usage, Name::Completion) => &mut figures.completion,
            (Place::Usage, Name::CacheRead) => &mut figures.cache_read,
            (Place::Usage, Name::CacheCreation) => &mut figures.cache_creation,
            (Place::Details, Name::Cached) => &mut figures.cached,
            _ => return,
        };
        *figure = Some(count);
    }
}
