//! smg's ChainIndex, its look-up scored into a slice: the form its own gateway prefers, and no map to allocate.

use kv_index::{ChainBlockMap, ContentHash, SequenceHash, StoredBlock};
use picker::hash::BlockHash;

use crate::content::Content;
use crate::{Library, content_hash};

pub struct ChainIndex {
    index: kv_index::ChainIndex,
    /// The index's id of each endpoint, and the endpoint's own map.
    workers: Vec<(u32, ChainBlockMap)>,
}

impl ChainIndex {
    pub fn new(content: &Content) -> Self {
        let index = kv_index::ChainIndex::new();
        let worker =
            |endpoint: u32| index.intern_worker(&endpoint.to_string()).expect("1,024 workers at most");
        let workers =
            (0..content.endpoints).map(|endpoint| (worker(endpoint), ChainBlockMap::new())).collect();
        Self { index, workers }
    }

    /// Depths by the index's ids, which need not be ours.
    fn scores(&self, query: &[ContentHash]) -> Vec<u32> {
        let mut depths = vec![0; self.workers.len()];
        self.index.score_into(
            query,
            |hash| hash.0,
            false,
            |worker, depth| {
                if let Some(place) = depths.get_mut(worker as usize) {
                    *place = depth;
                }
            },
        );
        depths
    }
}

impl Library for ChainIndex {
    type Prompt = (u32, Vec<StoredBlock>);
    type Query = Vec<ContentHash>;

    fn prompt(&self, endpoint: u32, hashes: &[BlockHash]) -> Self::Prompt {
        let block = |&hash: &BlockHash| StoredBlock {
            seq_hash: SequenceHash(hash.0),
            content_hash: ContentHash(content_hash(hash)),
        };
        (endpoint, hashes.iter().map(block).collect())
    }

    fn query(&self, hashes: &[BlockHash]) -> Self::Query {
        hashes.iter().map(|&hash| ContentHash(content_hash(hash))).collect()
    }

    fn store(&mut self, prompts: Vec<Self::Prompt>) {
        for (endpoint, blocks) in &prompts {
            let (worker, map) = &mut self.workers[*endpoint as usize];
            self.index
                .apply_stored(*worker, blocks, None, map)
                .expect("a prompt from its start has no parent");
        }
    }

    fn look_up(&self, query: &Self::Query) -> impl Sized {
        self.scores(query)
    }

    fn depths(&self, query: &Self::Query) -> Vec<u32> {
        let depths = self.scores(query);
        self.workers.iter().map(|(worker, _)| depths[*worker as usize]).collect()
    }
}
