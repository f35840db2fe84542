//! What a recipe may not say: values out of range, contradictions, and options without effect.
//!
//! An option that changes nothing in this run is refused, because its author believes that it does. A recipe's file
//! may hold sections for other verbs; `--set`, flags and environment speak of this verb only and are held to it.

use super::layer::Origin;
use super::problem::{Problem, Problems};
use super::schema::is_key;
use super::{Device, Dtype, Plan, Resolved, Verb};
use slime_trainer::TrainConfig;

/// A key, its value, what holds of it, and that in words.
type Range = (&'static str, Option<f64>, fn(f64) -> bool, &'static str);

/// Collects problems while a plan is made.
pub struct Check<'a> {
    said: &'a Resolved,
    verb: Verb,
    problems: Vec<Problem>,
}

impl<'a> Check<'a> {
    /// Nothing found yet.
    pub fn new(said: &'a Resolved, verb: Verb) -> Self {
        Self {
            said,
            verb,
            problems: Vec::new(),
        }
    }

    /// Add a problem at the place where `key` was said, if it was.
    pub fn refuse(&mut self, key: &str, message: impl Into<String>, help: impl Into<String>) {
        self.problems
            .push(Problem::new(message).help(help).at(self.said.place(key)));
    }

    /// A value that had to be read from text.
    pub fn parse<T>(&mut self, key: &str, result: Result<T, String>) -> Option<T> {
        result
            .map_err(|message| {
                self.problems
                    .push(Problem::new(format!("`{key}`: {message}")).at(self.said.place(key)))
            })
            .ok()
    }

    /// The plan, if nothing was found.
    pub fn done(self, plan: Plan) -> Result<Plan, Problems> {
        if self.problems.is_empty() {
            Ok(plan)
        } else {
            Err(Problems(self.problems))
        }
    }

    /// Every rule that needs only what was said.
    pub fn rules(&mut self) {
        self.sections();
        self.ranges();
        self.model();
        self.batches();
        self.parallel();
        self.without_effect();
        self.length();
    }

    fn useless(&mut self, key: &str, why: &str, help: &str) {
        if self.said.says(key) {
            self.refuse(key, format!("`{key}` has no effect: {why}"), help);
        }
    }

    fn sections(&mut self) {
        for (key, origin) in &self.said.origins {
            let section = key.split_once('.').map_or("", |(section, _)| section);
            let read = (section.is_empty() || self.verb.sections().contains(&section))
                && !self.verb.unread().contains(&key.as_str());
            if !read && !matches!(origin, Origin::File { .. }) {
                let message = format!("`{key}` has no effect in `{}`", self.verb.name());
                self.refuse(
                    key,
                    message,
                    "leave it out; a file may hold it for other verbs",
                );
            }
        }
    }

