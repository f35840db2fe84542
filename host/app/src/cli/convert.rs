//! `slime-host convert`: a GGUF file as an HF directory.

use super::{Context, Outcome};
use crate::config::Problem;
use crate::error::{Result, input};
use slime_model::hf::Dtype;
use std::path::PathBuf;

/// What to convert.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// GGUF file
    input: PathBuf,
    /// HF directory to write
    output: PathBuf,
    /// Format of the weights
    #[arg(long, value_enum, default_value_t)]
    dtype: Format,
}

/// A number format of weights on disk.
#[derive(Clone, Copy, Debug, Default, clap::ValueEnum)]
enum Format {
    #[default]
    F32,
    Bf16,
    F16,
}

/// Do it.
///
/// # Errors
/// The file cannot be read, or the directory cannot be written.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    let dtype = match args.dtype {
        Format::F32 => Dtype::F32,
        Format::Bf16 => Dtype::Bf16,
        Format::F16 => Dtype::F16,
    };
    // What is missing or may not be read is told with its cure before anything else is.
    std::fs::File::open(&args.input).map_err(input(&args.input))?;
    let what = format!("converting {}", args.input.display());
    let written = context.console.doing(&what, || {
        slime_model::gguf::to_hf_dir(&args.input, &args.output, dtype)
    });
    written.map_err(|e| {
        let problem = Problem::new(e.to_string());
        match e {
            slime_model::Error::File { .. } => {
                problem.help("give a whole .gguf file; copy it again if it was cut short")
            }
            _ => problem,
        }
    })?;
    super::data(&format!("{}\n", args.output.display()))
}
