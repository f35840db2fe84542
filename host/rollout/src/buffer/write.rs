//! From a claimed draw to a queued group. The sampler calls this as its ledger.

use super::{Buffer, event, int};
use crate::collect::{Claim, Ledger, TurnRecord};
use crate::{RolloutError, lock};
use rusqlite::{OptionalExtension, Transaction, params};
use slime_core::{Group, GroupId, Outcome, Prompt, Rollout, Step, Trajectory, WeightVersion};

/// The oldest and the newest version that sampled a token.
pub(super) fn versions<'a>(
    trajectories: impl Iterator<Item = &'a Trajectory>,
) -> Option<(WeightVersion, WeightVersion)> {
    let all: Vec<_> = trajectories
        .flat_map(Trajectory::segments)
        .filter_map(|s| match s.origin {
            slime_core::Origin::Policy { version, .. } => Some(version),
            _ => None,
        })
        .collect();
    Some((*all.iter().min()?, *all.iter().max()?))
}

/// A structure as the database holds it.
pub(super) fn json(value: &impl serde::Serialize) -> rusqlite::Result<String> {
    serde_json::to_string(value).map_err(|e| rusqlite::Error::ToSqlConversionFailure(Box::new(e)))
}

pub(super) fn from_json<T: serde::de::DeserializeOwned>(
    column: usize,
    text: &str,
) -> rusqlite::Result<T> {
    serde_json::from_str(text).map_err(|e| {
        rusqlite::Error::FromSqlConversionFailure(column, rusqlite::types::Type::Text, Box::new(e))
    })
}

fn put_rollout(
    tx: &Transaction<'_>,
    group: GroupId,
    attempt: u32,
    rollout: &Rollout,
) -> rusqlite::Result<()> {
    let state = if matches!(rollout.outcome, Outcome::Scored(_)) {
        "scored"
    } else {
        "failed"
    };
    let newest = versions(rollout.trajectories.iter()).map(|(_, newest)| int(newest.0));
    tx.prepare_cached(
        "INSERT INTO rollouts (group_id, attempt, idx, state, seed, outcome, reward, newest_version, data)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
         ON CONFLICT DO UPDATE SET state = excluded.state, seed = excluded.seed, outcome = excluded.outcome, reward = excluded.reward,
             newest_version = excluded.newest_version, data = excluded.data WHERE state = 'sampling'",
    )?
    .execute(params![
        int(group.0),
        attempt,
        rollout.index,
        state,
        int(rollout.seed),
        rollout.outcome.kind(),
        rollout.outcome.reward(),
        newest,
        json(rollout)?
    ])
    .and_then(|ended| count_sampled(tx, ended as i64))?;
    if !matches!(
        rollout.outcome,
        Outcome::InfraFailed(_) | Outcome::Cancelled(_)
    ) {
        // It is whole: nothing goes on from its turns.
        tx.prepare_cached("DELETE FROM turns WHERE group_id = ?1 AND attempt = ?2 AND idx = ?3")?
            .execute(params![int(group.0), attempt, rollout.index])?;
    }
    Ok(())
}

/// What group verifiers and shapers made of a rollout that had ended before them; it is counted already.
fn judge_rollout(
    tx: &Transaction<'_>,
    group: GroupId,
    attempt: u32,
    rollout: &Rollout,
) -> rusqlite::Result<()> {
    tx.prepare_cached(
        "UPDATE rollouts SET state = CASE WHEN ?4 = 'scored' THEN 'scored' ELSE 'failed' END, outcome = ?4, reward = ?5, data = ?6
         WHERE group_id = ?1 AND attempt = ?2 AND idx = ?3 AND data IS NOT ?6",
    )?
    .execute(params![
        int(group.0),
        attempt,
        rollout.index,
        rollout.outcome.kind(),
        rollout.outcome.reward(),
        json(rollout)?
    ])
    .map(drop)
}

