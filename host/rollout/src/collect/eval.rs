//! Evaluation: every row of a source, none left out, none recorded for training.

use super::driver::{Assignment, Driver};
use super::live::Tally;
use super::metrics::{Metrics, mean, of_rollouts, pass_rates};
use super::progress::Progress;
use crate::RolloutError;
use futures::{StreamExt, TryStreamExt};
use slime_core::ports::Source;
use slime_core::{Group, GroupId, Rollout, Step, Trajectory};
use std::sync::Arc;

/// Prompts in flight at once; the pool bounds the requests.
const PROMPTS_AT_ONCE: usize = 64;

/// What an evaluation gave.
#[derive(Debug)]
pub struct EvalReport {
    /// The source's name.
    pub name: String,
    /// One a row, in order.
    pub groups: Vec<Group>,
    /// `eval/NAME` (mean reward of scored rollouts), `eval/NAME-pass@K`, `eval/NAME-truncated_ratio`,
    /// `eval/NAME/none_ratio` (rollouts that were not scored), `eval/NAME/…` as for a step.
    pub metrics: Metrics,
}

/// Sample and score every row of `source` with `driver`, whose configuration says how often and how.
///
/// # Errors
/// A source without rows to count, or one that fails; a model without a chat template.
pub async fn evaluate(
    driver: &Driver,
    source: &dyn Source,
    step: Step,
    progress: &dyn Progress,
) -> Result<EvalReport, RolloutError> {
    let name = source.name().to_owned();
    let Some(rows) = source.len() else {
        let reason = "it makes prompts up without end; evaluation needs a source with rows".into();
        return Err(RolloutError::Config {
            what: format!("evaluation source {name}"),
            reason,
        });
    };
    let driver = &driver.renamed(&format!("eval-{name}-{step}"));
    let tally = Arc::new(Tally::default());
    progress.begin(
        step,
        usize::try_from(rows).unwrap_or(usize::MAX),
        driver.config.n_samples_per_prompt,
    );
    let one = |draw: u64| {
        let tally = &tally;
        Box::pin(async move {
            let prompt = source.draw(draw, driver.config.run_seed).await?;
            let from = Assignment {
                step,
                group: GroupId(draw),
                draw,
                attempt: 0,
                prompt,
                done: Vec::new(),
                begun: Vec::new(),
                keep: None,
            };
            let on_rollout = |rollout: &Rollout| {
                progress.rollout(
                    step,
                    &rollout.outcome,
                    rollout
                        .trajectories
                        .iter()
                        .map(Trajectory::num_sampled)
                        .sum(),
                );
                Ok(())
            };
            let group = driver.group(from, tally, on_rollout).await?;
            progress.group(step, None);
            Ok::<_, RolloutError>(group)
        })
    };
    let groups: Vec<Group> = futures::stream::iter(0..rows)
        .map(one)
        .buffered(PROMPTS_AT_ONCE)
        .try_collect()
        .await?;
    progress.end(step);

    let mut metrics = Metrics::default();
    let all: Vec<&Group> = groups.iter().collect();
    let rewards: Vec<f64> = groups.iter().flat_map(Group::rewards).collect();
    let num_rollouts: usize = groups.iter().map(|g| g.rollouts.len()).sum();
    metrics.set(format!("eval/{name}"), mean(&rewards));
    metrics.set(
        format!("eval/{name}/none_ratio"),
        (num_rollouts - rewards.len()) as f64 / num_rollouts as f64,
    );
    of_rollouts(&mut metrics, &format!("eval/{name}"), &all, &driver.scoring);
    if let Some(ratio) = metrics.0.remove(&format!("eval/{name}/truncated_ratio")) {
        metrics.set(format!("eval/{name}-truncated_ratio"), ratio);
    }
    pass_rates(&mut metrics, |k| format!("eval/{name}-pass@{k}"), &all);
    Ok(EvalReport {
        name,
        groups,
        metrics,
    })
}
