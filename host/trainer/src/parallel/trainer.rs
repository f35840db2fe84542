//! Ranks as threads of one process, and the one who tells them what to do.
//!
//! It offers what [`crate::Trainer`] offers. A rank that fails, panics or stays away ends the work of all of them, and the
//! caller gets one error that names it; the trainer is of no use after that, and a new one continues from the last
//! checkpoint. Read [`super::rank`] for what a rank does.

use super::layout::ParallelConfig;
use super::mesh::{Meeting, Mesh};
use super::rank::Rank;
use super::shard::paste;
use super::stage::cut_from;
use super::whole::Holders;
use crate::config::TrainConfig;
use crate::metrics::TrainMetrics;
use crate::trainer::{OwnSequence, SftSequence, TokenScores};
use crate::{Error, Result};
use slime_core::RolloutRecord;
use slime_kernels::Ops;
use slime_kernels::comm::World;
use slime_kernels::cuda::Cuda;
use slime_model::{LayerSpec, ModelSpec, ParamSpec, params};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long ranks wait for each other before they give up.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// Reads whole parameters, `[rows × cols]`; every rank asks for those it has a part of.
pub type Weights = Arc<dyn Fn(&ParamSpec) -> Result<Vec<f32>> + Send + Sync>;

/// Is given a run of whole parameters, which lies on the device, and its number.
pub type Take<O> = Arc<dyn Fn(&O, usize, <O as Ops>::Tensor) -> Result<()> + Send + Sync>;

/// Makes a rank's device and its groups.
pub type Launch<O> = Arc<dyn Fn(usize, &Arc<World>) -> Result<(Arc<O>, Mesh<O>)> + Send + Sync>;

fn launch<O: Ops>(
    training: &Training,
    device: impl Fn(usize) -> Result<Arc<O>> + Send + Sync + 'static,
    meet: Meeting<O, World>,
) -> Launch<O> {
    let (parallel, kv) = (training.parallel.clone(), key_heads(&training.spec));
    Arc::new(move |rank, world| {
        let ops = device(rank)?;
        let mesh = meet(&ops, world, &parallel, kv, rank)?;
        Ok((ops, mesh))
    })
}

/// Ranks that meet in this process's memory, each on what `device` gives it.
pub fn threads<O: Ops>(
    training: &Training,
    device: impl Fn(usize) -> Result<Arc<O>> + Send + Sync + 'static,
) -> Launch<O> {
    launch(training, device, Mesh::of_threads)
}

/// Ranks that meet over NCCL, each on the GPU that `device` gives it.
pub fn gpus(
    training: &Training,
    device: impl Fn(usize) -> Result<Arc<Cuda>> + Send + Sync + 'static,
) -> Launch<Cuda> {
    launch(training, device, Mesh::of_gpus)
}

type Job<O> = Box<dyn FnOnce(&mut Option<Rank<O>>) + Send>;

/// What a model is trained as.
#[derive(Clone)]
pub struct Training {
    /// The model.
    pub spec: Arc<ModelSpec>,
    /// How it is trained.
    pub config: TrainConfig,
    /// How it is spread over ranks.
    pub parallel: ParallelConfig,
    /// Ids from here on are no tokens.
    pub vocab: usize,
}

/// A trainer of several ranks.
pub struct ParallelTrainer<O: Ops> {
    training: Training,
    params: Arc<[ParamSpec]>,
    holders: Arc<Holders>,
    world: Arc<World>,
    patience: Duration,
    jobs: Vec<Sender<Job<O>>>,
    threads: Vec<JoinHandle<()>>,
}

impl<O: Ops> ParallelTrainer<O> {
    /// Start the ranks as threads that meet on the host; `device(rank)` is what each computes on.
    ///
    /// # Errors
    /// Every problem of the configuration; a device without room.
    pub fn of_threads(
        training: Training,
        weights: Weights,
        device: impl Fn(usize) -> Result<Arc<O>> + Send + Sync + 'static,
        patience: Duration,
    ) -> Result<Self> {
        let launch = threads(&training, device);
        Self::start(training, weights, launch, patience)
    }

