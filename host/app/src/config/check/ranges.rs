//! Values out of range, and counts that do not fit each other.

use super::{Check, Range};
use crate::config::Verb;

impl Check<'_> {
    pub(super) fn ranges(&mut self) {
        let c = &self.said.config;
        let floats: [Range; 8] = [
            (
                "data.curriculum_target",
                c.data.curriculum_target,
                f64::is_finite,
                "a reward",
            ),
            (
                "data.curriculum_rate",
                c.data.curriculum_rate,
                |r| r > 0.0 && r <= 1.0,
                "more than 0 and at most 1",
            ),
            (
                "rollout.overlong_penalty_factor",
                c.rollout.overlong_penalty_factor,
                |f| f > 0.0,
                "more than 0",
            ),
            (
                "rollout.top_p",
                c.rollout.top_p,
                |p| p > 0.0 && p <= 1.0,
                "more than 0 and at most 1",
            ),
            (
                "eval.temperature",
                c.eval.temperature,
                |t| t >= 0.0,
                "0 (greedy) or more",
            ),
            (
                "eval.top_p",
                c.eval.top_p,
                |p| p > 0.0 && p <= 1.0,
                "more than 0 and at most 1",
            ),
            (
                "data.difficulty",
                c.data.difficulty,
                |d| (0.0..=1.0).contains(&d),
                "from 0 (easiest) to 1 (hardest)",
            ),
            (
                "sft.shuffled_label_frac",
                c.sft.shuffled_label_frac,
                |f| (0.0..=1.0).contains(&f),
                "from 0 (every answer is its own) to 1",
            ),
        ];
        for (key, value, holds, range) in floats {
            if let Some(value) = value.filter(|v| !holds(*v)) {
                self.refuse(
                    key,
                    format!("`{key}` is {value}"),
                    format!("it must be {range}"),
                );
            }
        }
        if let Some(t) = c
            .rollout
            .temperature
            .filter(|t| *t < 0.0 || (*t == 0.0 && self.verb == Verb::Run))
        {
            let help = "training needs a distribution: use a temperature above 0, and `eval.temperature = 0` for greedy evaluation";
            self.refuse(
                "rollout.temperature",
                format!("`rollout.temperature` is {t}"),
                help,
            );
        }
        let counts = [
            ("run.num_rollout", c.run.num_rollout),
            ("run.num_epoch", c.run.num_epoch),
            ("run.save_interval", c.run.save_interval),
            ("run.keep_checkpoints", c.run.keep_checkpoints),
            ("eval.interval", c.eval.interval),
            ("eval.num_prompts", c.eval.num_prompts),
            (
                "eval.n_samples_per_prompt",
                c.eval.n_samples_per_prompt.map(u64::from),
            ),
            (
                "eval.max_response_len",
                c.eval.max_response_len.map(u64::from),
            ),
            ("rollout.batch_size", c.rollout.batch_size),
            (
                "rollout.n_samples_per_prompt",
                c.rollout.n_samples_per_prompt.map(u64::from),
            ),
            (
                "rollout.max_response_len",
                c.rollout.max_response_len.map(u64::from),
            ),
            ("rollout.max_refills", c.rollout.max_refills.map(u64::from)),
            (
                "rollout.concurrency",
                c.rollout.concurrency.map(|n| n as u64),
            ),
            ("rollout.num_engines", c.rollout.num_engines.map(u64::from)),
            ("rollout.num_gpus", c.rollout.num_gpus.map(u64::from)),
            (
                "rollout.num_gpus_per_engine",
                c.rollout.num_gpus_per_engine.map(u64::from),
            ),
            ("sft.num_steps", c.sft.num_steps),
            ("sft.batch_size", c.sft.batch_size),
            (
                "rollout.overlong_buffer_len",
                c.rollout.overlong_buffer_len.map(u64::from),
            ),
        ];
        for (key, _) in counts.iter().filter(|(_, value)| *value == Some(0)) {
            self.refuse(key, format!("`{key}` is 0"), "it must be 1 or more");
        }
        for key in ["rollout.top_k", "eval.top_k"] {
            let value = if key == "eval.top_k" {
                c.eval.top_k
            } else {
                c.rollout.top_k
            };
            if value.is_some_and(|k| k == 0 || k < -1) {
                self.refuse(
                    key,
                    format!("`{key}` keeps no token"),
                    "-1 keeps all; a number above 0 keeps that many",
                );
            }
        }
    }

    pub(super) fn batches(&mut self) {
        let c = &self.said.config;
        let groups = c.rollout.batch_size.unwrap_or(16);
        let n = u64::from(c.rollout.n_samples_per_prompt.unwrap_or(8));
        let rollouts = groups * n;
        if self.verb == Verb::Run {
            let estimator = c.algorithm.advantage_estimator.unwrap_or_default();
            let compares = estimator.is_group_relative()
                && !c.algorithm.disable_rewards_normalization.unwrap_or_default()
                // A teacher says something about every token of one rollout, too.
                && !c.algorithm.use_opd.unwrap_or_default();
            if n == 1 && compares {
                let help =
                    "the rollouts of one prompt are compared with each other: ask for 2 or more";
                self.refuse(
                    "rollout.n_samples_per_prompt",
                    "a group of one has no baseline",
                    help,
                );
            }
            let steps = [
                (
                    "train.global_batch_size",
                    c.train.global_batch_size,
                    "train steps of",
                ),
                (
                    "train.num_steps_per_rollout",
                    c.train.num_steps_per_rollout,
                    "train steps, as many as",
                ),
            ];
            for (key, count, what) in steps {
                if let Some(count) =
                    count.filter(|count| *count > 0 && !rollouts.is_multiple_of(*count as u64))
                {
                    let message = format!(
                        "{groups} prompts × {n} rollouts = {rollouts} cannot be split into {what} {count}"
                    );
                    self.refuse(key, message, format!("choose a divisor of {rollouts}"));
                }
            }
        }
        let response = c.rollout.max_response_len.unwrap_or(256);
        if let Some(context) = c
            .rollout
            .max_context_len
            .filter(|context| *context <= response)
        {
            self.refuse(
                "rollout.max_context_len",
                format!("a context of {context} tokens has no room for a prompt beside {response} tokens of response"),
                "raise `max_context_len` or lower `max_response_len`",
            );
        }
    }

    pub(super) fn length(&mut self) {
        let run = &self.said.config.run;
        if run.num_rollout.is_some() && run.num_epoch.is_some() {
            self.refuse(
                "run.num_epoch",
                "`num_rollout` and `num_epoch` both say how long the run is",
                "keep one",
            );
        }
        if self.verb == Verb::Run && run.num_rollout.is_none() && run.num_epoch.is_none() {
            self.refuse(
                "run.num_rollout",
                "the run has no length",
                "add --num-rollout N",
            );
        }
        let data = &self.said.config.data;
        let is_made = data.prompt_data.is_none()
            && (data.sources.is_empty() || data.sources.values().any(|s| s.own.plugin.is_some()));
        if run.num_epoch.is_some() && is_made {
            self.refuse(
                "run.num_epoch",
                "a source plugin's prompts have no epochs",
                "use `num_rollout`",
            );
        }
    }
}
