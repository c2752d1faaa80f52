//! Figures over the requests of a run.

use std::collections::HashMap;

use super::run::Served;
use crate::engine::Seconds;

/// Prompt tokens, those that were cached, and those that one cache without a bound would have had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tokens {
    pub(super) prompt: u64,
    pub(super) cached: u64,
    pub(super) cached_at_best: u64,
}

pub(super) fn tokens(served: &[Served]) -> Tokens {
    served.iter().fold(Tokens::default(), |sum, served| Tokens {
        prompt: sum.prompt + served.prompt_tokens as u64,
        cached: sum.cached + served.cached_tokens as u64,
        cached_at_best: sum.cached_at_best + served.cached_at_best as u64,
    })
}

/// Requests of each replica.
pub(super) fn requests(served: &[Served], replicas: usize) -> Vec<usize> {
    let mut requests = vec![0; replicas];
    served.iter().for_each(|served| requests[served.replica] += 1);
    requests
}

/// Prompt tokens that each replica had to compute.
pub(super) fn computed(served: &[Served], replicas: usize) -> Vec<usize> {
    let mut computed = vec![0; replicas];
    for served in served {
        computed[served.replica] += served.computed_tokens;
    }
    computed
}

/// The most over the mean; 1 where there is nothing.
pub(super) fn imbalance(loads: &[usize]) -> f64 {
    let (most, sum) = (loads.iter().max().copied().unwrap_or(0), loads.iter().sum::<usize>());
    if sum == 0 { 1.0 } else { most as f64 * loads.len() as f64 / sum as f64 }
}

/// The worst imbalance of computed tokens over `window` requests, one window after another. What is left at the end is no
/// window, unless there is no other.
pub(super) fn worst_window(served: &[Served], window: usize, replicas: usize) -> f64 {
    let window = window.clamp(1, served.len().max(1));
    let windows = served.chunks_exact(window);
    windows.map(|window| imbalance(&computed(window, replicas))).fold(1.0, f64::max)
}

/// Groups that one replica served alone, of all, and how often a group's request went to another replica than the one
/// before it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Groups {
    pub(super) on_one: usize,
    pub(super) all: usize,
    pub(super) moves: usize,
}

pub(super) fn groups(served: &[Served]) -> Groups {
    let mut last: HashMap<usize, (usize, usize)> = HashMap::new();
    for served in served {
        let Some(group) = served.group else { continue };
        let (replica, moves) = last.entry(group).or_insert((served.replica, 0));
        *moves += usize::from(*replica != served.replica);
        *replica = served.replica;
    }
    let moves = || last.values().map(|(_, moves)| *moves);
    Groups { on_one: moves().filter(|&moves| moves == 0).count(), all: last.len(), moves: moves().sum() }
}

/// Fills in how long each answer stood still: the prompts that began on its replica while it ran (behaviour 53, without
/// chunks). `prefills` has by replica when each began, and for how long.
pub(super) fn stalls(served: &mut [Served], prefills: Vec<Vec<(Seconds, Seconds)>>) {
    let prefills: Vec<_> = prefills.into_iter().map(Stalls::of).collect();
    for served in served {
        if let Some((from, to)) = served.answer {
            served.stall = prefills[served.replica].between(from, to);
        }
    }
}

/// A replica's prompts by their beginnings, each with what all up to it took together.
struct Stalls(Vec<(Seconds, f64)>);

impl Stalls {
    fn of(mut prefills: Vec<(Seconds, Seconds)>) -> Self {
        prefills.sort_by(|(one, _), (other, _)| one.0.total_cmp(&other.0));
        let mut sum = 0.0;
        let summed = |(begin, span): (Seconds, Seconds)| {
            sum += span.0;
            (begin, sum)
        };
        Self(prefills.into_iter().map(summed).collect())
    }

    fn between(&self, from: Seconds, to: Seconds) -> Seconds {
        let before = |at: Seconds| match self.0.partition_point(|(begin, _)| *begin < at) {
            0 => 0.0,
            count => self.0[count - 1].1,
        };
        Seconds(before(to) - before(from))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 10 tokens each, so many cached.
    fn served(group: Option<usize>, replica: usize, cached_tokens: usize) -> Served {
        let computed_tokens = 10 - cached_tokens;
        let sums = Served {
            prompt_tokens: 10,
            cached_tokens,
            computed_tokens,
            cached_at_best: 8,
            ..Served::default()
        };
        Served { group, replica, ..sums }
    }

    #[test]
    fn sums_and_shares() {
        let all = [served(None, 0, 0), served(None, 0, 5), served(None, 1, 5), served(None, 1, 10)];
        assert_eq!(tokens(&all), Tokens { prompt: 40, cached: 20, cached_at_best: 32 });
        assert_eq!((requests(&all, 3), computed(&all, 3)), (vec![2, 2, 0], vec![15, 5, 0]));
        for (loads, want) in [(vec![15, 5, 0], 2.25), (vec![4, 4], 1.0), (vec![0, 0], 1.0), (vec![], 1.0)] {
            assert_eq!(imbalance(&loads), want, "{loads:?}");
        }
    }

    #[test]
    fn the_worst_window_is_one_of_whole_windows() {
        let all: Vec<Served> = [0, 1, 0, 1, 1].map(|replica| served(None, replica, 0)).to_vec();
        for (window, want) in [(2, 1.0), (3, 4.0 / 3.0), (5, 1.2), (1000, 1.2), (0, 2.0)] {
            assert_eq!(worst_window(&all, window, 2), want, "windows of {window}");
        }
        assert_eq!(worst_window(&[], 10, 2), 1.0);
    }

    #[test]
    fn a_group_moves_when_its_next_request_goes_elsewhere() {
        let all =
            [(0, 0), (1, 2), (0, 1), (1, 2), (0, 0)].map(|(group, replica)| served(Some(group), replica, 0));
        assert_eq!(groups(&all), Groups { on_one: 1, all: 2, moves: 2 });
        assert_eq!(groups(&[served(None, 0, 0), served(None, 1, 0)]), Groups::default());
    }

    #[test]
    fn an_answer_stands_still_for_the_prompts_that_begin_while_it_runs() {
        let answer = |replica, from, to| Served {
            replica,
            answer: Some((Seconds(from), Seconds(to))),
            ..Served::default()
        };
        let mut all = [answer(0, 1.0, 4.0), answer(0, 9.0, 9.5), answer(1, 0.0, 9.0), Served::default()];
        let prefill = |begin, span| (Seconds(begin), Seconds(span));
        stalls(
            &mut all,
            vec![
                vec![prefill(3.0, 0.5), prefill(0.5, 2.0), prefill(1.0, 0.25), prefill(4.0, 1.0)],
                Vec::new(),
            ],
        );
        assert_eq!(all.map(|served| served.stall.0), [0.75, 0.0, 0.0, 0.0]);
    }
}
