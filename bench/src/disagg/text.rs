//! The answer of `disagg` as a person reads it.

use super::figure::{Figure, grouped};
use super::prompt::LinkCosts;
use super::report::{ModelReport, Question, Report};
use super::traffic::{Need, Traffic};
use crate::table::table;

/// The prompt, then each model.
pub(super) fn text(question: &Question, report: &Report) -> String {
    let models = report.models.iter().map(|model| format!("\n{}", model_text(question, model)));
    prompt_text(question, report) + &formulas(&report.formulas, "") + &models.collect::<String>()
}

fn prompt_text(question: &Question, report: &Report) -> String {
    let prompt = &question.prompt;
    let count = |tokens: u64| grouped(tokens as f64);
    let stall = match prompt.chunk_tokens {
        0 => "running answers stand still for the whole prefill (no chunks)".to_owned(),
        chunk => format!("running answers stand still for a chunk of {} tokens at most", count(chunk)),
    };
    lines(
        "",
        [
            (
                "prompt",
                format!(
                    "{} tokens, {} of them cached: {} to compute",
                    count(prompt.tokens),
                    count(prompt.cached_tokens),
                    count(report.uncached_tokens)
                ),
            ),
            (
                "prefill",
                format!(
                    "{:.1} ms at {} tokens/s",
                    report.prefill_ms,
                    grouped(prompt.prefill_tokens_per_second)
                ),
            ),
            ("stall", format!("{:.1} ms: {stall}", report.stall_ms)),
            ("decision", prompt.describe_decision()),
        ],
    )
}

fn model_text(question: &Question, model: &ModelReport) -> String {
    let mut text = format!("{}\n", model.model);
    match (&model.error, model.kv_bytes_per_token, &model.moved) {
        (Some(error), ..) => text += &lines("  ", [("error", error.clone())]),
        (None, Some(bytes), Some(moved)) => {
            let copies = if moved.moved_bytes > moved.kv_bytes {
                format!(", {:.1} MB with the copies that GPUs hold", moved.moved_bytes / 1e6)
            } else {
                String::new()
            };
            let gpu = match model.tensor_parallel {
                1 => String::new(),
                _ => format!(" ({:.1} MB on each GPU{copies})", moved.gpu_bytes / 1e6),
            };
            let made = moved.production_gbps;
            text += &lines(
                "  ",
                [
                    ("shape", format!("{}: {} bytes of KV a token", model.words.shape, grouped(bytes))),
                    ("replica", model.words.replica.clone()),
                    (
                        "moved",
                        format!(
                            "{:.1} MB of KV{gpu}; a busy prefill replica makes {made:.1} Gb/s",
                            moved.kv_bytes / 1e6
                        ),
                    ),
                ],
            );
        }
        _ => {}
    }
    text += &lines("  ", model.notes.iter().map(|note| ("note", note.clone())));
    let nics = question.gpus.first().map_or(1, |gpus| gpus.nics);
    if !model.links.is_empty() {
        text += &format!("\n{}", indented(&link_table(&model.links, nics)));
    }
    if let Some(traffic) = &question.traffic {
        let needs = match &model.traffic_error {
            Some(error) => format!("no number of such replicas carries it: {error}\n"),
            None => need_table(&model.traffic),
        };
        text += &format!("\n  {}\n{}", traffic_text(traffic), indented(&needs));
    }
    text + &formulas(&model.formulas, "  ")
}

fn link_table(links: &[LinkCosts], nics: u32) -> String {
    let head = ["link", "keeps up", "transfer", "TTFT local", "TTFT remote", "layer by layer"];
    let millis = |millis: f64| format!("{millis:.1} ms");
    let name = |gbps: f64| if nics == 1 { format!("{gbps} Gb/s") } else { format!("{nics} x {gbps} Gb/s") };
    let row = |link: &LinkCosts| {
        [
            name(link.gbps),
            if link.keeps_up { "yes" } else { "no" }.to_owned(),
            millis(link.transfer_ms),
            millis(link.ttft_local_ms),
            millis(link.ttft_remote_ms),
            millis(link.ttft_layerwise_ms),
        ]
    };
    table(head, links.iter().map(row))
}

fn traffic_text(traffic: &Traffic) -> String {
    format!(
        "{} requests/s, answers of {} tokens at {} tokens/s, {} side by side on a replica; replicas planned {:.0} % busy",
        traffic.requests_per_second,
        grouped(traffic.output_tokens as f64),
        traffic.decode_tokens_per_second,
        grouped(traffic.answers_max as f64),
        traffic.planned_share * 1e2
    )
}

fn need_table(needs: &[Need]) -> String {
    let head = [
        "hit rate",
        "prefill",
        "decode",
        "prefill : decode",
        "or both in one",
        "KV moved",
        "a replica's link",
    ];
    let gbps = |gbps: Option<f64>| gbps.map_or("-".to_owned(), |gbps| format!("{gbps:.1} Gb/s"));
    let row = |need: &Need| {
        [
            format!("{:.1} %", need.hit_rate * 1e2),
            need.prefill_replicas.to_string(),
            need.decode_replicas.to_string(),
            if need.remote { format!("{:.2} : 1", need.ratio) } else { "none apart".to_owned() },
            need.together_replicas.to_string(),
            gbps(need.moved_gbps),
            gbps(need.replica_gbps),
        ]
    };
    table(head, needs.iter().map(row))
}

fn lines(indent: &str, lines: impl IntoIterator<Item = (&'static str, String)>) -> String {
    lines.into_iter().map(|(name, text)| format!("{indent}{name:<10} {text}\n")).collect()
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

fn formulas(figures: &[Figure], indent: &str) -> String {
    let lines: String = figures.iter().map(|figure| format!("{indent}  {}\n", figure.line())).collect();
    if lines.is_empty() { lines } else { format!("\n{indent}how these come about\n{lines}") }
}
