//! A run on real parts: from what was opened to a [`Job`], and from its end to the files it leaves.

use super::evals::Evals;
use super::hand_over::Beside;
use super::journal::RunJournal;
use super::learner::Learner;
use super::opened::Opened;
use super::publish::{Publishing, SelfCheck, Versions};
use super::reload::Hot;
use super::row::AXIS;
use super::start::{Held, learner};
use super::stop::{self, Stop};
use super::team;
use super::watch::Watch;
use super::{End, Evaluate, Job, Learn, Queue, Sample, Teach, run_dir};
use crate::config::Dtype;
use crate::config::plan::Weights;
use crate::error::{Failure, Result, at_path};
use crate::telemetry::console::{self, COLUMNS, Console};
use crate::telemetry::{Telemetry, Trace, metrics, report};
use crate::wire::caster;
use crate::wire::device::Machine;
use crate::wire::device::on_device;
use crate::wire::dry_run::dry_run;
use crate::wire::{Computer, Serving, Whose, refused, rollout_failed};
use slime_core::ports::{BoxFuture, TextCodec};
use slime_core::{RolloutRecord, Step, WeightVersion};
use slime_kernels::comm::Processes;
use slime_model::hf;
use slime_rollout::publish::Transport;
use slime_rollout::{
    Address, Buffer, Collected, Conservation, Continuous, Fence, Publisher, RolloutError, Sampler,
    Start, Taken, Teacher,
};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// How long a publish waits for servers that are all gone: one may be starting again.
const PATIENCE: Duration = Duration::from_secs(900);

/// A run's directory and whether something is in it.
#[derive(Clone, Debug)]
pub struct Place {
    /// The directory.
    pub dir: PathBuf,
    /// Whether a run is continued.
    pub resume: bool,
    /// Whoever has it open is fenced off, not waited for.
    pub take_over: bool,
}

/// Run the loop to its end or until the person stops it.
///
/// # Errors
/// Whatever stopped it.
pub async fn run(
    opened: Opened,
    place: Place,
    processes: Option<Arc<Processes>>,
    console: &Console,
    trace: &Trace,
) -> Result<End> {
    let device = opened.plan.model.device;
    let computer = Computer::open(device).map_err(|p| p.at(opened.said.place("model.device")))?;
    on_device!(computer, ops => Box::pin(run_on(ops, opened, place, processes, console, trace)).await)
}

async fn run_on<O: Machine>(
    ops: Arc<O>,
    opened: Opened,
    place: Place,
    processes: Option<Arc<Processes>>,
    console: &Console,
    trace: &Trace,
) -> Result<End> {
    if !place.resume {
        // Before the database: a directory with a database can be resumed, and that needs the recipe.
        run_dir::write_recipe(&place.dir, &opened.said)?;
    }
    let (buffer, fence) = open_buffer(&opened, &place)?;
    let Place { dir, resume, .. } = &place;
    if let Some(processes) = &processes {
        processes.set_patience(opened.plan.ranks.patience);
    }
    let held = Held { fence, processes };
    let stop = Stop::listen(console.clone(), stop::SAVING);
    let total = opened.num_steps();
    let bar = console.progress("steps", total);
    let learner = learner(ops, &opened, dir, &bar, &stop, console, &held).await;
    if !resume && matches!(learner, Err(Failure::Config(_))) {
        run_dir::take_back(dir);
    }
    let Some(learner) = learner? else {
        console.line(" stopped during the warm-up; nothing is saved yet");
        return Ok(End::Stopped(0));
    };
    let (mut learner, start) = learner;
    if start.0 >= total {
        // Killed after its last checkpoint, or asked for nothing more.
        console.line(&format!(
            " {start} steps are done, {total} were asked for: nothing is left to do; --num-rollout N makes the run longer"
        ));
        learner.write_model(&dir.join(run_dir::MODEL))?;
        close(&opened, dir, End::Finished, console, trace)?;
        return Ok(End::Finished);
    }
    if *resume {
        let resumed = buffer
            .resume_at(start, WeightVersion(start.0 + 1))
            .map_err(rollout_failed)?;
        console.line(&format!(
            " continuing at step {start}: {} groups are ready, {} rollouts of others; {} go on from their tokens",
            resumed.num_queued, resumed.num_partial, resumed.num_begun
        ));
    }

    let label = dir
        .file_name()
        .map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned());
    let whose = Whose {
        label: &label,
        frozen: None,
        fence: Some(&held.fence),
    };
    let (serving, inlet) = opened
        .serve_beside(whose, &dir.join(run_dir::SERVERS))
        .await?;
    let hands_over = opened.plan.rollout.hands_over;
    learner.beside = inlet.filter(|_| hands_over).map(|inlet| Beside {
        inlet,
        number_bytes: O::NUMBER_BYTES,
    });
    console.line(&header(&opened, &serving, dir));
    let journal = RunJournal {
        telemetry: Telemetry::open(dir, AXIS, trace, resume.then_some(start.0))
            .map_err(at_path(dir))?,
        console: console.clone(),
        bar: bar.clone(),
        reward_range: opened.scoring.reward_range,
        rollouts: dir.join("rollouts"),
        fence: held.fence.clone(),
    };
    let mut job = job(
        &opened,
        &serving,
        &buffer,
        learner,
        start.0..total,
        journal,
        stop,
    )?;
    if start.0 == 0
        && let Some(source) = &opened.source
    {
        let seed = opened.plan.seed;
        for warning in dry_run(&opened.scoring, &**source, seed).await {
            console.line(&format!(" {warning}"));
        }
    }
    console.line(COLUMNS);
    bar.set(start.0);
    let end = tokio::select! {
        end = super::run(&mut job) => end,
        // A rank may be lost, or the run taken over, while this process only samples.
        failure = team::loss(held.processes.as_ref()) => Err(failure),
        failure = taken_over(&held.fence) => Err(failure),
    };
    drop(bar);
    let end = end?;
    if end == End::Finished {
        tokio::task::block_in_place(|| job.learner.write_model(&dir.join(run_dir::MODEL)))?;
    }
    drop(job);
    serving.stop().await;
    close(&opened, dir, end, console, trace)?;
    Ok(end)
}

