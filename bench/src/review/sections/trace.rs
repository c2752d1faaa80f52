//! What the trace allows, what caches hold of it, and where its prefixes go.

use super::super::Review;
use super::super::counts::{Counter, Counts};
use super::super::document::Section;
use super::super::replica::Capacity;
use super::super::traffic::{Play, Played, Stage, Traffic};
use super::super::words::{count, percent, span, whole};
use super::NONE;

/// Looked-up tokens of the replicas and the trace's within that share of each other: they are of the same requests.
const SAME_REQUESTS: f64 = 0.02;

pub(super) fn could_be(review: &Review) -> Option<Section> {
    let traffic = review.traffic.as_ref()?;
    let section = Section::new("What it could be").lines(of_trace(review, traffic)).line(format!(
        "Ceiling: {}: {} of {} prompt tokens, found by one cache without a bound.",
        percent(traffic.ceiling()),
        whole(traffic.ceiling_tokens as f64),
        whole(traffic.prompt_tokens as f64)
    ));
    Some(match &traffic.played {
        None => section
            .line("No policy was played: no replica tells the size of its cache (vllm:cache_config_info)."),
        Some(played) => plays(section, review, traffic, played),
    })
}

/// What the trace is, and whether it is of the replicas' traffic.
fn of_trace(review: &Review, traffic: &Traffic) -> Vec<String> {
    let counted = match traffic.in_words {
        true => "word pieces of the bodies, not a model's tokens",
        false => "the trace's own lengths",
    };
    let mut lines = vec![format!(
        "Trace: {} in {}, {} prompt tokens each in the mean ({counted}), in blocks of {}.",
        count(traffic.requests, "request"),
        span(traffic.span.0),
        whole(traffic.mean_prompt()),
        traffic.block_size
    )];
    match (review.unlike(), review.prompt_mean()) {
        (Some(unlike), _) => lines.push(format!(
            "Not of this traffic, or counted otherwise: {unlike}. Nothing is concluded from it."
        )),
        (None, Some(mean)) => {
            lines.push(format!("The replicas' prompts have {} tokens in the mean.", whole(mean)))
        }
        (None, None) => lines.push(
            "Whether it is of this traffic is not known: vllm:request_prompt_tokens is missing.".to_owned(),
        ),
    }
    let engine = review.replicas.iter().find_map(|replica| replica.snapshot.capacity);
    let engine = engine.map(|capacity| capacity.block_size).filter(|size| *size < traffic.block_size as f64);
    lines.extend(engine.map(|size| {
        format!(
            "The replicas' blocks have {size:.0}, so they can find more of a prompt than this trace tells."
        )
    }));
    lines
}

fn plays(section: Section, review: &Review, traffic: &Traffic, played: &Played) -> Section {
    let stage = &played.stage;
    let of_ceiling = |play: &Play| traffic.of_ceiling(play).map_or(NONE.to_owned(), percent);
    if stage.caches == 1 {
        let best = played.best();
        return section.line(format!(
            "On the one cache, of {} tokens, any routing has {} (simulated); of the ceiling: {}.",
            whole(stage.cache_tokens),
            percent(best.report.hit_rate),
            of_ceiling(best)
        ));
    }
    let head =
        ["policy", "hit rate", "of ceiling", "TTFT p95, of round-robin's", "computed tokens, max/mean"];
    let round_robin = played.round_robin().report.ttft_p95_ms;
    let row = |(place, play): (usize, &Play)| {
        let report = &play.report;
        let best = if place == played.best { " (best)" } else { "" };
        let late = if round_robin > 0.0 {
            format!("{:.2}", report.ttft_p95_ms / round_robin)
        } else {
            NONE.to_owned()
        };
        vec![
            format!("{}{best}", report.policy),
            percent(report.hit_rate),
            of_ceiling(play),
            late,
            format!("{:.2}", report.imbalance),
        ]
    };
    section
        .table(&head, played.plays.iter().enumerate().map(row))
        .line(format!(
            "Simulated on {}, each at {} tokens/s ({}){}. Best: most hits among those no later than round-robin.",
            caches_played(review, stage),
            whole(stage.tokens_per_second),
            stage.paced,
            if stage.speed == 1.0 { String::new() } else { format!(", the trace {} times as fast", stage.speed) }
        ))
        .line(format!(
            "One cache as large as all of them, the least recently used out first: {}.",
            percent(traffic.share(played.pooled_tokens))
        ))
}

/// The simulation has caches of one size only.
fn caches_played(review: &Review, stage: &Stage) -> String {
    let (mean, sizes) = (whole(stage.cache_tokens), review.cache_sizes());
    match sizes.map(|(least, most)| (whole(least), whole(most))) {
        Some((least, most)) if least != most => {
            format!("caches of {least} to {most} tokens, played as {} of {mean}, their mean", stage.caches)
        }
        _ => format!("{} of {mean} tokens, the fleet's own", count(stage.caches, "cache")),
    }
}

