//! New weights reach the pool: pause, update, prove, continue, on all members at once.
//!
//! It refuses to know what the weights mean. Read `dirs.rs` for how long a directory lives and
//! `check.rs` for what is looked at before a server is told to load it.

mod check;
mod dirs;
#[cfg(test)]
pub(crate) mod tests;

pub use check::Manifest;
pub use dirs::WeightDirs;

use crate::pool::endpoint::continue_generation::continue_generation;
use crate::pool::endpoint::get_weight_version::get_weight_version;
use crate::pool::endpoint::pause_generation::pause_generation;
use crate::pool::endpoint::update_weights_from_disk::update_weights_from_disk;
use crate::pool::endpoint::weights_checker::weights_checker;
use crate::pool::{Address, Inner, PauseMode, Pool, Published, Standing};
use crate::{RolloutError, lock};
use slime_core::WeightVersion;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a publish did.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the pool serves now.
    pub version: WeightVersion,
    /// Members that serve it.
    pub num_serving: usize,
    /// Members that do not, and why. They are out of routing until they prove the version.
    pub failed: Vec<(Address, String)>,
    /// From the first pause to the last continue.
    pub wall: Duration,
    /// Whether several members' weights were compared by checksum.
    pub compared: bool,
}

/// Publishes versions to one pool, one at a time.
pub struct Publisher {
    pool: Arc<Pool>,
    mode: PauseMode,
    update_deadline: Duration,
    /// Names, shapes and types of the first directory published; the later ones must have the same.
    manifest: Mutex<Option<Manifest>>,
    one_at_a_time: tokio::sync::Mutex<()>,
}

impl Publisher {
    /// Publish to `pool`; running requests are treated as `mode` says.
    pub fn new(pool: Arc<Pool>, mode: PauseMode, update_deadline: Duration) -> Self {
        Self {
            pool,
            mode,
            update_deadline,
            manifest: Mutex::default(),
            one_at_a_time: tokio::sync::Mutex::default(),
        }
    }

    /// Give every member the weights in `dir` as `version`.
    ///
    /// The directory is checked first, because a torn or misshapen file kills a stock server. Members are
    /// updated concurrently. One that fails is out of routing and is tried again in the background.
    ///
    /// # Errors
    /// The directory cannot be served, or no member serves it.
    #[tracing::instrument(name = "publish", skip_all, fields(%version))]
    pub async fn publish(
        &self,
        dir: &Path,
        version: WeightVersion,
    ) -> Result<Report, RolloutError> {
        let _one = self.one_at_a_time.lock().await;
        let manifest = Manifest::read(dir)?;
        if let Some(first) = lock(&self.manifest).as_ref() {
            first.expect_same(&manifest, dir)?;
        }
        let begin = Instant::now();
        let inner = &self.pool.inner;
        let published = Published {
            version,
            dir: dir.to_path_buf(),
            mode: self.mode,
            update_deadline: self.update_deadline,
            checksum: None,
        };
        *lock(&inner.published) = Some(published.clone());
        futures::future::join_all(
            (0..inner.members.len()).map(|i| update_member(inner, i, &published)),
        )
        .await;
        let compared = self.compare(version).await;

        let mut report = Report {
            version,
            num_serving: 0,
            failed: Vec::new(),
            wall: begin.elapsed(),
            compared,
        };
        for member in &inner.members {
            if member.standing() == Standing::Serving(version) {
                report.num_serving += 1;
            } else {
                report
                    .failed
                    .push((member.server.address().clone(), member.complaint()));
            }
        }
        for (address, reason) in &report.failed {
            tracing::warn!(server = %address, reason, "a member missed the publish and is out of routing");
        }
        if report.num_serving == 0 {
            let reason = report
                .failed
                .iter()
                .map(|(a, r)| format!("{a}: {r}"))
                .collect::<Vec<_>>()
                .join("; ");
            return Err(RolloutError::Publish { version, reason });
        }
        lock(&self.manifest).get_or_insert(manifest);
        Ok(report)
    }

