//! Parameters that are whole again: what ranks hold of them, laid together on rank 0's device.
//!
//! ```text
//! each rank   what it gives of some parameters, end to end ─► rank 0
//! rank 0      blocks ─► their places in whole parameters
//! ```
//!
//! Every element is given once, by the first of those that hold it, so copies move nothing, and numbers stay in the format
//! that ranks hold them in. It knows no engine: who takes the parameters is its callers'. Read [`super::shard`] for what a
//! rank holds.

use super::layout::ParallelConfig;
use super::place::{Axis, Place};
use super::rank::Rank;
use super::shard::{Block, place_of, shards};
use crate::config::Problem;
use crate::{Error, Result};
use rayon::prelude::*;
use slime_kernels::{Ops, Patch};
use slime_model::{ModelSpec, ParamSpec};
use std::ops::Range;

/// A block of a parameter, in one rank's hands.
struct Piece {
    rank: usize,
    /// Its elements among those that the rank holds of the parameter.
    elements: Range<usize>,
    block: Block,
}

/// Who gives each element of each parameter.
pub struct Holders {
    /// Of each parameter, rank by rank.
    pieces: Vec<Vec<Piece>>,
    ranks: usize,
}

impl Holders {
    /// Those of a layout.
    ///
    /// # Errors
    /// The layers do not divide over the stages.
    pub fn of(spec: &ModelSpec, params: &[ParamSpec], config: &ParallelConfig) -> Result<Self> {
        let mut pieces: Vec<Vec<Piece>> = params.iter().map(|_| Vec::new()).collect();
        for rank in 0..config.world() {
            let place = Place::new(config, rank);
            let first = place.along(Axis::Dp) == 0 && place.along(Axis::Cp) == 0;
            let first_of_experts = place.expert_replica() == 0;
            if !first && !first_of_experts {
                continue;
            }
            let held = shards(spec, params, config, &place).map_err(|detail| {
                let key = "pipeline_model_parallel_size";
                Error::Config(vec![Problem { key, detail }])
            })?;
            for (pieces, shard) in pieces.iter_mut().zip(&held) {
                let gives = match shard.is_expert {
                    true => first_of_experts,
                    false => first,
                };
                let own = shard.ranges().filter(|(block, _)| gives && !block.is_copy);
                pieces.extend(own.map(|(block, elements)| Piece {
                    rank,
                    elements,
                    block: block.clone(),
                }));
            }
        }
        Ok(Self {
            pieces,
            ranks: config.world(),
        })
    }

    /// Does `rank` give anything of a parameter?
    pub fn gives(&self, rank: usize, param: usize) -> bool {
        self.pieces[param].iter().any(|piece| piece.rank == rank)
    }

    /// A parameter from what each rank holds of it.
    pub fn paste(&self, param: usize, spec: &ParamSpec, held: &[Vec<f32>]) -> Vec<f32> {
        let mut whole = vec![0.0; spec.len()];
        for Piece {
            rank,
            elements,
            block,
        } in &self.pieces[param]
        {
            let (start, width) = place_of(spec, block.part);
            let lines = start + block.rows.start * width..start + block.rows.end * width;
            let from = held[*rank][elements.clone()].par_chunks(block.cols.len());
            let to = whole[lines].par_chunks_mut(width);
            to.zip(from)
                .with_min_len(LINES)
                .for_each(|(to, from)| to[block.cols.clone()].copy_from_slice(from));
        }
        whole
    }

    /// Parameters in runs of about `at_once` elements.
    fn runs(params: &[ParamSpec], at_once: usize) -> Vec<Range<usize>> {
        let (mut runs, mut begin, mut filled) = (Vec::new(), 0, 0);
        for (at, param) in params.iter().enumerate() {
            if at > begin && filled + param.len() > at_once {
                runs.push(begin..at);
                (begin, filled) = (at, 0);
            }
            filled += param.len();
        }
        runs.push(begin..params.len());
        runs
    }

