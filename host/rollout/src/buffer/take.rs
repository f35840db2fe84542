//! From queued groups to a batch, and from a batch to trained.

use super::write::{from_json, versions};
use super::{Buffer, event, int};
use crate::{RolloutError, collect, lock};
use rusqlite::{Transaction, params};
use slime_core::{Group, GroupId, Prompt, Rollout, Step, WeightVersion};
use std::collections::BTreeMap;

/// What a step trains on.
#[derive(Clone, Debug)]
pub struct Taken {
    /// By id. Rollouts that were not scored are in them, to be masked.
    pub groups: Vec<Group>,
    /// Mean lag over sampled tokens (`rollout/lag/mean`), where any was sampled.
    pub lag_mean: Option<f64>,
    /// Lag of the oldest sampled token (`rollout/lag/max`).
    pub lag_max: Option<u64>,
    /// Sampled tokens by their lag (`rollout/lag/tokens_N`).
    pub lags: BTreeMap<u64, u64>,
    /// Groups that were too old for this step, and are sampled anew (`rollout/stale_groups`).
    pub stale: u64,
}

impl Buffer {
    /// How many groups must still be sampled before `n` can be taken at version `served`. Groups that are
    /// too old by now are dropped as `stale`, and their prompts come again.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn missing(
        &self,
        step: Step,
        n: usize,
        served: WeightVersion,
    ) -> Result<usize, RolloutError> {
        self.write(|tx| {
            self.shed(tx, step, served)?;
            let queued: i64 = tx.query_row(
                "SELECT COUNT(*) FROM groups WHERE state = 'queued'",
                [],
                |row| row.get(0),
            )?;
            Ok(n.saturating_sub(queued as usize))
        })
    }

    /// Take the `n` queued groups of the lowest ids for `step`, none older than `max_lag` at version
    /// `served`. Asked again, it gives the step the same groups.
    ///
    /// # Errors
    /// Fewer than `n` are queued ([`RolloutError::NotEnough`]; none is taken then), or the database cannot be
    /// written.
    pub fn take(&self, step: Step, n: usize, served: WeightVersion) -> Result<Taken, RolloutError> {
        let result = self.write(|tx| {
            let mine = groups(tx, "taken_by = ?1 AND state = 'taken' ORDER BY id", int(step.0))?;
            if !mine.is_empty() {
                return Ok(Ok(mine));
            }
            self.shed(tx, step, served)?;
            let mut batch = groups(tx, "state = 'queued' ORDER BY id LIMIT ?1", n as i64)?;
            if batch.len() < n {
                return Ok(Err(batch.len()));
            }
            for (group, attempt) in &mut batch {
                tx.prepare_cached("UPDATE groups SET state = 'taken', taken_by = ?3 WHERE id = ?1 AND attempt = ?2")?
                    .execute(params![int(group.id.0), *attempt, int(step.0)])?;
            }
            tx.execute(
                "INSERT OR REPLACE INTO steps (step, state, served, num_groups) VALUES (?1, 'taken', ?2, ?3)",
                params![int(step.0), int(served.0), n as i64],
            )?;
            Ok(Ok(batch))
        })?;
        let groups: Vec<Group> = match result {
            Ok(batch) => batch.into_iter().map(|(group, _)| group).collect(),
            Err(have) => {
                return Err(RolloutError::NotEnough {
                    step,
                    have,
                    want: n,
                });
            }
        };
        let lag = collect::lag(&groups, served);
        let lags = collect::lag_histogram(&groups, served);
        let stale = self.write(|tx| {
            tx.prepare_cached(
                "SELECT COUNT(*) FROM groups WHERE reason = 'stale' AND dropped_at = ?1",
            )?
            .query_row([int(step.0)], |row| row.get::<_, i64>(0))
        })?;
        Ok(Taken {
            stale: stale as u64,
            groups,
            lag_mean: lag.map(|l| l.0),
            lag_max: lag.map(|l| l.1),
            lags,
        })
    }

    /// The step's groups are trained: they never train again, unless a restart goes back before the step.
    /// Everything up to here also survives the machine.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn trained(&self, step: Step) -> Result<(), RolloutError> {
        self.write(|tx| mark_trained(tx, step))?;
        self.sync()
    }

    /// Put everything committed on the disk itself.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn sync(&self) -> Result<(), RolloutError> {
        let state = lock(&self.state);
        state
            .db
            .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
            .map_err(|source| RolloutError::Database {
                path: self.path.clone(),
                source,
            })
    }

    /// The groups that a step took, by id.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn groups_of(&self, step: Step) -> Result<Vec<Group>, RolloutError> {
        self.write(|tx| {
            Ok(groups(tx, "taken_by = ?1 ORDER BY id", int(step.0))?
                .into_iter()
                .map(|(group, _)| group)
                .collect())
        })
    }

    /// The oldest version of what trains of a group.
    pub(super) fn oldest(&self, group: &Group) -> Option<WeightVersion> {
        let trajectories = group.rollouts.iter().flat_map(|r| &r.trajectories);
        let trains = trajectories.filter_map(|trajectory| {
            let (oldest, newest) = versions(std::iter::once(trajectory))?;
            Some(if self.masks_offpolicy { newest } else { oldest })
        });
        trains.min()
    }

    /// Drop what is too old. Time in the queue counts: lag is the version that would train a token minus
    /// the version that sampled it.
    fn shed(
        &self,
        tx: &Transaction<'_>,
        step: Step,
        served: WeightVersion,
    ) -> rusqlite::Result<()> {
        let oldest_allowed = int(served.0.saturating_sub(self.max_lag));
        let stale: Vec<(i64, u32, i64)> = tx
            .prepare_cached("SELECT id, attempt, oldest_version FROM groups WHERE state = 'queued' AND oldest_version < ?1 ORDER BY id")?
            .query_map([oldest_allowed], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
            .collect::<rusqlite::Result<_>>()?;
        for (id, attempt, version) in stale {
            drop_attempt(tx, id, attempt, "stale", step)?;
            tx.execute("UPDATE prompts SET state = 'pending' WHERE draw = ?1", [id])?;
            let detail = format!(
                "group {id} attempt {attempt}: stale, sampled at version {version}, now {served}, max_lag {}",
                self.max_lag
            );
            event(tx, step.0, "drop", &detail)?;
        }
        Ok(())
    }
}

