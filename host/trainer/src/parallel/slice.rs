//! What a rank sees of a micro-batch: its own two chunks of every sequence, padded to what its peers need.
//!
//! ```text
//! chunk = ceil(L / 2 cp)      rank r holds chunks r and 2 cp - 1 - r      (causal work is then equal)
//! ```
//!
//! Pads lie behind a sequence's last token, so no real token sees one; they have no target and no weight. With sequence
//! parallelism a dummy sequence fills the rows up to a multiple of tp. A rank may have no row that trains, and still takes
//! part in every call.

use crate::data::MicroBatch;
use slime_kernels::Sequences;
use slime_model::layers::Routes;
use std::ops::Range;

/// A micro-batch as one rank of a cp group sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LocalMicro {
    /// Tokens, pads included, the same number on all ranks of the group.
    pub ids: Vec<u32>,
    /// Each token's position in its whole sequence; 0 for a pad.
    pub positions: Vec<u32>,
    /// This rank's piece of each sequence, and the dummy sequence if there is one.
    pub sequences: Sequences,
    /// Rows here whose next token trains.
    pub rows: Vec<u32>,
    /// That token, one a row.
    pub targets: Vec<u32>,
    /// Its number in the batch, one a row.
    pub tokens: Vec<usize>,
    /// The numbers of all tokens of the micro-batch that train, sequence after sequence, on whichever rank.
    pub all_tokens: Vec<usize>,
    /// How many of `all_tokens` each sequence has.
    pub all_lengths: Vec<usize>,
    /// Which sequences of the batch the micro-batch has.
    pub members: Vec<usize>,
    /// Each token's row in the whole micro-batch; [`PAD`] for a pad.
    pub sources: Vec<u32>,
    /// Experts that rows have to go to, of this rank's layers: those that no pass here saw are free. Routers choose where
    /// there are none.
    pub routes: Option<Routes>,
}

/// The row of a token that is in no sequence.
pub const PAD: u32 = u32::MAX;

/// How a micro-batch is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slicing {
    /// Ranks that share each sequence.
    pub cp: usize,
    /// This rank among them.
    pub cp_rank: usize,
    /// The number of rows here is a multiple of this.
    pub multiple: usize,
}

/// Positions of a sequence of `len` tokens that rank `rank` of `cp` holds, in order; those from `len` on are pads.
pub fn zigzag(len: usize, cp: usize, rank: usize) -> [Range<usize>; 2] {
    if cp == 1 {
        return [0..len, len..len];
    }
    let chunk = len.div_ceil(2 * cp);
    let of = |i: usize| i * chunk..(i + 1) * chunk;
    [of(rank), of(2 * cp - 1 - rank)]
}

impl LocalMicro {
    /// This rank's share of `micro`. `trained` says how many of its tokens train, sequence by sequence.
    pub fn new(micro: &MicroBatch, slicing: Slicing) -> Self {
        let Slicing {
            cp,
            cp_rank,
            multiple,
        } = slicing;
        let mut local = Self {
            ids: Vec::new(),
            positions: Vec::new(),
            sequences: Sequences { offsets: vec![0] },
            rows: Vec::new(),
            targets: Vec::new(),
            tokens: Vec::new(),
            all_tokens: micro.tokens.clone(),
            all_lengths: Vec::new(),
            members: micro.members.clone(),
            sources: Vec::new(),
            routes: None,
        };
        // Row numbers of what trains, and where it stands in the micro-batch's lists, ascending within a sequence.
        let mut next = 0;
        for sequence in micro.sequences.ranges() {
            let first = next;
            while next < micro.rows.len() && (micro.rows[next] as usize) < sequence.end {
                next += 1;
            }
            local.all_lengths.push(next - first);
            let wanted = &micro.rows[first..next];
            for piece in zigzag(sequence.len(), cp, cp_rank) {
                for position in piece {
                    let row = sequence.start + position;
                    let real = position < sequence.len();
                    if real && let Ok(found) = wanted.binary_search(&(row as u32)) {
                        local.rows.push(local.ids.len() as u32);
                        local.targets.push(micro.targets[first + found]);
                        local.tokens.push(micro.tokens[first + found]);
                    }
                    local.ids.push(if real { micro.ids[row] } else { 0 });
                    local.positions.push(if real { position as u32 } else { 0 });
                    local.sources.push(if real { row as u32 } else { PAD });
                }
            }
            local.sequences.offsets.push(local.ids.len());
        }
        // Pieces are two chunks of one length, so the dummy's number of rows stays even where there are any.
        let multiple = if cp > 1 && multiple % 2 == 1 {
            2 * multiple
        } else {
            multiple
        };
        let rows = local.ids.len().max(1).next_multiple_of(multiple);
        if rows > local.ids.len() {
            local.ids.resize(rows, 0);
            local.positions.resize(rows, 0);
            local.sources.resize(rows, PAD);
            local.sequences.offsets.push(rows);
        }
        local
    }