/// Returns once the run is another process's.
async fn taken_over(fence: &Fence) -> Failure {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let fence = fence.clone();
        let checked = tokio::task::spawn_blocking(move || fence.check()).await;
        // A disk that does not answer is found out by whoever writes to it.
        if let Ok(Err(over @ RolloutError::TakenOver { .. })) = checked {
            return rollout_failed(over);
        }
    }
}

/// The Data Buffer, and this process's hold on the run. A run that is merely resumed is not taken from a process that has it.
fn open_buffer(opened: &Opened, place: &Place) -> Result<(Arc<Buffer>, Fence)> {
    let claim = || Fence::claim(&place.dir).map_err(rollout_failed);
    let first = place.take_over.then(claim).transpose()?;
    if place.resume {
        run_dir::same_recipe(&place.dir, &opened.said)?;
    }
    let identity = run_dir::identity(&opened.said, &opened.model, &opened.plugins);
    let start = match (place.resume, place.take_over) {
        (true, true) => Start::TakeOver,
        (true, false) => Start::Resume,
        (false, _) => Start::Fresh,
    };
    let buffer = Buffer::open(
        &place.dir.join(run_dir::DATABASE),
        &identity,
        start,
        opened.plan.rollout.max_lag,
    );
    let buffer = buffer.map_err(|e| refused(&opened.said, &["run.dir"], e))?;
    let fence = first.map_or_else(claim, Ok)?;
    let buffer = buffer.fenced(&fence).map_err(rollout_failed)?;
    let buffer = buffer.masking_offpolicy(opened.plan.rollout.shaping.mask_offpolicy);
    Ok((Arc::new(buffer), fence))
}