/// So many rollouts have ended, or fewer than was counted.
pub(super) fn count_sampled(tx: &Transaction<'_>, change: i64) -> rusqlite::Result<()> {
    tx.prepare_cached("UPDATE meta SET value = value + ?1 WHERE key = 'sampled'")?
        .execute([change])
        .map(drop)
}

/// A complete group; `reason` drops it.
fn put_group(
    tx: &Transaction<'_>,
    attempt: u32,
    (group, oldest): (&Group, Option<WeightVersion>),
    reason: Option<&str>,
) -> rusqlite::Result<()> {
    for rollout in &group.rollouts {
        put_rollout(tx, group.id, attempt, rollout)?;
    }
    let span = versions(group.rollouts.iter().flat_map(|r| &r.trajectories));
    let (oldest, newest) = (oldest.map(|v| int(v.0)), span.map(|s| int(s.1.0)));
    let scored = group.rewards().len() as i64;
    let failed = group.rollouts.len() as i64 - scored;
    let changed = tx
        .prepare_cached(
            "INSERT INTO groups (id, attempt, step, state, prompt, oldest_version, newest_version, reason, dropped_at, num_scored, num_failed)
             VALUES (?1, ?2, ?3, CASE WHEN ?7 IS NULL THEN 'queued' ELSE 'dropped' END, ?4, ?5, ?6, ?7, CASE WHEN ?7 IS NULL THEN NULL ELSE ?3 END, ?8, ?9)
             ON CONFLICT DO UPDATE SET state = excluded.state, step = excluded.step, oldest_version = excluded.oldest_version,
                 newest_version = excluded.newest_version, reason = excluded.reason, dropped_at = excluded.dropped_at,
                 num_scored = excluded.num_scored, num_failed = excluded.num_failed
             WHERE state = 'sampling'",
        )?
        .execute(params![int(group.id.0), attempt, int(group.step.0), json(&group.prompt)?, oldest, newest, reason, scored, failed])?;
    if changed == 0 {
        // The same attempt is complete already: a caller that fills twice changes nothing.
        return Ok(());
    }
    for rollout in &group.rollouts {
        judge_rollout(tx, group.id, attempt, rollout)?;
    }
    tx.execute(
        "UPDATE meta SET value = value + 1 WHERE key = 'produced'",
        [],
    )?;
    let id = &group.prompt.id;
    tx.prepare_cached(
        "INSERT INTO prompts (draw, source, row, state) VALUES (?1, ?2, ?3, 'done')
         ON CONFLICT DO UPDATE SET source = excluded.source, row = excluded.row, state = 'done'",
    )?
    .execute(params![int(group.id.0), id.source, int(id.row)])?;
    if let Some(reason) = reason {
        tx.execute(
            "UPDATE rollouts SET state = 'dropped' WHERE group_id = ?1 AND attempt = ?2",
            params![int(group.id.0), attempt],
        )?;
        event(
            tx,
            group.step.0,
            "drop",
            &format!("group {} attempt {attempt}: {reason}", group.id),
        )?;
    }
    Ok(())
}

