//! Layouts for a number of GPUs, those that fit first, the fastest first.
//!
//! Layouts whose weights, gradients and optimizer alone are too much are left out; the others are recorded on one rank a
//! stage and replayed. What is computed again is chosen by memory: nothing if that fits, else what is elementwise, else
//! whole layers of as few layers as will do, else everything.

use super::cores::on_all_cores;
use super::flops::{self, Passing};
use super::machine::Machine;
use super::record::{Groups, Memory, Recorded, Workload, record, state_width};
use super::replay::{Outcome, replay};
use crate::Result;
use crate::config::TrainConfig;
use crate::parallel::shard::{Shard, shards};
use crate::parallel::{ParallelConfig, Place};
use slime_kernels::shapes::Widths;
use slime_model::layers::Recompute;
use slime_model::{Ffn, ModelSpec, params};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Share of a GPU's memory that may be planned for; the rest is the driver's, NCCL's and fragmentation's.
const USABLE: f64 = 0.92;

/// A layout and what it would cost.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// The layout.
    pub parallel: ParallelConfig,
    /// What is computed again, and in how many layers if not all.
    pub recompute: (Recompute, Option<usize>),
    /// Of the rank that needs most.
    pub memory: Memory,
    /// It fits.
    pub fits: bool,
    /// The clock.
    pub outcome: Outcome,
    /// Model FLOPs over what the GPUs could do.
    pub mfu: f64,
    /// Bytes the busiest rank sends in a step, by group and whether they leave the node.
    pub sent: BTreeMap<(String, bool), f64>,
    /// Micro-batches of a step, on one data-parallel rank.
    pub micro_batches: usize,
}

impl Candidate {
    /// Tokens a second of all GPUs together.
    pub fn tokens_per_s(&self, workload: Workload) -> f64 {
        (workload.sequences * workload.length) as f64 / self.outcome.step_s
    }
}

/// What passes through the model in a step.
pub fn passing(workload: Workload) -> Passing {
    let (n, len) = (workload.sequences as f64, workload.length as f64);
    Passing {
        tokens: n * len,
        pairs: n * len * (len + 1.0) / 2.0,
        rows: n * (workload.length - workload.prompt) as f64,
    }
}

/// One layout, with the least recomputation that fits.
///
/// # Errors
/// The layout or the configuration does not fit the model.
pub fn evaluate(
    spec: &Arc<ModelSpec>,
    config: &TrainConfig,
    parallel: &ParallelConfig,
    workload: Workload,
    machine: &Machine,
) -> Result<Candidate> {
    let records = workload.records();
    let layers = spec.layers.len();
    let mut choices = vec![(Recompute::None, None), (Recompute::Selective, None)];
    let has_mlps = spec
        .layers
        .iter()
        .any(|layer| matches!(layer.ffn, Ffn::SwiGlu { .. }));
    for granularity in [Recompute::Mlp, Recompute::Full] {
        choices.extend(
            (1..=4)
                .map(|quarter| (granularity, Some(layers * quarter / 4)))
                .filter(|(_, n)| *n > Some(0) && (has_mlps || granularity == Recompute::Full)),
        );
    }
    let stages: Vec<usize> = stages_of(parallel).collect();
    let most = choices.len() - 1;
    for (number, choice) in choices.into_iter().enumerate() {
        let (granularity, num) = choice;
        let config = TrainConfig {
            recompute_granularity: granularity,
            recompute_num_layers: num.filter(|n| *n < layers),
            ..config.clone()
        };
        let groups = Arc::new(Groups::default());
        let of = |&rank: &usize| {
            let both = (&config, parallel);
            record(spec, both, &records, machine, &groups, Widths::GPU, rank)
        };
        let fit = |recorded: &[Recorded]| {
            let peak = recorded.iter().map(|r| r.memory.peak()).max();
            (peak.unwrap_or(0) as f64) < USABLE * machine.memory_bytes
        };
        // The first stage holds most micro-batches and the last the logits: if these do not fit, nothing does.
        let ends = [&stages[..1], &stages[stages.len() - 1..]].concat();
        let ends: Vec<Recorded> = match number < most && stages.len() > 2 {
            true => ends.iter().map(of).collect::<Result<_>>()?,
            false => Vec::new(),
        };
        if !fit(&ends) {
            continue;
        }
        let recorded: Vec<Recorded> = stages.iter().map(of).collect::<Result<_>>()?;
        let fits = fit(&recorded);
        if fits || number == most {
            let candidate = judged(spec, parallel, workload, machine, &recorded, &groups);
            return Ok(Candidate {
                recompute: (granularity, config.recompute_num_layers),
                fits,
                ..candidate
            });
        }
    }
    unreachable!("the last policy is judged whether it fits or not")
}

/// The first rank of each stage.
fn stages_of(parallel: &ParallelConfig) -> impl Iterator<Item = usize> + use<> {
    let stride = parallel.world() / parallel.pipeline_model_parallel_size;
    (0..parallel.world()).step_by(stride)
}

