//! The order in which a stage runs forwards and backwards: 1F1B, interleaved 1F1B, and forwards only.
//!
//! ```text
//! 1F1B          warm-up PP - stage - 1 forwards, then one forward and one backward in turn, then the rest
//! interleaved   warm-up 2 (PP - stage - 1) + (chunks - 1) PP forwards; micro-batches go in groups of PP through the chunks
//! ```
//!
//! Pure arithmetic: it sends nothing. With the order every stage also knows every message's shape, because all ranks have
//! the same micro-batch plan. Read [`super::pipeline`] for who runs it.

/// One piece of work of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Work {
    /// A micro-batch through a chunk of layers.
    Forward {
        /// Which of the stage's chunks.
        chunk: usize,
        /// Which micro-batch.
        micro: usize,
    },
    /// Its gradient back through it.
    Backward {
        /// Which of the stage's chunks.
        chunk: usize,
        /// Which micro-batch.
        micro: usize,
    },
}

/// Forwards of all micro-batches, in the order of the schedule.
pub fn forwards(stages: usize, chunks: usize, micros: usize) -> Vec<Work> {
    (0..micros * chunks)
        .map(|k| {
            let (chunk, micro) = at(k, stages, chunks, false);
            Work::Forward { chunk, micro }
        })
        .collect()
}

/// A train step of stage `stage` of `stages`. With several chunks, `stages` divides `micros`.
pub fn one_f_one_b(stage: usize, stages: usize, chunks: usize, micros: usize) -> Vec<Work> {
    let total = micros * chunks;
    let warm_up = if chunks == 1 {
        stages - stage - 1
    } else {
        2 * (stages - stage - 1) + (chunks - 1) * stages
    };
    let warm_up = warm_up.min(total);
    let forward = |k: usize| {
        let (chunk, micro) = at(k, stages, chunks, false);
        Work::Forward { chunk, micro }
    };
    let backward = |k: usize| {
        let (chunk, micro) = at(k, stages, chunks, true);
        Work::Backward { chunk, micro }
    };
    let mut work: Vec<Work> = (0..warm_up).map(forward).collect();
    for k in 0..total - warm_up {
        work.push(forward(warm_up + k));
        work.push(backward(k));
    }
    work.extend((total - warm_up..total).map(backward));
    work
}

/// Chunk and micro-batch of a stage's `k`-th forward, or backward.
fn at(k: usize, stages: usize, chunks: usize, backward: bool) -> (usize, usize) {
    if chunks == 1 {
        return (0, k);
    }
    let group = stages * chunks;
    let chunk = k % group / stages;
    let micro = k / group * stages + k % stages;
    (if backward { chunks - 1 - chunk } else { chunk }, micro)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Run every stage's list under the rule that a piece waits for what it needs → the time each takes, with equal
    /// forwards of 1 and backwards of 2. `None` if they wait for each other for ever.
    fn makespan(stages: usize, chunks: usize, micros: usize) -> Option<usize> {
        let lists: Vec<Vec<Work>> = (0..stages)
            .map(|s| one_f_one_b(s, stages, chunks, micros))
            .collect();
        let mut done = std::collections::HashMap::new();
        let (mut next, mut clock) = (vec![0; stages], vec![0; stages]);
        let last = stages * chunks - 1;
        loop {
            let mut moved = false;
            for stage in 0..stages {
                let Some(&work) = lists[stage].get(next[stage]) else {
                    continue;
                };
                // Pieces are told apart by virtual stage.
                let (needs, own, took) = match work {
                    Work::Forward { chunk, micro } => {
                        let v = chunk * stages + stage;
                        let needs = (v > 0).then(|| (false, v - 1, micro));
                        (needs, (false, v, micro), 1)
                    }
                    Work::Backward { chunk, micro } => {
                        let v = chunk * stages + stage;
                        let needs = match v == last {
                            true => (false, v, micro),
                            false => (true, v + 1, micro),
                        };
                        (Some(needs), (true, v, micro), 2)
                    }
                };
                let ready = match needs {
                    None => Some(0),
                    Some(key) => done.get(&key).copied(),
                };
                if let Some(ready) = ready {
                    clock[stage] = clock[stage].max(ready) + took;
                    done.insert(own, clock[stage]);
                    next[stage] += 1;
                    moved = true;
                }
            }
            if next.iter().zip(&lists).all(|(n, list)| *n == list.len()) {
                return clock.into_iter().max();
            }
            if !moved {
                return None;
            }
        }
    }

    #[test]
    fn every_piece_runs_once_and_no_stage_waits_for_ever() {
        for stages in 1..6 {
            for chunks in 1..4 {
                for micros in 1..14 {
                    if chunks > 1 && micros % stages != 0 {
                        continue;
                    }
                    for stage in 0..stages {
                        let list = one_f_one_b(stage, stages, chunks, micros);
                        let distinct: BTreeSet<Work> = list.iter().copied().collect();
                        assert_eq!(
                            (list.len(), distinct.len()),
                            (2 * micros * chunks, 2 * micros * chunks)
                        );
                    }
                    assert!(
                        makespan(stages, chunks, micros).is_some(),
                        "{stages} {chunks} {micros}"
                    );
                }
            }
        }
    }

    #[test]
    fn the_bubble_is_what_the_formula_says() {
        // (p - 1) / (v m + p - 1) of the step, with equal chunks (Narayanan et al., arXiv:2104.04473, section 2.2).
        for (stages, chunks, micros) in [(4, 1, 8), (2, 1, 5), (4, 2, 8), (4, 3, 12), (2, 2, 2)] {
            let took = makespan(stages, chunks, micros).unwrap();
            let busy = 3 * micros * chunks;
            assert_eq!(took - busy, 3 * (stages - 1), "{stages} {chunks} {micros}");
        }
    }

    #[test]
    fn a_stage_holds_no_more_activations_than_stages_follow_it() {
        for stage in 0..4 {
            let (mut alive, mut most) = (0usize, 0);
            for work in one_f_one_b(stage, 4, 1, 16) {
                match work {
                    Work::Forward { .. } => alive += 1,
                    Work::Backward { .. } => alive -= 1,
                }
                most = most.max(alive);
            }
            assert_eq!(most, 4 - stage);
        }
    }
}
