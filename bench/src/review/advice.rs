//! What to change, and the measurement that would prove it: one rule after another, the first that fires first.
//!
//! The order is that of `deploy/RUNBOOK.md`. A rule without its figure is silent; what is missing is listed elsewhere.
//! Every `because` holds the figures that it follows from, so that a reader can disagree with the threshold.

use std::cmp::Ordering;

use serde::Serialize;

use super::counts::{Counts, Times};
use super::replica::Load;
use super::words::{percent, points, seconds, times, whole};
use super::{Basis, Review};

/// Preemptions of a request from which KV memory is the first thing to mend.
pub const PREEMPTED_MANY: f64 = 0.05;
/// Share of prompt tokens that is worth a change.
pub const GAIN_MIN: f64 = 0.05;
/// The most over the mean of requests that wait or run from which load is uneven.
pub const SPREAD_MANY: f64 = 1.5;
/// Requests that must wait at one replica to speak of a queue.
pub const WAITING_MANY: f64 = 4.0;
/// Share of the KV cache that running requests hold, below which memory is not what others wait for.
pub const KV_FREE: f64 = 0.5;
/// Share of the time to the first token that is queueing from which replicas are too few.
pub const QUEUE_MANY: f64 = 0.5;

/// A gauge of a replica, where it has it.
type Figure = fn(&Load) -> Option<f64>;

/// A change that a figure asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Advice {
    /// Which rule of the runbook.
    pub rule: &'static str,
    /// The figures that ask for it.
    pub because: String,
    /// What to change, of prefixroute or vLLM.
    pub change: String,
    /// What to measure before and after, and what it must do.
    pub proof: String,
}

/// All that fires, most urgent first; never empty.
pub(super) fn all(review: &Review) -> Vec<Advice> {
    let rules = [
        asleep,
        caching_off,
        unmeasured,
        preempted,
        unexplained,
        routing,
        room,
        deferred,
        uneven,
        seats,
        overfull,
        untraced,
    ];
    let advice: Vec<_> = rules.iter().filter_map(|rule| rule(review)).collect();
    if advice.is_empty() { vec![nothing(review)] } else { advice }
}

fn names(review: &Review, of: impl Fn(&super::Replica) -> bool) -> Vec<&str> {
    review.replicas.iter().filter(|replica| of(replica)).map(|replica| replica.name.as_str()).collect()
}

fn asleep(review: &Review) -> Option<Advice> {
    let names = names(review, |replica| replica.snapshot.load.asleep);
    (!names.is_empty()).then(|| Advice {
        rule: "asleep",
        because: format!("vllm:engine_sleep_state says that {} sleeps: it answers nothing and its cache is gone", names.join(", ")),
        change: "wake it (POST /wake_up), or take it out of the pool; prefixroute sends nothing to a sleeping engine".to_owned(),
        proof: "vllm:engine_sleep_state{sleep_state=\"awake\"} is 1".to_owned(),
    })
}

fn caching_off(review: &Review) -> Option<Advice> {
    let names = names(review, |replica| replica.snapshot.caches_prefixes == Some(false));
    (!names.is_empty()).then(|| Advice {
        rule: "caching-off",
        because: format!(
            "vllm:cache_config_info says enable_prefix_caching=\"False\" of {}",
            names.join(", ")
        ),
        change: "vllm serve --enable-prefix-caching: without it no routing can gain a token".to_owned(),
        proof: "vllm:prefix_cache_queries_total rises with vllm:prompt_tokens_total".to_owned(),
    })
}

fn unmeasured(review: &Review) -> Option<Advice> {
    review.hit_rate().is_none().then(|| Advice {
        rule: "unmeasured",
        because: if review.replicas.is_empty() { "no page could be read".to_owned() } else { unrated(review) },
        change: "review replicas that serve traffic; pages come from the port of vllm serve itself, not from a router".to_owned(),
        proof: "vllm:prefix_cache_queries_total is above 0".to_owned(),
    })
}

/// Each reason once, with whom it is true of.
fn unrated(review: &Review) -> String {
    let mut reasons: Vec<(String, Vec<&str>)> = Vec::new();
    for replica in &review.replicas {
        let Some(reason) = replica.snapshot.counts.unrated() else { continue };
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(&replica.name),
            None => reasons.push((reason, vec![&replica.name])),
        }
    }
    let lines: Vec<_> =
        reasons.iter().map(|(reason, names)| format!("of {} {reason}", names.join(", "))).collect();
    lines.join("; ")
}