fn job<O: Machine>(
    opened: &Opened,
    serving: &Serving,
    buffer: &Arc<Buffer>,
    mut learner: Learner<O>,
    steps: std::ops::Range<u64>,
    journal: RunJournal,
    stop: Stop,
) -> Result<Job> {
    let (plan, bar) = (&opened.plan, &journal.bar);
    let driver = opened.driver(
        serving,
        &plan.rollout.sampling,
        plan.rollout.n_samples_per_prompt,
        "train",
    );
    let sampling = &plan.rollout.sampling;
    if sampling.top_p < 1.0 || sampling.top_k > 0 {
        tracing::warn!(
            target: "slime",
            top_p = sampling.top_p,
            top_k = sampling.top_k,
            "rollouts are drawn from a part of the distribution and trained on log-probs of all of it, and no metric shows the difference; top_p = 1 and top_k = -1 draw from what is trained"
        );
    }
    let source = opened
        .source
        .clone()
        .ok_or_else(|| Failure::run("no prompts"))?;
    let sets = plan
        .eval
        .as_ref()
        .map(|eval| opened.eval_sets(serving, eval));
    let drivers = sets.iter().flatten().map(|(driver, _)| driver.clone());
    let reload = Hot::listen(opened, buffer, &journal.console, driver.clone(), drivers);
    let sampler = Sampler::new(driver, source, buffer.clone())
        .with_filters(opened.filters())
        .with_progress(Arc::new(Watch::new(bar.clone(), "sample")));
    let groups_per_step = plan.rollout.batch_size as usize;
    let sampler: Arc<dyn Sample> = if plan.rollout.fully_async {
        // As many steps' groups as may train from now on before one claimed now would be too old.
        let capacity = groups_per_step * (plan.rollout.max_lag as usize + 1);
        let first = Step(steps.start);
        Arc::new(Continuous::start(
            &sampler,
            first,
            groups_per_step,
            capacity,
        ))
    } else {
        Arc::new(sampler)
    };
    let weights = plan
        .rollout
        .publish_dir
        .clone()
        .unwrap_or_else(|| run_weights(learner.checkpoints.parent()));
    if plan.rollout.transport == Transport::Nccl {
        learner.caster = Some(caster::open(plan.model.device)?);
    }
    let publisher = publisher(opened, serving, learner.caster.clone())?;
    let evaluator = sets.map(|sets| {
        let progress = Arc::new(Watch::new(bar.clone(), "evaluate"));
        Arc::new(Evals { sets, progress }) as Arc<dyn Evaluate>
    });
    Ok(Job {
        steps,
        groups_per_step,
        curriculum: opened.dials.clone(),
        shaping: plan.rollout.shaping,
        train: plan.train.clone(),
        max_lag: plan.rollout.max_lag,
        save_interval: plan.run.save_interval,
        eval_interval: plan
            .eval
            .as_ref()
            .and_then(|eval| Some((eval.interval?, eval.before_train))),
        sampler,
        queue: buffer.clone(),
        learner: Box::new(learner),
        publisher: Box::new(Publishing {
            versions: Arc::new(Mutex::new(Versions::under(weights, journal.fence.epoch()))),
            publisher: Arc::new(publisher),
            spec: opened.model.spec.clone(),
            buckets: None,
            form: match plan.rollout.publish_dtype {
                None => serving.form.clone(),
                Some(Dtype::F32) => hf::Dtype::F32.into(),
                Some(Dtype::Bf16) => hf::Dtype::Bf16.into(),
            },
            pool: serving.pool.clone(),
            counted: serving.pool.stats(),
            self_check: known_tokens(opened).map(|prompt| SelfCheck {
                pool: serving.pool.clone(),
                prompt,
                temperature: plan.rollout.sampling.temperature,
                console: journal.console.clone(),
            }),
        }),
        teacher: teacher(opened)?,
        evaluator,
        reload: Some(Box::new(reload)),
        journal: Box::new(journal),
        stop,
    })
}

/// The teacher's servers, where the recipe names some.
fn teacher(opened: &Opened) -> Result<Option<Arc<dyn Teach>>> {
    let servers = &opened.plan.model.teacher_servers;
    if servers.is_empty() {
        return Ok(None);
    }
    let addresses = servers.iter().map(|text| Address::parse(text));
    let wrong = |e| refused(&opened.said, &["model.teacher_addrs"], e);
    let addresses = addresses
        .collect::<std::result::Result<Vec<_>, _>>()
        .map_err(wrong)?;
    let concurrency = opened.plan.rollout.concurrency;
    let teacher = Teacher::new(addresses, concurrency, Duration::from_secs(600)).map_err(wrong)?;
    Ok(Some(Arc::new(teacher)))
}

/// What tells the pool of new weights.
fn publisher(
    opened: &Opened,
    serving: &Serving,
    caster: Option<Arc<caster::Gpu>>,
) -> Result<Publisher> {
    let plan = &opened.plan.rollout;
    let patience = if plan.is_embedded() {
        Duration::ZERO
    } else {
        PATIENCE
    };
    let publisher = Publisher::new(
        serving.pool.clone(),
        plan.pause_mode,
        Duration::from_secs(600),
    )
    .by(plan.transport)
    .with_patience(patience);
    let publisher = match &opened.plan.model.weights {
        Weights::Directory(model) if !plan.is_embedded() => {
            publisher.with_model(model).map_err(rollout_failed)?
        }
        _ => publisher,
    };
    if let Some(caster) = caster {
        return Ok(publisher.with_caster(caster));
    }
    match plan.transport {
        Transport::Disk | Transport::SharedMemory | Transport::Nccl => Ok(publisher),
        Transport::Delta => {
            let name = format!("slime-host-{}", std::process::id());
            let local = plan.local_dir.clone();
            let local = local.unwrap_or_else(|| Path::new("/dev/shm").join(name));
            publisher.with_local(&local).map_err(rollout_failed)
        }
    }
}

/// Tokens for the self-check. The embedded engine runs the trainer's own kernels and needs none.
fn known_tokens(opened: &Opened) -> Option<Vec<u32>> {
    if opened.plan.rollout.is_embedded() {
        return None;
    }
    let text = "The quick brown fox jumps over the lazy dog. One, two, three, four,";
    let tokens = opened.model.text.encode(text).ok()?;
    (tokens.len() > 1).then_some(tokens)
}

