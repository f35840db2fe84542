//! Which micro-batches each data-parallel rank runs: packed first, then dealt out.
//!
//! Every rank and every stage must run equally many, or the others wait for ever: bins are split until their number is a
//! multiple of what is needed, and where nothing can be split an empty micro-batch takes the place. Bins are dealt by
//! estimated work, the largest first to the rank with the least. It depends on lengths only, so all ranks compute the same
//! plan and no plan is sent.

use crate::data::{Batch, MicroBatch, first_fit};
use slime_kernels::Sequences;

/// Relative work of one sequence: what is linear in its tokens, and attention.
#[derive(Clone, Copy, Debug)]
pub struct Cost {
    /// FLOPs a token.
    pub linear: f64,
    /// FLOPs a pair of tokens.
    pub pair: f64,
}

impl Cost {
    fn of(&self, len: usize) -> f64 {
        let len = len as f64;
        self.linear * len + self.pair * len * len / 2.0
    }
}

/// Members of each bin of each rank: `[ranks][bins][sequences]`. `multiple` divides the number of bins a rank gets.
pub fn deal(
    lengths: &[usize],
    capacity: usize,
    ranks: usize,
    multiple: usize,
    cost: Cost,
) -> Vec<Vec<Vec<usize>>> {
    let mut bins = first_fit(lengths, capacity);
    let of = |bin: &Vec<usize>| bin.iter().map(|&i| cost.of(lengths[i])).sum::<f64>();
    let wanted = bins.len().max(1).next_multiple_of(ranks * multiple);
    while bins.len() < wanted {
        let splittable = (0..bins.len()).filter(|&i| bins[i].len() > 1);
        let Some(largest) = splittable.max_by(|&a, &b| of(&bins[a]).total_cmp(&of(&bins[b])))
        else {
            break;
        };
        let half = bins[largest].len() / 2;
        let tail = bins[largest].split_off(half);
        bins.push(tail);
    }
    bins.resize(wanted, Vec::new());
    let mut order: Vec<usize> = (0..bins.len()).collect();
    order.sort_by(|&a, &b| of(&bins[b]).total_cmp(&of(&bins[a])).then(a.cmp(&b)));
    let each = wanted / ranks;
    let mut dealt: Vec<(f64, Vec<usize>)> = vec![(0.0, Vec::new()); ranks];
    for bin in order {
        let open = (0..ranks).filter(|&r| dealt[r].1.len() < each);
        let least = open.min_by(|&a, &b| dealt[a].0.total_cmp(&dealt[b].0));
        let rank = least.expect("there are as many places as bins");
        dealt[rank].0 += of(&bins[bin]);
        dealt[rank].1.push(bin);
    }
    dealt
        .into_iter()
        .map(|(_, mut own)| {
            own.sort_unstable();
            own.into_iter().map(|bin| bins[bin].clone()).collect()
        })
        .collect()
}

/// The micro-batches of data-parallel rank `rank`.
pub fn micro_batches(
    batch: &Batch<'_>,
    capacity: usize,
    (ranks, rank): (usize, usize),
    multiple: usize,
    cost: Cost,
) -> Vec<MicroBatch> {
    let lengths: Vec<usize> = batch.sequences.iter().map(|s| s.inputs().len()).collect();
    let dealt = deal(&lengths, capacity, ranks, multiple, cost).swap_remove(rank);
    dealt
        .into_iter()
        .map(|members| match members.is_empty() {
            true => empty(),
            false => MicroBatch::new(&batch.sequences, members),
        })
        .collect()
}

/// One token that nobody asked for: a rank with less work still takes part in every call.
fn empty() -> MicroBatch {
    MicroBatch {
        members: Vec::new(),
        ids: vec![0],
        sequences: Sequences::from_lengths([1]),
        rows: Vec::new(),
        targets: Vec::new(),
        tokens: Vec::new(),
        routes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const COST: Cost = Cost {
        linear: 10.0,
        pair: 1.0,
    };

    proptest! {
        #[test]
        fn pitfall_08_j11_every_rank_gets_equally_many_micro_batches_and_every_sequence_once(
            lengths in prop::collection::vec(1usize..60, 0..40),
            capacity in 1usize..80,
            ranks in 1usize..6,
            multiple in 1usize..4,
        ) {
            let dealt = deal(&lengths, capacity, ranks, multiple, COST);
            prop_assert_eq!(dealt.len(), ranks);
            let mut seen = vec![0; lengths.len()];
            for own in &dealt {
                prop_assert_eq!(own.len(), dealt[0].len());
                prop_assert!(!own.is_empty() && own.len().is_multiple_of(multiple));
                for bin in own {
                    let total: usize = bin.iter().map(|&i| lengths[i]).sum();
                    prop_assert!(total <= capacity || bin.len() == 1);
                    bin.iter().for_each(|&i| seen[i] += 1);
                }
            }
            prop_assert!(seen.iter().all(|&n| n == 1));
        }
    }

    #[test]
    fn the_longest_sequences_do_not_meet_on_one_rank() {
        let dealt = deal(&[50, 50, 5, 5], 55, 2, 1, COST);
        for own in dealt {
            let long = own.iter().flatten().filter(|&&i| i < 2).count();
            assert_eq!(long, 1);
        }
    }
}
