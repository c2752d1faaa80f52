//! The decision: from a body's bytes to the endpoints in order, with the reasons.
//!
//! The HTTP front, `explain`, the simulator and a later ext_proc front all call [`decide`], so they cannot drift apart.
//! It changes nothing: the belief changes when the caller commits, once the engine has accepted the request.

use xxhash_rust::xxh3::xxh3_64;

use crate::belief::{Commit, EndpointId, Index};
use crate::canonical;
use crate::chance::Draw;
use crate::columns::{Column, Table};
use crate::hash::{BlockHash, BlockSize, Blocks};
use crate::identity;
use crate::ledger::Micros;
use crate::memo::{Known, Memo, Recall, Section};
use crate::policy::{Policy, Ranking, Ties};
use crate::read::{Api, Beginning, Body, Broken, Unreadable};
use crate::score::prefix::MatchLength;
use crate::score::{Candidate, View, Weights};
use crate::sessions::Sessions;
use crate::tokens::bytes::{Bytes, Knowns};
use crate::tokens::words::Words;
use crate::tokens::{Kind, Tokenizer};
use crate::traffic::{Fork, Lesson, Went};
use crate::tuning::Tuning;

/// Bytes of a model's name that are kept; a longer one stands as no name.
pub const MODEL_BYTES_MAX: usize = 256;

/// Members of a body that the memo is asked for: more are duplicates, each of which would cost a search.
const SEARCHES_MAX: usize = 4;

/// Blocks by whose last a request without a session is told apart: enough for a system prompt, too few for a question.
const KEY_BLOCKS: usize = 4;

/// A request, as far as the decision sees it.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// Which prompt the body holds.
    pub api: Api,
    /// The body, as the client sent it.
    pub body: &'a [u8],
    /// A salt of the tenant, from the edge; empty for nobody.
    pub tenant: &'a [u8],
    /// What the client says its session is; empty for nothing.
    pub session: &'a [u8],
}

/// How a pool decides.
#[derive(Clone, Copy, Debug, Default)]
pub struct Rules {
    /// Preset or baseline.
    pub policy: Policy,
    /// In place of the preset of a policy that sums; the others have no weights.
    pub weights: Option<Weights>,
    /// How much a long match counts beyond its share.
    pub match_length: MatchLength,
    /// Constants of the formulas.
    pub tuning: Tuning,
    /// What cuts a prompt.
    pub tokenizer: Kind,
    /// Into blocks of what size.
    pub block: BlockSize,
}

/// What the body gave for routing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reading {
    /// A prompt.
    Prompt,
    /// The API has none, or the body has none where it should be.
    NoPrompt,
    /// A body that routing cannot read: by load alone, and counted.
    Unreadable(Unreadable),
}

/// A request that the router itself refuses, with 400.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Router and engine could take different ones for the tenant's.
    #[error("cache_salt stands in the body more than once")]
    DuplicateSalt,
}

/// One endpoint in a decision.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Choice {
    /// Place in the slice of candidates.
    pub candidate: usize,
    /// Which endpoint.
    pub id: EndpointId,
    /// Leading blocks that it holds.
    pub matched: u32,
    /// What ranks: the sum of weights times figures. For the baselines: minus the requests in flight, or 0.
    pub total: f64,
    /// Goes before all others, whatever the sums say.
    pub preferred: bool,
    /// Breaks exact ties, higher first.
    tie: u64,
    tried: bool,
}

impl Choice {
    /// By rank: the greater goes first.
    pub fn rank(&self, other: &Self) -> std::cmp::Ordering {
        let preferred = self.preferred.cmp(&other.preferred);
        preferred.then(self.total.total_cmp(&other.total)).then(self.tie.cmp(&other.tie))
    }
}

/// Where a request goes, and why.
#[derive(Clone, Debug)]
pub struct Decision {
    /// The request's prompts, blocked and chained.
    pub blocks: Blocks,
    /// What the body gave.
    pub reading: Reading,
    /// The model asked for, if the body named one of a sane length.
    pub model: Option<String>,
    /// Whether the client asked for a stream.
    pub stream: bool,
    /// No candidate holds any block, and there are blocks.
    pub cold: bool,
    /// Every candidate, in the order of the slice.
    pub choices: Vec<Choice>,
    /// What the totals are made of, by place in the slice.
    table: Table,
    /// Names the client's session; 0 for none.
    session: u64,
    /// What the request teaches about the traffic.
    lesson: Lesson,
    /// What of the body was known before it came, for [`Memo::learn`].
    pub recall: Recall,
    /// Whether the engine keeps the prompt once it has answered.
    fills_cache: bool,
}