    /// Elements that each rank gives of a run of parameters.
    fn counts(&self, run: &Range<usize>) -> Vec<usize> {
        let mut counts = vec![0; self.ranks];
        for piece in self.pieces[run.clone()].iter().flatten() {
            counts[piece.rank] += piece.elements.len();
        }
        counts
    }
}

/// Lines that one task copies at least.
const LINES: usize = 64;

impl<O: Ops> Rank<O> {
    /// Have every parameter whole on rank 0, in order, about `at_once` elements at a time; they are given to `take` there.
    /// Where a rank has one whole it is what that rank computes with. All ranks call it.
    ///
    /// # Errors
    /// What `take` returns; a rank failed, or the device is full.
    pub fn each_whole(
        &self,
        holders: &Holders,
        at_once: usize,
        mut take: impl FnMut(Vec<O::Tensor>) -> Result<()>,
    ) -> Result<()> {
        for run in Holders::runs(&self.stage.params, at_once) {
            let come = self.gathered(holders, &run)?;
            if self.mesh.place.rank == 0 {
                take(self.laid_together(holders, run, &come)?)?;
            }
        }
        Ok(())
    }

    /// What the others give of a run of parameters, end to end, on rank 0; nothing on the others.
    fn gathered(&self, holders: &Holders, run: &Range<usize>) -> Result<O::Tensor> {
        let me = self.mesh.place.rank;
        let nothing = || self.ops.tensor(0, 1, &[]);
        let mut counts = holders.counts(run);
        counts[0] = 0;
        if counts.iter().all(|n| *n == 0) {
            return Ok(nothing()?);
        }
        let (mut send, mut recv) = (vec![0; counts.len()], vec![0; counts.len()]);
        let given = match me {
            0 => {
                recv = counts;
                nothing()?
            }
            _ => {
                send[0] = counts[me];
                let weights = run.clone().zip(&self.stage.weights.0[run.clone()]);
                let own = weights.flat_map(|(param, weight)| {
                    let pieces = holders.pieces[param].iter();
                    let own = pieces.filter(|piece| piece.rank == me);
                    own.map(move |piece| (weight, piece.elements.clone()))
                });
                let joined = self.ops.join(&own.collect::<Vec<_>>(), counts[me])?;
                self.ops.cut(&joined, 0..counts[me], counts[me], 1)?
            }
        };
        Ok(self.mesh.world.all_to_all(&given, &send, &recv)?)
    }

    /// A run of whole parameters from this rank's own weights and what has come from the others.
    fn laid_together(
        &self,
        holders: &Holders,
        run: Range<usize>,
        come: &O::Tensor,
    ) -> Result<Vec<O::Tensor>> {
        // Where in `come` each rank's next piece begins: ranks come one after the other, each in the order of the parameters.
        let mut counts = holders.counts(&run);
        counts[0] = 0;
        let mut end = 0;
        let mut next: Vec<usize> = counts
            .iter()
            .map(|n| {
                end += n;
                end - n
            })
            .collect();
        let whole = run.map(|param| {
            let (spec, weight) = (&self.stage.params[param], &self.stage.weights.0[param]);
            let pieces = &holders.pieces[param];
            if pieces.iter().all(|piece| piece.rank == 0)
                && self.ops.shape(weight) == (spec.rows, spec.cols)
            {
                return Ok(weight.clone());
            }
            let patches = pieces.iter().map(|piece| {
                let (from, elements) = match piece.rank {
                    0 => (weight, piece.elements.clone()),
                    rank => {
                        let start = next[rank];
                        next[rank] += piece.elements.len();
                        (come, start..next[rank])
                    }
                };
                let (start, stride) = place_of(spec, piece.block.part);
                Patch {
                    from,
                    elements,
                    to: start + piece.block.rows.start * stride + piece.block.cols.start,
                    width: piece.block.cols.len(),
                    stride,
                }
            });
            let patches: Vec<_> = patches.collect();
            Ok(self.ops.lay_out(&patches, spec.rows, spec.cols)?)
        });
        whole.collect()
    }
}
