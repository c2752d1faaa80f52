//! Requests of several prompts that share blocks, beside a naive twin: a request is one commit, undone as a whole.
#![allow(clippy::unwrap_used, clippy::panic)]

mod support;

use picker::belief::{EndpointId, Index};
use picker::hash::{BlockHash, Blocks};
use proptest::collection::vec;
use proptest::prelude::*;
use support::index;

const A: EndpointId = EndpointId(0);
const CAPACITY: usize = 12;

/// A request of several prompts, each named by its path, as the canonical form makes it.
fn request(paths: &[Vec<u8>]) -> Blocks {
    let text = |path: &Vec<u8>| -> String { path.iter().map(|step| format!("{step}").repeat(256)).collect() };
    support::completion(&serde_json::to_string(&paths.iter().map(text).collect::<Vec<_>>()).unwrap())
}

/// The rules for the eye: newest last, who added, who used last.
#[derive(Default)]
struct Twin(Vec<(BlockHash, usize, usize)>);

impl Twin {
    fn commit(&mut self, blocks: &Blocks, now: usize) {
        for prompt in blocks.prompts() {
            for &hash in prompt.iter().take(CAPACITY).rev() {
                let known = self.0.iter().position(|block| block.0 == hash);
                let added = known.map_or(now, |place| self.0.remove(place).1);
                self.0.push((hash, added, now));
            }
            self.0.drain(..self.0.len().saturating_sub(CAPACITY));
        }
    }

    fn undo(&mut self, now: usize) {
        self.0.retain(|&(_, added, used)| (added, used) != (now, now));
    }

    fn matched(&self, blocks: &Blocks) -> u32 {
        let held = |hash: &&BlockHash| self.0.iter().any(|block| block.0 == **hash);
        blocks.prompts().map(|prompt| prompt.iter().take_while(held).count() as u32).sum()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// All prompts of a request are one commit, whatever they share and however little room there is.
    #[test]
    fn prompts_of_one_request_are_committed_and_undone_together(
        requests in vec((vec(vec(0u8..3, 0..8), 1..4), any::<bool>()), 1..25),
    ) {
        let (index, mut twin): (Index, _) = (index(&[CAPACITY]), Twin::default());
        for (now, (paths, fails)) in requests.iter().enumerate() {
            let blocks = request(paths);
            let commit = index.commit(A, &blocks, false);
            twin.commit(&blocks, now);
            if *fails {
                index.undo(commit, &blocks);
                twin.undo(now);
            }
            prop_assert_eq!(index.size(A).unwrap().blocks, twin.0.len());
            for (paths, _) in &requests {
                let blocks = request(paths);
                prop_assert_eq!(index.matched(A, &blocks), twin.matched(&blocks));
            }
        }
    }
}
