//! What the leading rank tells the others to do, and what they answer.
//!
//! A train step is one order for everybody: what ranks exchange while they obey it goes through their groups.

use crate::checkpoint::pieces::Table;
use crate::checkpoint::{Counters, Index};
use crate::parallel::Rank;
use crate::trainer::{OwnSequence, TokenScores};
use crate::{Error, Result, TrainMetrics};
use serde::{Deserialize, Serialize};
use slime_core::RolloutRecord;
use slime_kernels::Ops;
use std::path::PathBuf;

/// What every rank does, at the same time.
#[derive(Serialize, Deserialize)]
pub(super) enum Order {
    /// Train on the records of one rollout step.
    Train(Vec<RolloutRecord>),
    /// One step of fine-tuning.
    FineTune(Vec<OwnSequence>),
    /// Score sequences.
    LogProbs(Vec<Vec<u32>>),
    /// Hand over what is held of a parameter; only asked of those that are needed.
    Param(usize),
    /// Write a part of a checkpoint into a directory that is there.
    Write(PathBuf),
    /// Take a part of a checkpoint.
    Read(PathBuf),
    /// There is nothing more to do.
    End,
}

/// What a rank made of an order. Numbers that all ranks have are the leader's own.
pub(super) enum Done {
    Trained(Vec<TrainMetrics>),
    FineTuned(Box<TrainMetrics>),
    Scored(Vec<TokenScores>),
    Param(Vec<f32>),
    Wrote(Table, Counters),
    Read,
}

/// Do it on this rank.
///
/// # Errors
/// What the rank refuses, or how it failed.
pub(super) fn obey<O: Ops>(rank: &mut Rank<O>, order: &Order) -> Result<Option<Done>> {
    Ok(Some(match order {
        Order::Train(records) => Done::Trained(rank.train(records)?),
        Order::FineTune(sequences) => Done::FineTuned(Box::new(rank.sft_step(sequences)?)),
        Order::LogProbs(sequences) => Done::Scored(rank.log_probs(sequences)?),
        Order::Param(at) => match rank.stage.weights.0.get(*at) {
            Some(weight) => Done::Param(rank.ops.read(weight)?),
            None => return Err(Error::Ranks(format!("there is no parameter {at}"))),
        },
        Order::Write(dir) => Done::Wrote(rank.write(dir)?, rank.counters()),
        Order::Read(dir) => {
            let stage = &rank.stage;
            let index = Index::read(dir, &stage.spec, &stage.params)?;
            rank.read(dir, &index)?;
            Done::Read
        }
        Order::End => return Ok(None),
    }))
}

/// What a follower answers, as bytes: a letter, and what belongs to it.
pub(super) fn answer(done: &Done) -> Result<Vec<u8>> {
    Ok(match done {
        Done::Trained(_) | Done::FineTuned(_) | Done::Scored(_) | Done::Read => b"d".to_vec(),
        Done::Param(held) => {
            let numbers = held.iter().flat_map(|x| x.to_le_bytes());
            std::iter::once(b'p').chain(numbers).collect()
        }
        Done::Wrote(table, _) => {
            let mut bytes = b"t".to_vec();
            serde_json::to_writer(&mut bytes, table).map_err(|e| Error::Ranks(e.to_string()))?;
            bytes
        }
    })
}

/// A refusal, as bytes.
pub(super) fn refusal(error: &Error) -> Vec<u8> {
    format!("r{error}").into_bytes()
}

/// What a follower answered.
pub(super) enum Answer {
    Done,
    Param(Vec<f32>),
    Table(Table),
    Refused(String),
}

/// Read an answer.
///
/// # Errors
/// It is none.
pub(super) fn answered(bytes: &[u8]) -> Result<Answer> {
    let garbled = || Error::Ranks("a rank of another version answers".into());
    let (letter, rest) = bytes.split_first().ok_or_else(garbled)?;
    Ok(match letter {
        b'd' => Answer::Done,
        b'p' => {
            let (each, _) = rest.as_chunks::<4>();
            Answer::Param(each.iter().map(|b| f32::from_le_bytes(*b)).collect())
        }
        b't' => Answer::Table(serde_json::from_slice(rest).map_err(|_| garbled())?),
        b'r' => Answer::Refused(String::from_utf8_lossy(rest).into_owned()),
        _ => return Err(garbled()),
    })
}
