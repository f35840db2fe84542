//! `slime-host plan`: what a model costs, and with `--gpus` how it would be laid out over them.
//!
//! Only a configuration is read, no weight, and nothing is launched. Read [`cost`] for the model alone, [`layouts`] for
//! the search.

mod cost;
mod layouts;

use super::{Context, Outcome};
use crate::config::Problem;
use crate::error::{Result, input};
use slime_model::families::{self, HfConfig};
use slime_model::{ModelFiles, ModelSpec};
use std::path::{Path, PathBuf};

/// What to plan.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// HF directory, or a config.json; weights are not read
    #[arg(long, value_name = "PATH")]
    model: PathBuf,
    /// Tokens of a sequence, for what attention costs
    #[arg(
        long,
        value_name = "N",
        default_value_t = 4096,
        conflicts_with = "gpus"
    )]
    seq_length: usize,
    /// One JSON object
    #[arg(long, conflicts_with = "gpus")]
    json: bool,
    /// Search layouts over so many GPUs
    #[arg(long, value_name = "N,…", value_delimiter = ',')]
    gpus: Vec<usize>,
    /// What is laid out.
    #[command(flatten)]
    layouts: layouts::Args,
}

/// Do it.
///
/// # Errors
/// The configuration cannot be read or is of a model that is not supported; or a layout cannot be planned.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    let spec = model(&args.model)?;
    if args.gpus.is_empty() {
        return super::data(&cost::text(&spec, args.seq_length, args.json));
    }
    layouts::run(spec, &args.model, &args.gpus, args.layouts, context)
}

fn model(path: &Path) -> Result<ModelSpec> {
    let wrong = |e: slime_model::Error| Problem::new(e.to_string());
    if path.is_dir() {
        let files = ModelFiles::read(path).map_err(wrong)?;
        return Ok(files.spec().map_err(wrong)?);
    }
    let name = path.display().to_string();
    let bytes = std::fs::read(path).map_err(input(path))?;
    let json = serde_json::from_slice(&bytes).map_err(|e| {
        Problem::new(format!("{name} is not valid JSON: {e}"))
            .help("give a model's config.json, or the directory that holds it")
    })?;
    let spec = HfConfig::new(name, json).and_then(|c| families::from_config(&c));
    Ok(spec.map_err(wrong)?)
}
