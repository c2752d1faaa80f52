//! Our own index, as the router uses it: bounded, with the order of use that eviction needs.

use picker::belief::{EndpointId, Index};
use picker::hash::{BlockHash, Blocks};

use crate::Library;
use crate::content::{Content, look_up};

pub struct Ours {
    index: Index,
    endpoints: u32,
}

impl Ours {
    pub fn new(content: &Content) -> Self {
        let index = Index::default();
        for (id, held) in (0..).zip(content.held()) {
            index.join(EndpointId(id), held).expect("a fleet that fits");
        }
        Self { index, endpoints: content.endpoints }
    }
}

impl Library for Ours {
    type Prompt = (EndpointId, Blocks);
    type Query = Blocks;

    fn prompt(&self, endpoint: u32, hashes: &[BlockHash]) -> Self::Prompt {
        (EndpointId(endpoint), Blocks::one(hashes.to_vec()))
    }

    fn query(&self, hashes: &[BlockHash]) -> Blocks {
        Blocks::one(hashes.to_vec())
    }

    fn store(&mut self, prompts: Vec<Self::Prompt>) {
        for (id, blocks) in &prompts {
            self.index.commit(*id, blocks, false);
        }
    }

    fn look_up(&self, query: &Blocks) -> impl Sized {
        look_up(&self.index, query, self.endpoints)
    }

    fn depths(&self, query: &Blocks) -> Vec<u32> {
        look_up(&self.index, query, self.endpoints)
    }
}
