//! A run whose ranks are processes, of `run` or `sft`: rank 0 is the controller, the others train what it says.
//!
//! The controller reads the recipe, holds the Data Buffer, samples, publishes and leads; every other rank is told the recipe
//! as it was resolved, so none can differ, and where weights and checkpoints lie, on a disk all of them see. Steps are agreed
//! on before the first: a run continues from the newest checkpoint that every rank sees whole. Read
//! `slime_trainer::parallel::processes` for what follows.

use super::learner::train_failed;
use super::run_dir;
use crate::config::{Plan, Problem, Said, Verb, resolve};
use crate::error::{Failure, Result};
use crate::wire::device::{Machine, on_device};
use crate::wire::model::{load_other, load_teacher, model_failed};
use crate::wire::{Computer, Model};
use serde::{Deserialize, Serialize};
use slime_core::Step;
use slime_core::ports::TextCodec;
use slime_kernels::comm::{Meet, Processes};
use slime_trainer::checkpoint;
use slime_trainer::parallel::stage::cut_from;
use slime_trainer::parallel::{Training, follow as obey, member};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long a rank may take to read the recipe and look for checkpoints.
const READY: Duration = Duration::from_secs(120);

/// Where a rank reads weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum From {
    /// The recipe's model.
    Model,
    /// An HF directory.
    Directory(PathBuf),
}

/// What ranks are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Work {
    /// Train on rollouts, as `run` does.
    Train,
    /// The warm-up of `run`; how to train follows.
    WarmUp,
    /// Fine-tune, as `sft` does.
    FineTune,
}

/// What the controller tells the others before they follow.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Begin {
    /// What they will be told to do.
    pub work: Work,
    /// The recipe as it was resolved.
    pub recipe: String,
    /// The run's directory.
    pub dir: PathBuf,
    /// What is trained, before a checkpoint is loaded.
    pub weights: From,
    /// What the KL is taken to, where there is one.
    pub reference: Option<From>,
    /// An HF directory of the teacher, where it is in the trainer.
    pub teacher: Option<PathBuf>,
}

/// Tell every rank how to begin → the steps of which all of them see a checkpoint, in order.
///
/// # Errors
/// A rank is lost, or refuses.
pub fn begin(processes: &Processes, begin: &Begin, own: Vec<Step>) -> Result<Vec<Step>> {
    let words = serde_json::to_vec(begin).map_err(|e| Failure::run(e.to_string()))?;
    for rank in 1..processes.size() {
        processes.tell(rank, &words).map_err(lost)?;
    }
    let mut seen = own;
    for rank in 1..processes.size() {
        let words = processes.hear(rank, Some(READY)).map_err(lost)?;
        let theirs: Vec<u64> = serde_json::from_slice(&words).map_err(|_| {
            Failure::run(format!("rank {rank} is of another version of this program"))
        })?;
        seen.retain(|step| theirs.contains(&step.0));
    }
    Ok(seen)
}

/// A rank is lost, or failed.
pub fn lost(reason: impl std::fmt::Display) -> Failure {
    Failure::elsewhere(reason.to_string())
        .help("the run continues from its last checkpoint: start its ranks again with --resume")
}

/// Follow the controller until the run ends.
///
/// # Errors
/// The recipe cannot be read here, this rank failed, or another one did or is lost.
pub fn follow(processes: &Arc<Processes>) -> Result<()> {
    loop {
        let words = match processes.hear(0, None) {
            Ok(words) => words,
            // The controller had nothing to do, and said so by leaving.
            Err(_) if processes.ended().is_none() => return Ok(()),
            Err(error) => return Err(lost(error)),
        };
        let begin: Begin = serde_json::from_slice(&words).map_err(|e| {
            Failure::run(format!("rank 0 is of another version of this program: {e}"))
        })?;
        let result = begun(processes, &begin);
        if let Err(failure) = &result
            && processes.ended().is_none()
        {
            processes.end(format!("rank {} failed: {failure}", processes.rank()));
        }
        if result.is_err() || begin.work != Work::WarmUp {
            return result;
        }
    }
}