pub(super) fn capacity(review: &Review) -> Option<Section> {
    let told = review.replicas.iter().filter_map(|replica| Some((replica, replica.snapshot.capacity?)));
    let row = |(replica, capacity): (&super::Replica, Capacity)| {
        let usage = replica.snapshot.load.kv_usage;
        let room = usage.map_or(NONE.to_owned(), |usage| whole(capacity.tokens * (1.0 - usage)));
        let engines = replica.snapshot.engines.to_string();
        let blocks = whole(capacity.blocks);
        vec![replica.name.clone(), engines, blocks, whole(capacity.block_size), whole(capacity.tokens), room]
    };
    let rows: Vec<_> = told.clone().map(row).collect();
    let head =
        ["replica", "engines", "blocks", "tokens in a block", "tokens", "not held by running requests"];
    let section = Section::new("Capacity and working set");
    let section = if rows.is_empty() { section } else { section.table(&head, rows.clone()) };
    let section = match told.clone().any(|(_, capacity)| capacity.told) {
        true => section.line("Tokens are vLLM's kv_cache_size_tokens where that is not blocks times their size (models with several kinds of layers)."),
        false => section,
    };
    let Some((caches, tokens)) = review.caches() else {
        let lines = review.traffic.as_ref().map(working_set);
        return lines.map(|lines| section.line(lines).line("The fleet's capacity is not known."));
    };
    let section = section.line(format!("The fleet: {} tokens in {}.", whole(tokens), count(caches, "cache")));
    Some(match &review.traffic {
        None => section.line("Without a trace the working set is not known."),
        Some(traffic) => section.line(working_set(traffic)).line(against(traffic, caches, tokens)),
    })
}

fn working_set(traffic: &Traffic) -> String {
    format!(
        "The working set of the trace: {} distinct tokens in full blocks, {} of them in more than one request.",
        whole(traffic.distinct_tokens as f64),
        whole(traffic.shared_tokens as f64)
    )
}

fn against(traffic: &Traffic, caches: usize, tokens: f64) -> String {
    let over =
        |tokens: f64, of: u64| if of == 0 { NONE.to_owned() } else { format!("{:.2}", tokens / of as f64) };
    format!(
        "Fleet / working set = {}; fleet / what comes again = {}; the mean cache / what comes again = {}.",
        over(tokens, traffic.distinct_tokens),
        over(tokens, traffic.shared_tokens),
        over(tokens / caches as f64, traffic.shared_tokens)
    )
}

pub(super) fn reach(review: &Review) -> Option<Section> {
    let section = Section::new("Replicas that each prefix reaches");
    let traffic = review.traffic.as_ref();
    let section = match traffic.and_then(|traffic| traffic.played.as_ref()) {
        Some(played) if played.stage.caches > 1 => section.lines(reached(played)),
        _ => section,
    };
    match counters(review, traffic) {
        Some(line) => Some(section.line(line)),
        None if section.blocks.is_empty() => None,
        None => Some(section),
    }
}

fn reached(played: &Played) -> Vec<String> {
    let best = played.best();
    let mut plays = vec![played.round_robin()];
    if best.report.policy != played.round_robin().report.policy {
        plays.push(best);
    }
    let line = |play: &Play| {
        let (reach, report) = (play.reach?, &play.report);
        let groups = match report.groups {
            0 => String::new(),
            groups => format!("; {} of {groups} groups or sessions stay on one", report.groups_on_one),
        };
        Some(format!(
            "{}: a block that more than one request has is sent to {reach:.2} of {} in the mean (simulated){groups}.",
            report.policy,
            count(played.stage.caches, "cache"),
        ))
    };
    plays.into_iter().filter_map(line).collect()
}

/// Counters know no prefixes. Of the very requests of the trace they tell how often a token was computed again.
fn counters(review: &Review, traffic: Option<&Traffic>) -> Option<String> {
    let (counts, basis) = review.counted(Counts::hit_rate);
    let (queries, hits) = (counts.counter(Counter::Queries)?, counts.counter(Counter::Hits)?);
    let traffic = traffic?;
    let (prompt, least) =
        (traffic.prompt_tokens as f64, (traffic.prompt_tokens - traffic.ceiling_tokens) as f64);
    if (queries - prompt).abs() > SAME_REQUESTS * prompt || least <= 0.0 {
        return Some(format!(
            "The replicas' counters do not tell which prefixes they hold, and {} tokens looked up {basis} are not the {} of the trace.",
            whole(queries),
            whole(prompt)
        ));
    }
    Some(format!(
        "The replicas looked up {} tokens {basis}, as many as the trace has: they computed {}, of which {} had to be, so each was \
         computed {:.2} times in the mean.",
        whole(queries),
        whole(queries - hits),
        whole(least),
        (queries - hits) / least
    ))
}
