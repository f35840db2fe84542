//! Looking at a run's database without holding it: a run may be going on meanwhile.

use super::int;
use super::write::from_json;
use crate::RolloutError;
use rusqlite::{Connection, OpenFlags, OptionalExtension};
use slime_core::{Prompt, Rollout, RolloutId};
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
