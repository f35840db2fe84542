//! Ranks as processes: rank 0 leads and computes its part, the others follow.
//!
//! [`ProcessTrainer`] offers what [`crate::Trainer`] offers, in rank 0's process; every other rank runs [`follow`] until the
//! leader ends or is lost. A rank that fails or is lost ends the work of all within seconds, with one error that names it;
//! whoever placed the ranks starts them again, and they continue from the last checkpoint. It gives the same bits as
//! [`super::ParallelTrainer`] of the same layout. Read [`order`] for what is said.

mod order;

use super::checkpoint::index_of;
use super::layout::ParallelConfig;
use super::mesh::Meeting;
use super::place::{Axis, Place};
use super::rank::Rank;
use super::shard::{Shard, paste, shards};
use super::stage::cut_from;
use super::trainer::{Training, Weights, is_refusal, key_heads};
use crate::checkpoint::dir::Staging;
use crate::checkpoint::{INDEX, Index};
use crate::config::Problem;
use crate::metrics::TrainMetrics;
use crate::trainer::{SftSequence, TokenScores};
use crate::{Error, Result};
use order::{Answer, Done, Order, answer, answered, obey, refusal};
use slime_core::{RolloutRecord, Step};
use slime_kernels::Ops;
use slime_kernels::comm::{Meet, Processes};
use slime_model::{ModelSpec, ParamSpec, params};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// This process's rank of a trainer. `meet` makes its groups: [`Mesh::of_processes`](super::Mesh::of_processes), or between GPUs
/// [`Mesh::of_gpus`](super::Mesh::of_gpus).
///
/// # Errors
/// Every problem of the configuration; as many processes as the layout has ranks are wanted; weights that cannot be read.
pub fn member<O: Ops>(
    ops: &Arc<O>,
    processes: &Arc<Processes>,
    training: &Training,
    weights: &Weights,
    meet: Meeting<O, Processes>,
) -> Result<Rank<O>> {
    let Training {
        spec,
        config,
        parallel,
        vocab,
    } = training.clone();
    let mut problems = parallel.problems(&spec);
    if let Err(more) = config.validate() {
        problems.extend(more);
    }
    if parallel.world() != processes.size() {
        let (ranks, processes) = (parallel.world(), processes.size());
        problems.push(Problem {
            key: "data_parallel_size",
            detail: format!(
                "the layout has {ranks} ranks and {processes} processes were started: make both the same"
            ),
        });
    }
    if !problems.is_empty() {
        return Err(Error::Config(problems));
    }
    let rank = processes.rank();
    let mesh = meet(ops, processes, &parallel, key_heads(&spec), rank)?;
    let make = cut_from(&**ops, &**weights);
    Rank::new(ops.clone(), spec, mesh, (config, parallel), vocab, &make)
}

/// Obey rank 0 until it ends.
///
/// # Errors
/// This rank failed, or another one did or is lost.
pub fn follow<O: Ops>(rank: &mut Rank<O>, processes: &Processes) -> Result<()> {
    loop {
        let words = processes.hear(0, None)?;
        let order: Order = serde_json::from_slice(&words)
            .map_err(|e| fail(processes, format!("it cannot read an order: {e}")))?;
        let said = match careful(processes, || obey(rank, &order))? {
            Ok(Some(done)) => answer(&done)?,
            Ok(None) => return Ok(()),
            Err(refused) => refusal(&refused),
        };
        processes.tell(0, &said)?;
    }
}

/// End the work of all because this rank failed.
fn fail(processes: &Processes, how: impl std::fmt::Display) -> Error {
    let reason = format!("rank {} failed: {how}", processes.rank());
    processes.end(reason.clone());
    Error::Ranks(processes.ended().unwrap_or(reason))
}

/// Do work of this rank. The inner result is what every rank refuses; a failure or panic ends the work of all.
fn careful<R>(processes: &Processes, work: impl FnOnce() -> Result<R>) -> Result<Result<R>> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(Ok(done)),
        Ok(Err(error)) if is_refusal(&error) => Ok(Err(error)),
        // What ended the others says more than what it led to here.
        Ok(Err(error)) => Err(match processes.ended() {
            Some(reason) => Error::Ranks(reason),
            None => fail(processes, error),
        }),
        Err(panic) => Err(fail(
            processes,
            format!("it panicked: {}", super::trainer::words(&*panic)),
        )),
    }
}

/// A trainer of several processes, in the process of rank 0.
pub struct ProcessTrainer<O: Ops> {
    training: Training,
    params: Arc<[ParamSpec]>,
    processes: Arc<Processes>,
    patience: Duration,
    /// What each rank holds of each parameter.
    shards: Vec<Vec<Shard>>,
    rank: Mutex<Rank<O>>,
}

