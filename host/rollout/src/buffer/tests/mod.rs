//! Groups made by hand: what they hold is a function of the draw, the attempt's version and nothing else.

mod kill;
mod model;

use super::*;
use crate::collect::{Claim, Ledger};
use crate::seed::rollout_seed;
use slime_core::{
    FinishReason, Group, GroupId, Origin, Outcome, Prompt, PromptBody, PromptId, Rollout,
    RolloutId, Segment, Step, Trajectory, Verdict, WeightVersion,
};

pub(super) fn identity(digest: &str) -> Identity {
    Identity {
        digest: digest.into(),
        summary: format!("configuration {digest}"),
    }
}

pub(super) fn open(path: &Path, start: Start, max_lag: u64) -> Buffer {
    Buffer::open(path, &identity("a"), start, max_lag).unwrap()
}

fn fresh(max_lag: u64) -> (tempfile::TempDir, Buffer) {
    let dir = tempfile::tempdir().unwrap();
    let buffer = open(&dir.path().join("run.db"), Start::Fresh, max_lag);
    (dir, buffer)
}

pub(super) fn prompt(draw: u64) -> Prompt {
    let id = PromptId {
        source: "s".into(),
        row: draw % 5,
    };
    Prompt {
        id,
        body: PromptBody::Text(format!("p{draw}")),
        label: Some("1".into()),
        tools: vec![],
        metadata: Default::default(),
    }
}

pub(super) fn rollout(draw: u64, index: u32, version: u64) -> Rollout {
    let mut trajectory = Trajectory::from_prompt(vec![1, draw as u32]);
    let origin = Origin::Policy {
        logprobs: vec![-0.1 * (index + 1) as f32, -1.5],
        version: WeightVersion(version),
    };
    trajectory
        .push(Segment {
            origin,
            tokens: vec![index, version as u32],
        })
        .unwrap();
    trajectory.finish = Some(FinishReason::Stop);
    let outcome = if index == 1 {
        Outcome::Timeout("slow".into())
    } else {
        Outcome::Scored(Verdict {
            reward: 0.1 * f64::from(index),
            metrics: vec![("m".into(), 1.0)],
        })
    };
    Rollout {
        id: RolloutId(draw * 2 + u64::from(index)),
        index,
        seed: rollout_seed(1, &prompt(draw).id, draw, index),
        trajectories: vec![trajectory],
        outcome,
        scoring: Default::default(),
        shaped: None,
    }
}

pub(super) fn group(draw: u64, version: u64) -> Group {
    Group {
        id: GroupId(draw),
        step: Step(0),
        prompt: prompt(draw),
        rollouts: (0..2).map(|index| rollout(draw, index, version)).collect(),
    }
}

/// Sample a claim as the sampler does, finished rollouts kept.
pub(super) fn sample(buffer: &Buffer, claim: &Claim, version: u64) -> Group {
    let seeds: Vec<u64> = (0..2)
        .map(|index| rollout(claim.draw, index, version).seed)
        .collect();
    buffer.begin(claim, &prompt(claim.draw), &seeds).unwrap();
    let mut group = group(claim.draw, version);
    for (index, rollout) in group.rollouts.iter_mut().enumerate() {
        match claim.done.iter().find(|r| r.index == index as u32) {
            Some(done) => *rollout = done.clone(),
            None => buffer.rollout(claim, rollout).unwrap(),
        }
    }
    group
}

fn ids(groups: &[Group]) -> Vec<u64> {
    groups.iter().map(|g| g.id.0).collect()
}

fn draws(claims: &[Claim]) -> Vec<u64> {
    claims.iter().map(|c| c.draw).collect()
}