    /// What the rows here have of `whole`, the experts of the micro-batch's rows, `top_k` a row. Pads are free.
    pub fn experts_of(&self, whole: &[u32], top_k: usize) -> Vec<u32> {
        let mut experts = vec![Routes::FREE; self.num_rows() * top_k];
        if top_k > 0 {
            for (own, row) in experts.chunks_exact_mut(top_k).zip(&self.sources) {
                // The micro-batch that nobody asked for has a row and no sequence.
                if let Some(theirs) = whole.chunks_exact(top_k).nth(*row as usize) {
                    own.copy_from_slice(theirs);
                }
            }
        }
        experts
    }

    /// Rows that the head wants. A rank without a row that trains gives one, whose gradient is 0: nobody has to handle
    /// empty tensors.
    pub fn wanted(&self) -> &[u32] {
        match self.rows.is_empty() {
            true => &[0],
            false => &self.rows,
        }
    }

    /// Tokens here, pads included.
    pub fn num_rows(&self) -> usize {
        self.ids.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algo::weights::Aggregation;
    use crate::data::Batch;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_token_lies_on_one_rank_and_ranks_have_equally_many_rows(
            lengths in prop::collection::vec(2usize..30, 1..6),
            cp in 1usize..5,
            multiple in 1usize..4,
        ) {
            let tokens: Vec<Vec<u32>> =
                lengths.iter().enumerate().map(|(i, &n)| (0..n).map(|t| (i * 100 + t) as u32).collect()).collect();
            let masks: Vec<Vec<u8>> = lengths.iter().map(|&n| (0..n).map(|t| (t % 3 != 1) as u8).collect()).collect();
            let pairs: Vec<(&[u32], &[u8])> = tokens.iter().zip(&masks).map(|(t, m)| (&t[..], &m[..])).collect();
            let batch = Batch::from_masked(&pairs, Aggregation::TokenMean, 0);
            for micro in MicroBatch::pack(&batch, 64) {
                let locals: Vec<LocalMicro> = (0..cp)
                    .map(|cp_rank| LocalMicro::new(&micro, Slicing { cp, cp_rank, multiple }))
                    .collect();
                let mut trained: Vec<usize> = locals.iter().flat_map(|l| l.tokens.clone()).collect();
                trained.sort_unstable();
                let mut wanted = micro.tokens.clone();
                wanted.sort_unstable();
                prop_assert_eq!(trained, wanted);
                for local in &locals {
                    prop_assert_eq!(local.num_rows(), locals[0].num_rows());
                    prop_assert_eq!(&local.sequences, &locals[0].sequences);
                    prop_assert!(local.num_rows().is_multiple_of(multiple));
                    // A row's experts follow it wherever it lies, and pads have none.
                    let whole: Vec<u32> = micro.ids.iter().flat_map(|id| [*id, id + 1]).collect();
                    let experts = local.experts_of(&whole, 2);
                    for ((experts, &source), &id) in experts.chunks(2).zip(&local.sources).zip(&local.ids) {
                        let free = [Routes::FREE; 2];
                        prop_assert_eq!(experts, if source == PAD { free } else { [id, id + 1] });
                    }
                    prop_assert_eq!(local.all_lengths.iter().sum::<usize>(), local.all_tokens.len());
                    for (&row, &target) in local.rows.iter().zip(&local.targets) {
                        // Tokens count up within a sequence, and so do positions.
                        prop_assert_eq!(local.ids[row as usize] + 1, target);
                        prop_assert_eq!(local.ids[row as usize] % 100, local.positions[row as usize]);
                    }
                }
            }
        }
    }

    #[test]
    fn causal_work_is_equal_on_all_ranks() {
        let work = |rank: usize| -> usize {
            zigzag(64, 4, rank)
                .into_iter()
                .flatten()
                .map(|p| p + 1)
                .sum()
        };
        assert!((1..4).all(|rank| work(rank) == work(0)));
    }
}
