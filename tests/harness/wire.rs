//! HTTP/1.1 as bytes: heads and bodies read off a socket, with nothing tidied away.
//!
//! Both sides use it: the stub to read requests, the client to read responses. It keeps names in their case,
//! headers in their order and, when asked, every raw byte, because those are what the tests compare.

use bytes::{Bytes, BytesMut};
use std::io::{Error, ErrorKind, Result};
use tokio::io::{AsyncRead, AsyncReadExt};

/// The first line and the header lines of a message.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// Request line or status line, without its line end.
    pub first_line: String,
    /// Names in their case and values without surrounding blanks, in the order of the wire.
    pub headers: Vec<(String, String)>,
}

impl Head {
    /// Reads the bytes of a head, blank line included or not. Bytes beyond ASCII become U+FFFD.
    pub fn parse(raw: &[u8]) -> Self {
        let text = String::from_utf8_lossy(raw);
        let mut lines = text.split("\r\n");
        let first_line = lines.next().unwrap_or_default().to_owned();
        let headers = lines
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect();
        Self { first_line, headers }
    }

    /// The first value of `name`, in any case.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.all(name).first().copied()
    }

    /// All values of `name`, in any case, in order.
    pub fn all(&self, name: &str) -> Vec<&str> {
        let named = self.headers.iter().filter(|(found, _)| found.eq_ignore_ascii_case(name));
        named.map(|(_, value)| value.as_str()).collect()
    }

    /// The status of a response; 0 when this is no response.
    pub fn status(&self) -> u16 {
        self.first_line.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap_or(0)
    }

    /// Method of a request.
    pub fn method(&self) -> &str {
        self.first_line.split(' ').next().unwrap_or_default()
    }

    /// Target of a request, query included.
    pub fn target(&self) -> &str {
        self.first_line.split(' ').nth(1).unwrap_or_default()
    }

    /// Framing of a request's body.
    pub fn request_framing(&self) -> Framing {
        self.declared_framing().unwrap_or(Framing::Length(0))
    }

    /// Framing of the body of a response to a `method` request.
    pub fn response_framing(&self, method: &str) -> Framing {
        let bodiless = method == "HEAD" || matches!(self.status(), 100..=199 | 204 | 304);
        match bodiless {
            true => Framing::Length(0),
            false => self.declared_framing().unwrap_or(Framing::UntilClose),
        }
    }

    fn declared_framing(&self) -> Option<Framing> {
        if self.header("transfer-encoding").is_some_and(|coding| coding.eq_ignore_ascii_case("chunked")) {
            return Some(Framing::Chunked);
        }
        self.header("content-length")?.parse().ok().map(Framing::Length)
    }
}

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// So many bytes are still to come.
    Length(u64),
    /// A chunk head is next.
    Chunked,
    /// So many bytes of the current chunk are still to come, then its line end.
    InChunk(u64),
    /// Everything up to the close.
    UntilClose,
    /// Nothing more.
    Done,
}

/// A socket's reading half with what has been read ahead.
#[derive(Debug)]
pub struct Reader<S> {
    stream: S,
    ahead: BytesMut,
    raw: Option<BytesMut>,
}

impl<S: AsyncRead + Unpin> Reader<S> {
    /// Reads from `stream`.
    pub fn new(stream: S) -> Self {
        Self { stream, ahead: BytesMut::new(), raw: None }
    }

    /// Keeps every byte that is consumed from now on, for `take_raw`.
    pub fn record(&mut self) {
        self.raw = Some(BytesMut::new());
    }

    /// The bytes consumed since the last call; empty unless recording.
    pub fn take_raw(&mut self) -> Bytes {
        self.raw.as_mut().map(|raw| raw.split().freeze()).unwrap_or_default()
    }

    /// The stream, for what only a whole socket can do. Bytes read ahead are lost.
    pub fn into_inner(self) -> S {
        self.stream
    }

    /// Bytes that came and nobody has asked for yet.
    pub fn ahead(&self) -> &[u8] {
        &self.ahead
    }

    /// Resolves when the peer has closed or reset; bytes that come before are kept for the next message.
    pub async fn peer_gone(&mut self) {
        while let Ok(true) = self.fill().await {}
    }

    /// The next head, or none at a clean end before its first byte.
    pub async fn head(&mut self) -> Result<Option<Head>> {
        loop {
            if let Some(end) = find(&self.ahead, b"\r\n\r\n") {
                return Ok(Some(Head::parse(&self.take(end + 4))));
            }
            if !self.fill().await? {
                return if self.ahead.is_empty() { Ok(None) } else { Err(cut()) };
            }
        }
    }