#[test]
fn f02_what_a_step_does_not_need_waits_for_the_next() {
    let (_dir, buffer) = fresh(5);
    let claims = buffer.claim(Step(0), 6).unwrap();
    // They finish in another order than they were drawn.
    for &i in &[5, 0, 3, 1, 4, 2] {
        buffer.keep(&claims[i], &group(claims[i].draw, 1)).unwrap();
    }
    let taken = buffer.take(Step(0), 4, WeightVersion(1)).unwrap();
    assert_eq!(ids(&taken.groups), [0, 1, 2, 3], "by id, never by arrival");
    assert_eq!(
        taken.groups[2],
        group(2, 1),
        "as it was filled, bit for bit"
    );
    assert_eq!((taken.lag_mean, taken.lag_max), (Some(0.0), Some(0)));
    buffer.trained(Step(0)).unwrap();
    let balance = buffer.balance().unwrap();
    assert_eq!(
        (balance.produced, balance.trained, balance.queued),
        (6, 4, 2)
    );
    assert!(balance.holds());
    assert_eq!(buffer.missing(Step(1), 4, WeightVersion(2)).unwrap(), 2);
    assert_eq!(
        draws(&buffer.claim(Step(1), 2).unwrap()),
        [6, 7],
        "no prompt is drawn twice"
    );
    assert!(matches!(
        buffer.take(Step(1), 4, WeightVersion(2)),
        Err(RolloutError::NotEnough {
            have: 2,
            want: 4,
            ..
        })
    ));
    assert_eq!(
        ids(&buffer.take(Step(1), 2, WeightVersion(2)).unwrap().groups),
        [4, 5]
    );
    assert_eq!(
        ids(&buffer.take(Step(1), 2, WeightVersion(2)).unwrap().groups),
        [4, 5],
        "asked again, the same"
    );
}

#[test]
fn what_does_not_train_makes_no_group_stale() {
    let path = |dir: &tempfile::TempDir| dir.path().join("run.db");
    for (masks, missing) in [(false, 1), (true, 0)] {
        let dir = tempfile::tempdir().unwrap();
        let buffer = open(&path(&dir), Start::Fresh, 1).masking_offpolicy(masks);
        let claim = buffer.claim(Step(0), 1).unwrap().remove(0);
        let mut group = group(claim.draw, 5);
        // Cut off and gone on with: its first tokens are two versions older than its last.
        let newest = group.rollouts[0].trajectories[0].segments()[1].clone();
        for rollout in &mut group.rollouts {
            let mut trajectory = Trajectory::from_prompt(vec![1]);
            for version in [3, 5] {
                let mut segment = newest.clone();
                if let Origin::Policy { version: of, .. } = &mut segment.origin {
                    *of = WeightVersion(version);
                }
                trajectory.push(segment).unwrap();
            }
            rollout.trajectories = vec![trajectory];
        }
        buffer.keep(&claim, &group).unwrap();
        let found = buffer.missing(Step(1), 1, WeightVersion(5)).unwrap();
        assert_eq!(found, missing, "masked: {masks}");
    }
}

#[test]
fn h04_time_in_the_queue_makes_a_group_stale() {
    let (_dir, buffer) = fresh(2);
    for claim in buffer.claim(Step(0), 2).unwrap() {
        buffer
            .keep(&claim, &group(claim.draw, 3 + claim.draw))
            .unwrap();
    }
    assert_eq!(
        buffer.missing(Step(4), 2, WeightVersion(5)).unwrap(),
        0,
        "lags of 2 and 1 are allowed"
    );
    assert_eq!(
        buffer.missing(Step(5), 2, WeightVersion(6)).unwrap(),
        1,
        "a lag of 3 is not"
    );
    let balance = buffer.balance().unwrap();
    assert_eq!((balance.queued, balance.dropped["stale"]), (1, 1));
    assert!(balance.holds());
    let claims = buffer.claim(Step(5), 2).unwrap();
    assert_eq!(
        claims
            .iter()
            .map(|c| (c.draw, c.attempt))
            .collect::<Vec<_>>(),
        [(0, 1), (2, 0)],
        "its prompt comes again, before new ones"
    );
    buffer.keep(&claims[0], &group(0, 6)).unwrap();
    let taken = buffer.take(Step(5), 2, WeightVersion(6)).unwrap();
    assert_eq!(taken.groups, [group(0, 6), group(1, 4)]);
    assert_eq!((taken.lag_mean, taken.lag_max), (Some(1.0), Some(2)));
}

#[test]
fn h03_a_synchronous_run_has_no_lag_and_a_run_one_step_ahead_has_one() {
    for (ahead, expected) in [(0, 0), (1, 1)] {
        let (_dir, buffer) = fresh(ahead);
        // Step s trains at version s + 1 what was sampled `ahead` steps before.
        for step in 0..4u64 {
            let served = step + 1;
            let sampled_at = served.saturating_sub(ahead).max(1);
            for claim in buffer.claim(Step(step), 1).unwrap() {
                buffer.keep(&claim, &group(claim.draw, sampled_at)).unwrap();
            }
            let taken = buffer.take(Step(step), 1, WeightVersion(served)).unwrap();
            assert_eq!(taken.lag_max, Some(if step == 0 { 0 } else { expected }));
            buffer.trained(Step(step)).unwrap();
        }
    }
}

