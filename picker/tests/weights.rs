//! Weights of endpoints: each gets its share of what nothing else decides, and what it holds stays worth what it is.

use picker::belief::{EndpointId, Index};
use picker::chance::Draw;
use picker::decide::{Ask, Rules, decide};
use picker::hash::BlockSize;
use picker::load::Load;
use picker::policy::Policy;
use picker::read::Api;
use picker::score::Candidate;

const WEIGHTS: [f64; 3] = [1.0, 2.0, 5.0];
const REQUESTS: u32 = 4_000;

fn fleet(index: &Index, weights: &[f64]) -> Vec<Candidate> {
    let known = Load { waiting: Some(0.0), running: Some(0.0), kv_usage: Some(0.0), ..Load::default() };
    let candidate = |(id, &weight): (u32, &f64)| {
        assert!(index.join(EndpointId(id), 100_000).is_ok());
        Candidate { weight, ..Candidate::new(EndpointId(id), known) }
    };
    (0..).zip(weights).map(candidate).collect()
}

fn rules(policy: Policy) -> Rules {
    Rules { policy, block: BlockSize::ROUTER, ..Rules::default() }
}

fn body(seed: u32) -> String {
    format!(
        r#"{{"model":"m","messages":[{{"role":"user","content":"{}"}}]}}"#,
        format!("{seed} ").repeat(200)
    )
}

/// Shares of `REQUESTS` new prompts, none of which ends: load piles up.
fn shares(policy: Policy, weights: &[f64]) -> Vec<f64> {
    let index = Index::default();
    let mut fleet = fleet(&index, weights);
    let mut went = vec![0u32; weights.len()];
    for turn in 0..REQUESTS {
        let text = body(turn);
        let ask = Ask { api: Api::Chat, body: text.as_bytes(), tenant: b"", session: b"" };
        let draw = Draw { seed: 0, turn: turn.into() };
        let decision = decide(&ask, &fleet, &index, &rules(policy), draw);
        let place = decision.ok().and_then(|decision| decision.best()).map_or(0, |best| best.candidate);
        went[place] += 1;
        let in_flight = &mut fleet[place].load.in_flight;
        in_flight.requests += 1;
        in_flight.prefilling += 1;
        in_flight.uncached_tokens += 200;
        in_flight.backlog += 0.02;
        in_flight.recent += 0.02;
        in_flight.busy += 0.001;
        fleet[place].load.unseen += 1;
    }
    went.iter().map(|&count| f64::from(count) / f64::from(REQUESTS)).collect()
}

#[test]
fn load_goes_by_weight() {
    for policy in Policy::ALL {
        if policy == Policy::PrefixOnly {
            continue; // blind to load; what it holds piles up
        }
        let shares = shares(policy, &WEIGHTS);
        for (share, weight) in shares.iter().zip(WEIGHTS) {
            let wanted = weight / WEIGHTS.iter().sum::<f64>();
            assert!((share - wanted).abs() < 0.03, "{policy:?}: {shares:?}, {share} for {wanted}");
        }
    }
}

#[test]
fn equal_weights_are_no_weights() {
    for policy in Policy::ALL {
        if policy == Policy::PrefixOnly {
            continue;
        }
        for share in shares(policy, &[3.0, 3.0]) {
            assert!((share - 0.5).abs() < 0.03, "{policy:?}: {share}");
        }
    }
}

#[test]
fn who_holds_a_prompt_keeps_it_at_a_small_weight() {
    for policy in [Policy::ExpectedTtft, Policy::Prefix, Policy::PrefixOnly, Policy::Affinity] {
        let index = Index::default();
        let fleet = fleet(&index, &[0.2, 1.0]);
        let text = body(1);
        let ask = Ask { api: Api::Chat, body: text.as_bytes(), tenant: b"", session: b"" };
        let decide = |turn| decide(&ask, &fleet, &index, &rules(policy), Draw { seed: 0, turn });
        if let Ok(first) = decide(0) {
            first.commit(&index, EndpointId(0));
        }
        let again = decide(1).ok().and_then(|decision| decision.best()).map(|best| best.candidate);
        assert_eq!(again, Some(0), "{policy:?}");
    }
}
