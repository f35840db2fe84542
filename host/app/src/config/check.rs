//! What a recipe may not say: values out of range, contradictions, and options without effect.
//!
//! An option that changes nothing in this run is refused, because its author believes that it does. A recipe's file
//! may hold sections for other verbs; `--set`, flags and environment speak of this verb only and are held to it.

use super::eval_set::Share;
use super::layer::Origin;
use super::problem::{Problem, Problems};
use super::schema::is_key;
use super::servers::{self, LaunchPlan, Usage};
use super::{Plan, Resolved, Verb, units};
use slime_rollout::pool::PauseMode;
use slime_rollout::pool::launch::Sglang;
use slime_rollout::publish::Transport;
use slime_trainer::TrainConfig;
use slime_trainer::algo::Estimator;

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

    /// Add a problem that knows its place.
    pub fn add(&mut self, problem: Problem) {
        self.problems.push(problem);
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

    /// Every rule that needs only what was said, and which servers follow from it.
    pub fn rules(&mut self, launch: Option<&LaunchPlan>) {
        self.sections();
        self.ranges();
        self.sources();
        self.teacher(launch);
        self.model();
        self.batches();
        self.parallel();
        self.servers();
        self.without_effect();
        self.lag();
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

    fn teacher(&mut self, launch: Option<&LaunchPlan>) {
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

    fn sources(&mut self) {
        let c = &self.said.config;
        if c.data.prompt_data.is_some() && !c.data.sources.is_empty() {
            self.refuse(
                "data.prompt_data",
                "`data.prompt_data` and `data.sources` both say where prompts come from",
                "make `prompt_data` one of the sources",
            );
        }
        for (name, set) in &c.data.sources {
            if let Some(weight) = set.own.weight.filter(|w| !(w.is_finite() && *w > 0.0)) {
                let key = format!("data.sources.{name}");
                self.refuse(
                    &key,
                    format!("the weight of source `{name}` is {weight}"),
                    "it must be more than 0; leave the source out to draw nothing from it",
                );
            }
            self.source(name, &set.own);
        }
        for (name, set) in &c.eval.prompt_data {
            let key = format!("eval.prompt_data.{name}");
            let own = &set.own;
            if own.temperature.is_some_and(|t| t.is_nan() || t < 0.0) {
                self.refuse(
                    &key,
                    format!("the temperature of data set `{name}` is below 0"),
                    "0 is greedy",
                );
            }
            if own.top_p.is_some_and(|p| !(p > 0.0 && p <= 1.0)) {
                self.refuse(
                    &key,
                    format!("top_p of data set `{name}` is not a mass"),
                    "it must be more than 0 and at most 1",
                );
            }
            if own.n_samples_per_prompt == Some(0) || own.max_response_len == Some(0) {
                self.refuse(
                    &key,
                    format!("data set `{name}` asks for nothing"),
                    "counts must be 1 or more",
                );
            }
        }
    }

    /// One of several sources: what it sets must have an effect.
    fn source(&mut self, name: &str, own: &Share) {
        let key = format!("data.sources.{name}");
        let (file, made) = match own.plugin {
            Some(_) => (false, true),
            None => (true, false),
        };
        if made && (own.input_key.is_some() || own.label_key.is_some()) {
            let what = format!("source `{name}` is a plugin's and has no columns");
            self.refuse(&key, what, "leave `input_key` and `label_key` out");
        }
        if file && own.difficulty.is_some() {
            let what = format!("source `{name}` is a file, and `difficulty` has no effect");
            self.refuse(
                &key,
                what,
                "leave it out, or name a `plugin` instead of a `path`",
            );
        }
        if own.difficulty.is_some_and(|d| !(0.0..=1.0).contains(&d)) {
            let what = format!("the difficulty of source `{name}` is out of range");
            self.refuse(&key, what, "it must be from 0 (easiest) to 1 (hardest)");
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
        let device = model.device.unwrap_or_default();
        if let Some(reason) = device.refuses(model.dtype) {
            let cure = format!(
                "leave `model.dtype` out, or choose `model.device = \"{}\"`",
                device.other()
            );
            self.refuse("model.dtype", reason, cure);
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

    /// What needs no model to be seen; whether a layout fits the model is checked when both are known.
    fn parallel(&mut self) {
        let t = &self.said.config.train;
        let several = [
            t.tensor_model_parallel_size,
            t.pipeline_model_parallel_size,
            t.context_parallel_size,
            t.data_parallel_size,
        ];
        let world: usize = several.iter().map(|n| n.unwrap_or(1)).product();
        let trained_beside = [
            (
                self.said.config.algorithm.advantage_estimator == Some(Estimator::Ppo),
                "algorithm.advantage_estimator",
                "a critic",
            ),
            (
                self.said.config.algorithm.use_opd.unwrap_or(false),
                "algorithm.use_opd",
                "a teacher",
            ),
        ];
        for (asked, key, what) in trained_beside {
            if world != 1 && asked {
                self.refuse(
                    key,
                    format!("{what} runs on one rank, and the layout has {world}"),
                    "leave the parallel sizes out",
                );
            }
        }
        if self.verb == Verb::Sft && world != 1 {
            self.refuse(
                "train.data_parallel_size",
                format!("fine-tuning runs on one rank, and the layout has {world}"),
                "leave the parallel sizes out",
            );
        }
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

    fn servers(&mut self) {
        let (model, r) = (&self.said.config.model, &self.said.config.rollout);
        let attached = r
            .external_engine_addrs
            .as_ref()
            .is_some_and(|all| !all.is_empty());
        let launches = servers::asked(self.said);
        if !launches {
            for key in [
                "sglang_args",
                "engine_command",
                "num_gpus_per_engine",
                "base_gpu_id",
                "engine_start_timeout",
            ] {
                let why = "no server is launched";
                self.useless(
                    &format!("rollout.{key}"),
                    why,
                    "add --rollout-num-engines N, or --sglang-config FILE",
                );
            }
            if !attached {
                if r.update_weight_transport != Some(Transport::Disk) {
                    let why = "the embedded engine is in this process";
                    let help = "leave it out; `disk` writes every version to a directory too";
                    self.useless("rollout.update_weight_transport", why, help);
                }
                for key in ["update_weight_dtype", "router_addr", "stream"] {
                    let why = "the embedded engine reads weights and requests by itself";
                    let help = "add `num_engines`, `sglang_config` or `external_engine_addrs`";
                    self.useless(&format!("rollout.{key}"), why, help);
                }
            }
        } else if model.path.is_none() {
            let asking = ["sglang_config", "num_gpus", "num_engines"];
            let asking = asking.map(|key| format!("rollout.{key}"));
            let key = asking.iter().find(|key| self.said.says(key));
            self.refuse(
                key.map_or("rollout.num_engines", String::as_str),
                "a launched server needs the model as an HF directory",
                "name one with --hf-checkpoint DIR",
            );
        }
        if r.pause_generation_mode == Some(PauseMode::InPlace) && (attached || launches) {
            self.refuse(
                "rollout.pause_generation_mode",
                "a stock SGLang server cannot flush its cache while requests are frozen in it, and refuses the new weights",
                "use `retract` or `abort`",
            );
        }
        if r.update_weight_transport != Some(Transport::Delta) {
            let help = "add `update_weight_transport = \"delta\"`";
            self.useless("rollout.update_weight_local_dir", "no copy is kept", help);
        }
        self.counts_of_servers();
        let has_gpus =
            r.num_gpus_per_engine.is_some() || r.num_gpus.is_some() || r.sglang_config.is_some();
        if !has_gpus && launches {
            let help = "add `num_gpus_per_engine`";
            self.useless("rollout.base_gpu_id", "servers are given no GPUs", help);
        }
        if r.engine_command.as_ref().is_some_and(Vec::is_empty) {
            let help = "give a program and its first words, like [\"python3\", \"-m\", \"sglang.launch_server\"]";
            self.refuse(
                "rollout.engine_command",
                "`rollout.engine_command` is empty",
                help,
            );
        }
        if let Some(text) = &r.engine_start_timeout {
            self.parse("rollout.engine_start_timeout", units::duration(text));
        }
        for (flag, reason) in Sglang::refused(r.sglang_args.as_deref().unwrap_or_default()) {
            let message = format!("{flag} cannot be handed to a launched server");
            self.refuse("rollout.sglang_args", message, reason);
        }
    }

    /// How many servers, of how many GPUs: said once, or the same twice.
    fn counts_of_servers(&mut self) {
        let r = &self.said.config.rollout;
        if r.sglang_config.is_some() && r.num_engines.is_some() {
            self.refuse(
                "rollout.num_engines",
                "`rollout.sglang_config` says how many servers there are",
                "leave `num_engines` out",
            );
            return;
        }
        let (Some(gpus), None) = (r.num_gpus, &r.sglang_config) else {
            return;
        };
        let per_engine = r.num_gpus_per_engine.unwrap_or(1).max(1);
        if !gpus.is_multiple_of(per_engine) {
            let what = format!("{gpus} GPUs cannot be shared out to servers of {per_engine}");
            let help =
                format!("choose a multiple of {per_engine}, or another `num_gpus_per_engine`");
            self.refuse("rollout.num_gpus", what, help);
        } else if let Some(engines) = r.num_engines.filter(|n| *n != gpus / per_engine) {
            let what = format!("{engines} servers of {per_engine} GPUs do not use {gpus} GPUs");
            self.refuse(
                "rollout.num_gpus",
                what,
                "leave `num_engines` or `num_gpus` out",
            );
        }
    }

    fn without_effect(&mut self) {
        let c = &self.said.config;
        let has_prompts = c.data.prompt_data.is_some() || !c.data.sources.is_empty();
        if !has_prompts {
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
        }
        let has_made = !has_prompts || c.data.sources.values().any(|s| s.own.plugin.is_some());
        if !has_made {
            for key in ["data.difficulty", "data.curriculum_target"] {
                self.useless(key, "prompts come from files", "leave it out");
            }
        }
        if c.data.curriculum_target.is_none() {
            self.useless(
                "data.curriculum_rate",
                "the difficulty of prompts stays as it is",
                "add `curriculum_target`, the mean reward to aim at",
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

    /// Rules of a run whose tokens may be older than the weights they train.
    fn lag(&mut self) {
        let c = &self.said.config;
        if self.verb != Verb::Run {
            return;
        }
        let lag = c.rollout.max_lag.unwrap_or(0);
        let a = &c.algorithm;
        let said = |flag: Option<bool>| flag.unwrap_or(false);
        let corrected = said(a.use_tis) || said(a.use_rs) || said(a.use_rollout_logprobs);
        if lag > 0 && !corrected && !said(a.allow_uncorrected_lag) {
            self.refuse(
                "rollout.max_lag",
                format!("`rollout.max_lag` is {lag}, and nothing corrects for tokens that older weights sampled"),
                "add `use_tis = true` to [algorithm] (or `use_rs`, or `use_rollout_logprobs`); `allow_uncorrected_lag = true` does without",
            );
        }
        if lag == 0 {
            self.useless(
                "algorithm.allow_uncorrected_lag",
                "no token is older than the weights it trains",
                "leave it out, or raise `rollout.max_lag`",
            );
            if said(c.rollout.fully_async) {
                self.refuse(
                    "rollout.fully_async",
                    "sampling that never pauses gives tokens of older weights, and `rollout.max_lag` is 0",
                    "add `max_lag = 1` or more to [rollout]",
                );
            }
        }
        if !said(c.rollout.fully_async) {
            let why = "weights never change under a running request";
            for key in ["rollout.pause_generation_mode", "rollout.mask_offpolicy"] {
                self.useless(key, why, "add `fully_async = true`");
            }
        } else {
            self.useless(
                "rollout.over_sampling_batch_size",
                "sampling never pauses",
                "`fully_async` draws ahead by itself; leave it out",
            );
        }
        if c.rollout.overlong_buffer_len.is_none() {
            self.useless(
                "rollout.overlong_penalty_factor",
                "no response is penalised for its length",
                "add `overlong_buffer_len`",
            );
        }
        let response = c.rollout.max_response_len.unwrap_or(256);
        if let Some(buffer) = c.rollout.overlong_buffer_len.filter(|b| *b > response) {
            self.refuse(
                "rollout.overlong_buffer_len",
                format!("a buffer of {buffer} tokens is longer than a response of {response}"),
                "it is the last part of `max_response_len`",
            );
        }
        let groups = c.rollout.batch_size.unwrap_or(16);
        if let Some(over) = c.rollout.over_sampling_batch_size.filter(|n| *n < groups) {
            self.refuse(
                "rollout.over_sampling_batch_size",
                format!("a round of {over} prompts is smaller than a step of {groups}"),
                "it must be at least `batch_size`",
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::layer::from_file;
    use super::super::merge::merge;
    use super::*;

    /// A recipe that is right, and more lines.
    fn problems(more: &str) -> Vec<String> {
        let base = "[model]\nbuiltin = \"tiny\"\n[run]\nnum_rollout = 2\nplugins = [\"p\"]\n";
        let (settings, wrong) = from_file("r.toml", &format!("{base}{more}"));
        if !wrong.is_empty() {
            return wrong.iter().map(ToString::to_string).collect();
        }
        let said = merge(settings).unwrap();
        let found = Plan::new(&said, Verb::Run).err().map(|p| p.0);
        found
            .unwrap_or_default()
            .iter()
            .map(ToString::to_string)
            .collect()
    }

    #[test]
    fn the_base_of_these_tests_is_right() {
        assert_eq!(problems(""), Vec::<String>::new());
    }

    #[test]
    fn n10_training_on_older_tokens_asks_for_a_correction_or_for_doing_without_by_name() {
        let lag = "[rollout]\nmax_lag = 2\n[algorithm]\n";
        let found = problems(lag);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("nothing corrects for tokens that older weights sampled"));
        for cure in [
            "use_tis",
            "use_rs",
            "use_rollout_logprobs",
            "allow_uncorrected_lag",
        ] {
            assert_eq!(
                problems(&format!("{lag}{cure} = true\n")),
                Vec::<String>::new(),
                "{cure}"
            );
        }
        let found = problems("[algorithm]\nallow_uncorrected_lag = true\n");
        assert!(found[0].contains("no effect"), "{found:?}");
    }

    #[test]
    fn c06_c19_a_group_of_one_is_refused_with_every_group_relative_estimator() {
        for estimator in ["grpo", "gspo", "cispo", "rloo", "max_rl"] {
            let found = problems(&format!(
                "[rollout]\nn_samples_per_prompt = 1\n[algorithm]\nadvantage_estimator = \"{estimator}\"\n"
            ));
            assert_eq!(found, ["a group of one has no baseline"], "{estimator}");
        }
        for (estimator, whiten) in [("ppo", false), ("reinforce_plus_plus", true)] {
            let found = problems(&format!(
                "[rollout]\nn_samples_per_prompt = 1\n[algorithm]\nadvantage_estimator = \"{estimator}\"\nnormalize_advantages = {whiten}\n"
            ));
            assert_eq!(found, Vec::<String>::new(), "{estimator}");
        }
    }

    #[test]
    fn e04_n08_numbers_that_cannot_be_meant_are_refused() {
        for line in [
            "[rollout]\ntemperature = 0.0\n",
            "[rollout]\ntemperature = -1.0\n",
            "[rollout]\ntemperature = nan\n",
            "[rollout]\ntop_p = 0.0\n",
            "[algorithm]\neps_clip_c = 1.0\n",
            "[algorithm]\neps_clip = inf\n",
            "[train]\nclip_grad = -1.0\n",
            "[limits]\nwall = \"0s\"\n",
            "[limits]\nwall = \"inf\"\n",
        ] {
            assert_eq!(problems(line).len(), 1, "{line}: {:?}", problems(line));
        }
        assert_eq!(
            problems("[eval]\ninterval = 1\ntemperature = 0.0\n"),
            Vec::<String>::new(),
            "greedy evaluation is no training"
        );
    }

    #[test]
    fn n12_options_that_would_change_nothing_are_refused() {
        for line in [
            "[algorithm]\ntis_clip = 3.0\n",
            "[algorithm]\nkl_loss_coef = 0.1\n",
            "[algorithm]\nlambd = 0.9\n",
            "[rollout]\npause_generation_mode = \"abort\"\n",
            "[rollout]\nmask_offpolicy = true\n",
            "[rollout]\noverlong_penalty_factor = 2.0\n",
            "[model]\nteacher_load = \"t\"\n",
        ] {
            let line = line.replace("[model]\n", "");
            let found = if line.starts_with("teacher") {
                let base = "[model]\nbuiltin = \"tiny\"\nteacher_load = \"t\"\n[run]\nnum_rollout = 2\nplugins = [\"p\"]\n";
                let said = merge(from_file("r.toml", base).0).unwrap();
                let found = Plan::new(&said, Verb::Run)
                    .err()
                    .map(|p| p.0)
                    .unwrap_or_default();
                found.iter().map(ToString::to_string).collect()
            } else {
                problems(&line)
            };
            assert_eq!(found.len(), 1, "{line}: {found:?}");
            assert!(found[0].contains("no effect"), "{found:?}");
        }
    }

    #[test]
    fn sampling_that_never_pauses_needs_room_for_lag() {
        let found = problems("[rollout]\nfully_async = true\n");
        assert!(found[0].contains("`rollout.max_lag` is 0"), "{found:?}");
        let right = "[rollout]\nfully_async = true\nmax_lag = 2\npause_generation_mode = \"in_place\"\n[algorithm]\nuse_tis = true\n";
        assert_eq!(problems(right), Vec::<String>::new());
        let stock = right.replace("fully", "external_engine_addrs = [\"a:1\"]\nfully");
        let found = problems(&stock);
        assert!(found[0].contains("cannot flush its cache"), "{found:?}");
        let found = problems("[rollout]\nover_sampling_batch_size = 3\n");
        assert!(found[0].contains("smaller than a step of 16"), "{found:?}");
    }
}