fn preempted(review: &Review) -> Option<Advice> {
    let (preempted, basis) =
        review.judged(Counts::preempted).filter(|(share, _)| *share >= PREEMPTED_MANY)?;
    Some(Advice {
        rule: "preempted",
        because: format!(
            "{} of a request is preempted {basis} ({} or more counts as many): running requests need more KV memory than \
             there is, prompts are computed again, and nothing stays cached",
            times(preempted),
            times(PREEMPTED_MANY),
        ),
        change: "vLLM: lower --max-num-seqs, or make room: --gpu-memory-utilization, --kv-cache-dtype fp8, more replicas".to_owned(),
        proof: "vllm:num_preemptions_total over vllm:request_success_total falls, at the same load".to_owned(),
    })
}

fn unexplained(review: &Review) -> Option<Advice> {
    let (below, (_, played)) = (review.unexplained()?, review.comparable()?);
    let (measured, basis) = review.hit_rate()?;
    let (round_robin, best) = (&played.round_robin().report, &played.best().report);
    Some(Advice {
        rule: "unexplained",
        because: format!(
            "the hit rate is {} {basis}, and even round-robin, on caches of this size, has {} of the trace, {} more: something else is \
             wrong, and of the way to {} by {} routing can give {} at most",
            percent(measured),
            percent(round_robin.hit_rate),
            points(below),
            percent(best.hit_rate),
            best.policy,
            points(best.hit_rate - round_robin.hit_rate),
        ),
        change: "find what it is: the trace is not of this traffic; caches are emptied (restarts, POST /reset_prefix_cache) or filled by \
                 traffic that is not in the trace; they are smaller than vllm:cache_config_info tells; prompts begin with a time, a \
                 request's id or a cache_salt of their own"
            .to_owned(),
        proof: "review while this very trace is replayed and nothing else runs: the hit rate over the interval comes near round-robin's, or \
                it is the engine or its prompts; process_start_time_seconds and \
                http_requests_total{handler=\"/reset_prefix_cache\"} stand still meanwhile"
            .to_owned(),
    })
}

fn routing(review: &Review) -> Option<Advice> {
    if review.unexplained().is_some() {
        return None;
    }
    let (_, played) = review.comparable()?;
    let best = &played.best().report;
    let round_robin = &played.round_robin().report;
    let (measured, basis) = review.hit_rate()?;
    let gain = best.hit_rate - measured;
    if played.stage.caches < 2 || gain < GAIN_MIN || best.hit_rate - round_robin.hit_rate < GAIN_MIN {
        return None;
    }
    Some(Advice {
        rule: "routing",
        because: format!(
            "the hit rate is {} {basis}; on caches of this size the trace has {} by round-robin and {} by {}, {} more than \
             measured: {} of today's prefill would be left",
            percent(measured),
            percent(round_robin.hit_rate),
            percent(best.hit_rate),
            best.policy,
            points(gain),
            percent((1.0 - best.hit_rate) / (1.0 - measured)),
        ),
        change: format!("put prefixroute before these replicas, `policy: {}`", best.policy),
        proof: "the same review after it: hit rate of the fleet over the interval; p95 of vllm:time_to_first_token_seconds \
                falls; prefixroute_cached_tokens_total over prefixroute_prompt_tokens_total says the same from outside"
            .to_owned(),
    })
}

fn room(review: &Review) -> Option<Advice> {
    let (traffic, played) = review.comparable()?;
    let (ceiling, pooled) = (traffic.ceiling(), traffic.share(played.pooled_tokens));
    if ceiling - pooled < GAIN_MIN {
        return None;
    }
    Some(Advice {
        rule: "room",
        because: format!(
            "an endless cache has {} of the trace, one of the fleet's {} tokens {}: {} are lost for want of memory, however prompts \
             are routed; of the trace's {} distinct tokens {} are asked for again",
            percent(ceiling),
            whole(played.stage.cache_tokens * played.stage.caches as f64),
            percent(pooled),
            points(ceiling - pooled),
            whole(traffic.distinct_tokens as f64),
            whole(traffic.shared_tokens as f64),
        ),
        change:
            "vLLM: --gpu-memory-utilization, --kv-cache-dtype fp8, a KV offloading backend, or more replicas"
                .to_owned(),
        proof:
            "tokens of vllm:cache_config_info rise, and the hit rate of the fleet over the interval with them"
                .to_owned(),
    })
}