/// Decides where a request goes among `candidates`.
///
/// HOT: `bench/benches/decide.rs`. O(body + candidates); three allocations that grow with neither. Same arguments, same
/// index, same answer. Errors: a request that the router must refuse; what cannot be read is no error.
pub fn decide(
    ask: &Ask<'_>,
    candidates: &[Candidate],
    index: &Index,
    rules: &Rules,
    draw: Draw,
) -> Result<Decision, Refusal> {
    decide_recalling(ask, None, candidates, index, rules, draw)
}

/// The same decision, sooner where `memo` knows how the prompt begins. It changes nothing; the caller may have it
/// learn from [`Decision::recall`].
pub fn decide_recalling(
    ask: &Ask<'_>,
    memo: Option<&Memo>,
    candidates: &[Candidate],
    index: &Index,
    rules: &Rules,
    draw: Draw,
) -> Result<Decision, Refusal> {
    Ok(choose(Asked::read(ask, memo, rules)?, candidates, index, rules, draw))
}

/// The decision on a request that was read, or on blocks that came without a text.
pub fn choose(asked: Asked, candidates: &[Candidate], index: &Index, rules: &Rules, draw: Draw) -> Decision {
    let matched = index.look_up(&asked.blocks, candidates.iter().map(|to| to.id));
    choose_matched(asked, &matched, candidates, index, rules, draw)
}

/// The decision when it is known what each candidate holds: so many leading blocks of the request.
pub fn choose_matched(
    asked: Asked,
    matched: &[u32],
    candidates: &[Candidate],
    index: &Index,
    rules: &Rules,
    draw: Draw,
) -> Decision {
    let fork = Fork::of(&asked.blocks, matched.iter().copied().max().unwrap_or(0));
    let total = asked.blocks.total() as u32;
    let cold = total > 0 && matched.iter().all(|&matched| matched == 0);
    let last_cold: Vec<u64> = match cold && asked.fills_cache {
        true => candidates.iter().map(|to| index.last_cold(to.id)).collect(),
        false => Vec::new(),
    };
    let view = View {
        candidates,
        matched,
        total,
        block_tokens: rules.block.tokens(),
        last_cold: &last_cold,
        is_weighed: candidates.iter().any(|to| to.weight != 1.0),
        match_length: rules.match_length,
        tuning: rules.tuning,
        model: asked.model.as_deref(),
        session_at: asked.session_at,
        key: asked.key(),
        seen: index.traffic().seen(fork),
    };
    let ranking = rules.policy.rank(&view, rules.weights);
    let lesson = Lesson { fork, waiting: ranking.waiting, blocks: total as f32 };
    let choices = choices(&ranking, &view, draw);
    let Asked { blocks, reading, model, stream, recall, session, session_at: _, fills_cache } = asked;
    let table = ranking.table;
    Decision { blocks, reading, model, stream, cold, choices, table, session, lesson, recall, fills_cache }
}

impl Decision {
    /// The best endpoint that was not tried yet, marked as tried. The next best keeps affinity.
    pub fn take_best(&mut self) -> Option<Choice> {
        let best = self.choices.iter_mut().filter(|choice| !choice.tried).max_by(|a, b| a.rank(b))?;
        best.tried = true;
        Some(*best)
    }

    /// The best endpoint, tried or not.
    pub fn best(&self) -> Option<Choice> {
        self.choices.iter().copied().max_by(Choice::rank)
    }

    /// What the totals are made of, and what each counts for; nothing for the baselines.
    pub fn columns(&self) -> &[Column] {
        self.table.columns()
    }

    /// An endpoint's figures in the order of the columns; `None` where it was left out.
    pub fn figures(&self, choice: &Choice) -> impl Iterator<Item = Option<f64>> {
        self.table.row(choice.candidate)
    }

    /// What names the client's session; `None` for nothing.
    pub fn session(&self) -> Option<u64> {
        (self.session != 0).then_some(self.session)
    }

    /// Puts an endpoint before all others, for a reason that the scores do not know.
    pub fn prefer(&mut self, id: EndpointId) {
        for choice in &mut self.choices {
            choice.preferred = choice.id == id;
        }
    }

    /// Records the prompt at the endpoint that accepted it; nothing for an API that fills no cache.
    pub fn commit(&self, index: &Index, id: EndpointId) -> Option<Commit> {
        (self.fills_cache && self.blocks.total() > 0).then(|| index.commit(id, &self.blocks, self.cold))
    }