    /// Start the ranks as threads, with groups that `launch` makes.
    ///
    /// # Errors
    /// As [`Self::of_threads`].
    pub fn start(
        training: Training,
        weights: Weights,
        launch: Launch<O>,
        patience: Duration,
    ) -> Result<Self> {
        let mut problems = training.parallel.problems(&training.spec);
        if let Err(more) = training.config.validate() {
            problems.extend(more);
        }
        if !problems.is_empty() {
            return Err(Error::Config(problems));
        }
        let (size, all) = (training.parallel.world(), params(&training.spec));
        let holders = Holders::of(&training.spec, &all, &training.parallel)?;
        let world = World::new(size, patience);
        let (mut jobs, mut threads) = (Vec::new(), Vec::new());
        for rank in 0..size {
            let (sender, receiver): (Sender<Job<O>>, Receiver<Job<O>>) = channel();
            let body = move || {
                let mut own = None;
                while let Ok(job) = receiver.recv() {
                    job(&mut own);
                }
            };
            let thread = std::thread::Builder::new().name(format!("rank-{rank}"));
            let thread = thread
                .spawn(body)
                .map_err(Error::io("a thread of a rank"))?;
            jobs.push(sender);
            threads.push(thread);
        }
        let trainer = Self {
            params: all.into(),
            holders: Arc::new(holders),
            training,
            world,
            patience,
            jobs,
            threads,
        };
        let (training, world) = (trainer.training.clone(), trainer.world.clone());
        trainer.ask(move |rank, own| {
            let (ops, mesh) = launch(rank, &world)?;
            let Training {
                spec,
                config,
                parallel,
                vocab,
            } = training.clone();
            let make = cut_from(&*ops, &*weights);
            let made = Rank::new(ops.clone(), spec, mesh, (config, parallel), vocab, &make)?;
            *own = Some(made);
            Ok(())
        })?;
        Ok(trainer)
    }

    /// Give it the reference model's weights.
    ///
    /// # Errors
    /// They do not fit the model, or a rank failed.
    pub fn with_reference(self, weights: Weights) -> Result<Self> {
        self.on_all(move |rank| {
            let ops = rank.ops.clone();
            rank.set_reference(&cut_from(&*ops, &*weights))
        })?;
        Ok(self)
    }