/// The replica at which the most requests wait for something of their own, where most do.
fn deferred(review: &Review) -> Option<Advice> {
    let waits = |replica: &super::Replica| {
        let Load { waiting_for_capacity, waiting_deferred, .. } = replica.snapshot.load;
        Some((replica.name.clone(), waiting_for_capacity?, waiting_deferred?))
    };
    let most =
        |(_, capacity, deferred): &(String, f64, f64)| *deferred >= WAITING_MANY && deferred > capacity;
    let waiting = review.replicas.iter().filter_map(waits).filter(most);
    let (name, capacity, deferred) = waiting.max_by(|one, other| one.2.total_cmp(&other.2))?;
    Some(Advice {
        rule: "deferred",
        because: format!(
            "{deferred:.0} of the {:.0} requests that wait at {name} are deferred (vllm:num_requests_waiting_by_reason): they wait for a \
             LoRA slot, a KV transfer or a grammar, and neither memory nor more at once would start them",
            capacity + deferred
        ),
        change: "by what they wait for; vLLM: --max-loras, if more adapters are asked for at once (vllm:lora_requests_info) than it allows; \
                 the KV connector and its link; fewer or simpler grammars of structured outputs"
            .to_owned(),
        proof: "vllm:num_requests_waiting_by_reason{reason=\"deferred\"} falls at the same load".to_owned(),
    })
}

fn uneven(review: &Review) -> Option<Advice> {
    let figures: [(&str, Figure); 2] = [
        ("vllm:num_requests_waiting", |load| load.waiting),
        ("vllm:num_requests_running", |load| load.running),
    ];
    let (metric, most, mean) = figures.iter().find_map(|(metric, figure)| {
        let values = review.loads(*figure);
        let (most, mean) =
            (values.iter().copied().fold(0.0, f64::max), values.iter().sum::<f64>() / values.len() as f64);
        (values.len() > 1 && most >= SPREAD_MANY * mean && most > by_chance(mean))
            .then_some((metric, most, mean))
    })?;
    Some(Advice {
        rule: "uneven",
        because: format!(
            "{metric} is {most:.1} at the busiest replica and {mean:.1} in the mean, {:.2} times as many ({SPREAD_MANY} or more counts as \
             uneven, and chance alone would stay below {mean:.1} + 3 sqrt({mean:.1}) = {:.1})",
            most / mean,
            by_chance(mean)
        ),
        change: "prefixroute's `policy: expected-ttft`, which weighs a queue against a prefix; where a policy that holds prefixes harder \
                 routes (prefix-only, sticky), this is its price"
            .to_owned(),
        proof: format!("the most over the mean of {metric} falls below {SPREAD_MANY}, over several readings, and the hit rate stays"),
    })
}

/// What independent arrivals would put on the busiest replica at most: three deviations of a Poisson count above the mean.
fn by_chance(mean: f64) -> f64 {
    mean + 3.0 * mean.sqrt()
}

/// The replica at which the most requests wait for a seat, though KV memory is free. Not where many are preempted: they
/// ask for fewer seats.
fn seats(review: &Review) -> Option<Advice> {
    if preempted(review).is_some() {
        return None;
    }
    let basis = review.counted(Counts::preempted).1;
    let waits = |replica: &super::Replica| {
        let Load { running, waiting, waiting_for_capacity, kv_usage, .. } = replica.snapshot.load;
        let waiting = waiting_for_capacity.or(waiting)?;
        let waits = (replica.name.clone(), running?, waiting, kv_usage?);
        let preempted = replica.counts(basis).preempted();
        preempted.is_none_or(|preempted| preempted < PREEMPTED_MANY).then_some(waits)
    };
    let stuck =
        |(_, _, waiting, usage): &(String, f64, f64, f64)| *waiting >= WAITING_MANY && *usage < KV_FREE;
    let stuck = review.replicas.iter().filter_map(waits).filter(stuck);
    let (name, running, waiting, usage) = stuck.max_by(|one, other| one.2.total_cmp(&other.2))?;
    Some(Advice {
        rule: "seats",
        because: format!(
            "{waiting:.0} requests wait at {name} while the {running:.0} that run hold {} of its KV cache (below {} counts as free): not \
             memory holds them up but the limit of what runs at once",
            percent(usage),
            percent(KV_FREE)
        ),
        change: "vLLM: raise --max-num-seqs, or --max-num-batched-tokens where prompts are long".to_owned(),
        proof:
            "vllm:num_requests_waiting falls and vllm:kv_cache_usage_perc rises at the same load; the p99 of \
                vllm:inter_token_latency_seconds may rise with it: stop where it does"
                .to_owned(),
    })
}

