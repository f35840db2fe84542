//! `slime-host sft`: supervised fine-tuning on the same trainer.

use super::ranked::ranked;
use super::recipe::Recipe;
use super::{Context, Outcome};
use crate::config::flags::{Group, bits};
use crate::config::plan::SftPlan;
use crate::config::{Plan, Problem, Resolved, Verb};
use crate::error::{Result, at_path};
use crate::job::learner::{export, save, train_failed};
use crate::job::stop::{ENDING, Stop};
use crate::job::team::{self, Begin, From, Work};
use crate::job::{row, run_dir, warm_up};
use crate::telemetry::{Telemetry, console};
use crate::wire::device::{Machine, on_device};
use crate::wire::{Computer, Model, Plugins, refused, rollout_failed, sources};
use slime_core::Step;
use slime_core::ports::Source;
use slime_kernels::comm::Processes;
use slime_rollout::Fence;
use slime_trainer::checkpoint;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const GROUPS: u32 = bits(Some(Verb::Sft), &[Group::Run, Group::Model, Group::Train]);
const AXIS: &str = "train/step";

/// How fine-tuning is continued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Resume {
    /// Where there is a checkpoint
    Continue,
    /// Or start it
    TakeOver,
}

/// What to fine-tune.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A plugin that is a source, whose labels are learned; not needed with `sft.data`
    plugins: Vec<PathBuf>,
    /// Continue the fine-tuning in run.dir, or the newest one, from its last checkpoint, under any layout; whoever else still
    /// has it open is fenced off. `--resume=take-over` is for schedulers: it starts where there is no checkpoint yet
    #[arg(long, value_enum, value_name = "HOW", num_args = 0..=1, require_equals = true, default_missing_value = "continue")]
    resume: Option<Resume>,
    #[command(flatten)]
    recipe: Recipe<GROUPS>,
}

/// Do it.
///
/// # Errors
/// What was asked for is wrong, or training failed.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    ranked(context, |processes| {
        alone_or_leading(&args, processes, context)
    })
}

fn alone_or_leading(
    args: &Args,
    processes: Option<Arc<Processes>>,
    context: &Context,
) -> Result<Outcome> {
    let first = args.recipe.resolve(None, &args.plugins)?;
    let said_dir = first.config.run.dir.as_deref();
    let resumed = match (args.resume, said_dir) {
        (None, _) => None,
        (Some(Resume::Continue), _) => Some(run_dir::fine_tuning_to_resume(said_dir)?),
        (Some(Resume::TakeOver), None) => {
            return Err(Problem::new(
                "--resume=take-over continues fine-tuning that may not have begun, and no directory is given",
            )
            .help("name it: --set run.dir=PATH")
            .into());
        }
        (Some(Resume::TakeOver), Some(dir)) => match dir.join(run_dir::CHECKPOINTS).exists() {
            true => Some(run_dir::fine_tuning_to_resume(said_dir)?),
            false => None,
        },
    };
    let said = match &resumed {
        None => first,
        Some(dir) => {
            let name = dir.join(run_dir::RESOLVED).display().to_string();
            let recipe = run_dir::recipe(dir);
            let base = recipe.as_deref().map(|text| (name.as_str(), text));
            let said = args.recipe.resolve(base, &args.plugins)?;
            run_dir::same_recipe(dir, &said)?;
            said
        }
    };
    let plan = Plan::new(&said, Verb::Sft)?;
    let Some(sft) = plan.sft.clone() else {
        return Ok(Outcome::Done);
    };
    if args.resume.is_some() && sft.save_interval.is_none() {
        return Err(
            Problem::new("--resume has no effect: fine-tuning writes no checkpoints")
                .help("add --save-interval N")
                .into(),
        );
    }
    let model = Model::open(&plan.model, &said, plan.seed)?;
    let fine_tuning = FineTuning {
        plan: &plan,
        sft: &sft,
        said: &said,
        model: &model,
        resumed,
        processes,
        context,
    };
    let device = Computer::open(plan.model.device).map_err(|p| p.at(said.place("model.device")))?;
    on_device!(device, ops => super::block_on(fine_tuning.on(ops))?)
}

/// What is fine-tuned, and where.
struct FineTuning<'a> {
    plan: &'a Plan,
    sft: &'a SftPlan,
    said: &'a Resolved,
    model: &'a Model,
    /// The directory that is continued.
    resumed: Option<PathBuf>,
    /// The processes its ranks are, where they are.
    processes: Option<Arc<Processes>>,
    context: &'a Context,
}

