//! The Data Buffer: a SQLite database in which everything sampled is durable as it happens.
//!
//! A group is queued, taken by a step, and trained, or dropped with a reason; nothing is lost and nothing
//! trains twice, whenever the process dies. Batches are ordered by group id, never by arrival. It refuses
//! to know what a weight is: a checkpoint's step tells it where a resumed run stands. Read `schema.rs`
//! for the tables, `take.rs` for staleness, `resume.rs` for what a restart undoes.

mod account;
mod export;
mod read;
mod resume;
mod schema;
mod take;
#[cfg(test)]
mod tests;
mod write;

pub use account::{Balance, Conservation};
pub use export::{read_records, write_jsonl, write_parquet};
pub use read::find_rollout;
pub use resume::Resumed;
pub use take::Taken;

use crate::{Fence, RolloutError, lock};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior, params};
use std::collections::HashSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// What makes a run this run. The program digests every option that decides what is sampled or trained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Equal for equal runs.
    pub digest: String,
    /// The same in words, for the message that refuses another run.
    pub summary: String,
}

/// What the caller expects to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// No run yet.
    Fresh,
    /// This run, interrupted.
    Resume,
    /// This run, continued elsewhere: who held it may not know yet, and is waited for only a little.
    TakeOver,
}

/// A run's database. One process holds it; others may read it.
pub struct Buffer {
    path: PathBuf,
    max_lag: u64,
    /// Of a trajectory only what its newest weights sampled trains.
    masks_offpolicy: bool,
    state: Mutex<State>,
    /// Held while the buffer lives, so that no second process works on the run.
    _lock: Option<File>,
}

/// How long a process that was taken over may need to see it. After that only [`Buffer::fenced`] keeps it out.
const TAKING_OVER: Duration = Duration::from_secs(10);

struct State {
    db: Connection,
    /// Whose run it is; nothing is written once it is another's.
    fence: Option<Fence>,
    /// Draws that this process is sampling.
    in_flight: HashSet<u64>,
}

/// SQLite's integers are signed. Ids and counts stay far below 2^63, seeds have 63 bits.
fn int(value: u64) -> i64 {
    value as i64
}

impl Buffer {
    /// Open `path`, or make it. Groups older than `max_lag` versions are never taken.
    ///
    /// # Errors
    /// A fresh start where a run is recorded, a resume where none is, another run's database, one that
    /// another process holds, or a file that is no database.
    pub fn open(
        path: &Path,
        identity: &Identity,
        start: Start,
        max_lag: u64,
    ) -> Result<Self, RolloutError> {
        let file = |reason: String| RolloutError::File {
            path: path.to_path_buf(),
            reason,
        };
        if start != Start::Fresh && !path.exists() {
            return Err(file("no run is recorded here, so there is nothing to resume; start one without --resume".into()));
        }
        let held = match start {
            Start::Fresh | Start::Resume => Some(hold(path)?),
            Start::TakeOver => hold_if_left(path)?,
        };
        let database = |source| RolloutError::Database {
            path: path.to_path_buf(),
            source,
        };
        let mut db = Connection::open(path).map_err(database)?;
        // Commits survive the process at once, and the machine from `Buffer::trained` on.
        schema::prepare(&mut db).map_err(database)?;
        db.busy_timeout(Duration::from_secs(10)).map_err(database)?;
        match schema::identity(&db).map_err(database)? {
            None => schema::set_identity(&db, identity).map_err(database)?,
            Some((version, ..)) if version != schema::VERSION => {
                let detail = format!(
                    "written in format {version}, this program reads {}",
                    schema::VERSION
                );
                return Err(RolloutError::AnotherRun {
                    path: path.to_path_buf(),
                    detail,
                });
            }
            Some((_, theirs)) if theirs.digest != identity.digest => {
                let detail = format!(
                    "it was started with {}, now it is {}",
                    theirs.summary, identity.summary
                );
                return Err(RolloutError::AnotherRun {
                    path: path.to_path_buf(),
                    detail,
                });
            }
            Some(_) => {
                let begun = db
                    .query_row("SELECT 1 FROM prompts LIMIT 1", [], |_| Ok(()))
                    .optional()
                    .map_err(database)?
                    .is_some();
                if begun && start == Start::Fresh {
                    return Err(RolloutError::RunExists {
                        path: path.to_path_buf(),
                    });
                }
            }
        }
        Ok(Self {
            path: path.to_path_buf(),
            max_lag,
            masks_offpolicy: false,
            state: Mutex::new(State {
                db,
                fence: None,
                in_flight: HashSet::new(),
            }),
            _lock: held,
        })
    }