#[test]
fn a_filters_drop_uses_the_draw_up_and_keeps_the_reason() {
    let (_dir, buffer) = fresh(0);
    let claims = buffer.claim(Step(0), 3).unwrap();
    buffer
        .discard(&claims[1], &group(1, 1), "zero_std_0")
        .unwrap();
    buffer.keep(&claims[0], &group(0, 1)).unwrap();
    buffer.release(&claims[2]);
    assert_eq!(
        draws(&buffer.claim(Step(0), 2).unwrap()),
        [2, 3],
        "what was given up comes first"
    );
    let balance = buffer.balance().unwrap();
    assert_eq!(
        (
            balance.produced,
            balance.queued,
            balance.dropped["zero_std_0"]
        ),
        (2, 1, 1)
    );
    assert!(balance.holds());
}

#[test]
fn filling_twice_changes_nothing() {
    let (_dir, buffer) = fresh(0);
    buffer.fill(&group(0, 1)).unwrap();
    buffer.fill(&group(0, 1)).unwrap();
    let claims = buffer.claim(Step(0), 1).unwrap();
    assert_eq!(draws(&claims), [1]);
    buffer.keep(&claims[0], &group(1, 1)).unwrap();
    buffer.fill(&group(1, 1)).unwrap();
    assert_eq!(buffer.balance().unwrap().produced, 2);
    assert_eq!(
        buffer.take(Step(0), 2, WeightVersion(1)).unwrap().groups,
        [group(0, 1), group(1, 1)]
    );
}

#[test]
fn h07_another_runs_database_is_refused_with_both_names() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.db");
    let error = |digest, start| {
        Buffer::open(&path, &identity(digest), start, 0)
            .err()
            .unwrap()
            .to_string()
    };
    assert!(error("a", Start::Resume).contains("nothing to resume"));
    let buffer = open(&path, Start::Fresh, 0);
    assert!(error("a", Start::Resume).contains("another process"));
    buffer.claim(Step(0), 1).unwrap();
    drop(buffer);
    assert!(error("a", Start::Fresh).contains("--resume"));
    let message = error("b", Start::Resume);
    assert!(
        message.contains("started with configuration a, now it is configuration b")
            && message.contains("run.dir"),
        "{message}"
    );
    drop(open(&path, Start::Resume, 0));
    std::fs::write(
        &path,
        "not a database at all, but long enough to be looked at as one",
    )
    .unwrap();
    assert!(error("a", Start::Resume).contains("not a database"));
}

/// Steps 0..n of a synchronous run: version `s + 1` serves at step `s`.
fn run_steps(buffer: &Buffer, steps: std::ops::Range<u64>) -> Vec<Vec<Group>> {
    let step = |s: u64| {
        let served = WeightVersion(s + 1);
        let missing = buffer.missing(Step(s), 3, served).unwrap();
        for claim in buffer.claim(Step(s), missing).unwrap() {
            let group = sample(buffer, &claim, s + 1);
            buffer.keep(&claim, &group).unwrap();
        }
        let taken = buffer.take(Step(s), 3, served).unwrap();
        buffer.trained(Step(s)).unwrap();
        taken.groups
    };
    steps.map(step).collect()
}

#[test]
fn a_resumed_run_trains_what_the_uninterrupted_one_does() {
    let (_a, straight) = fresh(0);
    let expected = run_steps(&straight, 0..6);
    // The checkpoint is of step 2, the process died in step 4.
    let (_b, buffer) = fresh(0);
    run_steps(&buffer, 0..4);
    let claims = buffer.claim(Step(4), 3).unwrap();
    sample(&buffer, &claims[1], 5);
    let resumed = buffer.resume_at(Step(2), WeightVersion(3)).unwrap();
    assert_eq!(
        (
            resumed.num_queued,
            resumed.num_rolled_back,
            resumed.num_partial
        ),
        (3, 3, 0)
    );
    assert_eq!(run_steps(&buffer, 2..6), expected[2..]);
    let balance = buffer.balance().unwrap();
    assert_eq!((balance.trained, balance.dropped["rolled-back"]), (18, 3));
    assert!(balance.holds());
    for s in 0..6 {
        assert_eq!(buffer.groups_of(Step(s)).unwrap(), expected[s as usize]);
    }
}