fn overfull(review: &Review) -> Option<Advice> {
    let waiting = review.loads(|load| load.waiting);
    let all_wait = !waiting.is_empty() && waiting.iter().all(|waiting| *waiting >= 1.0);
    let (share, mean, basis) = queueing(review)?;
    (all_wait && share >= QUEUE_MANY).then(|| Advice {
        rule: "overfull",
        because: format!(
            "requests wait at every replica, and {} of the time to the first token is queueing, {} in the mean {basis}",
            percent(share),
            seconds(mean)
        ),
        change: "more replicas, or fewer requests: prefixroute's limits.endpoint_requests_max and the queue of the pool".to_owned()
            + if preempted(review).is_some() { "" } else { "; vLLM: a higher --max-num-seqs if vllm:kv_cache_usage_perc leaves room" },
        proof: "the mean of vllm:request_queue_time_seconds falls, at the same load".to_owned(),
    })
}

/// Queueing as a share of the time to the first token, its mean, and since when.
fn queueing(review: &Review) -> Option<(f64, f64, Basis)> {
    let mean = |counts: &Counts, times| counts.times(times).and_then(super::histogram::Histogram::mean);
    let means = |counts: &Counts| mean(counts, Times::Queue).zip(mean(counts, Times::FirstToken));
    let ((queue, first), basis) = review.judged(means)?;
    (first > 0.0).then_some((queue / first, queue, basis))
}

fn untraced(review: &Review) -> Option<Advice> {
    if review.replicas.is_empty() || review.comparable().is_some() {
        return None;
    }
    let because = match (&review.traffic, review.unlike()) {
        (None, _) => "without a trace nobody knows what the hit rate could be: a low one can be traffic that shares nothing".to_owned(),
        (_, Some(unlike)) => format!("{unlike}: it is of other traffic, or counted otherwise, and nothing is concluded from it"),
        (Some(_), None) => "without the capacity of the caches (vllm:cache_config_info) the trace cannot be played on them".to_owned(),
    };
    Some(Advice {
        rule: "untraced",
        because,
        change: "give --trace some thousand requests of this very traffic in a row, bodies or lengths with hash_ids, and replicas that tell \
                 their capacity"
            .to_owned(),
        proof: "the review then shows the ceiling, and what each policy has of it on caches of this size".to_owned(),
    })
}

fn nothing(review: &Review) -> Advice {
    let figures = || {
        let ((measured, basis), (traffic, played)) = (review.hit_rate()?, review.comparable()?);
        Some(format!(
            "the hit rate is {} {basis}, the best policy has {} of the trace, an endless cache {}; no rule of the runbook fires",
            percent(measured),
            percent(played.best().report.hit_rate),
            percent(traffic.ceiling()),
        ))
    };
    Advice {
        rule: "nothing",
        because: figures().unwrap_or_else(|| "no rule of the runbook fires".to_owned()),
        change: "nothing: leave routing and settings as they are".to_owned(),
        proof: "the same review in an hour of load says the same".to_owned(),
    }
}

