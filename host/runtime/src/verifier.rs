//! The verifier port, offered by a component: a verifier, or a judge that asks a model first.

use crate::bindings::types::Error;
use crate::bindings::verdicts::Verdict;
use crate::call::{self, Job};
use crate::context::Context;
use crate::host::rollouts::Finished;
use crate::plugin::Loaded;
use slime_core::Outcome;
use slime_core::ports::{BoxFuture, ScoreRequest, Scored, Verifier};
use std::sync::Arc;
use std::time::Duration;
use wasmtime::Store;

/// Metrics of one verdict.
const MAX_METRICS: usize = 64;
const MAX_METRIC_NAME_BYTES: usize = 128;

pub(crate) struct ComponentVerifier {
    pub(crate) plugin: Arc<Loaded>,
    /// Whether it waits for a model.
    pub(crate) judge: bool,
}

impl ComponentVerifier {
    /// A judge mostly waits, as a generator does.
    fn wall(&self) -> Duration {
        let limits = &self.plugin.limits;
        if self.judge {
            limits.rollout_wall
        } else {
            limits.wall
        }
    }
}

impl Verifier for ComponentVerifier {
    fn name(&self) -> &str {
        &self.plugin.name
    }

    fn score(&self, item: ScoreRequest) -> BoxFuture<'_, Scored> {
        Box::pin(async move {
            let seed = item.seed;
            let job = Score {
                item,
                judge: self.judge,
            };
            let ended = call::dispatch(&self.plugin, job, seed, self.wall()).await;
            let given = ended.left.map(|left| left.given).unwrap_or_default();
            let outcome = match ended.answer {
                Ok(Ok(verdict)) => check(&self.plugin, verdict),
                Ok(Err(error)) => call::of_guest(&error, &given),
                Err(outcome) => outcome,
            };
            Scored {
                outcome,
                cost: ended.cost,
            }
        })
    }
}

/// Accept a verdict only as its plugin declared it.
pub(crate) fn check(plugin: &Loaded, verdict: Verdict) -> Outcome {
    let reward = verdict.reward;
    let (min, max) = plugin
        .told()
        .and_then(|told| told.reward_range)
        .unwrap_or((f64::NEG_INFINITY, f64::INFINITY));
    if !reward.is_finite() {
        return Outcome::InvalidReward(format!("the reward is {reward}"));
    }
    if reward < min || reward > max {
        return Outcome::InvalidReward(format!(
            "the reward is {reward}, the plugin declares {min} to {max}"
        ));
    }
    if verdict.metrics.len() > MAX_METRICS {
        let count = verdict.metrics.len();
        return Outcome::InvalidReward(format!(
            "the verdict has {count} metrics, at most {MAX_METRICS} are allowed"
        ));
    }
    for metric in &verdict.metrics {
        let (name, value) = (&metric.name, metric.value);
        if name.is_empty() || name.len() > MAX_METRIC_NAME_BYTES {
            let length = name.len();
            return Outcome::InvalidReward(format!(
                "a metric has a name of {length} bytes, 1 to {MAX_METRIC_NAME_BYTES} are allowed"
            ));
        }
        if !value.is_finite() {
            return Outcome::InvalidReward(format!("the metric `{name}` is {value}"));
        }
    }
    let metrics = verdict
        .metrics
        .into_iter()
        .map(|metric| (metric.name, metric.value))
        .collect();
    Outcome::Scored(slime_core::Verdict { reward, metrics })
}

struct Score {
    item: ScoreRequest,
    judge: bool,
}

impl Job for Score {
    type Answer = Result<Verdict, Error>;

    async fn run(
        self,
        plugin: &Loaded,
        store: &mut Store<Context>,
    ) -> wasmtime::Result<Self::Answer> {
        let item = Finished(Arc::new(self.item));
        if self.judge {
            let Some(world) = &plugin.worlds.judge else {
                return Err(wasmtime::Error::msg("no judge"));
            };
            let bindings = world.instantiate_async(&mut *store).await?;
            let item = store.data_mut().table.push(item)?;
            return bindings
                .slime_plugin_judgement()
                .call_score(store, item)
                .await;
        }
        let Some(world) = &plugin.worlds.verifier else {
            return Err(wasmtime::Error::msg("no verifier"));
        };
        let bindings = world.instantiate_async(&mut *store).await?;
        let item = store.data_mut().table.push(item)?;
        bindings
            .slime_plugin_verification()
            .call_score(store, item)
            .await
    }
}
