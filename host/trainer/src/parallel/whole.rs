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

    /// Elements that each rank but the first, who receives them, gives of a run of parameters.
    fn counts(&self, run: &[usize]) -> Vec<usize> {
        let mut counts = vec![0; self.ranks];
        for piece in run.iter().flat_map(|&param| &self.pieces[param]) {
            counts[piece.rank] += piece.elements.len();
        }
        counts[0] = 0;
        counts
    }
}

/// Those of `params` that are `wanted`, by number, in runs of about `at_once` elements.
pub fn runs(
    params: &[ParamSpec],
    at_once: usize,
    wanted: impl Fn(&ParamSpec) -> bool,
) -> Vec<Vec<usize>> {
    let (mut runs, mut run, mut filled) = (Vec::new(), Vec::new(), 0);
    for (at, param) in params.iter().enumerate().filter(|(_, param)| wanted(param)) {
        if !run.is_empty() && filled + param.len() > at_once {
            runs.push(std::mem::take(&mut run));
            filled = 0;
        }
        run.push(at);
        filled += param.len();
    }
    if !run.is_empty() {
        runs.push(run);
    }
    runs
}

/// Lines that one task copies at least.
const LINES: usize = 64;

impl<O: Ops> Rank<O> {
    /// Have every parameter whole on rank 0, in order, about `at_once` elements at a time; they are given to `take` there.
    /// Where rank 0 has one whole it is what it computes with. All ranks call it.
    ///
    /// # Errors
    /// What `take` returns; a rank failed, or the device is full.
    pub fn each_whole(
        &self,
        holders: &Holders,
        at_once: usize,
        mut take: impl FnMut(Vec<O::Tensor>) -> Result<()>,
    ) -> Result<()> {
        for run in runs(&self.stage.params, at_once, |_| true) {
            let come = self.gathered(holders, &run)?;
            if self.mesh.place.rank > 0 {
                continue;
            }
            let mut next = starts(&holders.counts(&run));
            let whole = run.iter().map(|&param| {
                let spec = &self.stage.params[param];
                if self.has_whole(holders, param) {
                    return Ok(self.stage.weights.0[param].clone());
                }
                let mut patches = Vec::new();
                self.patches(holders, (param, 0), &come, &mut next, &mut patches);
                Ok(self.ops.lay_out(&patches, spec.rows, spec.cols)?)
            });
            take(whole.collect::<Result<_>>()?)?;
        }
        Ok(())
    }

    /// Have runs of whole parameters on rank 0, each as one row, its parameters end to end; it is given to `take` there
    /// with the run's number. All ranks call it.
    ///
    /// # Errors
    /// As [`Self::each_whole`].
    pub fn each_run(
        &self,
        holders: &Holders,
        runs: &[Vec<usize>],
        mut take: impl FnMut(usize, O::Tensor) -> Result<()>,
    ) -> Result<()> {
        for (number, run) in runs.iter().enumerate() {
            let come = self.gathered(holders, run)?;
            if self.mesh.place.rank > 0 {
                continue;
            }
            let mut next = starts(&holders.counts(run));
            let (mut patches, mut end) = (Vec::new(), 0);
            for &param in run {
                let (weight, len) = (&self.stage.weights.0[param], self.stage.params[param].len());
                match self.has_whole(holders, param) {
                    true => patches.push(Patch {
                        from: weight,
                        elements: 0..len,
                        to: end,
                        width: len,
                        stride: len,
                    }),
                    false => self.patches(holders, (param, end), &come, &mut next, &mut patches),
                }
                end += len;
            }
            take(number, self.ops.lay_out(&patches, 1, end)?)?;
        }
        Ok(())
    }

    /// What the others give of a run of parameters, end to end, on rank 0; nothing on the others.
    fn gathered(&self, holders: &Holders, run: &[usize]) -> Result<O::Tensor> {
        let me = self.mesh.place.rank;
        let nothing = || self.ops.tensor(0, 1, &[]);
        let counts = holders.counts(run);
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
                let mut end = 0;
                let own = run.iter().flat_map(|&param| {
                    let pieces = holders.pieces[param].iter();
                    let own = pieces.filter(|piece| piece.rank == me);
                    own.map(move |piece| (&self.stage.weights.0[param], piece.elements.clone()))
                });
                let patches = own.map(|(from, elements)| {
                    let (to, len) = (end, elements.len());
                    end += len;
                    Patch {
                        from,
                        elements,
                        to,
                        width: len,
                        stride: len,
                    }
                });
                let patches: Vec<_> = patches.collect();
                self.ops.lay_out(&patches, counts[me], 1)?
            }
        };
        Ok(self.mesh.world.all_to_all(&given, &send, &recv)?)
    }

    /// Does rank 0, which this is, hold all of a parameter and nothing else?
    fn has_whole(&self, holders: &Holders, param: usize) -> bool {
        let spec = &self.stage.params[param];
        holders.pieces[param].iter().all(|piece| piece.rank == 0)
            && self.ops.shape(&self.stage.weights.0[param]) == (spec.rows, spec.cols)
    }

    /// Where the elements of a parameter come from, and where they go if it begins at `start`: this rank's own, and of what
    /// has `come` each rank's `next`.
    fn patches<'a>(
        &'a self,
        holders: &Holders,
        (param, start): (usize, usize),
        come: &'a O::Tensor,
        next: &mut [usize],
        patches: &mut Vec<Patch<'a, O::Tensor>>,
    ) {
        for piece in &holders.pieces[param] {
            let (from, elements) = match piece.rank {
                0 => (&self.stage.weights.0[param], piece.elements.clone()),
                rank => {
                    let begin = next[rank];
                    next[rank] += piece.elements.len();
                    (come, begin..next[rank])
                }
            };
            let block = &piece.block;
            let (part, stride) = place_of(&self.stage.params[param], block.part);
            patches.push(Patch {
                from,
                elements,
                to: start + part + block.rows.start * stride + block.cols.start,
                width: block.cols.len(),
                stride,
            });
        }
    }
}

/// Where each one's part begins of parts that lie end to end.
fn starts(counts: &[usize]) -> Vec<usize> {
    let mut end = 0;
    let start = |n: &usize| {
        end += n;
        end - n
    };
    counts.iter().map(start).collect()
}
