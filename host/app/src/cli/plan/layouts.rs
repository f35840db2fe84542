//! Layouts for a number of GPUs, before anything is launched.
//!
//! Every layout is the trainer's own code run over shapes
//! (`slime_trainer::plan`); rates of the machine are the one assumption.

use crate::cli::{Context, Outcome, collected, data};
use crate::config::Problem;
use crate::error::{Result, at_path};
use slime_model::layers::Recompute;
use slime_model::{Attention, ModelSpec};
use slime_trainer::TrainConfig;
use slime_trainer::parallel::ParallelConfig;
use slime_trainer::plan::search::{Candidate, evaluate, layouts, search};
use slime_trainer::plan::{Machine, Workload, everyone, picture};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

/// What is laid out.
#[derive(Debug, clap::Args)]
#[group(id = "layouts")]
pub(super) struct Args {
    /// Sequences of a train step
    #[arg(long, value_name = "N", default_value_t = 256, requires = "gpus")]
    sequences: usize,
    /// Tokens of a sequence, prompt and response [default: 8192, or the model's context if that is less]
    #[arg(long, value_name = "N", requires = "gpus")]
    length: Option<usize>,
    /// Of these, the prompt's [default: 512, or half of the sequence if that is less]
    #[arg(long, value_name = "N", requires = "gpus")]
    prompt: Option<usize>,
    /// Tokens packed into one micro-batch of a rank
    #[arg(long, value_name = "N", default_value_t = 8192, requires = "gpus")]
    max_tokens_per_gpu: usize,
    /// Adam's moments and the rest of the masters in 16 bits each
    #[arg(long, requires = "gpus")]
    use_precision_aware_optimizer: bool,
    /// Layouts shown of each number of GPUs
    #[arg(long, value_name = "N", default_value_t = 5, requires = "gpus")]
    top: usize,
    /// One layout instead of a search: tp4,pp2,cp2 (the rest is data-parallel)
    #[arg(long, value_name = "LAYOUT", requires = "gpus")]
    layout: Option<String>,
    /// Run every rank of that layout, not one a stage, and compare their calls
    #[arg(long, requires_all = ["gpus", "layout"])]
    all_ranks: bool,
    /// A picture of that layout's stages over a step
    #[arg(long, value_name = "FILE.svg", requires_all = ["gpus", "layout"])]
    svg: Option<PathBuf>,
}

/// Do it.
///
/// # Errors
/// The model or a layout cannot be planned.
pub(super) fn run(
    spec: ModelSpec,
    model: &Path,
    gpus: &[usize],
    args: Args,
    context: &Context,
) -> Result<Outcome> {
    if spec
        .layers
        .iter()
        .any(|l| matches!(l.attn, Attention::Delta(_)))
    {
        let message =
            "this model has gated delta nets, whose time on a GPU cannot be estimated yet";
        return Err(Problem::new(message)
            .help("without --gpus, plan says what the model costs")
            .into());
    }
    let length = args.length.unwrap_or(spec.max_positions.min(8192));
    let prompt = args.prompt.unwrap_or(512.min(length / 2));
    let mut problems = zeros(gpus, &args);
    problems.extend(too_long(&args, (length, prompt), spec.max_positions));
    // Rotation tables are as long as what is planned, not as what the model could take.
    let spec = Arc::new(ModelSpec {
        max_positions: length,
        ..spec
    });
    let mut laid_out = Vec::new();
    for (said, gpus) in args
        .layout
        .iter()
        .flat_map(|said| gpus.iter().filter(|n| **n > 0).map(move |n| (said, *n)))
    {
        match layout(said, gpus, &spec) {
            Ok(parallel) => laid_out.push(parallel),
            Err(problem) => problems.push(problem),
        }
    }
    collected(problems)?;
    let config = TrainConfig {
        max_tokens_per_gpu: args.max_tokens_per_gpu,
        global_batch_size: Some(args.sequences),
        use_precision_aware_optimizer: args.use_precision_aware_optimizer,
        ..TrainConfig::default()
    };
    let workload = Workload {
        sequences: args.sequences,
        length,
        prompt,
    };
    let machine = Machine::h200();
    let mut text = String::new();
    heading(&mut text, &spec, workload, &machine);
    for (index, &gpus) in gpus.iter().enumerate() {
        let candidates = match laid_out.get(index) {
            Some(parallel) => {
                let one = evaluate(&spec, &config, parallel, workload, &machine);
                vec![one.map_err(failed)?]
            }
            None => {
                let count = layouts(&spec, gpus, &machine).len();
                if count == 0 {
                    let message = format!("no layout of {gpus} GPUs divides this model");
                    return Err(Problem::new(message)
                        .help("choose a number with more divisors")
                        .into());
                }
                context
                    .console
                    .line(&format!(" {gpus} GPUs: {count} layouts"));
                let mut all = search(&spec, &config, gpus, workload, &machine).map_err(failed)?;
                all.truncate(args.top);
                all
            }
        };
        if candidates.is_empty() {
            let message = format!(
                "no layout of {gpus} GPUs has a sequence for every data-parallel rank: there are {}",
                args.sequences
            );
            return Err(Problem::new(message)
                .help("raise --sequences, or plan for fewer GPUs")
                .into());
        }
        candidates
            .iter()
            .for_each(|c| row(&mut text, gpus, c, workload));
        if let (Some(path), Some(c)) = (&args.svg, candidates.first()) {
            let title = format!(
                "{} on {gpus} GPUs, {}: one train step",
                name(model),
                c.parallel.short()
            );
            let stage = c.parallel.world() / c.parallel.pipeline_model_parallel_size;
            let svg =
                picture::timeline(&c.outcome, &title, |rank| format!("stage {}", rank / stage));
            std::fs::write(path, svg).map_err(at_path(path))?;
        }
        if args.all_ranks {
            let c = &candidates[0];
            every_rank(&mut text, &spec, &config, c, workload, &machine)?;
        }
    }
    data(&text)
}

