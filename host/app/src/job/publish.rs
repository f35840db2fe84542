//! New weights to the pool: tensors to the engine of this process, a broadcast or a directory to everybody else.
//!
//! No directory is made before somebody has to read it. Read `hand_over.rs` and `cast.rs` for the two ways without one.

use super::cast::{Buckets, Waiting, Work};
use super::learner::lock;
use super::{Learn, Publish, seconds, self_check};
use crate::error::{Failure, Result, at_path};
use crate::telemetry::{Console, Row};
use crate::wire::rollout_failed;
use slime_core::WeightVersion;
use slime_core::ports::BoxFuture;
use slime_model::{ModelSpec, hf};
use slime_rollout::pool::PoolStats;
use slime_rollout::publish::{Handed, Live, Report};
use slime_rollout::{Pool, Publisher, RolloutError, WeightDirs};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tracing::Instrument;

/// Makes the pool take the trainer's weights.
pub struct Publishing {
    /// Where versions lie that servers read.
    pub versions: Arc<Mutex<Versions>>,
    /// Tells the pool.
    pub publisher: Arc<Publisher>,
    /// The model.
    pub spec: Arc<ModelSpec>,
    /// How tensors are stored.
    pub form: hf::Form,
    /// How they are broadcast, known since the first time.
    pub buckets: Option<Arc<Buckets>>,
    /// Whose load the step's row tells of.
    pub pool: Arc<Pool>,
    /// What it had counted by the last publish.
    pub counted: PoolStats,
    /// What the first publish is followed by; `None` once it was, or where trainer and engine are one.
    pub self_check: Option<SelfCheck>,
}

/// The directory of a run's versions, made when the first is written.
pub struct Versions {
    root: PathBuf,
    epoch: u64,
    dirs: Option<WeightDirs>,
}

impl Versions {
    /// Those of this epoch of the run, under `root`.
    pub fn under(root: PathBuf, epoch: u64) -> Self {
        Self {
            root,
            epoch,
            dirs: None,
        }
    }

    /// Those of epochs that are over go.
    fn dirs(&mut self) -> Result<WeightDirs> {
        if let Some(dirs) = &self.dirs {
            return Ok(dirs.clone());
        }
        let dir = of_epoch(&self.root, self.epoch)?;
        let dirs = WeightDirs::open(&dir).map_err(rollout_failed)?;
        Ok(self.dirs.insert(dirs).clone())
    }
}

/// Let `fill` write a version where servers read it.
///
/// # Errors
/// The disk refused, or what `fill` returns.
pub fn write(
    versions: &Mutex<Versions>,
    version: WeightVersion,
    fill: impl FnOnce(&Path) -> Result<()>,
) -> Result<PathBuf> {
    let dirs = lock(versions).dirs()?;
    let written = dirs.write(version, |dir| fill(dir).map_err(Either::App));
    written.map_err(|error| match error {
        Either::Rollout(error) => rollout_failed(error),
        Either::App(failure) => failure,
    })
}

/// Where an epoch's versions lie; those of epochs that are over go.
fn of_epoch(weights: &Path, epoch: u64) -> Result<PathBuf> {
    std::fs::create_dir_all(weights).map_err(at_path(weights))?;
    for entry in std::fs::read_dir(weights).map_err(at_path(weights))? {
        let path = entry.map_err(at_path(weights))?.path();
        let number = path
            .file_name()
            .and_then(|name| name.to_str()?.strip_prefix("epoch_")?.parse::<u64>().ok());
        if number.is_some_and(|number| number < epoch) {
            // Its process may still be writing there, and fails.
            let _ = std::fs::remove_dir_all(&path);
        }
    }
    Ok(weights.join(format!("epoch_{epoch}")))
}

/// A version on its way.
enum Ready {
    Directory(PathBuf),
    Memory(Arc<dyn Handed>),
    Device(Arc<Buckets>),
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
        // Made ready before the future is polled: a future that borrows the learner could not move between threads.
        let (begin, mut export) = (Instant::now(), Duration::ZERO);
        let ready = tokio::task::block_in_place(|| {
            if let Some(handed) = learner.hand_over()? {
                export = begin.elapsed();
                return Ok(Ready::Memory(handed));
            }
            if self.buckets.is_none() {
                self.buckets = learner.buckets(&self.form)?;
            }
            if let Some(buckets) = self.buckets.clone() {
                return Ok(Ready::Device(buckets));
            }
            let dir = write(&self.versions, version, |dir| {
                export = learner.write_weights(dir, &self.form)?;
                Ok(())
            });
            dir.map(Ready::Directory)
        });
        let write = begin.elapsed().saturating_sub(export);
        Box::pin(async move {
            let mut row = Row::default();
            let report = match ready? {
                Ready::Memory(handed) => self.publisher.publish_handed(handed, version).await,
                Ready::Directory(dir) => self.publisher.publish(&dir, version).await,
                Ready::Device(buckets) => {
                    let (report, work) = self.cast(learner, buckets, version).await?;
                    export = work.keep;
                    if let Some(send) = work.send {
                        row.set("perf/update_weights_broadcast_time", seconds(send));
                        row.set(
                            "perf/update_weights_gb_per_sec",
                            report.num_bytes as f64 / 1e9 / seconds(send),
                        );
                    }
                    Ok(report)
                }
            };
            let report = report.map_err(rollout_failed)?;
            if let Some(dirs) = lock(&self.versions).dirs.as_ref() {
                let pruned = dirs.prune(&self.publisher.in_use());
                pruned.map_err(rollout_failed)?;
            }
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
    /// Have a version broadcast from the trainer's device, and kept.
    async fn cast(
        &self,
        learner: &dyn Learn,
        buckets: Arc<Buckets>,
        version: WeightVersion,
    ) -> Result<(Report, Work)> {
        let (versions, spec, form) = (self.versions.clone(), self.spec.clone(), self.form.clone());
        let write = move |kept: &super::cast::Kept| {
            write(&versions, version, |dir| kept.write(dir, &spec, &form))
        };
        let (waiting, orders) = Waiting::new(buckets, write);
        let (publisher, live) = (self.publisher.clone(), Arc::clone(&waiting));
        let telling = async move {
            let report = publisher.publish_live(live.clone(), version).await;
            live.skip();
            report
        };
        let telling = tokio::spawn(telling.in_current_span());
        let work = tokio::task::block_in_place(|| waiting.work(&orders, learner));
        let work = match work {
            Ok(work) => work,
            Err(failure) => {
                telling.abort();
                return Err(failure);
            }
        };
        let report = telling
            .await
            .map_err(|e| Failure::run(format!("a publish stopped: {e}")))?;
        Ok((report.map_err(rollout_failed)?, work))
    }

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