pub(super) fn mark_trained(tx: &Transaction<'_>, step: Step) -> rusqlite::Result<()> {
    let step = int(step.0);
    tx.execute(
        "UPDATE rollouts SET state = 'trained' WHERE state = 'scored'
         AND (group_id, attempt) IN (SELECT id, attempt FROM groups WHERE taken_by = ?1 AND state = 'taken')",
        [step],
    )?;
    tx.execute(
        "UPDATE groups SET state = 'trained' WHERE taken_by = ?1 AND state = 'taken'",
        [step],
    )?;
    tx.execute("UPDATE steps SET state = 'trained' WHERE step = ?1", [step])
        .map(drop)
}

pub(super) fn drop_attempt(
    tx: &Transaction<'_>,
    id: i64,
    attempt: u32,
    reason: &str,
    step: Step,
) -> rusqlite::Result<()> {
    tx.prepare_cached("UPDATE groups SET state = 'dropped', taken_by = NULL, reason = ?3, dropped_at = ?4 WHERE id = ?1 AND attempt = ?2")?
        .execute(params![id, attempt, reason, int(step.0)])?;
    tx.prepare_cached("UPDATE rollouts SET state = 'dropped' WHERE group_id = ?1 AND attempt = ?2")?
        .execute(params![id, attempt])
        .map(drop)
}

/// Groups with their attempt, rollouts included.
fn groups(
    tx: &Transaction<'_>,
    condition: &str,
    value: i64,
) -> rusqlite::Result<Vec<(Group, u32)>> {
    let rows: Vec<(i64, u32, i64, String)> = tx
        .prepare_cached(&format!(
            "SELECT id, attempt, step, prompt FROM groups WHERE {condition}"
        ))?
        .query_map([value], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut rollouts = tx.prepare_cached("SELECT data FROM rollouts WHERE group_id = ?1 AND attempt = ?2 AND data IS NOT NULL ORDER BY idx")?;
    rows.into_iter()
        .map(|(id, attempt, step, prompt)| {
            let prompt: Prompt = from_json(3, &prompt)?;
            let rollouts = rollouts
                .query_map(params![id, attempt], |row| {
                    from_json::<Rollout>(0, &row.get::<_, String>(0)?)
                })?
                .collect::<rusqlite::Result<_>>()?;
            Ok((
                Group {
                    id: GroupId(id as u64),
                    step: Step(step as u64),
                    prompt,
                    rollouts,
                },
                attempt,
            ))
        })
        .collect()
}
