//! The trainer, its ranks and its warm-up.

use super::data::{DataPlan, data_plan};
use super::rollout::rollout_plan;
use super::{Resolved, Verb};
use crate::config::check::Check;
use crate::config::units;
use serde_json::{Map, Value};
use slime_trainer::TrainConfig;
use slime_trainer::optim::schedule::DecayStyle;
use slime_trainer::parallel::ParallelConfig;
use std::time::Duration;

/// The ranks a trainer has.
#[derive(Clone, Debug, PartialEq)]
pub struct RanksPlan {
    /// How the model is spread over them.
    pub parallel: ParallelConfig,
    /// How long they wait for each other.
    pub patience: Duration,
}

/// Supervised fine-tuning.
#[derive(Clone, Debug, PartialEq)]
pub struct SftPlan {
    /// Conversations; `None` takes a source plugin's prompts and labels.
    pub data: Option<DataPlan>,
    /// Train steps; `None` is one pass over the data.
    pub num_steps: Option<u64>,
    /// Share of the rows that learn another row's answer.
    pub shuffled_label_frac: f64,
    /// Sequences of one train step.
    pub batch_size: usize,
    /// Train steps between checkpoints, of the verb `sft`; without it there are none.
    pub save_interval: Option<u64>,
    /// Optimizer and batches.
    pub train: TrainConfig,
}

/// Keys of `[algorithm]` that are this program's and not the trainer's.
const OURS: [&str; 1] = ["allow_uncorrected_lag"];

/// Keys of `[train]` that say how the model is spread over ranks: they change no number but its last bits.
pub const IS_LAYOUT: [&str; 12] = [
    "tensor_model_parallel_size",
    "sequence_parallel",
    "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size",
    "decoder_first_pipeline_num_layers",
    "decoder_last_pipeline_num_layers",
    "context_parallel_size",
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "data_parallel_size",
    "ddp_bucket_size",
    "distributed_timeout",
];

pub(super) fn ranks_plan(said: &Resolved, check: &mut Check<'_>) -> RanksPlan {
    let t = &said.config.train;
    let patience = t
        .distributed_timeout
        .as_deref()
        .and_then(|text| check.parse("train.distributed_timeout", units::duration(text)));
    RanksPlan {
        parallel: ParallelConfig {
            tensor_model_parallel_size: t.tensor_model_parallel_size.unwrap_or(1),
            sequence_parallel: t.sequence_parallel.unwrap_or(false),
            pipeline_model_parallel_size: t.pipeline_model_parallel_size.unwrap_or(1),
            virtual_pipeline_model_parallel_size: t
                .virtual_pipeline_model_parallel_size
                .unwrap_or(1),
            decoder_first_pipeline_num_layers: t.decoder_first_pipeline_num_layers,
            decoder_last_pipeline_num_layers: t.decoder_last_pipeline_num_layers,
            context_parallel_size: t.context_parallel_size.unwrap_or(1),
            expert_model_parallel_size: t.expert_model_parallel_size.unwrap_or(1),
            expert_tensor_parallel_size: t.expert_tensor_parallel_size,
            data_parallel_size: t.data_parallel_size.unwrap_or(1),
            ddp_bucket_size: t.ddp_bucket_size,
        },
        patience: patience.unwrap_or(Duration::from_secs(600)),
    }
}

/// The trainer's options: what `[algorithm]` and `[train]` say over the trainer's own defaults.
pub(super) fn train_config(said: &Resolved, check: &mut Check<'_>) -> TrainConfig {
    let (c, rollout) = (&said.config, rollout_plan(said));
    let mut all = Map::new();
    for section in [
        serde_json::to_value(&c.algorithm),
        serde_json::to_value(&c.train),
    ] {
        if let Ok(Value::Object(section)) = section {
            all.extend(section.into_iter().filter(|(key, value)| {
                !value.is_null()
                    && !OURS.contains(&key.as_str())
                    && !IS_LAYOUT.contains(&key.as_str())
            }));
        }
    }
    let mut config: TrainConfig = serde_json::from_value(Value::Object(all)).unwrap_or_else(|e| {
        check.refuse(
            "train",
            format!("the trainer refuses its options: {e}"),
            "report this: the keys should agree",
        );
        TrainConfig::default()
    });
    config.rollout_temperature = rollout.sampling.temperature;
    if config.lr_decay_style != DecayStyle::Constant && config.lr_decay_iters.is_none() {
        let rollouts = rollout.batch_size as usize * rollout.n_samples_per_prompt as usize;
        let per_step = config
            .num_steps_per_rollout
            .or(config.global_batch_size.map(|size| rollouts / size.max(1)));
        config.lr_decay_iters = c
            .run
            .num_rollout
            .map(|steps| steps * per_step.unwrap_or(1) as u64);
    }
    config
}

pub(super) fn sft_plan(said: &Resolved, verb: Verb, train: &TrainConfig) -> Option<SftPlan> {
    let s = &said.config.sft;
    let wanted = verb == Verb::Sft || (verb == Verb::Run && s.num_steps.is_some());
    wanted.then(|| SftPlan {
        data: s.data.as_ref().map(|path| {
            let mut plan = data_plan(said, path);
            plan.input_key = s.input_key.clone().unwrap_or_else(|| "messages".into());
            plan.label_key.clone_from(&s.label_key);
            plan
        }),
        num_steps: s.num_steps,
        shuffled_label_frac: s.shuffled_label_frac.unwrap_or(0.0),
        batch_size: s.batch_size.unwrap_or(32) as usize,
        save_interval: said.config.run.save_interval.filter(|_| verb == Verb::Sft),
        train: TrainConfig {
            lr: s.lr.unwrap_or(train.lr),
            min_lr: s.min_lr.unwrap_or(0.0),
            lr_warmup_iters: s.lr_warmup_iters.unwrap_or(0),
            lr_decay_style: s.lr_decay_style.unwrap_or(DecayStyle::Constant),
            lr_decay_iters: s
                .lr_decay_style
                .filter(|style| *style != DecayStyle::Constant)
                .and(s.num_steps),
            // What the algorithm says is of no concern to fine-tuning.
            max_tokens_per_gpu: train.max_tokens_per_gpu,
            recompute_granularity: train.recompute_granularity,
            recompute_num_layers: train.recompute_num_layers,
            log_probs_chunk_size: train.log_probs_chunk_size,
            weight_decay: train.weight_decay,
            adam_beta1: train.adam_beta1,
            adam_beta2: train.adam_beta2,
            adam_eps: train.adam_eps,
            clip_grad: train.clip_grad,
            use_precision_aware_optimizer: train.use_precision_aware_optimizer,
            ..TrainConfig::default()
        },
    })
}
