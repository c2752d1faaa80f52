//! Whether prefill apart from decode would pay, in sentences.

use super::super::disagg::{Estimate, Verdict};
use super::super::document::Section;
use super::super::words::{at_most, count, percent, span, whole};
use super::super::{Basis, Review};

pub(super) fn disagg(review: &Review) -> Section {
    let section = Section::new("Does disaggregation pay");
    let estimate = match review.disagg() {
        Ok(estimate) => estimate,
        Err(missing) => return section.line(missing + "."),
    };
    section.lines(figures(&estimate)).line(verdict(&estimate))
}

fn figures(estimate: &Estimate) -> Vec<String> {
    let share = estimate.share().map_or(String::new(), |share| {
        format!(
            ": prefill / (prefill + decode) = {}. Many decodes share a step, so of the engine's own time prefill has more than \
             that",
            percent(share)
        )
    });
    let mut lines = vec![format!(
        "{} requests spent {} in prefill and {} in decode {}{share}.",
        whole(estimate.requests),
        span(estimate.prefill_seconds),
        span(estimate.decode_seconds),
        estimate.basis,
    )];
    lines.extend(busy(estimate));
    if let (Some((now, reachable)), Some(left)) = (estimate.hit_rates, estimate.left()) {
        let after =
            estimate.busy_after().map_or(String::new(), |after| format!(": at most {after:.2} replicas"));
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

fn busy(estimate: &Estimate) -> Option<String> {
    let (Basis::Over(elapsed), Some(requests)) = (estimate.basis, estimate.in_prefill()) else { return None };
    let quotient =
        format!("{} / {} = {requests:.2}", span(estimate.prefill_seconds), span(elapsed.as_secs_f64()));
    let measured = estimate.measured;
    Some(if requests > measured as f64 {
        let replicas = count(measured, "replica");
        format!(
            "Requests in prefill at a moment: {quotient}, more than the {replicas} measured: some share a replica, so prefill may keep \
             all busy, or far fewer."
        )
    } else {
        format!("Replicas that prefill keeps busy, at most: {quotient} of {measured}.")
    })
}

fn verdict(estimate: &Estimate) -> String {
    match estimate.verdict() {
        Verdict::OneReplica => "No: one replica has nobody to hand over to.".to_owned(),
        Verdict::No => "No, at this load: a replica for prefill alone would have less than one replica's work.".to_owned(),
        Verdict::Perhaps => "Perhaps: prefill can be more than one replica's work, or less, as requests that are in prefill at once count each. \
                             It pays only if it is more, if decode suffers from it (the p99 above against \
                             the p50) and the link carries the KV cache in less time than a prefill takes; bytes per token and the link are \
                             in no counter. Measure: prefixroute simulate TRACE with --prefill-replicas, --decode-replicas and the measured \
                             --link-gbps, then both layouts under the same load."
            .to_owned(),
        Verdict::Average => "Cannot be decided from a saved page or an average since the start, which hides the load of now. Give addresses and \
                             an --interval in which requests end."
            .to_owned(),
        Verdict::Part => format!(
            "Cannot be decided: {} of {} replicas were measured, and the others' prefill may be more than what one replica has left.",
            estimate.measured, estimate.fleet
        ),
    }
}
