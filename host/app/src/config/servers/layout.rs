//! From what a file says to servers: who is the policy, which GPUs each group has, which flags its servers get.
//!
//! GPUs are laid out one after another in the file's order, as slime does. Nothing is guessed: a total that does not
//! match, servers that do not fill a group, and a model that nobody asks are refused.

use super::file::{GroupSaid, ModelSaid, ServerFile, WorkerType};
use super::{ServedModel, ServerGroup, Usage, flags};
use crate::config::problem::Problem;
use crate::config::{Resolved, Verb};
use slime_rollout::pool::{Part, PauseMode};
use std::path::{Path, PathBuf};

/// The name of the model that is distilled from.
const TEACHER: &str = "teacher";

/// The models of `file`.
///
/// # Errors
/// Everything that does not add up.
pub fn models(
    file: &ServerFile,
    said: &Resolved,
    verb: Verb,
) -> Result<Vec<ServedModel>, Vec<Problem>> {
    let mut layout = Layout {
        file,
        said,
        problems: Vec::new(),
        next_gpu: said.config.rollout.base_gpu_id.unwrap_or(0),
    };
    let policy = layout.policy();
    let mut models = Vec::new();
    for (index, model) in file.models.iter().enumerate() {
        let groups = layout.groups(model);
        let path = layout.path(model);
        let usage = if Some(index) == policy {
            Some(Usage::Policy)
        } else {
            layout.usage(model, verb)
        };
        layout.parts(model, &groups, usage);
        if groups.is_empty() && usage == Some(Usage::Policy) && layout.problems.is_empty() {
            let what = format!("no server samples for `{}`", model.name.value);
            let help = "give it a group that is no placeholder";
            layout.refuse(&model.name.span, what, help);
        }
        if let Some(usage) = usage.filter(|_| !groups.is_empty()) {
            models.push(ServedModel {
                name: model.name.value.clone(),
                path,
                usage,
                groups,
            });
        }
    }
    layout.total();
    if layout.problems.is_empty() {
        Ok(models)
    } else {
        layout.problems.sort_by_key(Problem::offset);
        Err(layout.problems)
    }
}

struct Layout<'a> {
    file: &'a ServerFile,
    said: &'a Resolved,
    problems: Vec<Problem>,
    next_gpu: u32,
}