impl<O: Ops> ProcessTrainer<O> {
    /// Lead the ranks that have met; each of the others makes its [`member`] of the same weights and follows.
    ///
    /// # Errors
    /// As [`member`].
    pub fn lead(
        ops: &Arc<O>,
        processes: Arc<Processes>,
        training: Training,
        weights: &Weights,
        meet: Meeting<O, Processes>,
        patience: Duration,
    ) -> Result<Self> {
        let rank = member(ops, &processes, &training, weights, meet)?;
        let (spec, parallel) = (&training.spec, &training.parallel);
        let params: Arc<[ParamSpec]> = params(spec).into();
        let each = (0..processes.size()).map(|rank| {
            let held = shards(spec, &params, parallel, &Place::new(parallel, rank));
            held.map_err(|detail| {
                let key = "pipeline_model_parallel_size";
                Error::Config(vec![Problem { key, detail }])
            })
        });
        Ok(Self {
            shards: each.collect::<Result<_>>()?,
            rank: Mutex::new(rank),
            params,
            training,
            processes,
            patience,
        })
    }

    /// Give this rank its part of the reference; the others take theirs before they follow.
    ///
    /// # Errors
    /// The weights do not fit.
    pub fn with_reference(self, weights: &Weights) -> Result<Self> {
        let mut rank = self.own();
        let ops = rank.ops.clone();
        rank.set_reference(&cut_from(&*ops, &**weights))?;
        drop(rank);
        Ok(self)
    }

    /// Give this rank its part of a teacher; the others take theirs before they follow.
    ///
    /// # Errors
    /// The layout does not fit it, or its tokens are others.
    pub fn with_teacher(self, spec: Arc<ModelSpec>, weights: &Weights) -> Result<Self> {
        let mut rank = self.own();
        let ops = rank.ops.clone();
        rank.set_teacher(spec, &cut_from(&*ops, &**weights))?;
        drop(rank);
        Ok(self)
    }

    /// The model.
    pub fn spec(&self) -> &Arc<ModelSpec> {
        &self.training.spec
    }

    /// How the model is spread.
    pub fn parallel(&self) -> &ParallelConfig {
        &self.training.parallel
    }

    /// Who has met.
    pub fn processes(&self) -> &Arc<Processes> {
        &self.processes
    }

    fn own(&self) -> MutexGuard<'_, Rank<O>> {
        self.rank.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Have `ranks` do the same; what this one gave, and what the others answered, in their order.
    fn order(
        &self,
        order: &Order,
        ranks: &[usize],
    ) -> Result<(Option<Done>, Vec<(usize, Answer)>)> {
        let words = serde_json::to_vec(order).map_err(|e| Error::Ranks(e.to_string()))?;
        let others: Vec<usize> = ranks.iter().copied().filter(|&rank| rank != 0).collect();
        for &rank in &others {
            self.processes.tell(rank, &words)?;
        }
        let own = match ranks.contains(&0) {
            true => careful(&self.processes, || obey(&mut self.own(), order))?,
            false => Ok(None),
        };
        let mut answers = Vec::with_capacity(others.len());
        for rank in others {
            let bytes = self.processes.hear(rank, Some(self.patience))?;
            answers.push((rank, answered(&bytes)?));
        }
        // All ranks refuse the same, and this one knows it with its type.
        let own = own?;
        let refused = answers.iter().find_map(|(rank, answer)| match answer {
            Answer::Refused(why) => Some(format!("rank {rank}: {why}")),
            _ => None,
        });
        match refused {
            Some(why) => Err(Error::Ranks(why)),
            None => Ok((own, answers)),
        }
    }

    fn all(&self) -> Vec<usize> {
        (0..self.processes.size()).collect()
    }

    /// Train on the records of one rollout step, as [`crate::Trainer::train`] does.
    ///
    /// # Errors
    /// A record that cannot be trained on (nothing is trained then), or a rank failed or is lost.
    pub fn train(&mut self, records: &[RolloutRecord]) -> Result<Vec<TrainMetrics>> {
        match self.order(&Order::Train(records.to_vec()), &self.all())? {
            (Some(Done::Trained(metrics)), _) => Ok(metrics),
            _ => Err(unexpected()),
        }
    }

