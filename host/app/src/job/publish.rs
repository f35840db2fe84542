//! New weights to the pool through a directory that its members read.

use super::{Learn, Publish, seconds, self_check};
use crate::error::{Failure, Result};
use crate::telemetry::{Console, Row};
use crate::wire::rollout_failed;
use slime_core::WeightVersion;
use slime_core::ports::BoxFuture;
use slime_model::hf;
use slime_rollout::pool::PoolStats;
use slime_rollout::{Pool, Publisher, RolloutError, WeightDirs};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Writes weights under one directory and makes the pool read them.
pub struct Publishing {
    /// Where versions lie.
    pub dirs: WeightDirs,
    /// Tells the pool.
    pub publisher: Publisher,
    /// How tensors are stored.
    pub form: hf::Form,
    /// Whose load the step's row tells of.
    pub pool: Arc<Pool>,
    /// What it had counted by the last publish.
    pub counted: PoolStats,
    /// What the first publish is followed by; `None` once it was, or where trainer and engine are one.
    pub self_check: Option<SelfCheck>,
}

/// Known tokens for both sides to score.
pub struct SelfCheck {
    /// Who samples.
    pub pool: Arc<Pool>,
    /// Where servers go on from.
    pub prompt: Vec<u32>,
    /// The run's.
    pub temperature: f64,
    /// Tells the person.
    pub console: Console,
}

/// Either side's error on the way through [`WeightDirs::write`].
enum Either {
    Rollout(RolloutError),
    App(Failure),
}

impl From<RolloutError> for Either {
    fn from(error: RolloutError) -> Self {
        Self::Rollout(error)
    }
}

impl Publish for Publishing {
    fn publish<'a>(
        &'a mut self,
        learner: &'a dyn Learn,
        version: WeightVersion,
    ) -> BoxFuture<'a, Result<Row>> {
        // Written before the future is polled: a future that borrows the learner could not move between threads.
        let (begin, mut export) = (Instant::now(), Duration::ZERO);
        let written = tokio::task::block_in_place(|| {
            self.dirs.write(version, |dir| {
                export = learner
                    .write_weights(dir, &self.form)
                    .map_err(Either::App)?;
                Ok(())
            })
        });
        let write = begin.elapsed().saturating_sub(export);
        Box::pin(async move {
            let dir = written.map_err(|error| match error {
                Either::Rollout(error) => rollout_failed(error),
                Either::App(failure) => failure,
            })?;
            let report = self
                .publisher
                .publish(&dir, version)
                .await
                .map_err(rollout_failed)?;
            self.dirs
                .prune(&self.publisher.in_use())
                .map_err(rollout_failed)?;
            if let Some(check) = self.self_check.take() {
                let is_f32 = self.form == hf::Dtype::F32.into();
                let findings = self_check::run(
                    &check.pool,
                    learner,
                    &check.prompt,
                    check.temperature,
                    is_f32,
                );
                for (address, finding) in findings.await? {
                    check.console.line(&format!(
                        " check    {address}: log-probs differ by {:.1e} from the trainer's",
                        finding.mean
                    ));
                    if let Some(cause) = finding.cause {
                        check
                            .console
                            .line(&format!("          the likely cause is {cause}"));
                    }
                }
            }
            let mut row = Row::default();
            row.set("perf/update_weights_export_time", seconds(export));
            row.set(
                "perf/update_weights_write_time",
                seconds(write + report.staged),
            );
            row.set(
                "perf/update_weights_load_time",
                seconds(report.wall.saturating_sub(report.staged)),
            );
            row.set_count("perf/update_weights_bytes", report.num_bytes);
            row.set_count("perf/update_weights_moved_bytes", report.moved_bytes);
            row.set_count("rollout/engines_serving", report.num_serving as u64);
            self.load(&mut row);
            Ok(row)
        })
    }
}

impl Publishing {
    /// What happened in the pool since the last publish.
    fn load(&mut self, row: &mut Row) {
        let (now, before) = (self.pool.stats(), self.counted);
        self.counted = now;
        row.set_count("pool/num_calls", now.num_calls - before.num_calls);
        row.set_count("pool/num_retries", now.num_retries - before.num_retries);
        row.set_count(
            "pool/num_continued",
            now.num_continued - before.num_continued,
        );
        row.set_count(
            "pool/num_unproven_tokens",
            now.num_unproven_tokens - before.num_unproven_tokens,
        );
        let gauges = self.pool.take_gauges();
        if gauges.num_looks > 0 {
            row.set("engine/kv_usage_frac/max", gauges.kv_usage_frac_max);
            row.set_count("engine/num_running/max", gauges.num_running_max);
            row.set_count("engine/num_waiting/max", gauges.num_waiting_max);
            row.set("engine/tokens_per_sec/max", gauges.tokens_per_sec_max);
            row.set("engine/cache_hit_frac", gauges.cache_hit_frac);
        }
    }
}