/// Numbers that may not be 0, and are.
fn zeros(gpus: &[usize], args: &Args) -> Vec<Problem> {
    let numbers = [
        ("--gpus", gpus.iter().min().copied()),
        ("--sequences", Some(args.sequences)),
        ("--top", Some(args.top)),
        ("--max-tokens-per-gpu", Some(args.max_tokens_per_gpu)),
    ];
    let zeros = numbers.into_iter().filter(|(_, n)| *n == Some(0));
    let problem =
        |(flag, _)| Problem::new(format!("{flag} 0 plans nothing")).help("give a number above 0");
    zeros.map(problem).collect()
}

fn too_long(args: &Args, (length, prompt): (usize, usize), context: usize) -> Option<Problem> {
    if length > context {
        let message = format!("--length {length} is more than the model's context of {context}");
        return Some(
            Problem::new(message).help(format!("give at most {context}, or leave it out")),
        );
    }
    let said = |flag, said: Option<usize>, n| match said {
        Some(_) => format!("--{flag} {n}"),
        None => format!("a {flag} of {n}, which is the default,"),
    };
    let fits = prompt > 0 && prompt < length;
    (!fits).then(|| {
        let (prompt, length) = (
            said("prompt", args.prompt, prompt),
            said("length", args.length, length),
        );
        Problem::new(format!("{prompt} does not fit {length}"))
            .help("a prompt is at least 1 token and shorter than the sequence it begins")
    })
}

/// All ranks, one after the other, then their clocks together.
fn every_rank(
    text: &mut String,
    spec: &Arc<ModelSpec>,
    config: &TrainConfig,
    candidate: &Candidate,
    workload: Workload,
    machine: &Machine,
) -> Result<()> {
    let began = Instant::now();
    let (recompute_granularity, recompute_num_layers) = candidate.recompute;
    let config = TrainConfig {
        recompute_granularity,
        recompute_num_layers,
        ..config.clone()
    };
    let parallel = &candidate.parallel;
    let all = everyone(spec, &config, parallel, workload, machine).map_err(failed)?;
    let end = match &all.outcome.halted {
        Some(reason) => format!("they come to a halt: {reason}"),
        None => format!("all come to an end, after {:.3} s", all.outcome.step_s),
    };
    let _ = writeln!(
        text,
        "\n{} ranks run one after the other: {} events in {} groups; {end}. Took {:.0} s here.",
        all.outcome.ranks.len(),
        all.events,
        all.groups,
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

fn heading(text: &mut String, spec: &ModelSpec, workload: Workload, machine: &Machine) {
    let billions = spec.num_params() as f64 / 1e9;
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "{billions:.2} B parameters, {} layers; a train step of {} sequences of {} tokens; {} with {} a node\n\n\
         | GPUs | layout | again | weights | grads | optimizer | activations | GB in all | bubble | exchange | leaves node, GB | step s | tokens/s/GPU | MFU |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        spec.layers.len(),
        workload.sequences,
        workload.length,
        machine.name,
        machine.gpus_per_node,
    );
}

fn row(text: &mut String, gpus: usize, c: &Candidate, workload: Workload) {
    let gb = |bytes: usize| bytes as f64 / 1e9;
    let again = match c.recompute {
        (Recompute::None, _) => "nothing".to_owned(),
        (Recompute::Selective, _) => "elementwise".to_owned(),
        (Recompute::Mlp, Some(layers)) => format!("{layers} MLPs"),
        (Recompute::Mlp, None) => "MLPs".to_owned(),
        (Recompute::Full, Some(layers)) => format!("{layers} layers"),
        (Recompute::Full, None) => "all".to_owned(),
    };
    // A sum of no floats is -0.0.
    let abroad = c
        .sent
        .iter()
        .filter(|((_, out), _)| *out)
        .fold(0.0, |sum, (_, bytes)| sum + bytes);
    let m = &c.memory;
    let _ = writeln!(
        text,
        "| {gpus} | {} | {again} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1}{} | {:.0} % | {:.0} % | {:.1} | {:.2} | {:.0} | {:.1} % |",
        c.parallel.short(),
        gb(m.weights),
        gb(m.gradients),
        gb(m.optimizer),
        gb(m.activations),
        gb(m.peak()),
        if c.fits { "" } else { " (too much)" },
        100.0 * c.outcome.bubble(),
        100.0 * c.outcome.exchanging(),
        abroad / 1e9,
        c.outcome.step_s,
        c.tokens_per_s(workload) / gpus as f64,
        100.0 * c.mfu,
    );
}

fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or_default();
    stem.to_string_lossy().into_owned()
}

/// `tp4,pp2,cp2` and as many data-parallel ranks as there are GPUs left.
fn layout(said: &str, gpus: usize, spec: &ModelSpec) -> Result<ParallelConfig, Problem> {
    let wrong = |message: String| {
        Problem::new(message)
            .help("write sizes like tp4,pp2,cp2,ep8,etp1,vpp2; sequence parallelism comes with tp")
    };
    let parallel = ParallelConfig::from_words(said, gpus);
    let parallel = parallel.map_err(|why| wrong(format!("--layout {said}: {why}")))?;
    let problems = parallel.problems(spec);
    match problems.is_empty() {
        true => Ok(parallel),
        false => Err(failed(slime_trainer::Error::Config(problems))),
    }
}

fn failed(error: slime_trainer::Error) -> Problem {
    Problem::new(error.to_string())
}
