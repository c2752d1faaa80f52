//! Dynamo's concurrent compressed radix tree behind its thread pool: stores go to an event thread, look-ups run where they are
//! called.

use dynamo_kv_router::ConcurrentRadixTreeCompressed;
use dynamo_kv_router::indexer::{SyncIndexer, ThreadPoolIndexer};
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheStoreData, KvCacheStoredBlockData,
    LocalBlockHash, RouterEvent, WorkerWithDpRank,
};
use picker::hash::BlockHash;
use tokio::runtime::{Builder, Runtime};

use crate::content::Content;
use crate::{Library, content_hash};

/// Tokens of a block, as in the content. Only logged by the library.
const BLOCK_TOKENS: u32 = 16;

pub struct RadixTree {
    indexer: ThreadPoolIndexer<ConcurrentRadixTreeCompressed>,
    runtime: Runtime,
    endpoints: u32,
}

impl RadixTree {
    pub fn new(content: &Content) -> Self {
        let indexer = ThreadPoolIndexer::new(ConcurrentRadixTreeCompressed::new(), 1, BLOCK_TOKENS);
        let runtime = Builder::new_current_thread().build().expect("a runtime without drivers");
        Self { indexer, runtime, endpoints: content.endpoints }
    }
}

impl Library for RadixTree {
    type Prompt = RouterEvent;
    type Query = Vec<LocalBlockHash>;

    fn prompt(&self, endpoint: u32, hashes: &[BlockHash]) -> RouterEvent {
        let block = |&hash: &BlockHash| KvCacheStoredBlockData {
            block_hash: ExternalSequenceBlockHash(hash.0),
            tokens_hash: LocalBlockHash(content_hash(hash)),
            mm_extra_info: None,
        };
        let blocks = hashes.iter().map(block).collect();
        let data =
            KvCacheEventData::Stored(KvCacheStoreData { parent_hash: None, start_position: None, blocks });
        RouterEvent::new(u64::from(endpoint), KvCacheEvent { event_id: 0, data, dp_rank: 0 })
    }

    fn query(&self, hashes: &[BlockHash]) -> Self::Query {
        hashes.iter().map(|&hash| LocalBlockHash(content_hash(hash))).collect()
    }

    fn store(&mut self, prompts: Vec<RouterEvent>) {
        for event in prompts {
            self.indexer.enqueue_event(event).expect("the event thread lives");
        }
        self.runtime.block_on(self.indexer.flush_and_wait()).expect("the event thread lives");
    }

    fn look_up(&self, query: &Self::Query) -> impl Sized {
        self.indexer.backend().find_matches(query, false)
    }

    fn depths(&self, query: &Self::Query) -> Vec<u32> {
        let scores = self.indexer.backend().find_matches(query, false).scores;
        let depth = |id| scores.get(&WorkerWithDpRank { worker_id: u64::from(id), dp_rank: 0 }).copied();
        (0..self.endpoints).map(|id| depth(id).unwrap_or(0)).collect()
    }
}