    /// Members of one layout must hold the same bytes; those that differ from the most are out.
    async fn compare(&self, version: WeightVersion) -> bool {
        let inner = &self.pool.inner;
        let serving: Vec<usize> = (0..inner.members.len())
            .filter(|&i| inner.members[i].standing() == Standing::Serving(version))
            .collect();
        if serving.len() < 2 {
            return false;
        }
        let calls = serving
            .iter()
            .map(|&i| weights_checker(&inner.members[i].server, self.update_deadline));
        let mut sums = Vec::new();
        for (&index, result) in serving.iter().zip(futures::future::join_all(calls).await) {
            match result {
                Ok(Some(sum)) => sums.push((index, sum)),
                Ok(None) => {}
                Err(error) => {
                    inner.members[index].demand_reload(format!("no checksum: {error}"));
                    inner.set_standing(index, Standing::Unproven);
                }
            }
        }
        let votes = |sum: &Vec<String>| sums.iter().filter(|(_, other)| other == sum).count();
        // Ties go to the first member.
        let Some((_, right)) = sums.iter().rev().max_by_key(|(_, sum)| votes(sum)) else {
            return false;
        };
        for (index, sum) in &sums {
            if sum.len() == right.len() && sum != right {
                inner.members[*index].demand_reload(DIFFERS.into());
                inner.set_standing(*index, Standing::Unproven);
            }
        }
        if sums.len() < 2 {
            return false;
        }
        if let Some(published) = lock(&inner.published).as_mut() {
            published.checksum = Some(right.clone());
        }
        true
    }

    /// Versions whose directories a member may still be reading.
    pub fn in_use(&self) -> Vec<WeightVersion> {
        self.pool
            .inner
            .members
            .iter()
            .filter_map(|m| m.may_read())
            .collect()
    }
}

const DIFFERS: &str = "its weights' checksum differs from the other members'";

/// Pause one member, load, prove, continue. Its standing says how it went.
pub(crate) async fn update_member(inner: &Inner, index: usize, published: &Published) {
    let member = &inner.members[index];
    let _one = member.updating.lock().await;
    // A newer version was published while this waited, or somebody else gave it this one.
    if lock(&inner.published)
        .as_ref()
        .is_none_or(|last| last.version != published.version)
    {
        return;
    }
    inner.set_standing(index, Standing::Updating);
    let server = &member.server;
    let label = inner.config.label(published.version);
    let result = async {
        pause_generation(server, published.mode)
            .await
            .map_err(|e| format!("pause: {e}"))?;
        member.set_reading(Some(published.version));
        update_weights_from_disk(server, &published.dir, &label, published.update_deadline)
            .await
            .map_err(|e| format!("update: {e}"))?;
        let proven = get_weight_version(server)
            .await
            .map_err(|e| format!("version: {e}"))?;
        if proven != label {
            return Err(format!("it serves `{proven}` after an update to `{label}`"));
        }
        if let Some(right) = &published.checksum {
            let sum = weights_checker(server, published.update_deadline)
                .await
                .map_err(|e| format!("checksum: {e}"))?;
            if sum.is_some_and(|sum| sum.len() == right.len() && &sum != right) {
                member.demand_reload(DIFFERS.into());
                return Err(DIFFERS.into());
            }
        }
        Ok(())
    }
    .await;
    // A server that failed to load is left to go on too: its requests end, and their tokens prove nothing.
    let continued = continue_generation(server)
        .await
        .map_err(|e| format!("continue: {e}"));
    match result.and(continued) {
        Ok(()) => {
            member.set_reading(None);
            inner.set_standing(index, Standing::Serving(published.version));
        }
        Err(reason) => {
            member.complain(reason);
            inner.set_standing(index, Standing::Unproven);
        }
    }
}
