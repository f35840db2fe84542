//! Which rank is where: Megatron's order of axes, and the groups that follow from it.
//!
//! ```text
//! dense grid    rank = tp  + TP  (cp + CP (dp  + DP  pp))
//! expert grid   rank = etp + ETP (ep + EP (edp + EDP pp))      EDP = world / (ETP EP PP)
//! ```
//!
//! Both grids cover the same ranks, so experts are folded over tp, cp and dp of one stage. It sends nothing: read
//! [`super::mesh`] for the groups as communicators.

use crate::config::Problem;
use serde::{Deserialize, Serialize};
use slime_model::{Attention, Ffn, LayerSpec, ModelSpec};
use std::ops::Range;

/// How a model is spread over ranks, under Megatron's names.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ParallelConfig {
    /// Ranks that share each matrix.
    pub tensor_model_parallel_size: usize,
    /// Split the stream's rows over them too.
    pub sequence_parallel: bool,
    /// Stages that share the layers.
    pub pipeline_model_parallel_size: usize,
    /// Chunks of layers a stage holds; more than one interleaves them.
    pub virtual_pipeline_model_parallel_size: usize,
    /// Layers of the first stage, if not as many as the others.
    pub decoder_first_pipeline_num_layers: Option<usize>,
    /// Layers of the last stage, if not as many as the others.
    pub decoder_last_pipeline_num_layers: Option<usize>,
    /// Ranks that share each sequence.
    pub context_parallel_size: usize,
    /// Ranks that train on different sequences.
    pub data_parallel_size: usize,
    /// Elements of one gradient bucket; all of a rank's in one when not given.
    pub ddp_bucket_size: Option<usize>,
}

impl Default for ParallelConfig {
    fn default() -> Self {
        Self {
            tensor_model_parallel_size: 1,
            sequence_parallel: false,
            pipeline_model_parallel_size: 1,
            virtual_pipeline_model_parallel_size: 1,
            decoder_first_pipeline_num_layers: None,
            decoder_last_pipeline_num_layers: None,
            context_parallel_size: 1,
            data_parallel_size: 1,
            ddp_bucket_size: None,
        }
    }
}

impl ParallelConfig {
    /// Ranks in all.
    pub fn world(&self) -> usize {
        self.tensor_model_parallel_size
            * self.context_parallel_size
            * self.data_parallel_size
            * self.pipeline_model_parallel_size
    }

    /// In few letters: `tp2 pp2 cp2 sp`.
    pub fn short(&self) -> String {
        let sizes = [
            ("tp", self.tensor_model_parallel_size),
            ("cp", self.context_parallel_size),
            ("dp", self.data_parallel_size),
            ("pp", self.pipeline_model_parallel_size),
            ("vpp", self.virtual_pipeline_model_parallel_size),
        ];
        let mut words: Vec<String> = sizes
            .iter()
            .filter(|(_, n)| *n > 1)
            .map(|(name, n)| format!("{name}{n}"))
            .collect();
        if self.sequence_parallel {
            words.push("sp".into());
        }
        if words.is_empty() {
            words.push("one rank".into());
        }
        words.join(" ")
    }

