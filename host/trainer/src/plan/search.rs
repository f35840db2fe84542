//! Layouts for a number of GPUs, those that fit first, the fastest first.
//!
//! Each layout is recorded on one rank a stage and replayed. What is computed again is chosen by memory: nothing if that
//! fits, else what is elementwise, else whole layers of as few layers as will do, else everything.

use super::flops::{self, Passing};
use super::machine::Machine;
use super::record::{Groups, Memory, Recorded, Workload, record};
use super::replay::{Outcome, replay};
use crate::Result;
use crate::config::TrainConfig;
use crate::parallel::ParallelConfig;
use slime_kernels::shapes::Widths;
use slime_model::ModelSpec;
use slime_model::layers::Recompute;
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
    choices.extend(
        (1..=4)
            .map(|quarter| (Recompute::Full, Some(layers * quarter / 4)))
            .filter(|(_, n)| *n > Some(0)),
    );
    let stride = parallel.world() / parallel.pipeline_model_parallel_size;
    let mut last = None;
    for choice in choices {
        let (granularity, num) = choice;
        let config = TrainConfig {
            recompute_granularity: granularity,
            recompute_num_layers: num.filter(|n| *n < layers),
            ..config.clone()
        };
        let groups = Arc::new(Groups::default());
        let stages: Vec<Recorded> = (0..parallel.world())
            .step_by(stride)
            .map(|rank| {
                let both = (&config, parallel);
                record(spec, both, &records, machine, &groups, Widths::GPU, rank)
            })
            .collect::<Result<_>>()?;
        let heaviest = stages.iter().map(|s| s.memory).max_by_key(Memory::peak);
        let memory = heaviest.unwrap_or_default();
        let fits = (memory.peak() as f64) < USABLE * machine.memory_bytes;
        let candidate = judged(spec, parallel, workload, machine, &stages, &groups, memory);
        let candidate = Candidate {
            recompute: (granularity, config.recompute_num_layers),
            fits,
            ..candidate
        };
        if fits {
            return Ok(candidate);
        }
        last = Some(candidate);
    }
    Ok(last.expect("there are several policies"))
}

fn judged(
    spec: &ModelSpec,
    parallel: &ParallelConfig,
    workload: Workload,
    machine: &Machine,
    stages: &[Recorded],
    groups: &Groups,
    memory: Memory,
) -> Candidate {
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
        memory,
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

/// Every layout of `gpus` GPUs that the model allows.
pub fn layouts(spec: &ModelSpec, gpus: usize, machine: &Machine) -> Vec<ParallelConfig> {
    let mut all = Vec::new();
    for tp in sizes(machine.gpus_per_node) {
        for pp in 1..=16 {
            for cp in sizes(8) {
                if !gpus.is_multiple_of(tp * pp * cp) {
                    continue;
                }
                let parallel = ParallelConfig {
                    tensor_model_parallel_size: tp,
                    sequence_parallel: tp > 1,
                    pipeline_model_parallel_size: pp,
                    context_parallel_size: cp,
                    data_parallel_size: gpus / (tp * pp * cp),
                    ..ParallelConfig::default()
                };
                if parallel.problems(spec).is_empty() {
                    all.push(parallel);
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
    let mut found = Vec::new();
    for parallel in layouts(spec, gpus, machine) {
        // More data-parallel ranks than sequences would train on nothing.
        if parallel.data_parallel_size <= workload.sequences {
            found.push(evaluate(spec, config, &parallel, workload, machine)?);
        }
    }
    found.sort_by(|a, b| {
        let fit = b.fits.cmp(&a.fits);
        fit.then_with(|| match a.fits {
            true => a.outcome.step_s.total_cmp(&b.outcome.step_s),
            false => a.memory.peak().cmp(&b.memory.peak()),
        })
    });
    Ok(found)
}
