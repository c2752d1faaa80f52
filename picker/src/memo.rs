//! Long beginnings of prompts that came before: a compare instead of a scan, an unescaping and a hash.
//!
//! Conversations repeat their tools and their earlier messages byte for byte. An entry keeps such bytes and, at
//! message boundaries, how far the blocks had come. A reader compares the bytes in full, so a hit gives what reading
//! them would give, to the last bit: fingerprints only say where to look. Kept are contents' hashes, which no root has
//! touched, so model and salt may differ and may stand behind the messages.
//!
//! Reading takes no lock. Filling is [`Memo::learn`], which the caller runs once the request is on its way; it keeps
//! only what came twice. Tenants share nothing here, and a body with a `cache_salt` is not kept. Never here: a bound
//! that the traffic can move ([`BYTES_MAX`]), prompt text in `Debug`, logs.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};

use arc_swap::{ArcSwapOption, Guard};
use parking_lot::Mutex;
use xxhash_rust::xxh3;

use crate::canonical;
use crate::decide::{Ask, Rules};
use crate::hash::Unchained;
use crate::read::{Api, Body, Broken, Member, json};
use crate::tokens::bytes::Bytes;
use crate::tokens::{Kind, Tag, Tokenizer};

/// All entries together never weigh more.
pub const BYTES_MAX: usize = 16 << 20;
/// Bytes of JSON that one entry holds at most.
pub const ENTRY_BYTES_MAX: usize = 512 << 10;
/// Beginnings shorter than this are read as fast as they are looked for.
pub const BEGINNING_BYTES_MIN: usize = 4 << 10;

/// Entries, and those among which a fingerprint's lies: a cache line of fingerprints.
const SLOTS: usize = 128;
const BUCKET: usize = 4;
/// Fingerprints of beginnings that came once.
const SEEN: usize = 4_096;
/// Bytes before each level's end, and at the very beginning, that go into fingerprints.
const SAMPLE_BYTES: usize = 128;
/// Between two marks, so that a crowd of tiny messages costs no memory.
const MARK_BYTES: usize = 1 << 10;
/// Lengths at which beginnings are looked for: each about 1.4 times the one before.
const LEVELS: [usize; 15] = {
    let mut levels = [0; 15];
    let mut place = 0;
    while place < levels.len() {
        let octave = BEGINNING_BYTES_MIN << (place / 2);
        levels[place] = if place.is_multiple_of(2) { octave } else { octave / 10 * 14 };
        place += 1;
    }
    levels
};

/// What of a body is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Section {
    /// `tools`, as a whole.
    Tools,
    /// The list of messages (`messages`, or the `input` of Responses), up to the end of any of them.
    Messages,
}

impl Section {
    const ALL: [Self; 2] = [Self::Tools, Self::Messages];

    /// The member of a body that is this section.
    pub(crate) fn member(self, api: Api) -> Option<Member> {
        match (self, api) {
            (Self::Tools, Api::Chat | Api::Messages | Api::Responses) => Some(Member::Tools),
            (Self::Messages, Api::Chat | Api::Messages) => Some(Member::Messages),
            (Self::Messages, Api::Responses) => Some(Member::Input),
            _ => None,
        }
    }

    /// Which part this member of a body is.
    pub(crate) fn of(api: Api, member: Member) -> Option<Self> {
        Self::ALL.into_iter().find(|section| section.member(api) == Some(member))
    }
}

/// Beginnings that came before, shared by all threads.
pub struct Memo {
    slots: Box<[Slot]>,
    seen: Box<[AtomicU64]>,
    /// Where the search for something to drop goes on. Held while an entry is stored.
    hand: Mutex<usize>,
    bytes: AtomicUsize,
    hits: AtomicU64,
    misses: AtomicU64,
}

#[derive(Default)]
struct Slot {
    fingerprint: AtomicU64,
    entry: ArcSwapOption<Entry>,
}

impl Slot {
    /// Whether its entry was read since this was last asked.
    fn was_used(&self) -> bool {
        self.entry.load().as_ref().is_some_and(|entry| entry.used.swap(false, Relaxed))
    }
}

/// A beginning, and how to go on behind it.
struct Entry {
    section: Section,
    fingerprint: u64,
    /// Cut into blocks of so many bytes.
    block_bytes: usize,
    start: State,
    raw: Box<[u8]>,
    /// Contents' hashes of the blocks that end in `raw`.
    contents: Box<[u64]>,
    /// Ends of messages, the first one first; of tools only their own end.
    marks: Box<[Mark]>,
    /// Read since the hand last came by.
    used: AtomicBool,
}