    /// What cannot work for this model; all of it at once.
    pub fn problems(&self, spec: &ModelSpec) -> Vec<Problem> {
        let mut found = Vec::new();
        let mut refuse = |key: &'static str, message: String| {
            found.push(Problem {
                key,
                detail: message,
            });
        };
        let sizes = [
            (
                "tensor_model_parallel_size",
                self.tensor_model_parallel_size,
            ),
            (
                "pipeline_model_parallel_size",
                self.pipeline_model_parallel_size,
            ),
            (
                "virtual_pipeline_model_parallel_size",
                self.virtual_pipeline_model_parallel_size,
            ),
            ("context_parallel_size", self.context_parallel_size),
            ("data_parallel_size", self.data_parallel_size),
        ];
        for (key, size) in sizes {
            if size == 0 {
                refuse(key, "is 0; 1 means not to split".into());
                return found;
            }
        }
        let tp = self.tensor_model_parallel_size;
        if self.sequence_parallel && tp == 1 {
            refuse(
                "sequence_parallel",
                "splits rows over tensor_model_parallel_size ranks, which is 1; leave it out"
                    .into(),
            );
        }
        let shared = [
            ("tensor_model_parallel_size", tp),
            ("context_parallel_size", self.context_parallel_size),
            (
                "pipeline_model_parallel_size",
                self.pipeline_model_parallel_size,
            ),
        ];
        if let Some(kind) = indivisible(spec)
            && let Some((key, size)) = shared.iter().find(|(_, size)| *size > 1)
        {
            refuse(
                key,
                format!(
                    "is {size}, but {kind} cannot be divided over ranks yet: use 1, and data_parallel_size for more ranks"
                ),
            );
            return found;
        }
        for layer in &spec.layers {
            let Some(heads) = layer.attn.grouped().map(|attn| attn.heads) else {
                continue;
            };
            if !heads.query.is_multiple_of(tp) {
                refuse(
                    "tensor_model_parallel_size",
                    format!(
                        "{tp} does not divide the model's {} query heads",
                        heads.query
                    ),
                );
                break;
            }
            if !heads.kv.is_multiple_of(tp) && !tp.is_multiple_of(heads.kv) {
                refuse(
                    "tensor_model_parallel_size",
                    format!(
                        "neither {tp} nor the model's {} key heads divide each other",
                        heads.kv
                    ),
                );
                break;
            }
            let Ffn::SwiGlu { hidden } = layer.ffn else {
                continue;
            };
            if !hidden.is_multiple_of(tp) {
                refuse(
                    "tensor_model_parallel_size",
                    format!("{tp} does not divide the model's {hidden} feed-forward columns"),
                );
                break;
            }
        }
        if self.virtual_pipeline_model_parallel_size > 1 && self.pipeline_model_parallel_size == 1 {
            refuse(
                "virtual_pipeline_model_parallel_size",
                "interleaves stages, and there is one; leave it out".into(),
            );
        }
        if let Err(message) = stage_layers(self, spec.layers.len()) {
            refuse("pipeline_model_parallel_size", message);
        }
        found
    }
}

/// What a model has that cannot be divided over ranks yet, in words; data-parallel ranks have the whole of it.
pub fn indivisible(spec: &ModelSpec) -> Option<&'static str> {
    spec.layers.iter().find_map(only_whole)
}

/// What a layer has that only a rank with the whole of it can compute, in words.
fn only_whole(layer: &LayerSpec) -> Option<&'static str> {
    match (&layer.attn, &layer.ffn) {
        (Attention::Latent(_), _) => Some("latent attention"),
        (Attention::Delta(_), _) => Some("a gated delta net"),
        (Attention::Grouped(attn), _) if attn.gated => Some("attention with an output gate"),
        (_, Ffn::Moe(_)) => Some("a mixture of experts"),
        (Attention::Grouped(_), Ffn::SwiGlu { .. }) => None,
    }
}

/// Which layers each virtual stage holds, in the order in which a micro-batch meets them. Virtual stage `v` is chunk
/// `v / PP` of rank `v % PP`.
///
/// # Errors
/// The layers do not divide; in words.
pub fn stage_layers(config: &ParallelConfig, layers: usize) -> Result<Vec<Range<usize>>, String> {
    let pp = config.pipeline_model_parallel_size;
    let (first, last) = (
        config.decoder_first_pipeline_num_layers,
        config.decoder_last_pipeline_num_layers,
    );
    let stages = pp * config.virtual_pipeline_model_parallel_size;
    if (first.is_some() || last.is_some()) && config.virtual_pipeline_model_parallel_size > 1 {
        return Err("uneven first and last stages cannot be interleaved".into());
    }
    let fixed = usize::from(first.is_some()) + usize::from(last.is_some());
    if fixed > 0 && fixed >= stages && layers != first.unwrap_or(0) + last.unwrap_or(0) {
        return Err(format!(
            "the first and last stage's layers are given and are not the model's {layers}"
        ));
    }
    let taken = first.unwrap_or(0) + last.unwrap_or(0);
    let middle = stages.saturating_sub(fixed);
    if taken > layers || (middle > 0 && !(layers - taken).is_multiple_of(middle)) {
        return Err(format!(
            "{layers} layers, {taken} of them given to the first and last stage, do not divide over {middle} stages; \
             set decoder_first_pipeline_num_layers or decoder_last_pipeline_num_layers"
        ));
    }
    let each = if middle > 0 {
        (layers - taken) / middle
    } else {
        0
    };
    let mut start = 0;
    let ranges: Vec<Range<usize>> = (0..stages)
        .map(|stage| {
            let len = match stage {
                0 if first.is_some() => first.unwrap_or(0),
                s if s + 1 == stages && last.is_some() => last.unwrap_or(0),
                _ => each,
            };
            start += len;
            start - len..start
        })
        .collect();
    if ranges.iter().any(Range::is_empty) {
        return Err(format!(
            "{layers} layers leave some of {stages} stages empty"
        ));
    }
    Ok(ranges)
}