    /// The next decoded bytes of a body, as soon as any are there; none at its proper end.
    pub async fn piece(&mut self, framing: &mut Framing) -> Result<Option<Bytes>> {
        loop {
            match *framing {
                Framing::Done | Framing::Length(0) => return Ok(None),
                Framing::Length(left) => {
                    let piece = self.some(left).await?.ok_or_else(cut)?;
                    *framing = Framing::Length(left - piece.len() as u64);
                    return Ok(Some(piece));
                }
                Framing::UntilClose => return self.some(u64::MAX).await,
                Framing::Chunked => *framing = self.chunk_head().await?,
                Framing::InChunk(0) => {
                    self.line().await?;
                    *framing = Framing::Chunked;
                }
                Framing::InChunk(left) => {
                    let piece = self.some(left).await?.ok_or_else(cut)?;
                    *framing = Framing::InChunk(left - piece.len() as u64);
                    return Ok(Some(piece));
                }
            }
        }
    }

    /// The whole body, with the fault that ended it early if one did.
    pub async fn body(&mut self, mut framing: Framing) -> (Bytes, Option<Error>) {
        let mut body = BytesMut::new();
        loop {
            match self.piece(&mut framing).await {
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => return (body.freeze(), None),
                Err(fault) => return (body.freeze(), Some(fault)),
            }
        }
    }

    /// Reads a chunk's head; at the last one also the trailers and the blank line.
    async fn chunk_head(&mut self) -> Result<Framing> {
        let line = self.line().await?;
        let digits = line.split(|&byte| byte == b';').next().unwrap_or_default();
        let size =
            std::str::from_utf8(digits).ok().and_then(|text| u64::from_str_radix(text.trim(), 16).ok());
        match size.ok_or_else(|| Error::new(ErrorKind::InvalidData, format!("chunk head {line:?}")))? {
            0 => {
                while !self.line().await?.is_empty() {}
                Ok(Framing::Done)
            }
            size => Ok(Framing::InChunk(size)),
        }
    }

    /// A line without its line end.
    async fn line(&mut self) -> Result<Bytes> {
        loop {
            if let Some(end) = find(&self.ahead, b"\r\n") {
                let line = self.take(end + 2);
                return Ok(line.slice(..end));
            }
            if !self.fill().await? {
                return Err(cut());
            }
        }
    }

    /// Between 1 and `most` bytes, or none at the end of the stream.
    async fn some(&mut self, most: u64) -> Result<Option<Bytes>> {
        if self.ahead.is_empty() && !self.fill().await? {
            return Ok(None);
        }
        let length = self.ahead.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(Some(self.take(length)))
    }

    /// Reads once from the socket; false at its end.
    async fn fill(&mut self) -> Result<bool> {
        self.ahead.reserve(64 * 1024);
        Ok(self.stream.read_buf(&mut self.ahead).await? > 0)
    }

    fn take(&mut self, length: usize) -> Bytes {
        let taken = self.ahead.split_to(length).freeze();
        if let Some(raw) = &mut self.raw {
            raw.extend_from_slice(&taken);
        }
        taken
    }
}

fn cut() -> Error {
    Error::new(ErrorKind::UnexpectedEof, "the stream ended inside a message")
}

/// Where `needle` begins in `hay`.
pub fn find(hay: &[u8], needle: &[u8]) -> Option<usize> {
    hay.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(bytes: &[u8]) -> (Bytes, Option<Error>) {
        Reader::new(bytes).body(Framing::Chunked).await
    }

    #[tokio::test]
    async fn chunks_are_joined_and_trailers_read() {
        let (body, fault) = read(b"3\r\nabc\r\n2;note=1\r\nde\r\n0\r\nx-sum: 1\r\n\r\n").await;
        assert_eq!(body, "abcde");
        assert!(fault.is_none());
    }

    #[tokio::test]
    async fn a_missing_last_chunk_is_a_fault() {
        for cut in ["3\r\nabc\r\n", "3\r\nab", "3\r\nabc\r\n0\r\n", "3"] {
            assert!(read(cut.as_bytes()).await.1.is_some(), "{cut:?}");
        }
    }

    #[tokio::test]
    async fn a_short_length_is_a_fault() {
        let (body, fault) = Reader::new(b"abc".as_slice()).body(Framing::Length(4)).await;
        assert_eq!(body, "abc");
        assert!(fault.is_some());
    }

    #[tokio::test]
    async fn recording_keeps_the_framing() {
        let wire = b"3\r\nabc\r\n0\r\n\r\n".as_slice();
        let mut reader = Reader::new(wire);
        reader.record();
        reader.body(Framing::Chunked).await;
        assert_eq!(reader.take_raw(), wire);
    }
}