/// What a tokenizer needs to go on: the bytes of the block that is not full, and what media may still weigh.
#[derive(PartialEq, Eq)]
struct State {
    partial: Box<[u8]>,
    media_tokens_left: u32,
}

struct Mark {
    raw_end: usize,
    blocks: usize,
    state: State,
}

/// A beginning that was found, to be used while the same body is read.
pub(crate) struct Known {
    entry: Guard<Option<Arc<Entry>>>,
    mark: usize,
}

/// Where a body's parts lie and how much of them was known: what [`Memo::learn`] goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Recall {
    spans: [Span; Section::ALL.len()],
}

/// A part of a body, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Span {
    start: usize,
    length: usize,
    known: usize,
}

impl Recall {
    /// Bytes of the body that did not have to be read.
    pub fn known_bytes(&self) -> usize {
        self.spans.iter().map(|span| span.known).sum()
    }

    pub(crate) fn begins(&mut self, section: Section, start: usize, known: usize) {
        self.spans[section as usize] = Span { start, length: 0, known };
    }

    pub(crate) fn ends(&mut self, api: Api, body: &Body<'_>) {
        for section in Section::ALL {
            let raw = section.member(api).and_then(|member| body.member(member));
            let list = raw.filter(|raw| raw.first() == Some(&b'['));
            self.spans[section as usize].length = list.map_or(0, <[u8]>::len);
        }
    }
}

impl Known {
    fn entry(&self) -> &Entry {
        self.entry.as_ref().expect("made of an entry only")
    }

    fn mark(&self) -> &Mark {
        &self.entry().marks[self.mark]
    }

    /// How much of the part is known.
    pub(crate) fn bytes(&self) -> usize {
        self.mark().raw_end
    }

    /// The blocks to go on with, and the state behind them, for a tokenizer whose own state is this.
    pub(crate) fn resume(
        &self,
        section: Section,
        block_bytes: usize,
        partial: &[u8],
        media: u32,
    ) -> Option<Resumed<'_>> {
        let (entry, mark) = (self.entry(), self.mark());
        let fits = entry.section == section && entry.block_bytes == block_bytes;
        let fits = fits && *entry.start.partial == *partial && entry.start.media_tokens_left == media;
        fits.then(|| Resumed {
            contents: &entry.contents[..mark.blocks],
            partial: &mark.state.partial,
            media_tokens_left: mark.state.media_tokens_left,
        })
    }
}

/// A tokenizer's state behind what is known.
pub(crate) struct Resumed<'a> {
    pub(crate) contents: &'a [u64],
    pub(crate) partial: &'a [u8],
    pub(crate) media_tokens_left: u32,
}

impl Default for Memo {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Slot::default()).collect(),
            seen: (0..SEEN).map(|_| AtomicU64::new(0)).collect(),
            hand: Mutex::new(0),
            bytes: AtomicUsize::new(0),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
        }
    }
}

impl std::fmt::Debug for Memo {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (bytes, hits, misses) = (self.bytes(), self.hits(), self.misses());
        out.debug_struct("Memo").field("bytes", &bytes).field("hits", &hits).field("misses", &misses).finish()
    }
}

impl Memo {
    /// What the entries weigh now; at most [`BYTES_MAX`].
    pub fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Parts of which a beginning was known, among those that [`Memo::learn`] was told of.
    pub fn hits(&self) -> u64 {
        self.hits.load(Relaxed)
    }

    /// Parts long enough of which nothing was known.
    pub fn misses(&self) -> u64 {
        self.misses.load(Relaxed)
    }

    /// The longest beginning of `text` that is known as this part's. HOT: `bench/benches/decide.rs`.
    ///
    /// `text` is the body from the part's first byte on. O(levels), and a compare.
    pub(crate) fn find(&self, section: Section, tenant: &[u8], text: &[u8]) -> Option<Known> {
        let fingerprints = Fingerprints::of(section, tenant, text);
        fingerprints.longest_first().find_map(|(_, fingerprint)| self.look(section, fingerprint, text))
    }

    fn look(&self, section: Section, fingerprint: u64, text: &[u8]) -> Option<Known> {
        let slot =
            self.bucket(fingerprint).iter().find(|slot| slot.fingerprint.load(Relaxed) == fingerprint)?;
        let guard = slot.entry.load();
        let entry = guard.as_ref().filter(|entry| entry.section == section)?;
        let common = common(&entry.raw, text);
        let mark = entry.marks.partition_point(|mark| mark.raw_end <= common).checked_sub(1)?;
        if !entry.used.load(Relaxed) {
            entry.used.store(true, Relaxed);
        }
        Some(Known { entry: guard, mark })
    }

