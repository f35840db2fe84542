//! Which part of each parameter a rank holds.
//!
//! A local parameter keeps its place in the model's list; one that this rank does not hold has no elements. What it does
//! hold is a list of blocks of the HF tensors ([`slime_model::Part`]), laid end to end, and maybe padding after them. The
//! same list serves to cut weights, to write checkpoints and to count each element once in the gradient norm.

use super::layout::{ParallelConfig, stage_layers};
use super::place::{Axis, Place};
use crate::checkpoint::pieces::as_matrix;
use slime_model::{Attention, Ffn, GroupedAttention, ModelSpec, ParamKind, ParamSpec};
use std::ops::Range;

/// A rectangle of one HF tensor; a vector is one row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// Which part of the parameter.
    pub part: usize,
    /// Its rows.
    pub rows: Range<usize>,
    /// Its columns.
    pub cols: Range<usize>,
    /// Another rank of the same data-parallel replica holds it too, and counts it.
    pub is_copy: bool,
}

impl Block {
    /// Number of elements.
    #[allow(clippy::len_without_is_empty, reason = "no block is empty")]
    pub fn len(&self) -> usize {
        self.rows.len() * self.cols.len()
    }
}

/// One parameter as a rank holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Shard {
    /// Rows; 0 where the rank holds nothing of it.
    pub rows: usize,
    /// Columns.
    pub cols: usize,
    /// What its elements are, from the first on; what remains is padding.
    pub blocks: Vec<Block>,
    /// Every rank of the tp group sees other tokens or heads, so gradients are summed over the group.
    pub sum_over_tp: bool,
    /// Elements whose gradients are summed over the ranks that hold the same key heads.
    pub key_replicas: Range<usize>,
    /// Of experts, of which other ranks hold copies than of the rest.
    pub is_expert: bool,
}

impl Shard {
    /// Number of elements, padding included.
    pub fn len(&self) -> usize {
        self.rows * self.cols
    }

    /// The rank holds nothing of it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where each block's elements lie.
    pub fn ranges(&self) -> impl Iterator<Item = (&Block, Range<usize>)> {
        let mut end = 0;
        self.blocks.iter().map(move |block| {
            end += block.len();
            (block, end - block.len()..end)
        })
    }

    fn absent() -> Self {
        Self {
            rows: 0,
            cols: 0,
            blocks: Vec::new(),
            sum_over_tp: false,
            key_replicas: 0..0,
            is_expert: false,
        }
    }
}

/// Rows of the vocabulary a rank of `tp` holds, padding included: the first and how many. Split ones are a multiple of 8,
/// which matrix products of GPUs want.
pub fn vocab_rows(vocab: usize, tp: usize, rank: usize) -> (usize, usize) {
    let each = match tp {
        1 => vocab,
        _ => vocab.div_ceil(tp).next_multiple_of(8),
    };
    (rank * each, each)
}

/// The model a rank computes: heads, columns and vocabulary divided, all layers listed. Experts are listed as the model has
/// them, because a router knows them all.
pub fn local_spec(spec: &ModelSpec, tp: usize) -> ModelSpec {
    let mut local = spec.clone();
    local.vocab = vocab_rows(spec.vocab, tp, 0).1;
    for layer in &mut local.layers {
        match &mut layer.attn {
            Attention::Grouped(GroupedAttention { heads, .. }) => {
                heads.query /= tp;
                heads.kv = (heads.kv / tp).max(1);
            }
            Attention::Latent(attn) => attn.widths.heads /= tp,
            Attention::Delta(attn) => {
                attn.heads.keys /= tp;
                attn.heads.values /= tp;
            }
        }
        match &mut layer.ffn {
            Ffn::SwiGlu { hidden } => *hidden /= tp,
            Ffn::Moe(moe) => moe.shared = moe.shared.map(|hidden| hidden / tp),
        }
    }
    local
}

/// What `place` holds of each parameter.
///
/// # Errors
/// The layers do not divide over the stages; in words.
pub fn shards(
    spec: &ModelSpec,
    params: &[ParamSpec],
    config: &ParallelConfig,
    place: &Place,
) -> Result<Vec<Shard>, String> {
    let stages = stage_layers(config, spec.layers.len())?;
    let (pp, stage) = (place.size(Axis::Pp), place.along(Axis::Pp));
    let own: Vec<&Range<usize>> = stages.iter().skip(stage).step_by(pp).collect();
    let (first, last) = (stage == 0, stage + 1 == pp);
    let of = |param: &ParamSpec| {
        let here = match (param.layer, param.kind) {
            (Some(layer), _) => own.iter().any(|range| range.contains(&layer)),
            (None, ParamKind::Embedding) => first || (last && spec.tied),
            (None, _) => last,
        };
        if !here {
            return Shard::absent();
        }
        let mut shard = held(spec, param, config, place);
        if param.kind == ParamKind::Embedding && !first {
            shard.blocks.iter_mut().for_each(|b| b.is_copy = true);
        }
        shard
    };
    Ok(params.iter().map(of).collect())
}

