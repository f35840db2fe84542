//! Any order of events leaves books that balance, and nothing trains twice.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Op {
    Claim(usize),
    Keep(usize),
    Discard(usize),
    Release(usize),
    Publish,
    Take,
    Train,
    /// Go back this many steps.
    Resume(u64),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        4 => (1usize..4).prop_map(Op::Claim),
        8 => (0usize..8).prop_map(Op::Keep),
        1 => (0usize..8).prop_map(Op::Discard),
        1 => (0usize..8).prop_map(Op::Release),
        2 => Just(Op::Publish),
        3 => Just(Op::Take),
        3 => Just(Op::Train),
        1 => (0u64..3).prop_map(Op::Resume),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn the_books_balance_and_nothing_trains_twice(ops in prop::collection::vec(op(), 1..60), max_lag in 0u64..3) {
        let (_dir, buffer) = fresh(max_lag);
        let mut claims: Vec<Claim> = Vec::new();
        // The version published before each step; the last one serves.
        let mut versions = vec![1u64];
        let mut step = 0u64;
        let mut taken: Option<Vec<u64>> = None;
        let mut trained: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for op in ops {
            let served = *versions.last().unwrap();
            match op {
                Op::Claim(n) => claims.extend(buffer.claim(Step(step), n).unwrap()),
                Op::Keep(i) if !claims.is_empty() => {
                    let claim = claims.remove(i % claims.len());
                    let group = sample(&buffer, &claim, served);
                    buffer.keep(&claim, &group).unwrap();
                }
                Op::Discard(i) if !claims.is_empty() => {
                    let claim = claims.remove(i % claims.len());
                    let group = sample(&buffer, &claim, served);
                    buffer.discard(&claim, &group, "dull").unwrap();
                }
                Op::Release(i) if !claims.is_empty() => buffer.release(&claims.remove(i % claims.len())),
                // A step serves one version; extra publishes age what waits.
                Op::Publish if taken.is_none() => *versions.last_mut().unwrap() += 1,
                Op::Take if taken.is_none() => {
                    if let Ok(batch) = buffer.take(Step(step), 2, WeightVersion(served)) {
                        prop_assert!(batch.lag_max.unwrap() <= max_lag);
                        let ids = ids(&batch.groups);
                        prop_assert!(ids.is_sorted());
                        taken = Some(ids);
                    }
                }
                Op::Train => if let Some(ids) = taken.take() {
                    buffer.trained(Step(step)).unwrap();
                    trained.insert(step, ids);
                    step += 1;
                    versions.push(served + 1);
                },
                Op::Resume(back) => {
                    step = step.saturating_sub(back);
                    versions.truncate(step as usize + 1);
                    trained.split_off(&step);
                    (taken, claims) = (None, Vec::new());
                    buffer.resume_at(Step(step), WeightVersion(*versions.last().unwrap())).unwrap();
                }
                _ => {}
            }
            let balance = buffer.balance().unwrap();
            prop_assert!(balance.holds(), "{:?}", balance);
            prop_assert_eq!(balance.trained as usize, trained.len() * 2);
            let rollouts = buffer.conservation().unwrap();
            prop_assert!(rollouts.holds(), "{rollouts}");
            // Of a group's two rollouts one was scored.
            prop_assert_eq!((rollouts.trained, rollouts.masked), (balance.trained, balance.trained));
            let mut all: Vec<u64> = trained.values().flatten().chain(taken.iter().flatten()).copied().collect();
            let count = all.len();
            all.sort_unstable();
            all.dedup();
            prop_assert_eq!(all.len(), count, "a group trains once");
            // No draw is claimed twice at once, or claimed while its group waits or is trained.
            let mut open: Vec<u64> = claims.iter().map(|c| c.draw).collect();
            open.sort_unstable();
            open.dedup();
            prop_assert_eq!(open.len(), claims.len());
            prop_assert!(open.iter().all(|draw| !all.contains(draw)));
        }
        for (s, expected) in &trained {
            prop_assert_eq!(&ids(&buffer.groups_of(Step(*s)).unwrap()), expected);
        }
    }
}
