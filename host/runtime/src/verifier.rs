//! The verifier port, offered by a component.

use crate::bindings::verifier::exports::slime::plugin::verification;
use crate::call::{self, Job};
use crate::context::Context;
use crate::host::rollouts::Finished;
use crate::plugin::Loaded;
use slime_core::ports::{BoxFuture, ScoreRequest, Scored, Verifier};
use slime_core::{Outcome, Verdict};
use std::sync::Arc;
use wasmtime::Store;

/// Metrics of one verdict.
const MAX_METRICS: usize = 64;
const MAX_METRIC_NAME_BYTES: usize = 128;

pub(crate) struct ComponentVerifier(pub(crate) Arc<Loaded>);

impl Verifier for ComponentVerifier {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn score(&self, item: ScoreRequest) -> BoxFuture<'_, Scored> {
        Box::pin(async move {
            let seed = item.seed;
            let ended = call::dispatch(&self.0, Score(item), seed, self.0.limits.wall).await;
            let outcome = match ended.answer {
                Ok(Ok(verdict)) => self.check(verdict),
                Ok(Err(error)) => call::of_guest(&error, &[]),
                Err(outcome) => outcome,
            };
            Scored {
                outcome,
                cost: ended.cost,
            }
        })
    }
}

impl ComponentVerifier {
    /// Accept a verdict only as its plugin declared it.
    fn check(&self, verdict: verification::Verdict) -> Outcome {
        let reward = verdict.reward;
        let (min, max) = self
            .0
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
        Outcome::Scored(Verdict { reward, metrics })
    }
}

struct Score(ScoreRequest);

impl Job for Score {
    type Answer = Result<verification::Verdict, crate::bindings::types::Error>;

    async fn run(
        self,
        plugin: &Loaded,
        store: &mut Store<Context>,
    ) -> wasmtime::Result<Self::Answer> {
        let Some(world) = &plugin.worlds.verifier else {
            return Err(wasmtime::Error::msg("no verifier"));
        };
        let bindings = world.instantiate_async(&mut *store).await?;
        let item = store.data_mut().table.push(Finished(self.0))?;
        bindings
            .slime_plugin_verification()
            .call_score(store, item)
            .await
    }
}
