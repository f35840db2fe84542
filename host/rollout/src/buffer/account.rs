//! The books: every group that was ever completed is trained, taken, queued, or dropped for a reason; every rollout that
//! was ever sampled is trained, filtered, masked, or pending.

use super::Buffer;
use crate::RolloutError;
use std::collections::BTreeMap;
use std::fmt;

/// Complete groups by what became of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balance {
    /// Completed since the run began, counted as it happened.
    pub produced: u64,
    /// In the weights.
    pub trained: u64,
    /// In the step that trains now.
    pub taken: u64,
    /// Waiting.
    pub queued: u64,
    /// By reason.
    pub dropped: BTreeMap<String, u64>,
}

impl Balance {
    /// Σ produced = Σ trained + Σ taken + Σ queued + Σ dropped.
    pub fn holds(&self) -> bool {
        self.produced
            == self.trained + self.taken + self.queued + self.dropped.values().sum::<u64>()
    }
}

/// Rollouts that ended, by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conservation {
    /// Sampled since the run began, counted as it happened.
    pub sampled: u64,
    /// In the weights.
    pub trained: u64,
    /// Of groups that a filter, their age or a restart dropped.
    pub filtered: u64,
    /// Of trained groups, and not scored: without part in the loss.
    pub masked: u64,
    /// Of groups that are not complete, wait, or train now.
    pub pending: u64,
}

impl Conservation {
    /// sampled = trained + filtered + masked + pending.
    pub fn holds(&self) -> bool {
        self.sampled == self.trained + self.filtered + self.masked + self.pending
    }
}

impl fmt::Display for Conservation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            sampled,
            trained,
            filtered,
            masked,
            pending,
        } = self;
        write!(
            f,
            "{sampled} sampled = {trained} trained + {filtered} filtered + {masked} masked + {pending} pending"
        )
    }
}

impl Buffer {
    /// What became of every rollout.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn conservation(&self) -> Result<Conservation, RolloutError> {
        self.write(|tx| {
            let sampled: i64 = tx.query_row("SELECT value FROM meta WHERE key = 'sampled'", [], |row| row.get(0))?;
            let mut all = Conservation { sampled: sampled as u64, ..Conservation::default() };
            let mut statement = tx.prepare_cached("SELECT state, SUM(num_scored), SUM(num_failed) FROM groups GROUP BY state")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let (state, scored, failed): (String, i64, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
                let (scored, failed) = (scored as u64, failed as u64);
                match state.as_str() {
                    "trained" => (all.trained, all.masked) = (scored, failed),
                    "dropped" => all.filtered = scored + failed,
                    _ => all.pending += scored + failed,
                }
            }
            // Groups that are not complete have no counts of their own yet.
            let open: i64 = tx.query_row(
                "SELECT COUNT(*) FROM groups JOIN rollouts ON group_id = id AND rollouts.attempt = groups.attempt
                 WHERE groups.state = 'sampling' AND rollouts.state IN ('scored', 'failed')",
                [],
                |row| row.get(0),
            )?;
            all.pending += open as u64;
            Ok(all)
        })
    }

    /// The books as they stand.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn balance(&self) -> Result<Balance, RolloutError> {
        self.write(|tx| {
            let produced: i64 = tx.query_row("SELECT value FROM meta WHERE key = 'produced'", [], |row| row.get(0))?;
            let mut balance = Balance { produced: produced as u64, ..Balance::default() };
            let mut statement =
                tx.prepare_cached("SELECT state, reason, COUNT(*) FROM groups WHERE state != 'sampling' GROUP BY state, reason")?;
            let mut rows = statement.query([])?;
            while let Some(row) = rows.next()? {
                let (state, reason, count): (String, Option<String>, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
                let count = count as u64;
                match state.as_str() {
                    "trained" => balance.trained += count,
                    "taken" => balance.taken += count,
                    "queued" => balance.queued += count,
                    _ => *balance.dropped.entry(reason.unwrap_or_default()).or_default() += count,
                }
            }
            Ok(balance)
        })
    }
}