/// An axis of the dense grid, in rank order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// Parts of matrices.
    Tp,
    /// Parts of sequences.
    Cp,
    /// Different sequences.
    Dp,
    /// Stages.
    Pp,
}

/// The dense grid's axes, fastest first.
pub const AXES: [Axis; 4] = [Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp];

/// Where one rank is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Of the whole run.
    pub rank: usize,
    /// Along each of [`AXES`].
    pub at: [usize; 4],
    /// Sizes of [`AXES`].
    pub sizes: [usize; 4],
}

impl Place {
    /// Rank `rank` of a layout.
    pub fn new(config: &ParallelConfig, rank: usize) -> Self {
        let sizes = [
            config.tensor_model_parallel_size,
            config.context_parallel_size,
            config.data_parallel_size,
            config.pipeline_model_parallel_size,
        ];
        Self {
            rank,
            at: digits(rank, &sizes).try_into().unwrap_or([0; 4]),
            sizes,
        }
    }

    /// Place along an axis.
    pub fn along(&self, axis: Axis) -> usize {
        self.at[axis as usize]
    }

    /// Size of an axis.
    pub fn size(&self, axis: Axis) -> usize {
        self.sizes[axis as usize]
    }

    /// Ranks that differ from this one along `axes` only, in rank order.
    pub fn group(&self, axes: &[Axis]) -> Vec<usize> {
        let mask: Vec<bool> = AXES.iter().map(|axis| axes.contains(axis)).collect();
        group_of(self.rank, &self.sizes, &mask)
    }
}

/// `rank` in a mixed radix, fastest digit first.
fn digits(mut rank: usize, sizes: &[usize]) -> Vec<usize> {
    sizes
        .iter()
        .map(|size| {
            let digit = rank % size;
            rank /= size;
            digit
        })
        .collect()
}

