//! From what a user said to what the program does: layers of settings become a `RunConfig` (what was said),
//! and that becomes a [`Plan`] (what follows from it).
//!
//! It starts nothing and touches no weights. Every problem is collected and shown at once. Read `layer`,
//! `merge`, `plan`.

pub mod check;
pub mod eval_set;
pub mod flags;
pub mod layer;
pub mod merge;
pub mod plan;
pub mod problem;
pub mod schema;
pub mod sections;
pub mod servers;
pub mod units;

pub use merge::Resolved;
pub use plan::{Plan, Verb};
pub use problem::{Problem, Problems};
pub use sections::{Device, Dtype};

use layer::Setting;
use std::path::PathBuf;

/// Everything that was said, unmerged.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// A recipe below every file, by name: part of the program, or what a run began with.
    pub base: Option<(String, String)>,
    /// TOML files, left to right.
    pub files: Vec<PathBuf>,
    /// Environment variables.
    pub env: Vec<(String, String)>,
    /// `--set a.b=c`.
    pub sets: Vec<String>,
    /// What named flags said.
    pub flags: Vec<Setting>,
    /// What named flags said wrongly.
    pub flag_problems: Vec<Problem>,
}

/// Put all layers together.
///
/// # Errors
/// Every problem of every layer.
pub fn resolve(said: Said) -> Result<Resolved, Problems> {
    let mut settings = Vec::new();
    let mut problems = Vec::new();
    let mut add = |(mut some, mut wrong): (Vec<Setting>, Vec<Problem>),
                   problems: &mut Vec<Problem>| {
        settings.append(&mut some);
        problems.append(&mut wrong);
    };
    if let Some((name, text)) = said.base {
        add(layer::from_file(&name, &text), &mut problems);
    }
    for path in &said.files {
        match std::fs::read_to_string(path) {
            Ok(text) => add(
                layer::from_file(&path.display().to_string(), &text),
                &mut problems,
            ),
            Err(e) => problems.push(
                Problem::new(format!("cannot read {}: {e}", path.display()))
                    .help("-c takes the path of a TOML file"),
            ),
        }
    }
    add(layer::from_env(said.env.into_iter()), &mut problems);
    add(layer::from_sets(&said.sets), &mut problems);
    add((said.flags, said.flag_problems), &mut problems);
    match merge::merge(settings) {
        Ok(resolved) if problems.is_empty() => Ok(resolved),
        Ok(_) => Err(Problems(problems)),
        Err(problem) => {
            problems.push(problem);
            Err(Problems(problems))
        }
    }
}