    /// One step of supervised fine-tuning, as [`crate::Trainer::sft_step`].
    ///
    /// # Errors
    /// A sequence that cannot be trained on (nothing is trained then), or a rank failed or is lost.
    pub fn sft_step(&mut self, sequences: &[SftSequence<'_>]) -> Result<TrainMetrics> {
        let sequences = sequences.iter().map(SftSequence::owned).collect();
        match self.order(&Order::FineTune(sequences), &self.all())? {
            (Some(Done::FineTuned(metrics)), _) => Ok(*metrics),
            _ => Err(unexpected()),
        }
    }

    /// Log-probs and entropies of every token but the first, as [`crate::Trainer::log_probs`].
    ///
    /// # Errors
    /// A sequence the model cannot take, or a rank failed or is lost.
    pub fn log_probs(&self, sequences: &[&[u32]]) -> Result<Vec<TokenScores>> {
        let sequences = sequences.iter().map(|s| s.to_vec()).collect();
        match self.order(&Order::LogProbs(sequences), &self.all())? {
            (Some(Done::Scored(scores)), _) => Ok(scores),
            _ => Err(unexpected()),
        }
    }

    /// One parameter's present values, `[rows × cols]`.
    ///
    /// # Errors
    /// A rank failed or is lost, or the parameter is of another model.
    pub fn read_param(&self, param: &ParamSpec) -> Result<Vec<f32>> {
        let at = self.params.iter().position(|p| p.name == param.name);
        let at = at.ok_or_else(|| {
            let detail = format!("{} is no parameter of this model", param.name);
            slime_model::Error::Input(detail)
        })?;
        let holders: Vec<usize> = self
            .all()
            .into_iter()
            .filter(|&r| self.holds(r, at))
            .collect();
        let (own, answers) = self.order(&Order::Param(at), &holders)?;
        let mut whole = vec![0.0; param.len()];
        if let Some(Done::Param(held)) = own {
            paste(param, &self.shards[0][at], &held, &mut whole);
        }
        for (rank, answer) in answers {
            let Answer::Param(held) = answer else {
                return Err(unexpected());
            };
            paste(param, &self.shards[rank][at], &held, &mut whole);
        }
        Ok(whole)
    }

    /// A rank has something of a parameter, and is the first of those that have the same.
    fn holds(&self, rank: usize, param: usize) -> bool {
        let (shard, place) = (&self.shards[rank][param], Place::new(self.parallel(), rank));
        let replicas = match shard.is_expert {
            true => place.expert_replicas(),
            false => place.group(&[Axis::Cp, Axis::Dp]),
        };
        !shard.is_empty() && replicas.first() == Some(&rank)
    }

    /// Write a checkpoint to `dir`, which says that `step` rollout steps are finished; every rank writes its part, on a disk
    /// that all of them see.
    ///
    /// # Errors
    /// The disk failed or is full, or a rank failed; what was there before is then still there.
    pub fn save(&self, dir: &Path, step: Step) -> Result<()> {
        let staging = Staging::new(dir)?;
        let path = std::path::absolute(staging.path()).map_err(Error::io(dir))?;
        let (Some(Done::Wrote(table, counters)), answers) =
            self.order(&Order::Write(path), &self.all())?
        else {
            return Err(unexpected());
        };
        let mut tables = vec![table];
        for (rank, answer) in answers {
            let Answer::Table(table) = answer else {
                return Err(unexpected());
            };
            let files = table
                .values()
                .flat_map(|entry| &entry.pieces)
                .map(|piece| &piece.file);
            // A directory of the same name on a disk of its own would give a checkpoint with holes.
            if let Some(file) = files
                .into_iter()
                .find(|file| !staging.path().join(file).is_file())
            {
                return Err(Error::Checkpoint {
                    path: dir.to_owned(),
                    detail: format!(
                        "rank {rank} wrote {file} to a disk that rank 0 does not see: put run.dir on one they share"
                    ),
                });
            }
            tables.push(table);
        }
        let index = index_of(&self.training, step, counters, tables.into_iter());
        staging.write(INDEX, index.to_text().as_bytes())?;
        staging.publish()
    }

    /// Continue from the checkpoint in `dir`, written by any layout, or by one rank → the rollout steps that were finished.
    ///
    /// # Errors
    /// It is of another model, damaged or of another precision; or a rank failed or does not see it.
    pub fn load(&mut self, dir: &Path) -> Result<Step> {
        let step = Index::read(dir, self.spec(), &self.params)?.step;
        let path = std::path::absolute(dir).map_err(Error::io(dir))?;
        self.order(&Order::Read(path), &self.all())?;
        Ok(step)
    }
}

impl<O: Ops> Drop for ProcessTrainer<O> {
    fn drop(&mut self) {
        if let Ok(end) = serde_json::to_vec(&Order::End) {
            for rank in 1..self.processes.size() {
                // Whoever is lost needs no order to end.
                let _ = self.processes.tell(rank, &end);
            }
        }
    }
}

fn unexpected() -> Error {
    Error::Ranks("a rank answers something else than it was asked".into())
}
