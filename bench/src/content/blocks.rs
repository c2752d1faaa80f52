//! What benches fill an index with and ask of it: the same prompts for ours, for the peers' and for the gate on instructions.
//!
//! A block's chained hash is made up, not computed: it only has to be unique, spread and the same in each run.

use picker::belief::{EndpointId, Index};
use picker::chance::mix;
use picker::hash::{BlockHash, Blocks};

/// Blocks of a query that no endpoint holds: the new question after a known prefix.
pub const UNKNOWN_BLOCKS: usize = 10;

/// Prompts of one length, each known to a few endpoints of a fleet: half of its holders have it whole, the others
/// its first three quarters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Content {
    /// Stands in tables and in names of benches.
    pub name: &'static str,
    /// Different prompts.
    pub prompts: u32,
    /// Blocks of each.
    pub blocks: usize,
    /// Endpoints of the fleet.
    pub endpoints: u32,
    /// Endpoints that hold a prompt. At most all.
    pub holders: u32,
}

impl Content {
    /// Prompts of 3,000 tokens in blocks of 16.
    pub const A: Self = Self { name: "A", prompts: 64, blocks: 188, endpoints: 8, holders: 8 };
    /// Prompts of 32,000 tokens, a larger fleet.
    pub const B: Self = Self { name: "B", prompts: 256, blocks: 2_000, endpoints: 64, holders: 8 };
    /// Prompts of 100,000 tokens, each at two endpoints.
    pub const C: Self = Self { name: "C", prompts: 64, blocks: 6_250, endpoints: 8, holders: 2 };
    /// All three, short to long.
    pub const ALL: [Self; 3] = [Self::A, Self::B, Self::C];

    /// The same prompts and as many holders of each in a fleet of another size.
    pub fn on(self, endpoints: u32) -> Self {
        Self { endpoints, ..self }
    }

    /// Blocks of a query: a prompt's and the unknown ones.
    pub fn query_blocks(&self) -> usize {
        self.blocks + UNKNOWN_BLOCKS
    }

    /// The prompt with this number, from 0.
    pub fn prompt(&self, number: u32) -> Vec<BlockHash> {
        blocks(Kind::Known, u64::from(number), self.blocks)
    }

    /// The prompt with this number and a question that nobody knows.
    pub fn query(&self, number: u32) -> Blocks {
        self.continued(number, u64::from(number))
    }

    /// The prompt with this number and a tail of [`UNKNOWN_BLOCKS`]. Tails of different numbers share nothing.
    pub fn continued(&self, number: u32, tail: u64) -> Blocks {
        let mut hashes = self.prompt(number);
        hashes.extend(blocks(Kind::Tail, tail, UNKNOWN_BLOCKS));
        Blocks::one(hashes)
    }

    /// A prompt as long as a query of which nobody holds a block. Different numbers share nothing.
    pub fn unheld(&self, number: u64) -> Blocks {
        Blocks::one(blocks(Kind::Unheld, number, self.query_blocks()))
    }

    /// Who holds the prompt with this number, and how many of its blocks.
    pub fn holders(&self, number: u32) -> impl Iterator<Item = (EndpointId, usize)> {
        let Self { endpoints, holders, blocks, .. } = *self;
        let first = number * holders;
        (0..holders.min(endpoints)).map(move |place| {
            let held = if place % 2 == 0 { blocks } else { blocks / 4 * 3 };
            (EndpointId((first + place) % endpoints), held)
        })
    }

    /// Numbers of the prompts that an endpoint holds whole.
    pub fn whole_at(&self, id: EndpointId) -> Vec<u32> {
        let whole = |number: &u32| self.holders(*number).any(|held| held == (id, self.blocks));
        (0..self.prompts).filter(whole).collect()
    }

    /// Blocks that each endpoint has to hold, by id.
    pub fn held(&self) -> Vec<usize> {
        let mut held = vec![0; self.endpoints as usize];
        for (id, blocks) in (0..self.prompts).flat_map(|number| self.holders(number)) {
            held[id.0 as usize] += blocks;
        }
        held
    }

    /// An index in which each endpoint holds its share and has room for `spare` blocks more.
    pub fn index(&self, spare: usize) -> Index {
        let index = Index::default();
        for (id, held) in (0..).map(EndpointId).zip(self.held()) {
            index.join(id, held + spare).expect("a fleet that fits");
        }
        for number in 0..self.prompts {
            let prompt = self.prompt(number);
            for (id, held) in self.holders(number) {
                index.commit(id, &Blocks::one(prompt[..held].to_vec()), false);
            }
        }
        index
    }
}

/// Blocks that each of a fleet's endpoints, numbered from 0, holds of a query.
pub fn look_up(index: &Index, query: &Blocks, endpoints: u32) -> Vec<u32> {
    index.look_up(query, (0..endpoints).map(EndpointId))
}

/// A prompt of `count` blocks that nobody else makes. Different numbers share nothing.
pub fn unique(number: u64, count: usize) -> Blocks {
    Blocks::one(blocks(Kind::Unique, number, count))
}

#[derive(Clone, Copy)]
enum Kind {
    Known = 1,
    Tail,
    Unheld,
    Unique,
}

fn blocks(kind: Kind, number: u64, count: usize) -> Vec<BlockHash> {
    let seed = mix((kind as u64) << 56 ^ number);
    (0..count as u64).map(|place| BlockHash(mix(seed ^ place))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// What the peers' figures are compared on: the answers to every query are known beforehand.
    #[test]
    fn a_query_matches_what_its_holders_were_given() {
        for content in [Content::A, Content::A.on(64), Content { prompts: 5, ..Content::B }] {
            let index = content.index(0);
            for number in 0..content.prompts {
                let mut expected = vec![0; content.endpoints as usize];
                content.holders(number).for_each(|(id, held)| expected[id.0 as usize] = held as u32);
                assert_eq!(look_up(&index, &content.query(number), content.endpoints), expected);
                assert!(content.holders(number).filter(|(_, held)| *held == content.blocks).count() >= 1);
            }
            let nobody = vec![0; content.endpoints as usize];
            assert_eq!(look_up(&index, &content.unheld(3), content.endpoints), nobody);
        }
    }

    #[test]
    fn no_two_blocks_share_a_hash() {
        let content = Content::A;
        let mut seen = BTreeSet::new();
        let prompts = (0..content.prompts).map(|number| content.prompt(number));
        let others = (0..9).flat_map(|number| [content.unheld(number), unique(number, 32)]);
        let others = others.flat_map(|one| one.prompts().map(<[_]>::to_vec).collect::<Vec<_>>());
        let all: Vec<_> = prompts.chain(others).flatten().collect();
        assert!(all.into_iter().all(|hash| seen.insert(hash)));
    }
}