    /// Learns what this request has in common with others: which takes `work` seconds of computing where it went. Once for a
    /// request.
    pub fn learn(&self, index: &Index, went: &Choice, work: f64) {
        let size = index.size(went.id).map(|size| (size.blocks as f64, size.capacity as f64));
        let (blocks, capacity) = size.unwrap_or((f64::NAN, f64::NAN)); // it has left: nothing is learned of it
        let full = blocks / capacity.max(1.0);
        index.traffic().learn(self.lesson, Went { held: went.matched, full, capacity, work });
    }

    /// Records where the session is, beside the commit; nothing for a request without one.
    pub fn remember(&self, sessions: &Sessions, id: EndpointId, now: Micros) {
        sessions.learn(self.session, id, now);
    }
}

/// What a request gave for routing.
#[derive(Clone, Debug)]
pub struct Asked {
    blocks: Blocks,
    reading: Reading,
    model: Option<String>,
    stream: bool,
    recall: Recall,
    /// Names the client's session; 0 for none.
    session: u64,
    /// Where that was sent last.
    session_at: Option<EndpointId>,
    fills_cache: bool,
}

impl Asked {
    /// A request of which only the blocks are known, and what names its session, if anything does.
    pub fn hashed(blocks: Blocks, session: &[u8]) -> Self {
        let (model, recall) = Default::default();
        let (session, session_at, fills_cache) = (session_hash(session), None, true);
        let (reading, stream) = (Reading::Prompt, true);
        Self { blocks, reading, model, stream, recall, session, session_at, fills_cache }
    }

    /// Reads a body. Errors: a request that the router must refuse.
    pub fn read(ask: &Ask<'_>, memo: Option<&Memo>, rules: &Rules) -> Result<Self, Refusal> {
        let nothing = |reading| Self {
            blocks: Blocks::default(),
            reading,
            model: None,
            stream: false,
            recall: Recall::default(),
            session: session_hash(ask.session),
            session_at: None,
            fills_cache: ask.api.fills_cache(),
        };
        if ask.api == Api::Other {
            return Ok(nothing(Reading::NoPrompt));
        }
        let memo = memo.filter(|_| rules.tokenizer == Kind::Bytes);
        let (mut known, mut recall) = (Knowns::default(), Recall::default());
        let body = match read_body(ask, memo, &mut known, &mut recall) {
            Ok(body) => body,
            Err(unreadable) => return Ok(nothing(Reading::Unreadable(unreadable))),
        };
        if body.duplicate_salt {
            return Err(Refusal::DuplicateSalt);
        }
        let (blocks, reading) = match blocks(ask, &body, &known, rules) {
            Ok(Some(blocks)) => (blocks, Reading::Prompt),
            Ok(None) => (Blocks::default(), Reading::NoPrompt),
            Err(broken) => (Blocks::default(), Reading::Unreadable(broken.into())),
        };
        let (model, stream) = (body.model(MODEL_BYTES_MAX), body.stream());
        let (session, fills_cache) = (session_hash(ask.session), ask.api.fills_cache());
        Ok(Self { blocks, reading, model, stream, recall, session, session_at: None, fills_cache })
    }

    /// The same request, knowing where its session was sent last.
    pub fn with_session_at(self, sessions: &Sessions, now: Micros) -> Self {
        Self { session_at: sessions.last(self.session, now), ..self }
    }

    /// What its requests have in common: the session, else the beginning of the first prompt; 0 for neither.
    fn key(&self) -> u64 {
        let beginning = || {
            let prompt = self.blocks.prompts().next()?;
            prompt.get(prompt.len().min(KEY_BLOCKS).checked_sub(1)?)
        };
        if self.session != 0 { self.session } else { beginning().map_or(0, |block| block.0) }
    }
}

/// Never 0 for a session, so that 0 can stand for none.
fn session_hash(session: &[u8]) -> u64 {
    if session.is_empty() { 0 } else { xxh3_64(session).max(1) }
}

/// The members; `known` and `recall` then say what the memo knows of those that count.
fn read_body<'a>(
    ask: &Ask<'a>,
    memo: Option<&Memo>,
    known: &mut Knowns,
    recall: &mut Recall,
) -> Result<Body<'a>, Unreadable> {
    let Some(memo) = memo else { return Body::read(ask.body) };
    let mut searches = SEARCHES_MAX;
    let body = Body::read_but(ask.body, |member, text| {
        let section = Section::of(ask.api, member)?;
        let found = &mut known[section as usize];
        let searched = text.first() == Some(&b'[') && searches > 0;
        searches -= usize::from(searched);
        *found = if searched { memo.find(section, ask.tenant, text) } else { None };
        recall.begins(section, ask.body.len() - text.len(), found.as_ref().map_or(0, Known::bytes));
        found.as_ref().map(|known| Beginning { bytes: known.bytes(), is_whole: section == Section::Tools })
    })?;
    recall.ends(ask.api, &body);
    Ok(body)
}

