//! An answer as server-sent events, word by word.
//!
//! The head is sent at once, before there is a lane, as vLLM does. When the client goes away, hyper drops the
//! body and with it the seat: that is the abort.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use bytes::Bytes;
use futures_util::stream;

use super::fault::Fault;
use super::seat::{Engine, Seat};
use super::wording::Answer;

/// A body that waits for the seat's first token, then says the words and ends.
pub(crate) fn body(engine: Arc<Engine>, seat: Seat, answer: Answer) -> Body {
    let talk = Talk { engine, seat: Some(seat), answer, said: 0, ready: VecDeque::new() };
    Body::from_stream(stream::try_unfold(talk, |mut talk| async move {
        let chunk = talk.next().await?;
        Ok::<_, Fault>(chunk.map(|chunk| (chunk, talk)))
    }))
}

struct Talk {
    engine: Arc<Engine>,
    /// None once the answer is complete.
    seat: Option<Seat>,
    answer: Answer,
    /// Words of all choices that were said.
    said: usize,
    /// Chunks that are due.
    ready: VecDeque<String>,
}

impl Talk {
    /// The next chunk, none at the end. Errors, which break the stream visibly: the server is being stopped.
    async fn next(&mut self) -> Result<Option<Bytes>, Fault> {
        if self.ready.is_empty() {
            self.compute().await?;
        }
        Ok(self.ready.pop_front().map(Bytes::from))
    }

    /// Computes one word, and what goes before the first and after the last.
    async fn compute(&mut self) -> Result<(), Fault> {
        let Some(seat) = self.seat.as_mut() else { return Ok(()) };
        if self.said == 0 {
            seat.first_token().await?;
            self.ready.push_back(self.answer.opening());
        } else if self.said.is_multiple_of(self.answer.choices) {
            self.engine.compute(self.engine.options.inter_token).await?;
        }
        let (number, choice) = (self.said / self.answer.choices, self.said % self.answer.choices);
        self.ready.push_back(self.answer.word(choice, number));
        self.said += 1;
        if self.said == self.answer.generated() {
            self.ready.push_back(self.answer.closing());
            if let Some(seat) = self.seat.take() {
                seat.finish(self.said);
            }
        }
        self.ready.retain(|chunk| !chunk.is_empty());
        Ok(())
    }
}

/// How long the words after the first take in an answer that is sent whole.
pub(crate) fn rest_of_answer(answer: &Answer, inter_token: Duration) -> Duration {
    let words = u32::try_from(answer.words.saturating_sub(1)).unwrap_or(u32::MAX);
    inter_token.saturating_mul(words)
}
