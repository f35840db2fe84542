//! Held-out prompts, sampled and scored as the plan says.

use super::Evaluate;
use crate::error::Result;
use crate::telemetry::Row;
use crate::wire::rollout_failed;
use slime_core::ports::{BoxFuture, Source};
use slime_core::{Step, WeightVersion};
use slime_rollout::collect::{Driver, EvalReport, Progress, evaluate};
use std::sync::Arc;

/// Data sets and who drives their rollouts.
pub struct Evals {
    /// Held-out prompts, and who samples them as they ask.
    pub sets: Vec<(Driver, Arc<dyn Source>)>,
    /// Is told how far it is.
    pub progress: Arc<dyn Progress>,
}

impl Evals {
    /// One report a data set.
    ///
    /// # Errors
    /// The source fails, or no engine answers.
    pub async fn reports(&self, finished: Step, served: WeightVersion) -> Result<Vec<EvalReport>> {
        let mut reports = Vec::new();
        for (driver, source) in &self.sets {
            driver.serve(served);
            reports.push(
                evaluate(driver, &**source, finished, &*self.progress)
                    .await
                    .map_err(rollout_failed)?,
            );
        }
        Ok(reports)
    }
}

impl Evaluate for Evals {
    fn evaluate(&self, finished: Step, served: WeightVersion) -> BoxFuture<'_, Result<Row>> {
        Box::pin(async move {
            let reports = self.reports(finished, served).await?;
            let mut row = Row::at("eval/step", finished.0);
            for (name, value) in reports.iter().flat_map(|report| &report.metrics.0) {
                row.set(name.clone(), *value);
            }
            Ok(row)
        })
    }
}