fn begun(processes: &Arc<Processes>, begin: &Begin) -> Result<()> {
    let name = begin.dir.join(run_dir::RESOLVED).display().to_string();
    let said = resolve(Said {
        base: Some((name, begin.recipe.clone())),
        ..Said::default()
    })?;
    let verb = match begin.work {
        Work::Train | Work::WarmUp => Verb::Run,
        Work::FineTune => Verb::Sft,
    };
    let plan = Plan::without_servers(&said, verb)?;
    processes.set_patience(plan.ranks.patience);
    let model = Model::open(&plan.model, &said, plan.seed)?;
    let steps = checkpoint::steps(&begin.dir.join(run_dir::CHECKPOINTS)).map_err(train_failed)?;
    let steps: Vec<u64> = steps.into_iter().map(|step| step.0).collect();
    let steps = serde_json::to_vec(&steps).map_err(|e| Failure::run(e.to_string()))?;
    let device = plan.model.device;
    let computer = Computer::open(device).map_err(|p| p.at(said.place("model.device")))?;
    processes.tell(0, &steps).map_err(lost)?;
    on_device!(computer, ops => rank(&ops, processes, begin, &plan, &model))
}

fn rank<O: Machine>(
    ops: &Arc<O>,
    processes: &Arc<Processes>,
    begin: &Begin,
    plan: &Plan,
    model: &Model,
) -> Result<()> {
    let config = match (begin.work, &plan.sft) {
        (Work::WarmUp | Work::FineTune, Some(sft)) => &sft.train,
        _ => &plan.train,
    };
    let training = Training {
        spec: model.spec.clone(),
        config: config.clone(),
        parallel: plan.ranks.parallel.clone(),
        vocab: model.text.vocab_size(),
    };
    let read = |from: &From| -> Result<_> {
        let weights = match from {
            From::Model => model.load(&**ops),
            From::Directory(dir) => load_other(model, dir, &**ops),
        };
        Ok(super::ranks::source(
            ops.clone(),
            &model.spec,
            weights.map_err(model_failed)?,
        ))
    };
    let mut own = member(
        ops,
        processes,
        &training,
        &read(&begin.weights)?,
        O::MEETING,
    )
    .map_err(train_failed)?;
    if let Some(reference) = &begin.reference {
        let weights = read(reference)?;
        own.set_reference(&cut_from(&**ops, &*weights))
            .map_err(train_failed)?;
    }
    if let Some(teacher) = &begin.teacher {
        let (spec, weights) = load_teacher(model, teacher, &**ops).map_err(model_failed)?;
        let weights = super::ranks::source(ops.clone(), &spec, weights);
        own.set_teacher(spec, &cut_from(&**ops, &*weights))
            .map_err(train_failed)?;
    }
    obey(&mut own, processes).map_err(train_failed)
}

/// Tell every rank that the run cannot begin or go on.
pub fn give_up(processes: &Processes, failure: &Failure) {
    if processes.ended().is_none() {
        processes.end(format!("rank 0 failed: {failure}"));
    }
}

/// Returns once a rank is lost.
pub async fn loss(processes: Option<&Arc<Processes>>) -> Failure {
    let Some(processes) = processes else {
        return std::future::pending().await;
    };
    loop {
        if let Some(reason) = processes.ended() {
            return lost(reason);
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// No step that all ranks see, although there are checkpoints.
pub fn none_in_common(dir: &Path) -> Failure {
    Problem::new(format!(
        "no checkpoint in {} is seen whole by every rank",
        dir.display()
    ))
    .help("put run.dir on a disk that all nodes share")
    .into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_kernels::comm::tcp::{Rendezvous, Timing};

    #[test]
    fn a_run_continues_from_the_newest_checkpoint_that_every_rank_sees() {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        drop(listener);
        let join = move |rank| {
            let (host, run) = ("127.0.0.1".to_owned(), "test".to_owned());
            let at = Rendezvous {
                rank,
                size: 3,
                host,
                port,
                run,
            };
            Processes::join(
                &at,
                Timing::new(Duration::from_secs(5), Duration::from_secs(5)),
            )
            .unwrap()
        };
        let begin = Begin {
            work: Work::Train,
            recipe: "seed = 1\n".into(),
            dir: "run".into(),
            weights: From::Model,
            reference: Some(From::Directory("reference".into())),
            teacher: None,
        };
        let agreed = std::thread::scope(|scope| {
            for (rank, steps) in [(1, "[0,3,6,9]"), (2, "[3,6,7]")] {
                let begin = &begin;
                scope.spawn(move || {
                    let processes = join(rank);
                    let words = processes.hear(0, None).unwrap();
                    assert_eq!(&serde_json::from_slice::<Begin>(&words).unwrap(), begin);
                    processes.tell(0, steps.as_bytes()).unwrap();
                });
            }
            super::begin(&join(0), &begin, vec![Step(3), Step(6), Step(9)]).unwrap()
        });
        assert_eq!(agreed, [Step(3), Step(6)]);
    }
}