/// The ranks that share all digits with `rank` that `mask` does not name, ascending.
pub fn group_of(rank: usize, sizes: &[usize], mask: &[bool]) -> Vec<usize> {
    let own = digits(rank, sizes);
    (0..sizes.iter().product())
        .filter(|&other| {
            let theirs = digits(other, sizes);
            (0..sizes.len()).all(|i| mask[i] || own[i] == theirs[i])
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_model::families::{self, HfConfig};
    use std::collections::BTreeSet;

    /// Every tuple of four sizes whose product is at most `limit`.
    fn tuples(limit: usize) -> Vec<[usize; 4]> {
        let mut all = Vec::new();
        for a in 1..=limit {
            for b in 1..=limit / a {
                for c in 1..=limit / (a * b) {
                    for d in 1..=limit / (a * b * c) {
                        all.push([a, b, c, d]);
                    }
                }
            }
        }
        all
    }

    #[test]
    fn every_kind_of_group_partitions_the_world_and_meets_its_complement_in_one_rank() {
        for sizes in tuples(24) {
            let world: usize = sizes.iter().product();
            for bits in 0..16usize {
                let mask: Vec<bool> = (0..4).map(|i| bits >> i & 1 == 1).collect();
                let other: Vec<bool> = mask.iter().map(|m| !m).collect();
                let groups: BTreeSet<Vec<usize>> =
                    (0..world).map(|r| group_of(r, &sizes, &mask)).collect();
                let mut members: Vec<usize> = groups.iter().flatten().copied().collect();
                members.sort_unstable();
                assert_eq!(members, (0..world).collect::<Vec<_>>());
                for rank in 0..world {
                    let own = group_of(rank, &sizes, &mask);
                    let across = group_of(rank, &sizes, &other);
                    let both: Vec<_> = own.iter().filter(|r| across.contains(r)).collect();
                    assert_eq!(both, [&rank]);
                    assert_eq!(own.len() * across.len(), world);
                }
            }
        }
    }

    #[test]
    fn ranks_are_in_megatrons_order() {
        // `--order tp-cp-ep-dp-pp` with TP2 CP2 DP2 PP2: what Megatron's RankGenerator gives.
        let config = ParallelConfig {
            tensor_model_parallel_size: 2,
            context_parallel_size: 2,
            data_parallel_size: 2,
            pipeline_model_parallel_size: 2,
            ..ParallelConfig::default()
        };
        let place = Place::new(&config, 0);
        assert_eq!(place.group(&[Axis::Tp]), [0, 1]);
        assert_eq!(place.group(&[Axis::Cp]), [0, 2]);
        assert_eq!(place.group(&[Axis::Dp]), [0, 4]);
        assert_eq!(place.group(&[Axis::Pp]), [0, 8]);
        assert_eq!(place.group(&[Axis::Cp, Axis::Dp]), [0, 2, 4, 6]);
        assert_eq!(Place::new(&config, 13).at, [1, 0, 1, 1]);
    }

    #[test]
    fn layers_that_cannot_be_divided_are_refused_by_name_and_data_parallel_ranks_are_not() {
        let of_axis = |size: fn(&mut ParallelConfig) -> &mut usize| {
            let mut config = ParallelConfig::default();
            *size(&mut config) = 2;
            config
        };
        let mut kinds = BTreeSet::new();
        for family in families::ALL {
            let config = HfConfig::new("test", family.tiny_config()).unwrap();
            let spec = families::from_config(&config).unwrap();
            let replicated = of_axis(|c| &mut c.data_parallel_size);
            assert!(replicated.problems(&spec).is_empty());
            let Some(kind) = indivisible(&spec) else {
                continue;
            };
            kinds.insert(kind);
            for divided in [
                of_axis(|c| &mut c.tensor_model_parallel_size),
                of_axis(|c| &mut c.context_parallel_size),
                of_axis(|c| &mut c.pipeline_model_parallel_size),
            ] {
                let problems = divided.problems(&spec);
                assert_eq!(problems.len(), 1, "{problems:?}");
                assert!(problems[0].detail.contains(kind), "{problems:?}");
            }
        }
        assert_eq!(
            kinds.into_iter().collect::<Vec<_>>(),
            [
                "a gated delta net",
                "a mixture of experts",
                "latent attention"
            ]
        );
    }

    #[test]
    fn uneven_stages_take_what_they_were_given_and_the_rest_divides() {
        let config = |pp, first, last| ParallelConfig {
            pipeline_model_parallel_size: pp,
            decoder_first_pipeline_num_layers: first,
            decoder_last_pipeline_num_layers: last,
            ..ParallelConfig::default()
        };
        // DeepSeek-V3 as slime runs it: 61 layers, PP4, 13 in the last stage.
        let stages = stage_layers(&config(4, None, Some(13)), 61).unwrap();
        assert_eq!(stages, [0..16, 16..32, 32..48, 48..61]);
        let stages = stage_layers(&config(3, Some(1), Some(1)), 4).unwrap();
        assert_eq!(stages, [0..1, 1..3, 3..4]);
        assert!(stage_layers(&config(3, None, None), 4).is_err());
        assert!(stage_layers(&config(2, Some(1), Some(1)), 4).is_err());
        assert!(stage_layers(&config(8, None, None), 4).is_err());
    }
}