impl Layout<'_> {
    fn refuse(
        &mut self,
        span: &std::ops::Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) {
        self.problems.push(self.file.problem(span, message, help));
    }

    /// The run's own model.
    fn checkpoint(&self) -> Option<&Path> {
        self.said.config.model.path.as_deref()
    }

    fn path(&self, model: &ModelSaid) -> PathBuf {
        let own = model.model_path.as_ref().map(|said| said.value.clone());
        own.or(self.checkpoint().map(Path::to_path_buf))
            .unwrap_or_default()
    }

    /// Whether a model is the run's, where it does not say so.
    fn serves_checkpoint(&self, model: &ModelSaid) -> bool {
        let Some(own) = &model.model_path else {
            return true;
        };
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.into());
        self.checkpoint()
            .is_some_and(|path| real(path) == real(&own.value))
    }

    /// Which model is trained.
    fn policy(&mut self) -> Option<usize> {
        let file = self.file;
        let is_trained = |model: &ModelSaid| match &model.update_weights {
            Some(said) => said.value,
            None => self.serves_checkpoint(model),
        };
        let trained: Vec<usize> = (0..file.models.len())
            .filter(|&i| is_trained(&file.models[i]))
            .collect();
        let (first, rest) = match trained.split_first() {
            Some((first, rest)) => (*first, rest),
            None => {
                let help = "leave `model_path` and `update_weights` out of the one that is trained";
                let what = format!("{}: no model is the policy", file.name());
                let span = file.models.first().map(|m| m.name.span.clone());
                self.refuse(&span.unwrap_or(0..0), what, help);
                return None;
            }
        };
        for &other in rest {
            let (model, policy) = (&file.models[other], &file.models[first].name.value);
            let what = format!(
                "`{}` would be trained too, and `{policy}` is the policy",
                model.name.value
            );
            let help = "add `update_weights: false` to the one whose weights stay as they are";
            self.refuse(&model.name.span, what, help);
        }
        let model = &file.models[first];
        if let Some(own) = &model.model_path
            && !self.serves_checkpoint(model)
        {
            let what = format!(
                "`{}` is the policy and is served from another directory than --hf-checkpoint",
                model.name.value
            );
            let help =
                "leave `model_path` out, or add `update_weights: false` if it is not trained";
            self.refuse(&own.span, what, help);
        }
        Some(first)
    }

    /// Who asks a model whose weights never change; `None` where nobody does in this verb.
    fn usage(&mut self, model: &ModelSaid, verb: Verb) -> Option<Usage> {
        let (name, config) = (&model.name.value, &self.said.config);
        let distils = config.algorithm.use_opd == Some(true);
        if name == TEACHER && (distils || verb != Verb::Run) {
            if config.model.teacher_load.is_some() || config.model.teacher_addrs.is_some() {
                let help = "keep one: this model, `teacher_load` or `teacher_addrs`";
                self.refuse(&model.name.span, "there are two teachers", help);
            }
            return (verb == Verb::Run).then_some(Usage::Teacher);
        }
        if config.model.judge_addrs.contains_key(name) {
            let what = format!("`model.judge_addrs.{name}` names servers of `{name}` too");
            self.refuse(&model.name.span, what, "keep one");
        }
        let granted = config.grants.values().any(|grants| {
            let models = grants.get("models").and_then(toml::Value::as_array);
            models.is_some_and(|all| all.iter().any(|m| m.as_str() == Some(name)))
        });
        if !granted {
            let what = format!("nobody asks `{name}`");
            let help = if name == TEACHER {
                "add `use_opd = true` to [algorithm] to distil from it".to_owned()
            } else {
                format!(
                    "add `models = [\"{name}\"]` to the [grants.PLUGIN] of a judge, or take it out"
                )
            };
            self.refuse(&model.name.span, what, help);
        }
        Some(Usage::Judge)
    }

    fn groups(&mut self, model: &ModelSaid) -> Vec<ServerGroup> {
        let mut groups = Vec::new();
        for group in &model.groups {
            let base_gpu = self.next_gpu;
            self.next_gpu = self.next_gpu.saturating_add(group.num_gpus.value);
            let part = match group.worker_type.value {
                WorkerType::Regular => Part::Whole,
                WorkerType::Prefill => Part::Prefill,
                WorkerType::Decode => Part::Decode,
                WorkerType::Placeholder => {
                    self.placeholder(group);
                    continue;
                }
            };
            let Some(per_server) = self.gpus_per_server(model, group) else {
                continue;
            };
            let global = self.said.config.rollout.sglang_args.as_deref();
            groups.push(ServerGroup {
                part,
                num_servers: (group.num_gpus.value / per_server) as usize,
                gpus_per_server: Some(per_server),
                base_gpu,
                args: flags::merge(
                    global.unwrap_or_default(),
                    [&model.overrides, &group.overrides],
                ),
            });
        }
        groups
    }

    fn placeholder(&mut self, group: &GroupSaid) {
        let idle = group.num_gpus_per_engine.as_ref().map(|said| &said.span);
        if let Some(span) = idle {
            let help = "a placeholder only keeps `num_gpus` GPUs free; leave it out";
            self.refuse(span, "a placeholder has no servers", help);
        } else if !group.overrides.is_empty() {
            let help = "a placeholder only keeps `num_gpus` GPUs free; leave `overrides` out";
            let span = &group.worker_type.span;
            self.refuse(span, "a placeholder has no servers", help);
        }
    }

    fn gpus_per_server(&mut self, model: &ModelSaid, group: &GroupSaid) -> Option<u32> {
        let own = group.num_gpus_per_engine.as_ref();
        let own = own.or(model.num_gpus_per_engine.as_ref());
        let global = self.said.config.rollout.num_gpus_per_engine.unwrap_or(1);
        let per_server = own.map_or(global, |said| said.value).max(1);
        let num_gpus = group.num_gpus.value;
        if num_gpus.is_multiple_of(per_server) {
            return Some(per_server);
        }
        let what = format!("{num_gpus} GPUs cannot be shared out to servers of {per_server}");
        let help = format!(
            "make `num_gpus` a multiple of {per_server}, or set the group's `num_gpus_per_engine`"
        );
        self.refuse(&group.num_gpus.span, what, help);
        None
    }

    /// Prompts and responses are either done by the same servers or by a pair of kinds.
    fn parts(&mut self, model: &ModelSaid, groups: &[ServerGroup], usage: Option<Usage>) {
        let has = |part| groups.iter().any(|group| group.part == part);
        if (has(Part::Prefill) || has(Part::Decode)) && usage != Some(Usage::Policy) {
            let what = format!(
                "`{}` is not the policy and has servers of two kinds",
                model.name.value
            );
            let help = "only the policy's requests pass through pairs: use `regular`";
            self.refuse(&model.name.span, what, help);
        } else if has(Part::Decode) && self.said.config.rollout.router_addr.is_some() {
            let what = "pairs of prefill and decode servers are picked here, not by a router";
            let help = "leave `rollout.router_addr` out, or use `regular`";
            self.refuse(&model.name.span, what, help);
        }
        if has(Part::Decode) && self.said.config.algorithm.use_rollout_routing_replay == Some(true)
        {
            let what = "a decode server has not seen the prompt and cannot tell which experts its tokens went to";
            let help = "leave `use_rollout_routing_replay` out, or use `regular`";
            self.refuse(&model.name.span, what, help);
        }
        let rollout = &self.said.config.rollout;
        let aborts = rollout.pause_generation_mode == Some(PauseMode::Abort);
        if has(Part::Decode) && rollout.fully_async == Some(true) && !aborts {
            let what = "a decode server that is paused goes on from the old weights' keys and values afterwards";
            let help = "set `rollout.pause_generation_mode = \"abort\"`: requests then begin again from their tokens";
            self.refuse(&model.name.span, what, help);
        }
        let missing = match (has(Part::Prefill), has(Part::Decode)) {
            (true, false) => Some("prefill servers, and none to decode"),
            (false, true) => Some("decode servers, and none to prefill"),
            _ => None,
        };
        if let Some(what) = missing {
            let what = format!("`{}` has {what}", model.name.value);
            let help = "a request passes through one of each: add a group of the other kind, or use `regular`";
            self.refuse(&model.name.span, what, help);
        }
    }

    fn total(&mut self) {
        let groups = self.file.models.iter().flat_map(|model| &model.groups);
        let total: u64 = groups.map(|group| u64::from(group.num_gpus.value)).sum();
        let Some(said) = self.said.config.rollout.num_gpus else {
            return;
        };
        if total != u64::from(said) && self.problems.is_empty() {
            let what = format!(
                "{} has groups of {total} GPUs in all, and `rollout.num_gpus` is {said}",
                self.file.name()
            );
            let help = format!(
                "set --rollout-num-gpus {total}, or change the groups; a placeholder fills what others use"
            );
            let problem = Problem::new(what).help(help);
            let place = self.said.place("rollout.num_gpus");
            self.problems.push(problem.at(place));
        }
    }
}
