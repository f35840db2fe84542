//! Filter plugins in the sampler: a group as they read it, and what their answer makes of it.

use super::driver::written;
use super::filter::{GroupFilter, Judgement};
use super::render::prompt_text;
use crate::seed::hash64;
use slime_core::Group;
use slime_core::ports::{BoxFuture, Decision, Filter, GroupRequest, ScoreRequest, TextCodec};
use std::sync::Arc;

/// A filter that is a plugin.
pub struct PluginFilter {
    filter: Arc<dyn Filter>,
    codec: Arc<dyn TextCodec>,
}

impl PluginFilter {
    /// `codec` is the model's, for the texts that the filter reads.
    pub fn new(filter: Arc<dyn Filter>, codec: Arc<dyn TextCodec>) -> Self {
        Self { filter, codec }
    }
}

impl GroupFilter for PluginFilter {
    fn judge<'a>(&'a self, group: &'a Group) -> BoxFuture<'a, Judgement> {
        Box::pin(async move {
            let name = self.filter.name();
            match self
                .filter
                .decide(request(&*self.codec, group))
                .await
                .answer
            {
                Ok(Decision::Keep) => Judgement::Keep,
                Ok(Decision::Drop(reason)) => Judgement::Drop(reason),
                // Neither kept nor silently lost: a filter that always fails starves the step, under this name.
                Err(outcome) => {
                    tracing::warn!(filter = name, %outcome, "a filter failed; its group is dropped");
                    Judgement::Drop(format!("{name}_{}", outcome.kind()))
                }
            }
        })
    }
}

/// A group as plugins read it. Its seed is the group's own, so the answer does not depend on what ran before.
pub(super) fn request(codec: &dyn TextCodec, group: &Group) -> GroupRequest {
    let prompt = prompt_text(codec, &group.prompt);
    let rollouts = group.rollouts.iter().map(|rollout| {
        let item = ScoreRequest {
            prompt: prompt.clone(),
            response: written(codec, &rollout.trajectories),
            label: group.prompt.label.clone(),
            metadata: group.prompt.metadata.clone(),
            finish: rollout.trajectories.last().and_then(|t| t.finish),
            seed: rollout.seed,
        };
        (Arc::new(item), rollout.outcome.clone())
    });
    let seeds: Vec<[u8; 8]> = group
        .rollouts
        .iter()
        .map(|r| r.seed.to_le_bytes())
        .collect();
    let seeds: Vec<&[u8]> = seeds.iter().map(<[u8; 8]>::as_slice).collect();
    GroupRequest {
        rollouts: rollouts.collect(),
        seed: hash64("group", &seeds),
    }
}