fn held(spec: &ModelSpec, param: &ParamSpec, config: &ParallelConfig, place: &Place) -> Shard {
    let (tp, rank) = (place.size(Axis::Tp), place.along(Axis::Tp));
    let part = |n: usize| rank * n / tp..(rank + 1) * n / tp;
    let block = |part: usize, rows: Range<usize>, cols: Range<usize>| Block {
        part,
        rows,
        cols,
        is_copy: false,
    };
    let shard = |rows, cols, blocks| Shard {
        rows,
        cols,
        blocks,
        sum_over_tp: false,
        key_replicas: 0..0,
        is_expert: false,
    };
    let whole = || {
        let of = |(part, tensor): (usize, &slime_model::Part)| {
            let (rows, cols) = as_matrix(&tensor.shape);
            Block {
                is_copy: rank > 0,
                ..block(part, 0..rows, 0..cols)
            }
        };
        let blocks = param.parts.iter().enumerate().map(of).collect();
        shard(param.rows, param.cols, blocks)
    };
    match param.kind {
        ParamKind::Embedding | ParamKind::Head => {
            let (start, each) = vocab_rows(spec.vocab, tp, rank);
            let real = start.min(spec.vocab)..(start + each).min(spec.vocab);
            let blocks = if real.is_empty() {
                Vec::new()
            } else {
                vec![block(0, real, 0..param.cols)]
            };
            shard(each, param.cols, blocks)
        }
        ParamKind::Qkv | ParamKind::QkvBias => {
            let layer = param.layer.expect("attention lies in a layer");
            let attn = spec.layers[layer].attn.grouped();
            let attn = attn.expect("only grouped queries have this parameter");
            let heads = attn.heads;
            let copies = tp / heads.kv.clamp(1, tp);
            let kv = if copies > 1 {
                rank / copies..rank / copies + 1
            } else {
                part(heads.kv)
            };
            let is_copy = !rank.is_multiple_of(copies);
            let vector = param.kind == ParamKind::QkvBias;
            let of = |part: usize, heads_of: Range<usize>, is_copy| {
                // A gate's rows lie beside each query head's.
                let dim = match attn.gated && part == 0 {
                    true => 2 * heads.dim,
                    false => heads.dim,
                };
                let lines = heads_of.start * dim..heads_of.end * dim;
                let (rows, cols) = if vector {
                    (0..1, lines)
                } else {
                    (lines, 0..param.cols)
                };
                Block {
                    part,
                    rows,
                    cols,
                    is_copy,
                }
            };
            let blocks = vec![
                of(0, part(heads.query), false),
                of(1, kv.clone(), is_copy),
                of(2, kv, is_copy),
            ];
            let len: usize = blocks.iter().map(Block::len).sum();
            let (rows, cols) = if vector {
                (1, len)
            } else {
                (len / param.cols, param.cols)
            };
            Shard {
                key_replicas: if copies > 1 {
                    blocks[0].len()..len
                } else {
                    0..0
                },
                ..shard(rows, cols, blocks)
            }
        }
        ParamKind::QueryUp | ParamKind::KvUp => {
            let rows = part(param.rows);
            let cols = 0..param.cols;
            shard(rows.len(), param.cols, vec![block(0, rows, cols)])
        }
        ParamKind::GateUp | ParamKind::SharedGateUp => {
            let rows = part(param.rows / 2);
            let cols = 0..param.cols;
            // GLM-4 stores both in one tensor.
            let (second, skipped) = match param.parts.len() {
                1 => (0, param.rows / 2),
                _ => (1, 0),
            };
            let blocks = vec![
                block(0, rows.clone(), cols.clone()),
                block(second, skipped + rows.start..skipped + rows.end, cols),
            ];
            shard(2 * rows.len(), param.cols, blocks)
        }
        ParamKind::DeltaIn
        | ParamKind::DeltaGates
        | ParamKind::DeltaConv
        | ParamKind::DeltaALog
        | ParamKind::DeltaDtBias => {
            let layer = param.layer.expect("attention lies in a layer");
            let blocks = delta(&spec.layers[layer].attn, param, (rank, tp));
            let len: usize = blocks.iter().map(Block::len).sum();
            match param.kind.is_vector() {
                true => shard(1, len, blocks),
                false => shard(len / param.cols, param.cols, blocks),
            }
        }
        ParamKind::AttnOut | ParamKind::DeltaOut | ParamKind::Down | ParamKind::SharedDown => {
            let cols = part(param.cols);
            shard(param.rows, cols.len(), vec![block(0, 0..param.rows, cols)])
        }
        ParamKind::ExpertGateUp | ParamKind::ExpertDown => experts(spec, param, place),
        // Every rank sees its own heads' part of the gradient.
        ParamKind::QueryNorm
        | ParamKind::KeyNorm
        | ParamKind::QueryDown
        | ParamKind::QueryDownNorm
        | ParamKind::KvDown
        | ParamKind::KvDownNorm
        | ParamKind::DeltaNorm => Shard {
            sum_over_tp: tp > 1,
            ..whole()
        },
        // With sequence parallelism, its own rows' part.
        ParamKind::AttnNorm
        | ParamKind::AttnPostNorm
        | ParamKind::FfnNorm
        | ParamKind::FfnPostNorm
        | ParamKind::FinalNorm
        | ParamKind::Router
        | ParamKind::SharedGate => Shard {
            sum_over_tp: tp > 1 && config.sequence_parallel,
            ..whole()
        },
        // It has no gradient.
        ParamKind::RouterBias => whole(),
    }
}