/// Bytes of weights, gradients and optimizer that the fullest stage cannot do without.
fn standing(spec: &ModelSpec, config: &TrainConfig, parallel: &ParallelConfig) -> usize {
    let all = params(spec);
    let (widths, world) = (Widths::GPU, parallel.world());
    let state = state_width(config, widths);
    let stage = world / parallel.pipeline_model_parallel_size;
    let replicas = |is_expert: bool| match is_expert {
        true => stage / (parallel.expert_model_parallel_size * parallel.expert_parts()),
        false => parallel.context_parallel_size * parallel.data_parallel_size,
    };
    let of = |rank| {
        let place = Place::new(parallel, rank);
        let shards = shards(spec, &all, parallel, &place).unwrap_or_default();
        let bytes = |s: &Shard| {
            let states = 3 * state * s.len() / replicas(s.is_expert).max(1);
            s.len() * (widths.tensor + widths.float) + states
        };
        shards.iter().map(bytes).sum()
    };
    stages_of(parallel).map(of).max().unwrap_or(0)
}

fn judged(
    spec: &ModelSpec,
    parallel: &ParallelConfig,
    workload: Workload,
    machine: &Machine,
    stages: &[Recorded],
    groups: &Groups,
) -> Candidate {
    let memory = stages.iter().map(|s| s.memory).max_by_key(Memory::peak);
    let outcome = replay(stages, &groups.list());
    let model_flops = flops::training(spec, passing(workload));
    let able = outcome.step_s * machine.dense_flops * parallel.world() as f64;
    let total = |sent: &BTreeMap<_, f64>| sent.values().sum::<f64>();
    let busiest = stages
        .iter()
        .max_by(|a, b| total(&a.sent).total_cmp(&total(&b.sent)));
    Candidate {
        parallel: parallel.clone(),
        recompute: (Recompute::None, None),
        memory: memory.unwrap_or_default(),
        fits: false,
        mfu: model_flops / able,
        sent: busiest.map(|r| r.sent.clone()).unwrap_or_default(),
        micro_batches: stages.first().map_or(0, |r| r.micro_batches),
        outcome,
    }
}

/// Sizes that an axis may have.
fn sizes(most: usize) -> impl Iterator<Item = usize> {
    (0..)
        .map(|power| 1 << power)
        .take_while(move |&n| n <= most)
}

/// Every layout of `gpus` GPUs that the model allows. Layers that do not divide over the stages leave fewer for the last.
/// Experts are whole, as slime has them.
pub fn layouts(spec: &ModelSpec, gpus: usize, machine: &Machine) -> Vec<ParallelConfig> {
    let layers = spec.layers.len();
    let has_experts = spec.layers.iter().any(|l| matches!(l.ffn, Ffn::Moe(_)));
    let mut all = Vec::new();
    for tp in sizes(machine.gpus_per_node) {
        for pp in 1..=16 {
            for cp in sizes(8) {
                if !gpus.is_multiple_of(tp * pp * cp) {
                    continue;
                }
                let before = layers.div_ceil(pp) * (pp - 1);
                let last = layers
                    .checked_sub(before)
                    .filter(|_| !layers.is_multiple_of(pp));
                for ep in sizes(64).filter(|ep| (gpus / pp).is_multiple_of(*ep)) {
                    let parallel = ParallelConfig {
                        tensor_model_parallel_size: tp,
                        sequence_parallel: tp > 1,
                        pipeline_model_parallel_size: pp,
                        decoder_last_pipeline_num_layers: last,
                        context_parallel_size: cp,
                        expert_model_parallel_size: ep,
                        expert_tensor_parallel_size: has_experts.then_some(1),
                        data_parallel_size: gpus / (tp * pp * cp),
                        ..ParallelConfig::default()
                    };
                    if parallel.problems(spec).is_empty() {
                        all.push(parallel);
                    }
                }
            }
        }
    }
    all
}

/// The layouts of `gpus` GPUs: those that fit, the fastest first, then those that do not, the smallest first.
///
/// # Errors
/// The configuration cannot be used.
pub fn search(
    spec: &Arc<ModelSpec>,
    config: &TrainConfig,
    gpus: usize,
    workload: Workload,
    machine: &Machine,
) -> Result<Vec<Candidate>> {
    // More data-parallel ranks than sequences would train on nothing, and a sequence that one rank can hold is not split.
    let mut all = layouts(spec, gpus, machine);
    let held = workload.length <= config.max_tokens_per_gpu;
    all.retain(|parallel| {
        let data = parallel.data_parallel_size <= workload.sequences;
        data && (parallel.context_parallel_size == 1 || !held)
    });
    let limit = USABLE * machine.memory_bytes;
    let bytes = on_all_cores(all.len(), |i| standing(spec, config, &all[i]));
    let least = bytes.iter().min().copied();
    // Where nothing fits, the smallest says how much is missing.
    let worth = |bytes: usize| (bytes as f64) < limit || Some(bytes) == least;
    let chosen: Vec<&ParallelConfig> = all
        .iter()
        .zip(&bytes)
        .filter(|(_, bytes)| worth(**bytes))
        .map(|(parallel, _)| parallel)
        .collect();
    let mut found = on_all_cores(chosen.len(), |i| {
        evaluate(spec, config, chosen[i], workload, machine)
    })
    .into_iter()
    .collect::<Result<Vec<_>>>()?;
    found.sort_by(|a, b| {
        let fit = b.fits.cmp(&a.fits);
        fit.then_with(|| match a.fits {
            true => a.outcome.step_s.total_cmp(&b.outcome.step_s),
            false => a.memory.peak().cmp(&b.memory.peak()),
        })
    });
    Ok(found)
}
