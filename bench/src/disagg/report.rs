//! Everything that `disagg` computes, in one place for text and JSON.

use serde::Serialize;

use super::figure::Figure;
use super::prompt::{Gpus, LinkCosts, Moved, Prompt};
use super::replica::Capacity;
use super::shape::ModelShape;
use super::traffic::{Need, Traffic};
use crate::engine::Link;

/// Hit rates that a traffic is told for beside the one that was asked for.
const HIT_RATES: [f64; 5] = [0.0, 0.25, 0.5, 0.75, 0.9];

/// What is asked, models aside.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The prompt.
    pub prompt: Prompt,
    /// Replicas, each size on its own.
    pub gpus: Vec<Gpus>,
    /// Links, each on its own.
    pub links: Vec<Link>,
    /// The traffic, if there is one.
    pub traffic: Option<Traffic>,
}

/// The answer. Serialised, the names are the members of `--json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Tokens of the prompt.
    pub prompt_tokens: u64,
    /// Of them, cached.
    pub cached_tokens: u64,
    /// Of them, to be computed.
    pub uncached_tokens: u64,
    /// To compute them.
    pub prefill_ms: f64,
    /// How long running answers stand still for it at a stretch.
    pub stall_ms: f64,
    /// Whether it is computed apart.
    pub remote: bool,
    /// One for each model and size of a replica.
    pub models: Vec<ModelReport>,
    /// With `--explain`: how the figures of the prompt come about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub formulas: Vec<Figure>,
}

/// What comes of it with one model on replicas of one size.
#[derive(Clone, Debug, Serialize)]
pub struct ModelReport {
    /// A preset's name, or a path.
    pub model: String,
    /// Why the model is not known, or does not run on so many GPUs; what needs it is null then.
    pub error: Option<String>,
    /// GPUs of a replica.
    pub tensor_parallel: u32,
    /// KV of a token.
    pub kv_bytes_per_token: Option<f64>,
    /// Weights, all GPUs together.
    pub weights_gb: Option<f64>,
    /// Tokens of KV that a replica holds of sequences as long as the prompt.
    pub replica_kv_tokens: Option<u64>,
    /// KV of the prompt.
    #[serde(flatten)]
    pub moved: Option<Moved>,
    /// Each link.
    pub links: Vec<LinkCosts>,
    /// The traffic by hit rate.
    pub traffic: Vec<Need>,
    /// Why no number of such replicas carries it; it is empty then.
    pub traffic_error: Option<String>,
    /// What the reader should know of how the shape was had.
    pub notes: Vec<String>,
    /// With `--explain`: how its figures come about.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub formulas: Vec<Figure>,
    /// What the text says of the shape and of the room; empty where the model is not known.
    #[serde(skip)]
    pub(super) words: Words,
}

/// Sentences of the text.
#[derive(Clone, Debug, Default)]
pub(super) struct Words {
    pub(super) shape: String,
    pub(super) replica: String,
}

impl Report {
    /// Answers for each model, or why it is not known under which name. `explain` adds formulas.
    pub fn of(question: &Question, models: &[Result<ModelShape, (String, String)>], explain: bool) -> Self {
        let prompt = &question.prompt;
        let model = |model: &Result<_, _>| -> Vec<ModelReport> {
            question.gpus.iter().map(|&gpus| model_report(question, model, gpus, explain)).collect()
        };
        Self {
            prompt_tokens: prompt.tokens,
            cached_tokens: prompt.cached_tokens,
            uncached_tokens: prompt.uncached_tokens(),
            prefill_ms: prompt.prefill().millis(),
            stall_ms: prompt.stall().millis(),
            remote: prompt.is_remote(),
            models: models.iter().flat_map(model).collect(),
            formulas: if explain { prompt.figures() } else { Vec::new() },
        }
    }
}

fn model_report(
    question: &Question,
    model: &Result<ModelShape, (String, String)>,
    gpus: Gpus,
    explain: bool,
) -> ModelReport {
    let Question { prompt, links, traffic, .. } = question;
    let (name, read, error) = match model {
        Ok(shape) => (&shape.name, Some(shape), shape.refusal(gpus.count)),
        Err((name, error)) => (name, None, Some(error.clone())),
    };
    let shape = read.filter(|_| error.is_none());
    let known = shape.map(|shape| (shape, gpus));
    let traffic_error = traffic.as_ref().and_then(|traffic| match (known, read) {
        (Some((shape, gpus)), _) => traffic.refusal(prompt, shape, gpus),
        (None, Some(_)) => error.clone(),
        (None, None) => None,
    });
    let carried = traffic.as_ref().filter(|_| traffic_error.is_none());
    let needs = carried.map_or(Vec::new(), |traffic| needs(traffic, prompt, known));
    let formulas = if explain { formulas(question, carried, known) } else { Vec::new() };
    let moved = shape.map(|shape| Moved::of(prompt, shape, gpus));
    let cost = |shape: &ModelShape, moved: &Moved| -> Vec<LinkCosts> {
        links.iter().map(|&link| LinkCosts::of(prompt, moved, link, gpus, shape.layers())).collect()
    };
    ModelReport {
        model: name.clone(),
        error,
        tensor_parallel: gpus.count,
        kv_bytes_per_token: shape.map(ModelShape::bytes_per_token),
        weights_gb: shape.and_then(|shape| Some(shape.weights.as_ref()?.bytes / 1e9)),
        replica_kv_tokens: shape.and_then(|shape| Capacity::of(shape, gpus, prompt.tokens).tokens()),
        moved,
        links: shape.zip(moved.as_ref()).map_or(Vec::new(), |(shape, moved)| cost(shape, moved)),
        traffic: needs,
        traffic_error,
        notes: shape.map_or(Vec::new(), |shape| shape.notes.clone()),
        formulas,
        words: shape.map_or_else(Words::default, |shape| Words {
            shape: shape.describe(),
            replica: Capacity::of(shape, gpus, prompt.tokens).describe(shape, gpus, prompt.tokens),
        }),
    }
}

/// The traffic at the hit rate that was asked for and at some others, the lowest first.
fn needs(traffic: &Traffic, prompt: &Prompt, model: Option<(&ModelShape, Gpus)>) -> Vec<Need> {
    let cached = |rate: f64| (prompt.tokens as f64 * rate) as u64;
    let mut cached: Vec<u64> = HIT_RATES.map(cached).into_iter().chain([prompt.cached_tokens]).collect();
    cached.sort_unstable();
    cached.dedup();
    let need = |cached_tokens| Need::of(traffic, &Prompt { cached_tokens, ..*prompt }, model);
    cached.into_iter().map(need).collect()
}

fn formulas(
    question: &Question,
    traffic: Option<&Traffic>,
    model: Option<(&ModelShape, Gpus)>,
) -> Vec<Figure> {
    let Question { prompt, links, .. } = question;
    let mut figures = Vec::new();
    if let Some((shape, gpus)) = model {
        let moved = Moved::of(prompt, shape, gpus);
        figures.push(shape.figure());
        figures.extend(moved.figures(prompt, shape, gpus));
        figures.extend(Capacity::of(shape, gpus, prompt.tokens).figures(shape, gpus, prompt.tokens));
        for &link in links {
            let costs = LinkCosts::of(prompt, &moved, link, gpus, shape.layers());
            figures.extend(costs.figures(prompt, &moved, link, gpus, shape.layers()));
        }
    }
    let needs = traffic.into_iter().flat_map(|it| Need::of(it, prompt, model).figures(it, prompt, model));
    figures.extend(needs);
    figures
}