    /// Give it the weights of a teacher to distil from: any model over the same tokens that the layout fits.
    ///
    /// # Errors
    /// The layout does not fit it, its tokens are others, or a rank failed.
    pub fn with_teacher(self, spec: Arc<ModelSpec>, weights: Weights) -> Result<Self> {
        self.on_all(move |rank| {
            let ops = rank.ops.clone();
            rank.set_teacher(spec.clone(), &cut_from(&*ops, &*weights))
        })?;
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

    /// What is trained, and how.
    pub(super) fn training(&self) -> &Training {
        &self.training
    }

    /// The configuration.
    pub fn config(&self) -> &TrainConfig {
        &self.training.config
    }

    /// Names and shapes of the model's parameters, in order.
    pub fn params(&self) -> &Arc<[ParamSpec]> {
        &self.params
    }

    /// Train on the records of one rollout step, as [`crate::Trainer::train`] does.
    ///
    /// # Errors
    /// A record that cannot be trained on (nothing is trained then), or a rank failed.
    pub fn train(&mut self, records: &[RolloutRecord]) -> Result<Vec<TrainMetrics>> {
        let records: Arc<[RolloutRecord]> = records.into();
        let mut all = self.on_all(move |rank| rank.train(&records))?;
        Ok(all.swap_remove(0))
    }

    /// One step of supervised fine-tuning, as [`crate::Trainer::sft_step`].
    ///
    /// # Errors
    /// A sequence that cannot be trained on (nothing is trained then), or a rank failed.
    pub fn sft_step(&mut self, sequences: &[SftSequence<'_>]) -> Result<TrainMetrics> {
        let sequences: Arc<[OwnSequence]> = sequences.iter().map(SftSequence::owned).collect();
        let mut all = self.on_all(move |rank| rank.sft_step(&sequences))?;
        Ok(all.swap_remove(0))
    }

    /// Log-probs and entropies of every token but the first, as [`crate::Trainer::log_probs`].
    ///
    /// # Errors
    /// A sequence the model cannot take, or a rank failed.
    pub fn log_probs(&self, sequences: &[&[u32]]) -> Result<Vec<TokenScores>> {
        let sequences: Arc<[Vec<u32>]> = sequences.iter().map(|s| s.to_vec()).collect();
        let mut all = self.on_all(move |rank| rank.log_probs(&sequences))?;
        Ok(all.swap_remove(0))
    }

    /// Updates made since the run began.
    ///
    /// # Errors
    /// A rank failed.
    pub fn num_updates(&self) -> Result<u64> {
        Ok(self.on_all(|rank| Ok(rank.optimizer.progress.num_updates))?[0])
    }

    /// Learning rate of the next step.
    ///
    /// # Errors
    /// A rank failed.
    pub fn lr(&self) -> Result<f64> {
        Ok(self.on_all(|rank| Ok(rank.optimizer.lr()))?[0])
    }

    /// One parameter's present values, `[rows × cols]`.
    ///
    /// # Errors
    /// A rank failed, or the parameter is of another model.
    pub fn read_param(&self, param: &ParamSpec) -> Result<Vec<f32>> {
        let (at, holders) = (self.index_of(param)?, self.holders.clone());
        let held = self.on_all(move |rank| match holders.gives(rank.mesh.place.rank, at) {
            true => Ok(rank.ops.read(&rank.stage.weights.0[at])?),
            false => Ok(Vec::new()),
        })?;
        Ok(self.holders.paste(at, &self.params[at], &held))
    }

    /// The present values of all parameters, in order, as tensors in the keeping of `to`. They meet on rank 0's device,
    /// about `at_once` elements at a time, and take no way over the host where ranks and `to` are GPUs and `to` is rank 0's.
    ///
    /// # Errors
    /// A rank failed, or a device is full.
    pub fn copy_to(&self, to: &Arc<O>, at_once: usize) -> Result<Vec<O::Tensor>> {
        let (to, holders) = (to.clone(), self.holders.clone());
        let mut all = self.on_all(move |rank| {
            let mut copies = Vec::new();
            rank.each_whole(&holders, at_once, |tensors| {
                copies.extend(to.adopt(&*rank.ops, &tensors)?);
                Ok(())
            })?;
            Ok(copies)
        })?;
        Ok(all.swap_remove(0))
    }

    /// Have `runs` of parameters, by number, whole on rank 0's device, each as one row with its parameters end to end, one
    /// after the other; `take` is given each there, with the run's number.
    ///
    /// # Errors
    /// What `take` returns, which ends the work of all ranks; a rank failed, or the device is full.
    pub fn each_run(&self, runs: Arc<[Vec<usize>]>, take: Take<O>) -> Result<()> {
        let holders = self.holders.clone();
        self.on_all(move |rank| {
            rank.each_run(&holders, &runs, |number, run| take(&rank.ops, number, run))
        })?;
        Ok(())
    }

    /// What [`Self::read_param`] gives without rounding to f32, and from every rank that has it.
    ///
    /// # Errors
    /// As [`Self::read_param`].
    pub fn read_param_f64(&self, param: &ParamSpec) -> Result<Vec<f64>> {
        let at = self.index_of(param)?;
        let held = self.on_all(move |rank| {
            rank.ops
                .read_f64(&rank.stage.weights.0[at])
                .map_err(Error::from)
        })?;
        self.assembled(at, held)
    }

    /// The last step's gradient of one parameter, `[rows × cols]`, before clipping, summed over data-parallel ranks.
    ///
    /// # Errors
    /// As [`Self::read_param`].
    pub fn read_gradient(&self, param: &ParamSpec) -> Result<Vec<f64>> {
        let at = self.index_of(param)?;
        let held = self.on_all(move |rank| {
            let grad = rank.ops.read_float_f64(&rank.grads.0[at])?;
            let group = rank.mesh.replicas(rank.stage.shards[at].is_expert);
            Ok((group.rank(), grad))
        })?;
        let mut sum = vec![0.0; param.len()];
        let replicas = held.iter().map(|(replica, _)| replica + 1).max();
        for replica in 0..replicas.unwrap_or(0) {
            let own = held.iter().map(|(of, grad)| match *of == replica {
                true => grad.clone(),
                false => Vec::new(),
            });
            let whole = self.assembled(at, own.collect())?;
            sum.iter_mut().zip(whole).for_each(|(sum, x)| *sum += x);
        }
        Ok(sum)
    }

    /// What the ranks hold of a parameter, laid together. A rank that gives nothing is passed over.
    fn assembled<T: Copy + Default>(&self, at: usize, held: Vec<Vec<T>>) -> Result<Vec<T>> {
        let param = &self.params[at];
        let mut whole = vec![T::default(); param.len()];
        let shards = self.on_all(move |rank| Ok(rank.stage.shards[at].clone()))?;
        for (shard, held) in shards.iter().zip(held) {
            if !held.is_empty() {
                paste(param, shard, &held, &mut whole);
            }
        }
        Ok(whole)
    }

    fn index_of(&self, param: &ParamSpec) -> Result<usize> {
        let found = self.params.iter().position(|p| p.name == param.name);
        found.ok_or_else(|| {
            let detail = format!("{} is no parameter of this model", param.name);
            slime_model::Error::Input(detail).into()
        })
    }

    /// Have every rank do the same and gather what each gives, in rank order.
    ///
    /// # Errors
    /// What the ranks refuse; or the first failure of one of them, which ends the work of all.
    pub fn on_all<R: Send + 'static>(
        &self,
        work: impl Fn(&mut Rank<O>) -> Result<R> + Send + Sync + 'static,
    ) -> Result<Vec<R>> {
        self.ask(move |_, own| work(own.as_mut().expect("the first job made the rank")))
    }

    fn ask<R: Send + 'static>(
        &self,
        work: impl Fn(usize, &mut Option<Rank<O>>) -> Result<R> + Send + Sync + 'static,
    ) -> Result<Vec<R>> {
        if let Some(reason) = self.world.ended() {
            return Err(Error::Ranks(reason));
        }
        let work = Arc::new(work);
        let (answer, answers) = channel();
        for (rank, jobs) in self.jobs.iter().enumerate() {
            let (work, answer, world) = (work.clone(), answer.clone(), self.world.clone());
            let job: Job<O> = Box::new(move |own| {
                let result = catch_unwind(AssertUnwindSafe(|| work(rank, own)));
                let result = result.unwrap_or_else(|panic| {
                    Err(Error::Ranks(format!("it panicked: {}", words(&*panic))))
                });
                if let Err(error) = &result
                    && !is_refusal(error)
                {
                    world.end(format!("rank {rank} failed: {error}"));
                }
                // Nobody listens any more if the caller has given up.
                let _ = answer.send((rank, result));
            });
            // A rank's thread ends only with this trainer.
            let _ = jobs.send(job);
        }
        drop(answer);
        self.gather(&answers)
    }