    fn bucket(&self, fingerprint: u64) -> &[Slot] {
        let first = fingerprint as usize % (SLOTS / BUCKET) * BUCKET;
        &self.slots[first..first + BUCKET]
    }

    /// Counts what was known of a body, and keeps of it what came before and is not known yet.
    ///
    /// To be called once the request is on its way, with what its decision was made from. Mostly a few fingerprints;
    /// rarely, the body is read once more and copied. Never waits: if another thread stores, nothing is kept.
    pub fn learn(&self, ask: &Ask<'_>, rules: &Rules, recall: &Recall) {
        let mut wanted = [None; Section::ALL.len()];
        for section in Section::ALL {
            let span = recall.spans[section as usize];
            if span.length < BEGINNING_BYTES_MIN {
                continue;
            }
            let count = if span.known > 0 { &self.hits } else { &self.misses };
            count.fetch_add(1, Relaxed);
            // A beginning that misses less is not worth a copy.
            if span.known < span.length / 4 * 3 {
                let raw = ask.body.get(span.start..span.start + span.length).unwrap_or_default();
                wanted[section as usize] =
                    self.came_before(&Fingerprints::of(section, ask.tenant, raw), span.known);
            }
        }
        if wanted != [None; Section::ALL.len()] && rules.tokenizer == Kind::Bytes {
            // What cannot be read was not known either: nothing to keep.
            let _ = self.keep(ask, rules, wanted);
        }
    }

    /// The longest beginning, more than `known` bytes, that came before; all of them have come now.
    fn came_before(&self, fingerprints: &Fingerprints, known: usize) -> Option<Wanted> {
        let mut longest = None;
        for (level, fingerprint) in fingerprints.longest_first().take_while(|&(level, _)| level > known) {
            let seen = &self.seen[(fingerprint >> 32) as usize % SEEN];
            if seen.swap(fingerprint, Relaxed) == fingerprint && longest.is_none() {
                longest = Some(Wanted { level, fingerprint });
            }
        }
        longest
    }

    fn keep(
        &self,
        ask: &Ask<'_>,
        rules: &Rules,
        wanted: [Option<Wanted>; Section::ALL.len()],
    ) -> Result<(), Broken> {
        let Ok(body) = Body::read(ask.body) else { return Ok(()) };
        if body.member(Member::CacheSalt).is_some() {
            return Ok(());
        }
        let mut out = Bytes::unchained(rules.block);
        if let (Some(wanted), Some(tools)) = (wanted[Section::Tools as usize], canonical::tools(&body)) {
            out.tag(Tag::Tools);
            let mut entry = Entry::new(Section::Tools, wanted, &out);
            let from = out.blocks().len();
            json::compact(tools, |piece| out.json(piece));
            entry.mark(tools.len(), from, &out);
            self.store(entry.finish(tools, &out.blocks()[from..]));
            out = Bytes::unchained(rules.block);
        }
        let Some(wanted) = wanted[Section::Messages as usize] else { return Ok(()) };
        let Some(messages) = canonical::before_messages(ask.api, &body, &mut out)? else { return Ok(()) };
        let mut entry = Entry::new(Section::Messages, wanted, &out);
        let from = out.blocks().len();
        let mut marked = 0;
        // Broken JSON behind the mark is no reason to forget what stands before it.
        let _ = json::walk_elements(messages, |rest| {
            let length = canonical::message(rest, &mut out)?;
            let end = messages.len() - rest.len() + length;
            let enough = end >= wanted.level;
            // A number might go on behind its mark; an object has an end.
            if rest.first() == Some(&b'{') && (enough || end >= marked + MARK_BYTES) && end <= ENTRY_BYTES_MAX
            {
                marked = end;
                entry.mark(end, from, &out);
            }
            if enough { Err(Broken { wanted: "no more" }) } else { Ok(length) }
        });
        let blocks = entry.marks.last().map_or(0, |mark| mark.blocks);
        self.store(entry.finish(messages, &out.blocks()[from..from + blocks]));
        Ok(())
    }