#[test]
fn what_was_collected_for_the_next_step_is_used() {
    let (_dir, buffer) = fresh(0);
    run_steps(&buffer, 0..1);
    let claims = buffer.claim(Step(1), 3).unwrap();
    buffer.keep(&claims[2], &group(claims[2].draw, 2)).unwrap();
    buffer
        .begin(
            &claims[0],
            &prompt(3),
            &[rollout(3, 0, 2).seed, rollout(3, 1, 2).seed],
        )
        .unwrap();
    buffer.rollout(&claims[0], &rollout(3, 0, 2)).unwrap();

    let resumed = buffer.resume_at(Step(1), WeightVersion(2)).unwrap();
    assert_eq!(
        (resumed.cursor, resumed.num_queued, resumed.num_partial),
        (6, 1, 1)
    );
    assert_eq!(buffer.missing(Step(1), 3, WeightVersion(2)).unwrap(), 2);
    let claims = buffer.claim(Step(1), 2).unwrap();
    assert_eq!(draws(&claims), [3, 4]);
    assert_eq!(
        claims[0].done,
        [rollout(3, 0, 2)],
        "a finished rollout is not sampled again"
    );
    assert!(claims[1].done.is_empty());
}

#[test]
fn a_rollout_that_the_engine_failed_is_sampled_again() {
    let (_dir, buffer) = fresh(0);
    let claims = buffer.claim(Step(0), 1).unwrap();
    let failed = Rollout {
        outcome: Outcome::InfraFailed("gone".into()),
        trajectories: vec![],
        ..rollout(0, 0, 1)
    };
    buffer
        .begin(
            &claims[0],
            &prompt(0),
            &[failed.seed, rollout(0, 1, 1).seed],
        )
        .unwrap();
    buffer.rollout(&claims[0], &failed).unwrap();
    buffer.rollout(&claims[0], &rollout(0, 1, 1)).unwrap();
    buffer.resume_at(Step(0), WeightVersion(1)).unwrap();
    let claims = buffer.claim(Step(0), 1).unwrap();
    assert_eq!(claims[0].done, [rollout(0, 1, 1)]);
    let group = sample(&buffer, &claims[0], 1);
    buffer.keep(&claims[0], &group).unwrap();
    assert_eq!(
        buffer.take(Step(0), 1, WeightVersion(1)).unwrap().groups,
        [super::tests::group(0, 1)]
    );
}

#[test]
fn a_checkpoint_that_the_buffer_did_not_hear_of_still_counts() {
    let (_dir, buffer) = fresh(0);
    let claims = buffer.claim(Step(0), 2).unwrap();
    claims
        .iter()
        .for_each(|c| buffer.keep(c, &group(c.draw, 1)).unwrap());
    buffer.take(Step(0), 2, WeightVersion(1)).unwrap();
    buffer.resume_at(Step(1), WeightVersion(2)).unwrap();
    assert_eq!(buffer.balance().unwrap().trained, 2);
}

#[test]
fn records_survive_both_file_formats() {
    let dir = tempfile::tempdir().unwrap();
    let mut groups = [group(0, 1), group(1, 2)];
    groups[0]
        .prompt
        .metadata
        .insert("nested".into(), serde_json::json!({ "a": [1, "\u{2028}"] }));
    let records: Vec<_> = groups.iter().flat_map(Group::records).collect();
    let jsonl = dir.path().join("rollouts/step_0.jsonl");
    write_jsonl(&jsonl, &records).unwrap();
    assert_eq!(read_records(&jsonl).unwrap(), records);

    let parquet = dir.path().join("rollouts/step_0.parquet");
    write_parquet(&parquet, &records).unwrap();
    let reader = parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder::try_new(
        std::fs::File::open(&parquet).unwrap(),
    )
    .unwrap()
    .build()
    .unwrap();
    let mut lines = arrow_json::LineDelimitedWriter::new(Vec::new());
    reader.for_each(|batch| lines.write(&batch.unwrap()).unwrap());
    lines.finish().unwrap();
    let text = String::from_utf8(lines.into_inner()).unwrap();
    let back: Vec<slime_core::RolloutRecord> = text
        .lines()
        .map(|line| {
            let mut row: serde_json::Value = serde_json::from_str(line).unwrap();
            row["metadata"] = serde_json::from_str(row["metadata"].as_str().unwrap()).unwrap();
            row.as_object_mut()
                .unwrap()
                .entry("reward")
                .or_insert(serde_json::Value::Null);
            serde_json::from_value(row).unwrap()
        })
        .collect();
    assert_eq!(back, records);
    assert_eq!(
        std::fs::read_dir(dir.path().join("rollouts"))
            .unwrap()
            .count(),
        2,
        "nothing half-written is left"
    );
}

