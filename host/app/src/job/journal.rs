//! Where a step's numbers go: `metrics.jsonl`, TensorBoard, the rollouts' file, the log and the console.

use super::Journal;
use super::row::AXIS;
use crate::error::{Result, at_path};
use crate::telemetry::console::{Console, Progress, step_line};
use crate::telemetry::{Row, Telemetry};
use crate::wire::rollout_failed;
use slime_core::Group;
use slime_rollout::Fence;
use slime_rollout::buffer::write_parquet;
use std::path::PathBuf;

/// A run's numbers: files, console and log.
pub struct RunJournal {
    /// Files.
    pub telemetry: Telemetry,
    /// Lines.
    pub console: Console,
    /// One step further with every row.
    pub bar: Progress,
    /// Smallest and largest reward, for the console.
    pub reward_range: (f64, f64),
    /// Directory of the rollouts' files.
    pub rollouts: PathBuf,
    /// Whose run it is.
    pub fence: Fence,
}

impl Journal for RunJournal {
    fn record(&mut self, row: &Row, groups: &[Group]) -> Result<()> {
        self.fence.check().map_err(rollout_failed)?;
        let step = row.get(AXIS).unwrap_or_default() as u64;
        let records: Vec<_> = groups.iter().flat_map(Group::records).collect();
        let path = self.rollouts.join(format!("step_{step}.parquet"));
        write_parquet(&path, &records).map_err(rollout_failed)?;
        self.telemetry
            .record(row)
            .map_err(at_path(&self.rollouts))?;
        tracing::info!(
            step,
            reward = row.get("rollout/reward"),
            loss = row.get("train/loss"),
            step_time_s = row.get("perf/step_time"),
            "step"
        );
        self.console.line(&step_line(step, row, self.reward_range));
        self.bar.advance();
        let reward = row.get("rollout/reward");
        self.bar
            .say(reward.map_or_else(String::new, |reward| format!("· reward {reward:.2}")));
        Ok(())
    }

    fn says(&self, what: &str) {
        self.bar.say(what.to_owned());
    }
}