impl FineTuning<'_> {
    async fn on<O: Machine>(&self, ops: Arc<O>) -> Result<Outcome> {
        let (plan, sft, model, context) = (self.plan, self.sft, self.model, self.context);
        let console = &context.console;
        let source = source(plan, sft, self.said, context)?;
        let corpus = warm_up::Corpus::open(
            &*source,
            &*model.text,
            &plan.template_kwargs,
            plan.seed,
            sft.shuffled_label_frac,
        )
        .await?;
        let dir = self.dir()?;
        let checkpoints = dir.join(run_dir::CHECKPOINTS);
        let fence = match sft.save_interval {
            Some(_) => Some(Fence::claim(&dir).map_err(rollout_failed)?),
            None => None,
        };
        let stop = Stop::listen(console.clone(), ENDING);
        let total = warm_up::num_steps(sft, &corpus);
        let usable = self.told(&dir)?;
        let processes = self.processes.as_ref();
        let mut trainer = tokio::task::block_in_place(|| {
            warm_up::trainer(sft, (self.said, plan), model, ops.clone(), processes)
        })?;
        let start = match usable.last() {
            Some(step) => {
                let dir = checkpoints.join(format!("step_{step}"));
                trainer.load(&dir).map_err(train_failed)?
            }
            None => Step(0),
        };
        console.line(&self.header(source.name(), total, &dir));
        if start.0 > 0 {
            console.line(&format!(" continuing at step {start}"));
        }
        let again = self.resumed.as_ref().map(|_| start.0);
        let mut telemetry =
            Telemetry::open(&dir, AXIS, &context.trace, again).map_err(at_path(&dir))?;
        let bar = console.progress("steps", total);
        bar.set(start.0);
        let span = tracing::info_span!(target: "slime", "sft", steps = total);
        let (mut last, mut done) = (None, start.0);
        tokio::task::block_in_place(|| {
            let _inside = span.enter();
            warm_up::run(
                sft,
                &corpus,
                start.0..total,
                &mut trainer,
                |trainer, step, metrics, took| {
                    telemetry
                        .record(&row::of_train(AXIS, step, metrics, took))
                        .map_err(at_path(&dir))?;
                    let loss = metrics.loss;
                    (last, done) = (Some(loss), step + 1);
                    bar.advance();
                    bar.say(format!("· loss {loss:.3}"));
                    tracing::info!(step, loss, lr = metrics.lr, "step");
                    console.line(&format!(
                        " {:>5}/{total}  loss {loss:.4}  lr {:.2e}  {:>6.0} tok/s",
                        step + 1,
                        metrics.lr,
                        metrics.tokens as f64 / took.as_secs_f64()
                    ));
                    let ends = stop.is_asked() || done == total;
                    if let (Some(every), Some(fence)) = (sft.save_interval, &fence)
                        && (ends || done.is_multiple_of(every))
                    {
                        let keep = plan.run.keep_checkpoints;
                        save(trainer, &checkpoints, keep, fence, Step(done))?;
                    }
                    Ok(!ends)
                },
            )?;
            export::<O>(model, &dir.join(run_dir::MODEL), |param| {
                trainer.read_param(param)
            })
        })?;
        drop(bar);
        context.trace.close();
        let loss = last.map_or_else(String::new, |loss| format!(", loss {loss:.4}"));
        let mut files = vec!["model", "metrics.jsonl", "tensorboard", "trace.json"];
        files.extend(sft.save_interval.map(|_| run_dir::CHECKPOINTS));
        let next = match done < total && sft.save_interval.is_some() {
            true => vec![format!(
                "slime-host sft --resume --set run.dir={}",
                dir.display()
            )],
            false => Vec::new(),
        };
        let sentence = format!("{done} of {total} steps{loss}.");
        console.line(&console::summary(&sentence, &dir, &files, &next));
        Ok(if stop.is_asked() {
            Outcome::Stopped
        } else {
            Outcome::Done
        })
    }

    /// Where it writes.
    fn dir(&self) -> Result<PathBuf> {
        if let Some(dir) = &self.resumed {
            return Ok(dir.clone());
        }
        let run = &self.plan.run;
        let name = run.name.as_deref().unwrap_or("sft");
        let dir = run_dir::fresh(run.dir.as_deref(), name, self.plan.seed)?;
        run_dir::write_recipe(&dir, self.said)?;
        Ok(dir)
    }

    /// Tell the other ranks → steps of which all of them see a checkpoint.
    fn told(&self, dir: &Path) -> Result<Vec<Step>> {
        let checkpoints = dir.join(run_dir::CHECKPOINTS);
        let own = match self.resumed {
            Some(_) => checkpoint::steps(&checkpoints).map_err(train_failed)?,
            None => Vec::new(),
        };
        let Some(processes) = &self.processes else {
            return Ok(own);
        };
        processes.set_patience(self.plan.ranks.patience);
        let found = !own.is_empty();
        let begin = Begin {
            work: Work::FineTune,
            recipe: self.said.to_toml(true),
            dir: std::path::absolute(dir).map_err(at_path(dir))?,
            weights: From::Model,
            reference: None,
            teacher: None,
        };
        let usable = team::begin(processes, &begin, own)?;
        match found && usable.is_empty() {
            true => Err(team::none_in_common(&checkpoints)),
            false => Ok(usable),
        }
    }

    fn header(&self, source: &str, total: u64, dir: &Path) -> String {
        let (model, sft) = (self.model, self.sft);
        console::header(&[
            ("model", format!("{} ({})", model.name(), model.size())),
            ("data", source.to_owned()),
            (
                "steps",
                format!(
                    "{total}   {} sequences each   lr {:e}",
                    sft.batch_size, sft.train.lr
                ),
            ),
            ("run", dir.display().to_string()),
        ])
    }
}

fn source(
    plan: &Plan,
    sft: &SftPlan,
    said: &Resolved,
    context: &Context,
) -> Result<Arc<dyn Source>> {
    if let Some(data) = &sft.data {
        let file = sources::open("sft", data).map_err(|e| refused(said, &["sft.data"], e))?;
        return Ok(Arc::new(file));
    }
    let needs_steps = || {
        Problem::new("a source without end needs a number of steps")
            .help("add --set sft.num_steps=N")
    };
    let plugin = match plan.plugins.is_empty() {
        true => None,
        false => Plugins::source(plan, said, &context.console)?,
    };
    match plugin {
        Some(plugin) if plugin.len().is_none() && sft.num_steps.is_none() => {
            Err(needs_steps().into())
        }
        Some(plugin) => {
            let rows = sft.num_steps.unwrap_or(1) * sft.batch_size as u64;
            Ok(sources::warm_up(&plugin, rows, &plan.chat))
        }
        None => {
            let problem = Problem::new("there is nothing to fine-tune on");
            Err(problem
                .help("add --set sft.data=FILE.jsonl, or name a plugin that is a source")
                .into())
        }
    }
}
