//! What a restart undoes: everything that the checkpoint does not know of.
//!
//! The checkpoint's steps are trained. Groups that later steps took are queued again. Groups sampled with
//! weights that no longer exist are dropped as `rolled-back`, and their draws come again with the same
//! seeds. What was collected for the next step with weights that still exist is used.

use super::take::{drop_attempt, mark_trained};
use super::write::count_sampled;
use super::{Buffer, event, int};
use crate::RolloutError;
use rusqlite::{Transaction, params};
use slime_core::{Step, WeightVersion};
use std::collections::BTreeMap;

/// Where a resumed run stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Resumed {
    /// The next draw that was never claimed.
    pub cursor: u64,
    /// Groups ready for the next step.
    pub num_queued: usize,
    /// Finished rollouts of groups that are not complete.
    pub num_partial: usize,
    /// Rollouts that were cut off and go on from the tokens they have.
    pub num_begun: usize,
    /// Groups whose weights no longer exist.
    pub num_rolled_back: usize,
}

struct Attempt {
    attempt: u32,
    state: String,
    newest: Option<i64>,
    taken_by: Option<i64>,
    reason: Option<String>,
    dropped_at: Option<i64>,
}

const ROLLED_BACK: &str = "rolled-back";

impl Buffer {
    /// Go back to where the run stood when step `step` was about to begin, the pool serving `served`.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn resume_at(&self, step: Step, served: WeightVersion) -> Result<Resumed, RolloutError> {
        let resumed = self.write_with(|tx, in_flight| {
            in_flight.clear();
            // The checkpoint was saved, and the process died before it said so here.
            let before: Vec<i64> = tx
                .prepare("SELECT step FROM steps WHERE state = 'taken' AND step < ?1")?
                .query_map([int(step.0)], |row| row.get(0))?
                .collect::<rusqlite::Result<_>>()?;
            for earlier in before {
                mark_trained(tx, Step(earlier as u64))?;
            }
            tx.execute("DELETE FROM steps WHERE step >= ?1", [int(step.0)])?;
            let mut num_rolled_back = 0;
            for (id, attempts) in attempts(tx)? {
                num_rolled_back += settle(tx, id, &attempts, step, served)?;
            }
            let again = tx.execute("UPDATE rollouts SET state = 'sampling', data = NULL, outcome = NULL, reward = NULL, newest_version = NULL
                 WHERE newest_version > ?1 AND (group_id, attempt) IN (SELECT id, attempt FROM groups WHERE state = 'sampling')", [int(served.0)])?;
            count_sampled(tx, -(again as i64))?;
            // Tokens of weights that no longer exist; what came after them in a rollout goes too, by its context.
            tx.execute("DELETE FROM turns WHERE newest_version > ?1 OR NOT EXISTS
                 (SELECT 1 FROM groups WHERE id = group_id AND groups.attempt = turns.attempt AND state = 'sampling')", [int(served.0)])?;
            let count = |sql: &str| tx.query_row(sql, [], |row| row.get::<_, i64>(0)).map(|n| n as usize);
            let resumed = Resumed {
                cursor: count("SELECT COALESCE(MAX(draw) + 1, 0) FROM prompts")? as u64,
                num_queued: count("SELECT COUNT(*) FROM groups WHERE state = 'queued'")?,
                num_partial: count(
                    "SELECT COUNT(*) FROM rollouts JOIN groups ON id = group_id AND groups.attempt = rollouts.attempt
                     WHERE groups.state = 'sampling' AND rollouts.state IN ('scored', 'failed') AND outcome NOT IN ('infra-failed', 'cancelled')",
                )?,
                num_begun: count("SELECT COUNT(*) FROM (SELECT DISTINCT group_id, attempt, idx FROM turns)")?,
                num_rolled_back,
            };
            event(tx, step.0, "resume", &format!("at version {served}: {resumed:?}"))?;
            Ok(resumed)
        })?;
        self.sync()?;
        Ok(resumed)
    }
}

fn attempts(tx: &Transaction<'_>) -> rusqlite::Result<BTreeMap<i64, Vec<Attempt>>> {
    let mut all: BTreeMap<i64, Vec<Attempt>> = BTreeMap::new();
    let mut statement = tx.prepare("SELECT id, attempt, state, newest_version, taken_by, reason, dropped_at FROM groups ORDER BY id, attempt")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        all.entry(row.get(0)?).or_default().push(Attempt {
            attempt: row.get(1)?,
            state: row.get(2)?,
            newest: row.get(3)?,
            taken_by: row.get(4)?,
            reason: row.get(5)?,
            dropped_at: row.get(6)?,
        });
    }
    Ok(all)
}

/// Bring one draw's attempts back; returns how many were rolled back.
fn settle(
    tx: &Transaction<'_>,
    id: i64,
    attempts: &[Attempt],
    step: Step,
    served: WeightVersion,
) -> rusqlite::Result<usize> {
    let now = int(step.0);
    let mut rolled_back = 0;
    // From the newest attempt back: the first one that still counts decides about the draw.
    let mut state = "pending";
    for a in attempts.iter().rev() {
        let trained = a.state == "trained" && a.taken_by.is_some_and(|s| s < now);
        let vanished = a.newest.is_some_and(|v| v > int(served.0));
        match (a.state.as_str(), a.reason.as_deref()) {
            ("sampling", _) => break,
            _ if trained => {
                state = "done";
                break;
            }
            ("queued" | "taken" | "trained", _) if vanished => {
                drop_attempt(tx, id, a.attempt, ROLLED_BACK, step)?;
                rolled_back += 1;
            }
            ("queued" | "taken" | "trained", _) => {
                requeue(tx, id, a.attempt)?;
                state = "done";
                break;
            }
            // Too old for a step that has not happened now. Older attempts than it are older still.
            (_, Some("stale")) => {
                if a.dropped_at.is_some_and(|s| s >= now) && !vanished {
                    requeue(tx, id, a.attempt)?;
                    state = "done";
                }
                break;
            }
            (_, Some(ROLLED_BACK)) => {}
            // A filter's judgement stands as long as the weights it judged do.
            _ if vanished => {}
            _ => {
                state = "done";
                break;
            }
        }
    }
    tx.prepare_cached("UPDATE prompts SET state = ?2 WHERE draw = ?1")?
        .execute(params![id, state])?;
    Ok(rolled_back)
}

fn requeue(tx: &Transaction<'_>, id: i64, attempt: u32) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "UPDATE groups SET state = 'queued', taken_by = NULL, reason = NULL, dropped_at = NULL WHERE id = ?1 AND attempt = ?2",
    )?
    .execute(params![id, attempt])?;
    tx.prepare_cached(
        "UPDATE rollouts SET state = CASE WHEN outcome = 'scored' THEN 'scored' ELSE 'failed' END WHERE group_id = ?1 AND attempt = ?2",
    )?
    .execute(params![id, attempt])
    .map(drop)
}