#[test]
fn a_wrong_record_is_refused_by_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("r.jsonl");
    let mut records = group(0, 1).records();
    records[1].loss_mask.pop();
    write_jsonl(&path, &records).unwrap();
    let message = read_records(&path).unwrap_err().to_string();
    assert!(
        message.contains("row 1 (line 2): loss_mask has 1 values, response_length is 2"),
        "{message}"
    );
    std::fs::write(&path, "{\"tokens\": [1]}\n").unwrap();
    assert!(
        read_records(&path)
            .unwrap_err()
            .to_string()
            .contains("row 0 (line 1): is not a rollout record")
    );
    std::fs::write(&path, "\n").unwrap();
    assert!(
        read_records(&path)
            .unwrap_err()
            .to_string()
            .contains("no rows")
    );
}

#[test]
fn an_attempt_that_was_begun_with_another_prompt_is_begun_anew() {
    let (_dir, buffer) = fresh(0);
    let claim = buffer.claim(Step(0), 1).unwrap().remove(0);
    let seeds = [1, 2];
    assert!(buffer.begin(&claim, &prompt(0), &seeds).unwrap());
    buffer.rollout(&claim, &rollout(0, 0, 1)).unwrap();
    assert_eq!(buffer.conservation().unwrap().sampled, 1);
    buffer.resume_at(Step(0), WeightVersion(1)).unwrap();
    let again = buffer.claim(Step(0), 1).unwrap().remove(0);
    assert_eq!(again.done.len(), 1);
    assert!(
        buffer.begin(&again, &prompt(0), &seeds).unwrap(),
        "the same prompt"
    );
    let harder = Prompt {
        body: PromptBody::Text("harder".into()),
        ..prompt(0)
    };
    assert!(!buffer.begin(&again, &harder, &seeds).unwrap());
    let books = buffer.conservation().unwrap();
    assert!(books.holds() && books.sampled == 0, "{books}");
    buffer.resume_at(Step(0), WeightVersion(1)).unwrap();
    assert!(buffer.claim(Step(0), 1).unwrap()[0].done.is_empty());
}

#[test]
fn mean_rewards_are_told_by_step_and_source() {
    let (_dir, buffer) = fresh(9);
    for (draw, reward) in [(0, 0.25), (1, 0.75), (2, 1.0), (3, 0.0)] {
        let mut group = group(draw, 1);
        group.prompt.id.source = if draw == 3 { "other" } else { "s" }.into();
        group.rollouts[0].outcome = Outcome::Scored(Verdict {
            reward,
            metrics: vec![],
        });
        buffer.fill(&group).unwrap();
    }
    buffer.take(Step(0), 2, WeightVersion(1)).unwrap();
    buffer.trained(Step(0)).unwrap();
    buffer.take(Step(1), 2, WeightVersion(2)).unwrap();
    let told = |step, source: &str, reward| (Step(step), source.to_owned(), reward);
    let (first, second) = (
        told(0, "s", 0.5),
        [told(1, "other", 0.0), told(1, "s", 1.0)],
    );
    assert_eq!(buffer.rewards(0..1).unwrap(), std::slice::from_ref(&first));
    let [other, s] = second;
    assert_eq!(buffer.rewards(0..9).unwrap(), [first, other, s]);
}

#[test]
fn a_process_whose_epoch_is_over_writes_nothing_more() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run.db");
    let old_fence = Fence::claim(dir.path()).unwrap();
    let old = open(&path, Start::Fresh, 0).fenced(&old_fence).unwrap();
    let claim = old.claim(Step(0), 1).unwrap();
    // Continued elsewhere; the old process lives on, with the database open and without its lock.
    let new_fence = Fence::claim(dir.path()).unwrap();
    std::fs::remove_file(path.with_extension("lock")).unwrap();
    let new = open(&path, Start::TakeOver, 0).fenced(&new_fence).unwrap();
    for refused in [
        old.claim(Step(0), 1).map(drop),
        old.event(Step(0), "late", ""),
        old.begin(&claim[0], &prompt(0), &[1]).map(drop),
        old.trained(Step(0)),
    ] {
        let error = refused.unwrap_err();
        assert!(
            matches!(
                error,
                RolloutError::TakenOver {
                    epoch: 1,
                    by: 2,
                    ..
                }
            ),
            "{error}"
        );
    }
    assert_eq!(
        new.claim(Step(0), 1).unwrap().len(),
        1,
        "the new one goes on"
    );
    let events: i64 = lock(&new.state)
        .db
        .query_row("SELECT count(*) FROM events", [], |row| row.get(0))
        .unwrap();
    assert_eq!(events, 0);
}
