//! Prompts: to train on, and held out.

use super::rollout::{SamplingPlan, rollout_plan};
use super::{Resolved, Verb};
use crate::config::eval_set::SourceSet;

/// One of several data sets to train on.
#[derive(Clone, Debug, PartialEq)]
pub struct MixPlan {
    /// Its name in metrics.
    pub name: String,
    /// Its prompts.
    pub prompts: Prompts,
    /// How often it is drawn from, against the others.
    pub weight: f64,
    /// Who scores its rollouts.
    pub verifier: Option<String>,
}

/// Where the prompts of one of several sources come from.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompts {
    /// A file.
    File(DataPlan),
    /// A plugin makes them up.
    Plugin {
        /// Its name.
        plugin: String,
        /// How hard they are, from 0 to 1.
        difficulty: f64,
    },
}

/// Prompts from a file.
#[derive(Clone, Debug, PartialEq)]
pub struct DataPlan {
    /// Path with an optional slice.
    pub path: String,
    /// Column of the prompt.
    pub input_key: String,
    /// Column of the gold answer.
    pub label_key: Option<String>,
    /// Column of the metadata.
    pub metadata_key: String,
    /// Column of the tools.
    pub tool_key: String,
    /// Another order every epoch.
    pub shuffle: bool,
}

/// Held-out prompts.
#[derive(Clone, Debug)]
pub struct EvalPlan {
    /// Rollout steps between evaluations; `None` for the verb `eval`.
    pub interval: Option<u64>,
    /// Evaluate before the first step too.
    pub before_train: bool,
    /// Data sets by name, in order of name. Empty: the source plugin's own, drawn where training never draws.
    pub sets: Vec<EvalSetPlan>,
    /// Prompts drawn from a source plugin.
    pub num_prompts: u64,
    /// Rollouts of one prompt.
    pub n_samples_per_prompt: u32,
    /// How they are sampled.
    pub sampling: SamplingPlan,
}

/// One held-out data set.
#[derive(Clone, Debug)]
pub struct EvalSetPlan {
    /// Its name in metrics.
    pub name: String,
    /// Its prompts.
    pub data: DataPlan,
    /// Rollouts of one prompt.
    pub n_samples_per_prompt: u32,
    /// Who scores them.
    pub verifier: Option<String>,
    /// How they are sampled.
    pub sampling: SamplingPlan,
}

pub(super) fn data_plan(said: &Resolved, path: &str) -> DataPlan {
    let data = &said.config.data;
    DataPlan {
        path: path.to_owned(),
        input_key: data.input_key.clone().unwrap_or_else(|| "input".into()),
        label_key: data.label_key.clone(),
        metadata_key: data
            .metadata_key
            .clone()
            .unwrap_or_else(|| "metadata".into()),
        tool_key: data.tool_key.clone().unwrap_or_else(|| "tools".into()),
        shuffle: data.shuffle.unwrap_or(false),
    }
}

pub(super) fn mix_plan(said: &Resolved, name: &str, set: &SourceSet) -> MixPlan {
    let own = &set.own;
    let prompts = match &own.plugin {
        Some(plugin) => Prompts::Plugin {
            plugin: plugin.clone(),
            difficulty: own
                .difficulty
                .or(said.config.data.difficulty)
                .unwrap_or(0.0),
        },
        None => {
            let mut data = data_plan(said, &set.path);
            if let Some(key) = &own.input_key {
                data.input_key.clone_from(key);
            }
            if own.label_key.is_some() {
                data.label_key.clone_from(&own.label_key);
            }
            Prompts::File(data)
        }
    };
    MixPlan {
        name: name.to_owned(),
        prompts,
        weight: own.weight.unwrap_or(1.0),
        verifier: own.verifier.clone(),
    }
}

pub(super) fn eval_plan(said: &Resolved, verb: Verb) -> Option<EvalPlan> {
    let (eval, rollout) = (&said.config.eval, rollout_plan(said));
    if verb != Verb::Eval && eval.interval.is_none() {
        return None;
    }
    let n_samples_per_prompt = eval.n_samples_per_prompt.unwrap_or(1);
    let sampling = SamplingPlan {
        temperature: eval.temperature.unwrap_or(rollout.sampling.temperature),
        top_p: eval.top_p.unwrap_or(rollout.sampling.top_p),
        top_k: eval.top_k.unwrap_or(rollout.sampling.top_k),
        max_response_len: eval
            .max_response_len
            .unwrap_or(rollout.sampling.max_response_len),
        ..rollout.sampling
    };
    let sets = eval.prompt_data.iter().map(|(name, set)| {
        let own = set.own.clone();
        let mut data = data_plan(said, &set.path);
        if let Some(key) = own.input_key.or(eval.input_key.clone()) {
            data.input_key = key;
        }
        data.label_key = own.label_key.or(eval.label_key.clone()).or(data.label_key);
        data.shuffle = false;
        EvalSetPlan {
            name: name.clone(),
            data,
            n_samples_per_prompt: own.n_samples_per_prompt.unwrap_or(n_samples_per_prompt),
            verifier: own.verifier,
            sampling: SamplingPlan {
                temperature: own.temperature.unwrap_or(sampling.temperature),
                top_p: own.top_p.unwrap_or(sampling.top_p),
                top_k: own.top_k.unwrap_or(sampling.top_k),
                max_response_len: own.max_response_len.unwrap_or(sampling.max_response_len),
                stop: own.stop.unwrap_or_else(|| sampling.stop.clone()),
                stop_token_ids: sampling.stop_token_ids.clone(),
            },
        }
    });
    Some(EvalPlan {
        interval: eval.interval,
        before_train: !eval.skip_before_train.unwrap_or(false),
        sets: sets.collect(),
        num_prompts: eval.num_prompts.unwrap_or(64),
        n_samples_per_prompt,
        sampling,
    })
}
