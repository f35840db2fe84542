//! The books: every group that was ever completed is trained, taken, queued, or dropped for a reason.

use super::Buffer;
use crate::RolloutError;
use std::collections::BTreeMap;

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

impl Buffer {
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
