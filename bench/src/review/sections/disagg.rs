//! Whether prefill apart from decode would pay, in sentences.

use super::super::Review;
use super::super::disagg::{Estimate, Verdict};
use super::super::document::Section;
use super::super::words::{at_most, percent, span, whole};

pub(super) fn disagg(review: &Review) -> Section {
    let section = Section::new("Does disaggregation pay");
    let estimate = match review.disagg() {
        Ok(estimate) => estimate,
        Err(missing) => return section.line(missing + "."),
    };
    section.lines(figures(&estimate)).line(verdict(&estimate))
}

fn figures(estimate: &Estimate) -> Vec<String> {
    let mut lines = vec![format!(
        "{} requests spent {} in prefill and {} in decode: prefill / (prefill + decode) = {}. Many decodes share a step, \
         so of the engine's own time prefill has more than that.",
        whole(estimate.requests),
        span(estimate.prefill_seconds),
        span(estimate.decode_seconds),
        percent(estimate.share())
    )];
    if let (Some(busy), Some(elapsed)) = (estimate.busy(), estimate.elapsed) {
        lines.push(format!(
            "Replicas that prefill keeps busy, at most: {} / {} = {busy:.2} of {}.",
            span(estimate.prefill_seconds),
            span(elapsed.as_secs_f64()),
            estimate.replicas
        ));
    }
    if let (Some((now, reachable)), Some(left)) = (estimate.hit_rates, estimate.left()) {
        let after = estimate.busy_after().map_or(String::new(), |after| format!(": {after:.2} replicas"));
        lines.push(format!(
            "Routing comes first: at the hit rate that the best policy has, (1 - {reachable:.3}) / (1 - {now:.3}) = {} of prefill is left{after}.",
            percent(left)
        ));
    }
    if let Some((half, most)) = estimate.inter_token {
        lines.push(format!("Between two tokens of an answer: p50 {}, p99 {}.", at_most(half), at_most(most)));
    }
    if estimate.external_tokens > 0.0 {
        let tokens = whole(estimate.external_tokens);
        lines.push(format!("{tokens} tokens came from other caches (vllm:external_prefix_cache_hits_total): there is a connector already."));
    }
    lines
}

fn verdict(estimate: &Estimate) -> String {
    match estimate.verdict() {
        Verdict::OneReplica => "No: one replica has nobody to hand over to.".to_owned(),
        Verdict::No => "No, at this load: a replica for prefill alone would have less than one replica's work.".to_owned(),
        Verdict::Perhaps => "Perhaps: prefill is more than one replica's work. It pays only if decode suffers from it (the p99 above against \
                             the p50) and the link carries the KV cache in less time than a prefill takes; bytes per token and the link are \
                             in no counter. Measure: prefixroute simulate TRACE with --prefill-replicas, --decode-replicas and the measured \
                             --link-gbps, then both layouts under the same load."
            .to_owned(),
        Verdict::Unknown => "Cannot be decided from a saved page: how long it was counted is not in it. Give the address, so that it can be \
                             read twice."
            .to_owned(),
    }
}
