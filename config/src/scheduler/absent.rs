//! Plugins of llm-d that this router lacks, and what is nearest to each.

use super::plugin::KNOWN;
use crate::faults::Reason;

/// How alike two names are, 0 to 1, from which one is taken for a slip of the other. Jaro and Winkler's measure.
const ALIKE: f64 = 0.8;

/// Flow control, of which there is none.
const HOLDS_NONE: &str = "none: this router holds no request back";

/// Types and what is nearest: what to write in their place.
const ABSENT: [(&str, &str); 74] = [
    ("load-aware-scorer", "queue-scorer"),
    ("context-length-aware", "none: a pool for each length"),
    ("latency-scorer", "none: the router's own policy expected-ttft"),
    ("endpoint-attribute-scorer", "none"),
    ("header-label-affinity-scorer", "session-affinity-scorer"),
    ("topology-affinity-scorer", "none"),
    ("mm-embeddings-cache-scorer", "prefix-cache-scorer"),
    ("precise-prefix-cache-scorer", "prefix-cache-scorer"),
    ("multicluster-queue-scorer", "queue-scorer"),
    ("multicluster-kv-cache-utilization-scorer", "kv-cache-utilization-scorer"),
    ("multicluster-prefix-cache-scorer", "prefix-cache-scorer"),
    ("multicluster-running-requests-size-scorer", "running-requests-size-scorer"),
    ("slo-headroom-tier-filter", "none"),
    ("utilization-filter", "queue-scorer and kv-cache-utilization-scorer"),
    ("active-request-filter", "active-request-scorer"),
    ("label-selector-filter", "none: a pool of those endpoints"),
    ("by-label", "none: a pool of those endpoints"),
    ("by-label-selector", "none: a pool of those endpoints"),
    ("encode-filter", "none: a pool of those endpoints"),
    ("prefill-filter", "none: a pool of those endpoints"),
    ("session-affinity-filter", "session-affinity-scorer"),
    ("multicluster-session-affinity-filter", "session-affinity-scorer"),
    ("topology-affinity-filter", "none"),
    ("endpoint-attribute-filter", "none"),
    ("disaggregatedset-rollout-screener", "none"),
    ("weighted-random-picker", "max-score-picker"),
    ("disagg-profile-handler", "single-profile-handler"),
    ("pd-profile-handler", "single-profile-handler"),
    ("data-parallel-profile-handler", "single-profile-handler"),
    ("header-profile-handler", "single-profile-handler"),
    ("prefix-based-pd-decider", "none"),
    ("always-disagg-pd-decider", "none"),
    ("always-disagg-multimodal-decider", "none"),
    ("precise-prefix-cache-producer", "approx-prefix-cache-producer"),
    ("burst-prefix-cache-producer", "approx-prefix-cache-producer"),
    ("multicluster-approx-prefix-cache-producer", "approx-prefix-cache-producer"),
    ("mm-embeddings-cache-producer", "approx-prefix-cache-producer"),
    ("p2p-source-producer", "none"),
    ("predicted-latency-producer", "none: the router's own policy expected-ttft"),
    ("session-id-producer", "session-affinity-scorer with a header"),
    ("latency-slo-admitter", "none"),
    ("probabilistic-admitter", "none"),
    ("concurrency-detector", "utilization-detector"),
    ("file-discovery", "none: the router's own pools[].discovery.file"),
    ("vllmgrpc-parser", "vllmhttp-parser"),
    ("sglanghttp-parser", "openai-parser"),
    ("vertexai-parser", "openai-parser"),
    ("multicluster-file-discovery", "none: the router's own pools[].discovery.file"),
    ("multicluster-metrics-data-source", "metrics-data-source"),
    ("multicluster-metrics-extractor", "core-metrics-extractor"),
    ("dcgm-data-source", "metrics-data-source"),
    ("dcgm-extractor", "core-metrics-extractor"),
    ("topology-extractor", "none"),
    ("endpoint-notification-source", "none"),
    ("k8s-notification-source", "none"),
    ("disaggregatedset-rollout-pod-extractor", "none"),
    ("agent-identity", "session-affinity-scorer with a header"),
    ("request-attribute-reporter", "none"),
    ("reserve-endpoint", "none"),
    ("destination-endpoint-served-verifier", "none"),
    ("disagg-headers-handler", "none"),
    ("prefill-header-handler", "none"),
    ("fcfs-ordering-policy", HOLDS_NONE),
    ("edf-ordering-policy", HOLDS_NONE),
    ("slo-deadline-ordering-policy", HOLDS_NONE),
    ("global-strict-fairness-policy", HOLDS_NONE),
    ("round-robin-fairness-policy", HOLDS_NONE),
    ("program-aware-fairness", HOLDS_NONE),
    ("priority-holdback-policy", HOLDS_NONE),
    ("soft-reflective-ceiling-policy", HOLDS_NONE),
    ("static-usage-limit-policy", HOLDS_NONE),
    ("sheddable-eviction-filter", HOLDS_NONE),
    ("priority-then-time-eviction-order-policy", HOLDS_NONE),
    ("local-syncer", "none: this router shares nothing with its peers"),
];

/// Why a type is a fault: llm-d has it and the router does not, or nobody has it.
pub(super) fn reason(kind: &str) -> Reason {
    if let Some((name, nearest)) = ABSENT.iter().find(|(name, _)| *name == kind) {
        let nearest = match nearest.starts_with("none") {
            true => (*nearest).to_owned(),
            false => format!("{nearest}, the nearest"),
        };
        return Reason::thing(format_args!("{name}, which this router lacks"), nearest);
    }
    let known = KNOWN.iter().map(|(known, _)| (strsim::jaro_winkler(kind, known), *known));
    match known.max_by(|one, other| one.0.total_cmp(&other.0)) {
        Some((alike, known)) if alike >= ALIKE => Reason::text(kind, known),
        _ => Reason::text(kind, "the type of a plugin that this router has"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scheduler::plugin::role;

    const DOCUMENTED: &str = include_str!("../../../deploy/LLM-D.md");

    #[test]
    fn every_plugin_is_documented_and_the_nearest_are_had() {
        let types = KNOWN.iter().map(|(name, _)| *name).chain(ABSENT.iter().map(|(name, _)| *name));
        let missing: Vec<_> = types.filter(|name| !DOCUMENTED.contains(&format!("`{name}`"))).collect();
        assert!(missing.is_empty(), "{missing:?}");
        for (name, nearest) in ABSENT {
            assert!(role(name).is_none(), "{name} is had");
            let first = nearest.split(' ').next().unwrap_or_default();
            assert!(nearest.starts_with("none") || role(first).is_some(), "{name}: {nearest}");
        }
    }
}