fn run_weights(dir: Option<&Path>) -> PathBuf {
    dir.unwrap_or(Path::new(".")).join("weights")
}

fn header(opened: &Opened, serving: &Serving, dir: &Path) -> String {
    let (plan, model) = (&opened.plan, &opened.model);
    let built_in = if model.is_builtin() { ", built in" } else { "" };
    let estimator = serde_json::to_value(plan.train.advantage_estimator).ok();
    let estimator = estimator
        .as_ref()
        .and_then(|name| name.as_str())
        .unwrap_or_default()
        .to_owned();
    console::header(&[
        (
            "model",
            format!("{} ({}{built_in})", model.name(), model.size()),
        ),
        ("engine", serving.name.clone()),
        ("plugins", opened.plugins.names()),
        (
            "algo",
            format!(
                "{estimator}   {} prompts × {} samples",
                plan.rollout.batch_size, plan.rollout.n_samples_per_prompt
            ),
        ),
        ("run", dir.display().to_string()),
        (
            "steps",
            format!(
                "{}   lr {:e}   seed {}",
                opened.num_steps(),
                plan.train.lr,
                plan.seed
            ),
        ),
    ])
}

fn close(opened: &Opened, dir: &Path, end: End, console: &Console, trace: &Trace) -> Result<()> {
    trace.close();
    let rows = metrics::read(dir).map_err(at_path(dir))?;
    let title = dir
        .file_name()
        .map_or_else(|| "run".into(), |name| name.to_string_lossy().into_owned());
    let path = dir.join(report::FILE);
    std::fs::write(&path, report::render(&title, &opened.facts(), &rows))
        .map_err(at_path(&path))?;
    let reward = report::reward(&rows);
    let moved = reward.map_or_else(String::new, |(first, last)| report::moved(first, last));
    let sentence = match end {
        End::Finished => moved.trim_end().to_owned(),
        End::Stopped(step) => format!("{moved}Stopped after {step} steps, all saved."),
    };
    let files = [
        "report.svg",
        "metrics.jsonl",
        "model",
        "checkpoints",
        "tensorboard",
        "trace.json",
        "rollouts",
        "run.db",
    ];
    let next = match end {
        End::Finished => vec![
            format!("slime-host inspect {}", dir.display()),
            format!(
                "slime-host serve --model {}",
                dir.join(run_dir::MODEL).display()
            ),
        ],
        End::Stopped(_) => vec![format!(
            "slime-host run --resume --set run.dir={}",
            dir.display()
        )],
    };
    console.line(&console::summary(&sentence, dir, &files, &next));
    Ok(())
}

impl Sample for Sampler {
    fn groups(&self, step: Step, n: usize) -> BoxFuture<'_, Result<Collected>> {
        Box::pin(async move { Sampler::groups(self, step, n).await.map_err(rollout_failed) })
    }

    fn halt(&self) -> BoxFuture<'_, ()> {
        Box::pin(Sampler::halt(self))
    }

    fn serve(&self, version: WeightVersion) {
        Sampler::serve(self, version);
    }
}

impl Sample for Continuous {
    fn groups(&self, step: Step, _missing: usize) -> BoxFuture<'_, Result<Collected>> {
        Box::pin(async move { Continuous::groups(self, step).await.map_err(rollout_failed) })
    }

    fn serve(&self, version: WeightVersion) {
        Continuous::serve(self, version);
    }

    fn halt(&self) -> BoxFuture<'_, ()> {
        Box::pin(Continuous::halt(self))
    }

    fn is_continuous(&self) -> bool {
        true
    }

    fn taking(&self) {
        Continuous::taking(self);
    }
}

impl Teach for Teacher {
    fn fill<'a>(&'a self, records: &'a mut [RolloutRecord]) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move { Teacher::fill(self, records).await.map_err(rollout_failed) })
    }
}

impl Queue for Buffer {
    fn missing(&self, step: Step, n: usize, served: WeightVersion) -> Result<usize> {
        Buffer::missing(self, step, n, served).map_err(rollout_failed)
    }

    fn take(&self, step: Step, n: usize, served: WeightVersion) -> Result<Taken> {
        Buffer::take(self, step, n, served).map_err(rollout_failed)
    }

    fn trained(&self, step: Step) -> Result<()> {
        Buffer::trained(self, step).map_err(rollout_failed)
    }

    fn rewards(&self, steps: std::ops::Range<u64>) -> Result<Vec<(Step, String, f64)>> {
        Buffer::rewards(self, steps).map_err(rollout_failed)
    }

    fn conservation(&self) -> Result<Conservation> {
        Buffer::conservation(self).map_err(rollout_failed)
    }
}