    /// Every rank's answer. After a failure the others get as long as they would wait for each other, and no longer.
    fn gather<R>(&self, answers: &Receiver<(usize, Result<R>)>) -> Result<Vec<R>> {
        let mut given: Vec<Option<Result<R>>> = (0..self.jobs.len()).map(|_| None).collect();
        let mut deadline: Option<Instant> = None;
        while given.iter().any(Option::is_none) {
            let left = deadline.map_or(Duration::from_secs(1), |at| {
                at.saturating_duration_since(Instant::now())
            });
            match answers.recv_timeout(left) {
                Ok((rank, result)) => given[rank] = Some(result),
                Err(RecvTimeoutError::Timeout) if deadline.is_some() => break,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            if deadline.is_none() && self.world.ended().is_some() {
                deadline = Some(Instant::now() + self.patience);
            }
        }
        if let Some(reason) = self.world.ended() {
            let silent: Vec<String> = (0..given.len())
                .filter(|&rank| given[rank].is_none())
                .map(|rank| rank.to_string())
                .collect();
            return Err(Error::Ranks(match silent.is_empty() {
                true => reason,
                false => format!("{reason}; rank {} does not answer", silent.join(", ")),
            }));
        }
        let missing = || Err(Error::Ranks("a rank's thread has ended".into()));
        given
            .into_iter()
            .map(|g| g.unwrap_or_else(missing))
            .collect()
    }
}

impl<O: Ops> Drop for ParallelTrainer<O> {
    fn drop(&mut self) {
        self.jobs.clear();
        let broken = self.world.ended().is_some();
        for thread in self.threads.drain(..) {
            // After a failure a rank may never come back; it is left behind rather than waited for.
            if !broken || thread.is_finished() {
                let _ = thread.join();
            }
        }
    }
}

/// Refused for the same reason on every rank, before anything was sent.
pub(super) fn is_refusal(error: &Error) -> bool {
    matches!(
        error,
        Error::Config(_)
            | Error::Record { .. }
            | Error::Sequence { .. }
            | Error::Empty
            | Error::NoReference(_)
            | Error::NoTeacher
            | Error::Checkpoint { .. }
            | Error::OtherModel { .. }
    )
}

pub(super) fn words(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "without words".into())
}

/// Key heads of the model's layers of grouped queries, of which all have equally many; in other layers no head is shared.
pub fn key_heads(spec: &ModelSpec) -> usize {
    let kv = |layer: &LayerSpec| layer.attn.grouped().map(|attn| attn.heads.kv);
    spec.layers.iter().find_map(kv).unwrap_or(usize::MAX)
}