fn blocks(ask: &Ask<'_>, body: &Body<'_>, known: &Knowns, rules: &Rules) -> Result<Option<Blocks>, Broken> {
    let root = identity::root(body, ask.tenant)?;
    match rules.tokenizer {
        Kind::Bytes => {
            let bytes = Bytes::new(root, rules.block, ask.body.len());
            render(ask.api, body, bytes.knowing(known))
        }
        Kind::Words => render(ask.api, body, Words::new(words_root(root), rules.block)),
    }
}

/// Keeps the two tokenizers' blocks apart, should a pool change from one to the other.
fn words_root(root: BlockHash) -> BlockHash {
    BlockHash(root.0.rotate_left(1))
}

fn render(api: Api, body: &Body<'_>, mut tokenizer: impl Tokenizer) -> Result<Option<Blocks>, Broken> {
    let prompt = canonical::render(api, body, &mut tokenizer)?;
    Ok(prompt.then(|| tokenizer.finish()))
}

/// The candidates, ready to be taken by rank.
fn choices(ranking: &Ranking, view: &View<'_>, draw: Draw) -> Vec<Choice> {
    let count = view.candidates.len();
    let chance = Chance { draw, is_weighed: view.is_weighed };
    let first = chance.turn(view.candidates);
    let tie = |candidate: usize| match ranking.ties {
        Ties::Chance => chance.number(candidate, &view.candidates[candidate]),
        Ties::Turns => (count - (candidate + count - first) % count) as u64,
        Ties::Less(figure) => less(figure(&view.candidates[candidate])) | draw.number(candidate) >> 32,
    };
    let choice = |(candidate, to): (usize, &Candidate)| Choice {
        candidate,
        id: to.id,
        matched: view.matched[candidate],
        total: ranking.totals.get(candidate).copied().unwrap_or(0.0),
        preferred: false,
        tie: tie(candidate),
        tried: false,
    };
    let mut choices: Vec<_> = view.candidates.iter().enumerate().map(choice).collect();
    sum_up(&ranking.table, &mut choices);
    choices
}

/// Adds to each total the sum of weight times figure; what is left out counts 0. A total that is no number goes last.
fn sum_up(table: &Table, choices: &mut [Choice]) {
    for (column, figures) in table.iter() {
        for (choice, figure) in choices.iter_mut().zip(figures) {
            choice.total += figure.unwrap_or(0.0) * column.weight;
        }
    }
    for choice in choices.iter_mut().filter(|choice| choice.total.is_nan()) {
        choice.total = f64::NEG_INFINITY;
    }
}

/// The less the figure, the higher, in the upper half: floats that are not negative are ordered as their bits are.
fn less(figure: f64) -> u64 {
    u64::from(!(figure.max(0.0) as f32).to_bits()) << 32
}

/// A decision's chance, in proportion to weights where they differ.
#[derive(Clone, Copy)]
struct Chance {
    draw: Draw,
    is_weighed: bool,
}

impl Chance {
    /// A candidate's lot: the highest wins, and does so as often as its share of the weights. Source: Efraimidis and Spirakis,
    /// "Weighted random sampling with a reservoir" (2006).
    fn number(self, place: usize, candidate: &Candidate) -> u64 {
        let number = self.draw.number(place);
        if !self.is_weighed {
            return number;
        }
        let uniform = (number as f64 + 1.0) / u64::MAX as f64;
        // Not negative, so its bits are ordered as it is.
        !(-uniform.min(1.0).ln() / candidate.weight).max(0.0).to_bits()
    }

    /// Whose turn it is. Weighed, turns go by multiples of the golden section, which fall evenly over the weights.
    fn turn(self, candidates: &[Candidate]) -> usize {
        let count = candidates.len().max(1);
        if !self.is_weighed {
            return (self.draw.turn % count as u64) as usize;
        }
        let weights = || candidates.iter().map(|to| to.weight);
        let mut left = (self.draw.turn as f64 * GOLDEN_SECTION).fract() * weights().sum::<f64>();
        let passed = |weight: &f64| {
            left -= weight;
            left >= 0.0
        };
        weights().take_while(passed).count().min(count - 1)
    }
}

const GOLDEN_SECTION: f64 = 0.618_033_988_749_895;