/// A rank's key heads of a delta net, and the value heads that share them.
fn delta(attn: &Attention, param: &ParamSpec, (rank, tp): (usize, usize)) -> Vec<Block> {
    let Attention::Delta(attn) = attn else {
        unreachable!("only a delta net has this parameter");
    };
    let h = attn.heads;
    let (keys, values) = (h.keys * h.key_dim, h.values * h.value_dim);
    // Numbers that lie one after the other in the parameter, each divided over the ranks.
    let lists = match param.kind {
        // A key head at a time, all that belongs to it.
        ParamKind::DeltaIn | ParamKind::DeltaGates if attn.by_key_head => vec![param.rows],
        ParamKind::DeltaIn => vec![keys, keys, values, values],
        ParamKind::DeltaConv => vec![keys, keys, values],
        ParamKind::DeltaGates => vec![h.values, h.values],
        _ => vec![h.values],
    };
    let mut start = 0;
    let mut blocks = Vec::new();
    for list in lists {
        let own = start + rank * list / tp..start + (rank + 1) * list / tp;
        start += list;
        blocks.extend(match param.kind.is_vector() {
            true => vec![Block {
                part: 0,
                rows: 0..1,
                cols: own,
                is_copy: false,
            }],
            false => in_parts(param, own, 0..param.cols),
        });
    }
    blocks
}

/// The experts of a rank, which are consecutive, and of each its columns.
fn experts(spec: &ModelSpec, param: &ParamSpec, place: &Place) -> Shard {
    let layer = param.layer.expect("experts lie in a layer");
    let Ffn::Moe(moe) = &spec.layers[layer].ffn else {
        unreachable!("a layer that lists experts has them");
    };
    let (parts, (part, owner)) = (place.expert_parts(), place.expert_place());
    let each = moe.routing.experts / place.expert_owners();
    let columns = part * moe.hidden / parts..(part + 1) * moe.hidden / parts;
    let mut blocks = Vec::new();
    for expert in owner * each..(owner + 1) * each {
        // Rows of the whole parameter that are this rank's, and their columns.
        let (rows, cols) = match param.kind {
            ParamKind::ExpertDown => {
                let start = expert * spec.hidden;
                let rows = std::iter::once(start..start + spec.hidden);
                (rows.collect(), columns.clone())
            }
            _ => {
                let of = |start: usize| start + columns.start..start + columns.end;
                let gate = 2 * moe.hidden * expert;
                (vec![of(gate), of(gate + moe.hidden)], 0..param.cols)
            }
        };
        for rows in rows {
            blocks.extend(in_parts(param, rows, cols.clone()));
        }
    }
    let cols = match param.kind {
        ParamKind::ExpertDown => columns.len(),
        _ => param.cols,
    };
    Shard {
        rows: blocks.iter().map(|b| b.rows.len()).sum(),
        cols,
        blocks,
        is_expert: true,
        ..Shard::absent()
    }
}

