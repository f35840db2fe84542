//! Looking at a run's database without holding it: a run may be going on meanwhile.

use super::write::from_json;
use super::{Buffer, int};
use crate::RolloutError;
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use slime_core::{Prompt, Rollout, RolloutId, Step};
use std::ops::Range;
use std::path::Path;

/// One rollout as it was sampled, its newest attempt, with the prompt it began from.
///
/// # Errors
/// The file is no run's database.
pub fn find_rollout(path: &Path, id: RolloutId) -> Result<Option<(Prompt, Rollout)>, RolloutError> {
    let read = || {
        let db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        db.query_row(
            "SELECT groups.prompt, data FROM rollouts JOIN groups ON groups.id = group_id AND groups.attempt = rollouts.attempt
             WHERE data IS NOT NULL AND json_extract(data, '$.id') = ?1 ORDER BY rollouts.attempt DESC LIMIT 1",
            [int(id.0)],
            |row| {
                let (prompt, data): (String, String) = (row.get(0)?, row.get(1)?);
                Ok((from_json(0, &prompt)?, from_json(1, &data)?))
            },
        )
        .optional()
    };
    read().map_err(|source| RolloutError::Database {
        path: path.to_path_buf(),
        source,
    })
}

impl Buffer {
    /// The mean reward that steps of `steps` had from each of their sources, in order of step and source.
    ///
    /// # Errors
    /// The database cannot be read.
    pub fn rewards(&self, steps: Range<u64>) -> Result<Vec<(Step, String, f64)>, RolloutError> {
        self.write(|tx| {
            // Summed in one order, so that a resumed run comes to the same bits.
            let mut statement = tx.prepare_cached(
                "SELECT taken_by, json_extract(prompt, '$.id.source'), reward
                 FROM groups JOIN rollouts ON group_id = id AND rollouts.attempt = groups.attempt
                 WHERE taken_by >= ?1 AND taken_by < ?2 AND reward IS NOT NULL ORDER BY 1, 2, id, idx",
            )?;
            let mut rows = statement.query([int(steps.start), int(steps.end)])?;
            let mut all: Vec<(Step, String, f64, u64)> = Vec::new();
            while let Some(row) = rows.next()? {
                let (step, source): (i64, String) = (row.get(0)?, row.get(1)?);
                let (step, reward): (Step, f64) = (Step(step as u64), row.get(2)?);
                match all.last_mut() {
                    Some(last) if last.0 == step && last.1 == source => {
                        last.2 += reward;
                        last.3 += 1;
                    }
                    _ => all.push((step, source, reward, 1)),
                }
            }
            let means = all.into_iter();
            Ok(means
                .map(|(step, source, sum, n)| (step, source, sum / n as f64))
                .collect())
        })
    }
}
