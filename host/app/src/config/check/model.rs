//! The policy, its teacher, the trainer and the ranks.

use super::Check;
use crate::config::Verb;
use crate::config::problem::Problem;
use crate::config::schema::is_key;
use crate::config::servers::{LaunchPlan, Usage};
use slime_trainer::TrainConfig;

impl Check<'_> {
    pub(super) fn model(&mut self) {
        let model = &self.said.config.model;
        match (&model.path, model.builtin) {
            (Some(_), Some(_)) => self.refuse(
                "model.builtin",
                "`model.path` and `model.builtin` name two models",
                "keep one; `--set model.builtin=null` takes the other back",
            ),
            (None, None) if self.verb != Verb::Train => self.refuse(
                "model.path",
                "no model is named",
                "give an HF directory with --hf-checkpoint DIR, or the tiny built-in one with --set model.builtin=tiny",
            ),
            _ => {}
        }
        let device = model.device.unwrap_or_default();
        if let Some(reason) = device.refuses(model.dtype) {
            let cure = format!(
                "leave `model.dtype` out, or choose `model.device = \"{}\"`",
                device.other()
            );
            self.refuse("model.dtype", reason, cure);
        }
    }

    pub(super) fn teacher(&mut self, launch: Option<&LaunchPlan>) {
        let c = &self.said.config;
        if self.verb != Verb::Run || c.algorithm.use_opd != Some(true) {
            return;
        }
        let served = match launch {
            Some(plan) => plan.models.iter().any(|m| m.usage == Usage::Teacher),
            // A file that was not read, or that says something else wrong, may name one.
            None => c.rollout.sglang_config.is_some(),
        };
        match (&c.model.teacher_load, &c.model.teacher_addrs) {
            (None, None) if !served => self.refuse(
                "algorithm.use_opd",
                "there is no teacher to distil from",
                "add `teacher_load = \"DIR\"` to [model], or `teacher_addrs` of servers that hold it",
            ),
            (Some(_), Some(_)) => self.refuse(
                "model.teacher_addrs",
                "`teacher_load` and `teacher_addrs` name two teachers",
                "keep one",
            ),
            (None, _) if c.rollout.temperature.is_some_and(|t| t != 1.0) => self.refuse(
                "rollout.temperature",
                "a server says how likely tokens are at temperature 1, and the student samples at another",
                "set `rollout.temperature = 1.0`, or load the teacher with `teacher_load`",
            ),
            _ => {}
        }
    }

    /// Rules of the trainer's own, for the verbs that train. `within` is the section its keys come from, empty for
    /// `[algorithm]` and `[train]`.
    pub fn train(&mut self, config: &TrainConfig, within: &str) {
        let trains = match within {
            "" => matches!(self.verb, Verb::Run | Verb::Train),
            _ => true,
        };
        let found = if trains {
            config.validate().err().unwrap_or_default()
        } else {
            Vec::new()
        };
        for problem in found {
            let key = match (within, problem.key) {
                (_, "rollout_temperature")
                    if self
                        .said
                        .config
                        .rollout
                        .temperature
                        .is_some_and(|t| t <= 0.0) =>
                {
                    continue;
                }
                (_, "rollout_temperature") => "rollout.temperature".to_owned(),
                ("", "lr_decay_iters")
                    if config.lr_decay_iters.is_some()
                        && self.said.config.train.lr_decay_iters.is_none() =>
                {
                    self.too_short(config);
                    continue;
                }
                ("sft", "lr_decay_iters") => "sft.num_steps".to_owned(),
                ("", key) => ["algorithm", "train"]
                    .map(|section| format!("{section}.{key}"))
                    .into_iter()
                    .find(|key| is_key(key))
                    .unwrap_or_else(|| key.into()),
                (section, key) if is_key(&format!("{section}.{key}")) => format!("{section}.{key}"),
                // Taken over from `[train]`, where it was reported already if that trains too.
                _ if self.verb == Verb::Run => continue,
                (_, key) => format!("train.{key}"),
            };
            self.problems.push(
                Problem::new(format!("`{key}`: {}", problem.detail)).at(self.said.place(&key)),
            );
        }
        if trains && within.is_empty() && !config.use_opd {
            for key in ["model.teacher_load", "model.teacher_addrs"] {
                self.useless(key, "nothing is distilled", "add `use_opd = true`");
            }
        }
        if trains && within.is_empty() && config.needs_reference().is_none() {
            self.useless(
                "model.ref_load",
                "no KL to a reference is computed",
                "add `use_kl_loss = true`, or a `kl_coef` above 0",
            );
        }
    }

    /// The learning rate's decay, which ends with the run, has no room after the warm-up.
    fn too_short(&mut self, config: &TrainConfig) {
        let steps = config.lr_decay_iters.unwrap_or(0);
        if steps > 0 {
            self.refuse(
                "run.num_rollout",
                format!(
                    "the run has {steps} train steps, and in the first {} the learning rate still rises (`train.lr_warmup_iters`)",
                    config.lr_warmup_iters
                ),
                "add steps with --num-rollout N, or take the warm-up out with --lr-warmup-iters 0",
            );
        }
    }

    /// What needs no model to be seen; whether a layout fits the model is checked when both are known.
    pub(super) fn parallel(&mut self) {
        let t = &self.said.config.train;
        let several = [
            t.tensor_model_parallel_size,
            t.pipeline_model_parallel_size,
            t.context_parallel_size,
            t.data_parallel_size,
        ];
        let world: usize = several.iter().map(|n| n.unwrap_or(1)).product();
        if world == 1 {
            let why = "the trainer runs on one rank";
            let cure = "set a parallel size above 1, or leave it out";
            for key in [
                "train.sequence_parallel",
                "train.virtual_pipeline_model_parallel_size",
                "train.decoder_first_pipeline_num_layers",
                "train.decoder_last_pipeline_num_layers",
                "train.ddp_bucket_size",
                "train.distributed_timeout",
            ] {
                self.useless(key, why, cure);
            }
            // Launch scripts say 1 of models without experts too.
            for (size, key) in [
                (
                    t.expert_model_parallel_size,
                    "train.expert_model_parallel_size",
                ),
                (
                    t.expert_tensor_parallel_size,
                    "train.expert_tensor_parallel_size",
                ),
            ] {
                if size != Some(1) {
                    self.useless(key, why, cure);
                }
            }
        }
    }
}