/// The most over the mean; `None` where all is 0.
pub(super) fn spread(values: &[f64]) -> Option<f64> {
    let (sum, most) = (values.iter().sum::<f64>(), values.iter().copied().fold(0.0, f64::max));
    (sum.partial_cmp(&0.0) == Some(Ordering::Greater)).then(|| most * values.len() as f64 / sum)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::super::replica::Snapshot;
    use super::super::source::{Gathered, Replica};
    use super::*;

    fn review(pages: &[String]) -> Review {
        let replica = |page: &String| {
            let snapshot = Snapshot::read(page).unwrap().0;
            Replica { name: "r".to_owned(), snapshot, over: None, up: None }
        };
        let replicas = pages.iter().map(replica).collect();
        Review::new(pages.len(), Gathered { replicas, ..Gathered::default() })
    }

    /// Half of 1,000 tokens found, and more lines.
    fn page(more: &str) -> String {
        format!("vllm:prefix_cache_queries_total 1000\nvllm:prefix_cache_hits_total 500\n{more}\n")
    }

    fn load(running: u32, waiting: u32) -> String {
        page(&format!("vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}"))
    }

    fn times(waiting: u32, queue: f64) -> String {
        let one = |name: &str, sum: f64| format!("\nvllm:{name}_count 10\nvllm:{name}_sum {sum}");
        load(2, waiting)
            + &one("request_queue_time_seconds", queue)
            + &one("time_to_first_token_seconds", 10.0)
    }

    #[test]
    fn each_rule_fires_on_its_figure_and_not_just_below_it() {
        let ended = |preempted: u32| {
            format!("vllm:num_preemptions_total {preempted}\nvllm:request_success_total 100\n")
        };
        let reasons = |capacity: u32, deferred: u32| {
            let one = |reason, count| {
                format!("vllm:num_requests_waiting_by_reason{{reason=\"{reason}\"}} {count}\n")
            };
            one("capacity", capacity) + &one("deferred", deferred)
        };
        let config = |on: &str| page(&format!("vllm:cache_config_info{{enable_prefix_caching=\"{on}\"}} 1"));
        let stuck = |waiting, usage: f64| load(9, waiting) + &format!("vllm:kv_cache_usage_perc {usage}\n");
        let sleeps = |awake: u8| page(&format!("vllm:engine_sleep_state{{sleep_state=\"awake\"}} {awake}"));
        for (pages, want) in [
            (vec![sleeps(0)], vec!["asleep", "untraced"]),
            (vec![sleeps(1)], vec!["untraced"]),
            (vec![config("False")], vec!["caching-off", "untraced"]),
            (vec![config("True")], vec!["untraced"]),
            (vec!["vllm:prefix_cache_queries_total 5".to_owned()], vec!["unmeasured", "untraced"]),
            (vec![], vec!["unmeasured"]),
            (vec![page(&ended(5))], vec!["preempted", "untraced"]),
            (vec![page(&ended(4))], vec!["untraced"]),
            (vec![load(13, 0), load(0, 0)], vec!["untraced"]),
            (vec![load(19, 0), load(0, 0)], vec!["uneven", "untraced"]),
            (vec![load(200, 0), load(100, 0)], vec!["untraced"]),
            (vec![load(2, 19), load(2, 0)], vec!["uneven", "untraced"]),
            (vec![load(300, 0), load(100, 0)], vec!["uneven", "untraced"]),
            (vec![stuck(4, 0.49)], vec!["seats", "untraced"]),
            (vec![stuck(3, 0.49)], vec!["untraced"]),
            (vec![stuck(4, 0.5)], vec!["untraced"]),
            (vec![stuck(4, 0.49) + &reasons(4, 0)], vec!["seats", "untraced"]),
            (vec![stuck(8, 0.49) + &reasons(4, 4)], vec!["seats", "untraced"]),
            (vec![stuck(8, 0.49) + &reasons(3, 5)], vec!["deferred", "untraced"]),
            (vec![stuck(8, 0.49) + &reasons(0, 8)], vec!["deferred", "untraced"]),
            (vec![stuck(3, 0.49) + &reasons(0, 3)], vec!["untraced"]),
            (vec![stuck(8, 0.49) + &ended(5)], vec!["preempted", "untraced"]),
            (vec![stuck(8, 0.49) + &ended(4)], vec!["seats", "untraced"]),
            (vec![stuck(8, 0.49) + &ended(5), stuck(8, 0.49) + &ended(0)], vec!["seats", "untraced"]),
            (vec![stuck(8, 0.49) + &ended(5), load(1, 8) + &ended(0)], vec!["untraced"]),
            (vec![times(1, 5.0), times(1, 5.0)], vec!["overfull", "untraced"]),
            (vec![times(1, 4.9), times(1, 4.9)], vec!["untraced"]),
            (vec![times(0, 5.0), times(1, 5.0)], vec!["untraced"]),
        ] {
            let rules: Vec<_> = all(&review(&pages)).iter().map(|advice| advice.rule).collect();
            assert_eq!(rules, want, "{pages:?}");
        }
    }

    #[test]
    fn what_was_before_the_interval_fires_no_rule() {
        let counts = |preempted: u32, ended: u32| {
            let page = format!("vllm:num_preemptions_total {preempted}\nvllm:request_success_total {ended}");
            Snapshot::read(&page).unwrap().0.counts
        };
        for (preempted, fires) in [(34, false), (35, true)] {
            let mut review = review(&[page("vllm:num_preemptions_total 30\nvllm:request_success_total 100")]);
            review.over = Some(counts(preempted, 200).since(&counts(30, 100)).unwrap());
            review.interval = Some(std::time::Duration::from_secs(1));
            assert_eq!(all(&review)[0].rule == "preempted", fires, "{preempted}");
        }
    }

    /// The reader can check each threshold that was passed.
    #[test]
    fn reasons_hold_their_figures() {
        let pages = [page("vllm:num_preemptions_total 30\nvllm:request_success_total 100")];
        let because = &all(&review(&pages))[0].because;
        assert!(
            because.starts_with("0.30 of a request is preempted since the start (0.05 or more"),
            "{because}"
        );
        let because = &all(&review(&[load(300, 0), load(100, 0)]))[0].because;
        assert!(
            because.contains("300.0 at the busiest replica and 200.0 in the mean, 1.50 times"),
            "{because}"
        );
        assert!(because.contains("below 200.0 + 3 sqrt(200.0) = 242.4"), "{because}");
    }
}