/// Rows of a whole parameter as blocks of its parts, which are whole rows each.
fn in_parts(param: &ParamSpec, rows: Range<usize>, cols: Range<usize>) -> Vec<Block> {
    let (mut blocks, mut start) = (Vec::new(), 0);
    for (part, tensor) in param.parts.iter().enumerate() {
        let len = tensor.len() / param.cols;
        let here = rows.start.max(start)..rows.end.min(start + len);
        if !here.is_empty() {
            blocks.push(Block {
                part,
                rows: here.start - start..here.end - start,
                cols: cols.clone(),
                is_copy: false,
            });
        }
        start += len;
    }
    blocks
}

/// Cut a whole parameter, `[rows × cols]` with its parts end to end, to what a rank holds of it.
pub fn cut<T: Copy + Default>(param: &ParamSpec, shard: &Shard, whole: &[T]) -> Vec<T> {
    let mut out = Vec::with_capacity(shard.len());
    for block in &shard.blocks {
        let (start, width) = place_of(param, block.part);
        for row in block.rows.clone() {
            let line = start + row * width;
            out.extend_from_slice(&whole[line + block.cols.start..line + block.cols.end]);
        }
    }
    out.resize(shard.len(), T::default());
    out
}

/// The reverse: write what a rank holds into the whole parameter.
pub fn paste<T: Copy>(param: &ParamSpec, shard: &Shard, held: &[T], whole: &mut [T]) {
    for (block, at) in shard.ranges() {
        let (start, width) = place_of(param, block.part);
        let rows = held[at].chunks_exact(block.cols.len());
        for (row, data) in block.rows.clone().zip(rows) {
            let line = start + row * width;
            whole[line + block.cols.start..line + block.cols.end].copy_from_slice(data);
        }
    }
}

/// Where a part begins in its parameter, and how many columns it has.
pub(super) fn place_of(param: &ParamSpec, part: usize) -> (usize, usize) {
    let start = param.parts[..part].iter().map(|p| p.len()).sum();
    (start, *param.parts[part].shape.last().unwrap_or(&1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_model::families::{self, HfConfig};
    use slime_model::params;

    fn spec(family: usize) -> ModelSpec {
        let config = families::ALL[family].tiny_config();
        families::from_config(&HfConfig::new("test", config).unwrap()).unwrap()
    }

    /// Cut a made-up parameter for every rank and lay the pieces together again.
    fn assembled(spec: &ModelSpec, config: &ParallelConfig) {
        let all = params(spec);
        let whole: Vec<Vec<u32>> = all
            .iter()
            .enumerate()
            .map(|(i, p)| {
                (0..p.len())
                    .map(|e| (i * 1_000_000 + e + 1) as u32)
                    .collect()
            })
            .collect();
        let mut again: Vec<Vec<u32>> = whole.iter().map(|w| vec![0; w.len()]).collect();
        let mut counted = vec![0; all.len()];
        for rank in 0..config.world() {
            let place = Place::new(config, rank);
            let shards = shards(spec, &all, config, &place).unwrap();
            for (i, shard) in shards.iter().enumerate() {
                let held = cut(&all[i], shard, &whole[i]);
                assert_eq!(held.len(), shard.len());
                paste(&all[i], shard, &held, &mut again[i]);
                let first_replica = match shard.is_expert {
                    true => place.expert_replica() == 0,
                    false => place.along(Axis::Dp) == 0 && place.along(Axis::Cp) == 0,
                };
                let own = shard.blocks.iter().filter(|b| !b.is_copy && first_replica);
                counted[i] += own.map(Block::len).sum::<usize>();
            }
        }
        assert_eq!(again, whole);
        let sizes: Vec<usize> = all.iter().map(ParamSpec::len).collect();
        assert_eq!(counted, sizes, "each element counts once");
    }

    #[test]
    fn shards_make_the_whole_model_and_count_each_element_once() {
        for family in 0..families::ALL.len() {
            let spec = spec(family);
            let layers = spec.layers.len();
            for (tp, pp, cp, etp, ep) in [
                (1, 1, 1, 1, 1),
                (2, 1, 1, 1, 1),
                (4, 1, 1, 1, 1),
                (2, 2, 2, 1, 1),
                (1, 2, 1, 1, 1),
                (2, 1, 1, 1, 2),
                (1, 1, 4, 2, 2),
                (2, 1, 2, 2, 1),
            ] {
                let config = ParallelConfig {
                    tensor_model_parallel_size: tp,
                    pipeline_model_parallel_size: pp,
                    context_parallel_size: cp,
                    expert_tensor_parallel_size: Some(etp),
                    expert_model_parallel_size: ep,
                    sequence_parallel: tp > 1,
                    ..ParallelConfig::default()
                };
                if layers.is_multiple_of(pp) && config.problems(&spec).is_empty() {
                    assembled(&spec, &config);
                }
            }
        }
    }
}
