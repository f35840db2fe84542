//! Micro-batches: whole sequences laid end to end, up to a token budget.

use super::{Batch, Sequence};
use slime_kernels::Sequences;
use slime_model::layers::Routes;

/// Put items into bins of at most `capacity`, each into the first bin with room, in order. An item that is larger
/// than a bin sits alone in one.
pub fn first_fit(lengths: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut bins: Vec<(usize, Vec<usize>)> = Vec::new();
    for (item, &len) in lengths.iter().enumerate() {
        match bins.iter_mut().find(|(used, _)| used + len <= capacity) {
            Some((used, members)) => {
                *used += len;
                members.push(item);
            }
            None => bins.push((len, vec![item])),
        }
    }
    bins.into_iter().map(|(_, members)| members).collect()
}

/// Packed sequences that go through the model together.
#[derive(Clone, Debug)]
pub struct MicroBatch {
    /// Which sequences of the batch.
    pub members: Vec<usize>,
    /// Their input tokens, end to end.
    pub ids: Vec<u32>,
    /// Where each begins.
    pub sequences: Sequences,
    /// Rows whose next token trains.
    pub rows: Vec<u32>,
    /// That token, one a row.
    pub targets: Vec<u32>,
    /// Its number in the batch, one a row.
    pub tokens: Vec<usize>,
    /// Experts that its rows have to go to; routers choose where there are none.
    pub routes: Option<Routes>,
}

impl MicroBatch {
    /// Lay `members` of `sequences` end to end.
    pub fn new(sequences: &[Sequence<'_>], members: Vec<usize>) -> Self {
        let of = || members.iter().map(|&i| &sequences[i]);
        let lengths = Sequences::from_lengths(of().map(|s| s.inputs().len()));
        let starts = lengths.offsets.iter();
        Self {
            ids: of().flat_map(|s| s.inputs().iter().copied()).collect(),
            rows: of()
                .zip(starts)
                .flat_map(|(s, &at)| s.rows.iter().map(move |r| r + at as u32))
                .collect(),
            targets: of().flat_map(Sequence::targets).collect(),
            tokens: of().flat_map(|s| s.trained.clone()).collect(),
            sequences: lengths,
            members,
            routes: None,
        }
    }

    /// All sequences of a batch, in micro-batches of at most `max_tokens`.
    pub fn pack(batch: &Batch<'_>, max_tokens: usize) -> Vec<Self> {
        let lengths: Vec<usize> = batch.sequences.iter().map(|s| s.inputs().len()).collect();
        let bins = first_fit(&lengths, max_tokens);
        bins.into_iter()
            .map(|members| Self::new(&batch.sequences, members))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::weights::Aggregation;
    use proptest::prelude::*;

    #[test]
    fn items_go_to_the_first_bin_with_room_and_a_large_one_sits_alone() {
        assert_eq!(
            first_fit(&[5, 4, 3, 12, 2, 6], 10),
            [vec![0, 1], vec![2, 4], vec![3], vec![5]]
        );
        assert!(first_fit(&[], 10).is_empty());
    }

    proptest! {
        #[test]
        fn packing_loses_no_token_and_keeps_the_budget(
            lengths in prop::collection::vec(1usize..40, 0..30),
            capacity in 1usize..64,
            masks in prop::collection::vec(prop::collection::vec(0u8..2, 40), 30),
        ) {
            let tokens: Vec<Vec<u32>> =
                lengths.iter().enumerate().map(|(i, &n)| (0..n).map(|t| (i * 100 + t) as u32).collect()).collect();
            let pairs: Vec<(&[u32], &[u8])> =
                tokens.iter().zip(&masks).map(|(t, m)| (&t[..], &m[..t.len()])).collect();
            let batch = Batch::from_masked(&pairs, Aggregation::TokenMean, 0);
            let packed = MicroBatch::pack(&batch, capacity);
            let mut seen = vec![0; batch.num_trained()];
            for micro in &packed {
                prop_assert!(micro.ids.len() <= capacity || micro.members.len() == 1);
                prop_assert_eq!(micro.ids.len(), micro.sequences.num_tokens());
                prop_assert_eq!(micro.rows.len(), micro.targets.len());
                for ((&row, &target), &token) in micro.rows.iter().zip(&micro.targets).zip(&micro.tokens) {
                    seen[token] += 1;
                    // Tokens count up within a sequence, so the next one is known.
                    prop_assert_eq!(micro.ids[row as usize] + 1, target);
                }
            }
            prop_assert!(seen.iter().all(|&n| n == 1));
            let trained: usize = pairs.iter().map(|(_, m)| m.iter().skip(1).filter(|m| **m == 1).count()).sum();
            prop_assert_eq!(trained, batch.num_trained());
        }
    }
}