    /// Of a trajectory only what its newest weights sampled trains (`mask_offpolicy`), so that decides how old it is.
    pub fn masking_offpolicy(self, masks_offpolicy: bool) -> Self {
        Self {
            masks_offpolicy,
            ..self
        }
    }

    /// Where the database lies.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Let this process's epoch stand in the database: every later transaction looks for a newer one first, so one whose
    /// epoch is over changes nothing, wherever it runs.
    ///
    /// # Errors
    /// A newer epoch stands there, or the database cannot be written.
    pub fn fenced(self, fence: &Fence) -> Result<Self, RolloutError> {
        lock(&self.state).fence = Some(fence.clone());
        self.write(|tx| {
            tx.execute(
                "INSERT INTO meta (key, value) VALUES ('epoch', ?1) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                [int(fence.epoch())],
            )
            .map(drop)
        })?;
        Ok(self)
    }

    /// Record something worth finding later: `detail` is JSON or text.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn event(
        &self,
        step: slime_core::Step,
        kind: &str,
        detail: &str,
    ) -> Result<(), RolloutError> {
        self.write(|tx| event(tx, step.0, kind, detail))
    }

    /// The run goes on as another: its plugins were loaded anew. Which ones trained which steps stays to be read in `events`.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn renew(&self, step: slime_core::Step, identity: &Identity) -> Result<(), RolloutError> {
        self.write(|tx| {
            schema::renew_identity(tx, identity)?;
            event(tx, step.0, "plugins", &identity.summary)
        })
    }

    /// One transaction; it is durable when this returns.
    fn write<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, RolloutError> {
        self.write_with(|tx, _| work(tx))
    }

    fn write_with<T>(
        &self,
        work: impl FnOnce(&Transaction<'_>, &mut HashSet<u64>) -> rusqlite::Result<T>,
    ) -> Result<T, RolloutError> {
        let mut state = lock(&self.state);
        let State {
            db,
            in_flight,
            fence,
        } = &mut *state;
        let mut by = None;
        let run = || {
            let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
            if let Some(fence) = &fence {
                by = Some(epoch(&tx)?).filter(|&now| now > fence.epoch());
                if by.is_some() {
                    return Err(rusqlite::Error::QueryReturnedNoRows);
                }
            }
            let value = work(&tx, in_flight)?;
            tx.commit()?;
            Ok(value)
        };
        run().map_err(|source| match (by, &fence) {
            (Some(by), Some(fence)) => fence.over(by),
            _ => RolloutError::Database {
                path: self.path.clone(),
                source,
            },
        })
    }
}

/// The newest epoch that has written here.
fn epoch(tx: &Transaction<'_>) -> rusqlite::Result<u64> {
    let stands = tx
        .prepare_cached("SELECT CAST(value AS INTEGER) FROM meta WHERE key = 'epoch'")?
        .query_row([], |row| row.get::<_, i64>(0))
        .optional()?;
    Ok(stands.unwrap_or(0) as u64)
}

fn event(tx: &Transaction<'_>, step: u64, kind: &str, detail: &str) -> rusqlite::Result<()> {
    let at_ms = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_millis() as i64);
    tx.prepare_cached("INSERT INTO events (step, kind, detail, at_ms) VALUES (?1, ?2, ?3, ?4)")?
        .execute(params![int(step), kind, detail, at_ms])
        .map(drop)
}

/// Wait a little for the lock; `None` where whoever holds it does not let go.
fn hold_if_left(path: &Path) -> Result<Option<File>, RolloutError> {
    let until = Instant::now() + TAKING_OVER;
    loop {
        match hold(path) {
            Ok(held) => return Ok(Some(held)),
            Err(RolloutError::InUse { .. }) if Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(100));
            }
            Err(RolloutError::InUse { path }) => {
                tracing::warn!(lock = %path.display(), "whoever had this run open does not let go of it, and is fenced off");
                return Ok(None);
            }
            Err(other) => return Err(other),
        }
    }
}

fn hold(path: &Path) -> Result<File, RolloutError> {
    let path = path.with_extension("lock");
    let open = File::options()
        .create(true)
        .truncate(false)
        .write(true)
        .open(&path);
    let file = open.map_err(|e| RolloutError::File {
        path: path.clone(),
        reason: format!("cannot be written: {e}"),
    })?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(std::fs::TryLockError::WouldBlock) => Err(RolloutError::InUse { path }),
        Err(std::fs::TryLockError::Error(e)) => Err(RolloutError::File {
            path,
            reason: format!("cannot be locked: {e}"),
        }),
    }
}