    fn ranges(&mut self) {
        let c = &self.said.config;
        let floats: [Range; 5] = [
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
            ("sft.num_steps", c.sft.num_steps),
            ("sft.batch_size", c.sft.batch_size),
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

    fn model(&mut self) {
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
        match (model.device.unwrap_or_default(), model.dtype) {
            (Device::Cpu, Some(Dtype::Bf16)) => self.refuse(
                "model.dtype",
                "the CPU computes in f32",
                "leave `model.dtype` out, or choose `model.device = \"cuda\"`",
            ),
            (Device::Cuda, Some(Dtype::F32)) => self.refuse(
                "model.dtype",
                "CUDA computes in bf16, with fp32 gradients and master weights",
                "leave `model.dtype` out, or choose `model.device = \"cpu\"`",
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
        if trains && within.is_empty() && config.needs_reference().is_none() {
            self.useless(
                "model.ref_load",
                "no KL to a reference is computed",
                "add `use_kl_loss = true`, or a `kl_coef` above 0",
            );
        }
    }

    fn batches(&mut self) {
        let c = &self.said.config;
        let groups = c.rollout.batch_size.unwrap_or(16);
        let n = u64::from(c.rollout.n_samples_per_prompt.unwrap_or(8));
        let rollouts = groups * n;
        if self.verb == Verb::Run {
            if n == 1
                && c.algorithm
                    .advantage_estimator
                    .unwrap_or_default()
                    .is_group_relative()
            {
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

    fn parallel(&mut self) {
        let t = &self.said.config.train;
        let sizes = [
            (
                "train.tensor_model_parallel_size",
                t.tensor_model_parallel_size,
            ),
            (
                "train.pipeline_model_parallel_size",
                t.pipeline_model_parallel_size,
            ),
            ("train.context_parallel_size", t.context_parallel_size),
            (
                "train.expert_model_parallel_size",
                t.expert_model_parallel_size,
            ),
            ("train.data_parallel_size", t.data_parallel_size),
        ];
        for (key, size) in sizes {
            if let Some(size) = size.filter(|n| *n != 1) {
                self.refuse(
                    key,
                    format!("`{key}` is {size}, but this build trains on one rank"),
                    "set it to 1 or leave it out",
                );
            }
        }
    }

    fn without_effect(&mut self) {
        let c = &self.said.config;
        if c.data.prompt_data.is_none() {
            let has_file = !c.eval.prompt_data.is_empty() || c.sft.data.is_some();
            let why = "prompts come from a plugin, not from a file";
            for key in ["input_key", "label_key", "metadata_key", "tool_key"] {
                if !has_file {
                    self.useless(&format!("data.{key}"), why, "add `data.prompt_data`");
                }
            }
            self.useless("data.shuffle", why, "add `data.prompt_data`");
            if c.data.apply_chat_template != Some(true) && !has_file {
                self.useless(
                    "data.system_prompt",
                    "text prompts are no conversations",
                    "add `apply_chat_template = true`",
                );
            }
        } else {
            self.useless(
                "data.difficulty",
                "prompts come from a file",
                "leave it out",
            );
        }
        if c.eval.interval.is_none() && self.verb == Verb::Run {
            let keys: Vec<String> = self
                .said
                .origins
                .keys()
                .filter(|k| k.starts_with("eval."))
                .cloned()
                .collect();
            for key in keys {
                self.useless(&key, "nothing is evaluated", "add `eval.interval`");
            }
        }
        if !c.eval.prompt_data.is_empty() {
            self.useless(
                "eval.num_prompts",
                "held-out prompts come from files",
                "slice the file: FILE@[0:64]",
            );
        } else {
            for key in ["eval.input_key", "eval.label_key"] {
                self.useless(
                    key,
                    "held-out prompts come from a plugin",
                    "add `eval.prompt_data`",
                );
            }
        }
        if c.rollout.filter.unwrap_or_default() == super::sections::Filter::All {
            self.useless(
                "rollout.max_refills",
                "no group is left out",
                "add `filter = \"nonzero-std\"`",
            );
        }
        if c.rollout
            .external_engine_addrs
            .as_ref()
            .is_none_or(Vec::is_empty)
        {
            let help = "add `external_engine_addrs`";
            self.useless(
                "rollout.update_weight_disk_dir",
                "the embedded engine reads weights from memory",
                help,
            );
        }
        if self.verb == Verb::Run && c.sft.num_steps.is_none() {
            let keys: Vec<String> = self
                .said
                .origins
                .keys()
                .filter(|k| k.starts_with("sft."))
                .cloned()
                .collect();
            for key in keys {
                self.useless(
                    &key,
                    "there is no supervised warm-up",
                    "add `sft.num_steps`",
                );
            }
        }
    }

    fn length(&mut self) {
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
        if run.num_epoch.is_some() && self.said.config.data.prompt_data.is_none() {
            self.refuse(
                "run.num_epoch",
                "a source plugin's prompts have no epochs",
                "use `num_rollout`",
            );
        }
    }
}