    fn store(&self, entry: Option<Entry>) {
        let fits = |entry: &Entry| entry.raw.len() <= ENTRY_BYTES_MAX && entry.bytes() <= BYTES_MAX / 8;
        let Some(entry) = entry.filter(fits) else { return };
        let Some(mut hand) = self.hand.try_lock() else { return };
        let bucket = self.bucket(entry.fingerprint);
        let holds = |fingerprint| bucket.iter().find(|slot| slot.fingerprint.load(Relaxed) == fingerprint);
        let free = holds(entry.fingerprint).or_else(|| holds(0));
        let Some(slot) = free.or_else(|| bucket.iter().find(|slot| !slot.was_used())) else { return };
        self.put(slot, None);
        for _ in 0..2 * SLOTS {
            if self.bytes() + entry.bytes() <= BYTES_MAX {
                break;
            }
            *hand = (*hand + 1) % SLOTS;
            let next = &self.slots[*hand];
            if !next.was_used() {
                self.put(next, None);
            }
        }
        self.put(slot, Some(entry));
    }

    /// Only under the hand's lock.
    fn put(&self, slot: &Slot, entry: Option<Entry>) {
        let (fingerprint, bytes) = entry.as_ref().map_or((0, 0), |entry| (entry.fingerprint, entry.bytes()));
        let old = slot.entry.swap(entry.map(Arc::new)).map_or(0, |old| old.bytes());
        slot.fingerprint.store(fingerprint, Relaxed);
        self.bytes.store(self.bytes() + bytes - old, Relaxed);
    }
}

/// A beginning that is to be kept.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Wanted {
    level: usize,
    fingerprint: u64,
}

/// An entry in the making.
struct Draft {
    section: Section,
    fingerprint: u64,
    block_bytes: usize,
    start: State,
    marks: Vec<Mark>,
}

impl Entry {
    #[expect(clippy::new_ret_no_self, reason = "an entry begins as a draft")]
    fn new(section: Section, wanted: Wanted, out: &Bytes<Unchained>) -> Draft {
        let (fingerprint, block_bytes) = (wanted.fingerprint, out.block_bytes());
        Draft { section, fingerprint, block_bytes, start: State::of(out), marks: Vec::new() }
    }

    fn bytes(&self) -> usize {
        let marks: usize = self.marks.iter().map(|mark| size_of::<Mark>() + mark.state.partial.len()).sum();
        size_of::<Self>() + self.start.partial.len() + self.raw.len() + size_of_val(&*self.contents) + marks
    }
}

impl Draft {
    fn mark(&mut self, raw_end: usize, from: usize, out: &Bytes<Unchained>) {
        self.marks.push(Mark { raw_end, blocks: out.blocks().len() - from, state: State::of(out) });
    }

    fn finish(self, raw: &[u8], blocks: &[crate::hash::BlockHash]) -> Option<Entry> {
        let Self { section, fingerprint, block_bytes, start, marks } = self;
        let raw = raw[..marks.last()?.raw_end].into();
        let contents = blocks.iter().map(|block| block.0).collect();
        let (marks, used) = (marks.into(), AtomicBool::new(false));
        Some(Entry { section, fingerprint, block_bytes, start, raw, contents, marks, used })
    }
}

impl State {
    fn of(out: &Bytes<Unchained>) -> Self {
        Self { partial: out.partial().into(), media_tokens_left: out.media_tokens_left() }
    }
}

/// A number for each level that a text reaches. Only a hint where to look: equal ones prove nothing.
struct Fingerprints {
    numbers: [u64; LEVELS.len()],
    reached: usize,
}

impl Fingerprints {
    /// Each covers the samples of all levels before it. None is 0.
    fn of(section: Section, tenant: &[u8], text: &[u8]) -> Self {
        let mut numbers = [0; LEVELS.len()];
        let reached = LEVELS.partition_point(|&level| level <= text.len());
        if reached > 0 {
            let mut seed = xxh3::xxh3_64(tenant) ^ section as u64;
            seed = xxh3::xxh3_64_with_seed(&text[..SAMPLE_BYTES], seed);
            for (number, level) in numbers.iter_mut().zip(LEVELS).take(reached) {
                seed = xxh3::xxh3_64_with_seed(&text[level - SAMPLE_BYTES..level], seed);
                *number = seed.max(1);
            }
        }
        Self { numbers, reached }
    }

    fn longest_first(&self) -> impl Iterator<Item = (usize, u64)> {
        LEVELS.into_iter().zip(self.numbers).take(self.reached).rev()
    }
}

/// Length of the beginning that both share: by large steps, then by smaller ones.
fn common(one: &[u8], other: &[u8]) -> usize {
    [4 << 10, 64, 1].into_iter().fold(0, |equal, step| {
        let steps = one[equal..].chunks_exact(step).zip(other[equal..].chunks_exact(step));
        equal + steps.take_while(|(one, other)| one == other).count() * step
    })
}
