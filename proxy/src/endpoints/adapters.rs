//! The LoRA adapters of an engine: which run, which wait, how many fit.
//!
//! For the `lora` scorer. A page repeats them every 100 ms, so they are taken apart only when they have changed.

use std::sync::Arc;

use super::prometheus::Lora;

/// Adapters that are kept of one list, and bytes of a name.
const ADAPTERS_MAX: usize = 64;
const NAME_BYTES_MAX: usize = 256;

/// What an engine last said of its adapters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Adapters {
    /// Adapters that fit into a batch; `None` if it does not say.
    pub(crate) max: Option<u32>,
    /// In a batch.
    pub(crate) running: Vec<Box<str>>,
    /// In the queue.
    pub(crate) waiting: Vec<Box<str>>,
    /// The same, as the `lora` scorer compares them.
    pub(crate) scored: Arc<picker::score::Adapters>,
}

impl Adapters {
    /// What is known after a page: the very same where it says nothing new.
    pub(super) fn after(before: Option<Arc<Self>>, told: Option<Lora<'_>>) -> Option<Arc<Self>> {
        let Some(told) = told else { return before };
        if before.as_ref().is_some_and(|before| before.are(&told)) {
            return before;
        }
        let [running, waiting] =
            [told.running, told.waiting].map(|list| names(list).map(Box::from).collect());
        let places = told.max.unwrap_or(0) as usize;
        let scored = picker::score::Adapters::new(names(told.running), names(told.waiting), places);
        Some(Arc::new(Self { max: told.max, running, waiting, scored: Arc::new(scored) }))
    }

    fn are(&self, told: &Lora<'_>) -> bool {
        let same = |known: &[Box<str>], told| known.iter().map(|name| &**name).eq(names(told));
        self.max == told.max && same(&self.running, told.running) && same(&self.waiting, told.waiting)
    }
}

fn names(list: &[u8]) -> impl Iterator<Item = &str> {
    let names =
        list.split(|byte| *byte == b',').filter_map(|name| std::str::from_utf8(name.trim_ascii()).ok());
    names.filter(|name| (1..=NAME_BYTES_MAX).contains(&name.len())).take(ADAPTERS_MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn told<'a>(running: &'a str, waiting: &'a str) -> Option<Lora<'a>> {
        Some(Lora { max: Some(2), running: running.as_bytes(), waiting: waiting.as_bytes() })
    }

    #[test]
    fn lists_are_taken_apart_once_and_bounded() {
        let first = Adapters::after(None, told("org/a:1, b", "")).unwrap();
        assert_eq!((&*first.running[0], &*first.running[1], first.running.len()), ("org/a:1", "b", 2));
        assert_eq!((first.max, first.waiting.len()), (Some(2), 0));
        let again = Adapters::after(Some(first.clone()), told("org/a:1,b", "")).unwrap();
        assert!(Arc::ptr_eq(&first, &again), "nothing new");
        let silent = Adapters::after(Some(first.clone()), None).unwrap();
        assert!(Arc::ptr_eq(&first, &silent), "a page without a word on it");
        let changed = Adapters::after(Some(first), told("b", "c")).unwrap();
        assert_eq!((&*changed.running[0], &*changed.waiting[0]), ("b", "c"));
        let many = "x,".repeat(1_000) + &"y".repeat(1_000);
        assert_eq!(Adapters::after(None, told(&many, "")).unwrap().running.len(), ADAPTERS_MAX);
    }
}
