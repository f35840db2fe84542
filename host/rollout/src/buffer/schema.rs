//! The tables. Any SQLite tool opens them; structures are JSON text.
//!
//! | table | a row is |
//! |---|---|
//! | `prompts` | a draw: `pending` until its group is complete, then `done`. The cursor is the next draw |
//! | `groups` | one attempt at a draw: `sampling`, `queued`, `taken`, `trained` or `dropped` |
//! | `rollouts` | one rollout of an attempt: `sampling`, `scored` or `failed`, then `trained` or `dropped` |
//! | `turns` | what a turn of an unfinished rollout has sampled |
//! | `steps` | a step that took a batch: `taken`, then `trained` |
//! | `events` | something that happened |
//! | `meta` | the run's identity, and how many groups it has completed and rollouts it has sampled |

use super::Identity;
use rusqlite::{Connection, OptionalExtension, params};

/// The format; another one is refused.
pub(super) const VERSION: u32 = 2;

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS prompts (
    draw INTEGER PRIMARY KEY,
    source TEXT,
    row INTEGER,
    state TEXT NOT NULL CHECK (state IN ('pending', 'done'))
) STRICT;
CREATE INDEX IF NOT EXISTS prompts_by_state ON prompts (state, draw);
CREATE TABLE IF NOT EXISTS groups (
    id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    step INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('sampling', 'queued', 'taken', 'trained', 'dropped')),
    prompt TEXT NOT NULL,
    oldest_version INTEGER,
    newest_version INTEGER,
    taken_by INTEGER,
    reason TEXT,
    dropped_at INTEGER,
    num_scored INTEGER NOT NULL DEFAULT 0,
    num_failed INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (id, attempt),
    CHECK ((state = 'dropped') = (reason IS NOT NULL)),
    CHECK ((state IN ('taken', 'trained')) = (taken_by IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS groups_by_state ON groups (state, id);
CREATE INDEX IF NOT EXISTS groups_by_step ON groups (taken_by);
CREATE INDEX IF NOT EXISTS groups_by_count ON groups (state, num_scored, num_failed);
CREATE TABLE IF NOT EXISTS rollouts (
    group_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('sampling', 'scored', 'failed', 'trained', 'dropped')),
    seed INTEGER NOT NULL,
    outcome TEXT,
    reward REAL,
    newest_version INTEGER,
    data TEXT,
    PRIMARY KEY (group_id, attempt, idx)
) STRICT;
CREATE TABLE IF NOT EXISTS turns (
    group_id INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    idx INTEGER NOT NULL,
    lineage INTEGER NOT NULL,
    turn INTEGER NOT NULL,
    newest_version INTEGER,
    data TEXT NOT NULL,
    PRIMARY KEY (group_id, attempt, idx, lineage, turn)
) STRICT, WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS steps (
    step INTEGER PRIMARY KEY,
    state TEXT NOT NULL CHECK (state IN ('taken', 'trained')),
    served INTEGER NOT NULL,
    num_groups INTEGER NOT NULL
) STRICT;
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY,
    step INTEGER NOT NULL,
    kind TEXT NOT NULL,
    detail TEXT NOT NULL,
    at_ms INTEGER NOT NULL
) STRICT;
";

/// Make what is not there.
pub(super) fn prepare(db: &mut Connection) -> rusqlite::Result<()> {
    db.pragma_update(None, "journal_mode", "WAL")?;
    db.pragma_update(None, "synchronous", "NORMAL")?;
    db.set_prepared_statement_cache_capacity(64);
    let tx = db.transaction()?;
    tx.execute_batch(TABLES)?;
    tx.commit()
}

pub(super) fn identity(db: &Connection) -> rusqlite::Result<Option<(u32, Identity)>> {
    let get = |key: &str| {
        db.query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| {
            row.get::<_, String>(0)
        })
        .optional()
    };
    match (get("digest")?, get("summary")?) {
        (Some(digest), Some(summary)) => {
            let version =
                db.query_row("SELECT value FROM meta WHERE key = 'format'", [], |row| {
                    row.get(0)
                })?;
            Ok(Some((version, Identity { digest, summary })))
        }
        _ => Ok(None),
    }
}

pub(super) fn set_identity(db: &Connection, identity: &Identity) -> rusqlite::Result<()> {
    db.execute(
        "INSERT INTO meta (key, value) VALUES ('format', ?1), ('digest', ?2), ('summary', ?3), ('produced', 0), ('sampled', 0)",
        params![VERSION, identity.digest, identity.summary],
    )
    .map(drop)
}

pub(super) fn renew_identity(db: &Connection, identity: &Identity) -> rusqlite::Result<()> {
    let mut set = db.prepare_cached("UPDATE meta SET value = ?2 WHERE key = ?1")?;
    set.execute(params!["digest", identity.digest])?;
    set.execute(params!["summary", identity.summary])?;
    Ok(())
}