/// The attempt at a draw that is next to be made, and whether it was begun.
fn next_attempt(tx: &Transaction<'_>, group: u64) -> rusqlite::Result<(u32, bool)> {
    let last: Option<(u32, String)> = tx
        .prepare_cached(
            "SELECT attempt, state FROM groups WHERE id = ?1 ORDER BY attempt DESC LIMIT 1",
        )?
        .query_row([int(group)], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()?;
    Ok(match last {
        None => (0, false),
        Some((attempt, state)) if state == "sampling" => (attempt, true),
        Some((attempt, _)) => (attempt + 1, false),
    })
}

/// Rollouts of an interrupted attempt that ended by themselves.
fn finished(tx: &Transaction<'_>, group: u64, attempt: u32) -> rusqlite::Result<Vec<Rollout>> {
    tx.prepare_cached(
        "SELECT data FROM rollouts WHERE group_id = ?1 AND attempt = ?2 AND state IN ('scored', 'failed')
         AND outcome NOT IN ('infra-failed', 'cancelled') ORDER BY idx",
    )?
    .query_map(params![int(group), attempt], |row| from_json(0, &row.get::<_, String>(0)?))?
    .collect()
}

/// Turns of an interrupted attempt's unfinished rollouts.
fn begun(
    tx: &Transaction<'_>,
    group: u64,
    attempt: u32,
) -> rusqlite::Result<Vec<(u32, TurnRecord)>> {
    tx.prepare_cached("SELECT idx, data FROM turns WHERE group_id = ?1 AND attempt = ?2")?
        .query_map(params![int(group), attempt], |row| {
            Ok((row.get(0)?, from_json(1, &row.get::<_, String>(1)?)?))
        })?
        .collect()
}

/// Forget what an interrupted attempt has, where its prompt was another: a curriculum stood elsewhere, or the source has
/// changed. True where there was nothing to forget.
fn begin_again(tx: &Transaction<'_>, claim: &Claim, prompt: &Prompt) -> rusqlite::Result<bool> {
    let of_claim = params![int(claim.group.0), claim.attempt];
    let changed = tx
        .prepare_cached("UPDATE groups SET prompt = ?3 WHERE id = ?1 AND attempt = ?2 AND state = 'sampling' AND prompt != ?3")?
        .execute(params![int(claim.group.0), claim.attempt, json(prompt)?])?;
    if changed == 0 {
        return Ok(true);
    }
    let ended = tx
        .prepare_cached("DELETE FROM rollouts WHERE group_id = ?1 AND attempt = ?2 AND state IN ('scored', 'failed')")?
        .execute(of_claim)?;
    count_sampled(tx, -(ended as i64))?;
    tx.prepare_cached("DELETE FROM rollouts WHERE group_id = ?1 AND attempt = ?2")?
        .execute(of_claim)?;
    tx.prepare_cached("DELETE FROM turns WHERE group_id = ?1 AND attempt = ?2")?
        .execute(of_claim)?;
    Ok(false)
}

impl Buffer {
    /// Queue a complete group, in one transaction. The sampler does this by itself; filling a group again
    /// changes nothing.
    ///
    /// # Errors
    /// The database cannot be written.
    pub fn fill(&self, group: &Group) -> Result<(), RolloutError> {
        self.write_with(|tx, in_flight| {
            in_flight.remove(&group.id.0);
            let known: Option<u32> = tx
                .query_row("SELECT attempt FROM groups WHERE id = ?1 AND state IN ('queued', 'taken', 'trained')", [int(group.id.0)], |row| row.get(0))
                .optional()?;
            if known.is_some() {
                return Ok(());
            }
            let (attempt, _) = next_attempt(tx, group.id.0)?;
            put_group(tx, attempt, (group, self.oldest(group)), None)
        })
    }
}

impl Ledger for Buffer {
    fn claim(&self, _step: Step, n: usize) -> Result<Vec<Claim>, RolloutError> {
        self.write_with(|tx, in_flight| {
            let pending: Vec<u64> = tx
                .prepare_cached("SELECT draw FROM prompts WHERE state = 'pending' ORDER BY draw")?
                .query_map([], |row| row.get::<_, i64>(0))?
                .map(|draw| draw.map(|d| d as u64))
                .collect::<rusqlite::Result<_>>()?;
            let mut draws: Vec<u64> = pending
                .into_iter()
                .filter(|draw| !in_flight.contains(draw))
                .take(n)
                .collect();
            let cursor: i64 = tx.query_row(
                "SELECT COALESCE(MAX(draw) + 1, 0) FROM prompts",
                [],
                |row| row.get(0),
            )?;
            let fresh = cursor as u64..cursor as u64 + (n - draws.len()) as u64;
            for draw in fresh {
                tx.prepare_cached("INSERT INTO prompts (draw, state) VALUES (?1, 'pending')")?
                    .execute([int(draw)])?;
                draws.push(draw);
            }
            let claims = draws.iter().map(|&draw| {
                let (attempt, is_begun) = next_attempt(tx, draw)?;
                let (done, begun) = if is_begun {
                    (finished(tx, draw, attempt)?, begun(tx, draw, attempt)?)
                } else {
                    Default::default()
                };
                Ok(Claim {
                    draw,
                    group: GroupId(draw),
                    attempt,
                    done,
                    begun,
                })
            });
            let claims = claims.collect::<rusqlite::Result<Vec<_>>>()?;
            in_flight.extend(&draws);
            Ok(claims)
        })
    }

    fn begin(&self, claim: &Claim, prompt: &Prompt, seeds: &[u64]) -> Result<bool, RolloutError> {
        self.write(|tx| {
            let group = int(claim.group.0);
            let is_same = begin_again(tx, claim, prompt)?;
            tx.prepare_cached("UPDATE prompts SET source = ?2, row = ?3 WHERE draw = ?1")?
                .execute(params![int(claim.draw), prompt.id.source, int(prompt.id.row)])?;
            tx.prepare_cached("INSERT OR IGNORE INTO groups (id, attempt, step, state, prompt) VALUES (?1, ?2, 0, 'sampling', ?3)")?
                .execute(params![group, claim.attempt, json(prompt)?])?;
            // What failed for reasons that are not the rollout's is sampled again.
            let again = tx
                .prepare_cached(
                    "UPDATE rollouts SET state = 'sampling', data = NULL, outcome = NULL, reward = NULL, newest_version = NULL
                     WHERE group_id = ?1 AND attempt = ?2 AND outcome IN ('infra-failed', 'cancelled')",
                )?
                .execute(params![group, claim.attempt])?;
            count_sampled(tx, -(again as i64))?;
            for (index, seed) in (0u32..).zip(seeds) {
                tx.prepare_cached("INSERT OR IGNORE INTO rollouts (group_id, attempt, idx, state, seed) VALUES (?1, ?2, ?3, 'sampling', ?4)")?
                    .execute(params![group, claim.attempt, index, int(*seed)])?;
            }
            Ok(is_same)
        })
    }

    fn turn(&self, claim: &Claim, index: u32, record: &TurnRecord) -> Result<(), RolloutError> {
        let newest = record
            .sampled
            .versions
            .iter()
            .map(|(version, _)| int(version.0))
            .max();
        self.write(|tx| {
            tx.prepare_cached(
                "INSERT OR REPLACE INTO turns (group_id, attempt, idx, lineage, turn, newest_version, data) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
            )?
            .execute(params![
                int(claim.group.0),
                claim.attempt,
                index,
                int(record.lineage >> 1),
                record.turn,
                newest,
                json(record)?
            ])
            .map(drop)
        })
    }

    fn rollout(&self, claim: &Claim, rollout: &Rollout) -> Result<(), RolloutError> {
        self.write(|tx| put_rollout(tx, claim.group, claim.attempt, rollout))
    }

    fn keep(&self, claim: &Claim, group: &Group) -> Result<(), RolloutError> {
        self.write_with(|tx, in_flight| {
            in_flight.remove(&claim.draw);
            put_group(tx, claim.attempt, (group, self.oldest(group)), None)
        })
    }

    fn discard(&self, claim: &Claim, group: &Group, reason: &str) -> Result<(), RolloutError> {
        self.write_with(|tx, in_flight| {
            in_flight.remove(&claim.draw);
            put_group(tx, claim.attempt, (group, self.oldest(group)), Some(reason))
        })
    }

    fn missing(&self, step: Step, n: usize, served: WeightVersion) -> Result<usize, RolloutError> {
        Buffer::missing(self, step, n, served)
    }

    fn queued(&self) -> Result<usize, RolloutError> {
        self.write(|tx| {
            tx.prepare_cached("SELECT COUNT(*) FROM groups WHERE state = 'queued'")?
                .query_row([], |row| row.get::<_, i64>(0))
                .map(|count| count as usize)
        })
    }

    fn release(&self, claim: &Claim) {
        lock(&self.state).in_flight.remove(&claim.draw);
    }
}
