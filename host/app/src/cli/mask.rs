//! `slime-host inspect RUN --mask ID`: one rollout's tokens, those that train in colour.
//!
//! It decodes each segment by itself, so what a person sees is cut exactly where the mask is.

use super::Outcome;
use crate::config::layer::from_file;
use crate::config::merge::merge;
use crate::config::plan::{ModelPlan, Weights};
use crate::config::{Device, Problem};
use crate::error::Result;
use crate::job::run_dir;
use crate::wire::{Model, rollout_failed};
use slime_core::ports::TextCodec;
use slime_core::{Origin, Rollout, RolloutId, Trajectory};
use slime_rollout::buffer::find_rollout;
use std::fmt::Write;
use std::io::IsTerminal;
use std::path::Path;

/// When to write colours.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never: trained text stands between guillemets.
    Never,
}

/// How the three kinds of text look.
struct Look {
    trained: (&'static str, &'static str),
    environment: (&'static str, &'static str),
    prompt: (&'static str, &'static str),
}

const COLOURED: Look = Look {
    trained: ("\x1b[1;32m", "\x1b[0m"),
    environment: ("\x1b[2m", "\x1b[0m"),
    prompt: ("\x1b[36m", "\x1b[0m"),
};
const PLAIN: Look = Look {
    trained: ("«", "»"),
    environment: ("", ""),
    prompt: ("", ""),
};

/// Do it.
///
/// # Errors
/// There is no such run or rollout, or the run's model is gone.
pub fn run(dir: &Path, id: u64, color: Color) -> Result<Outcome> {
    if !dir.join(run_dir::DATABASE).exists() {
        let problem = Problem::new(format!("there is no run at {}", dir.display()));
        return Err(problem
            .help("give a run's directory, like runs/arith-42")
            .into());
    }
    let found =
        find_rollout(&dir.join(run_dir::DATABASE), RolloutId(id)).map_err(rollout_failed)?;
    let Some((prompt, rollout)) = found else {
        return Err(
            Problem::new(format!("{} has no rollout {id}", dir.display()))
                .help("ids are in rollouts/step_N.parquet and in the table `rollouts` of run.db")
                .into(),
        );
    };
    let model = model(dir)?;
    let colours = match color {
        Color::Always => true,
        Color::Never => false,
        Color::Auto => std::io::stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none(),
    };
    let look = if colours { COLOURED } else { PLAIN };
    let mut text = format!(
        "rollout {id} of prompt {}: {}\n",
        prompt.id, rollout.outcome
    );
    text.push_str(&paint(&rollout, &*model.text, &look));
    super::data(&text)
}

/// The model of a run, by the recipe it began with.
fn model(dir: &Path) -> Result<Model> {
    let text = run_dir::recipe(dir).ok_or_else(|| {
        Problem::new(format!("{} holds no recipe", dir.display()))
            .help("give a run's directory, like runs/arith-42")
    })?;
    let said = merge(from_file("resolved.toml", &text).0)?;
    let weights = match &said.config.model.path {
        Some(path) => Weights::Directory(path.clone()),
        None => Weights::Tiny,
    };
    let plan = ModelPlan {
        weights,
        reference: None,
        teacher: None,
        teacher_servers: Vec::new(),
        judge_servers: Default::default(),
        device: Device::Cpu,
    };
    Model::open(&plan, &said, said.config.seed.unwrap_or(42))
}

fn paint(rollout: &Rollout, codec: &dyn TextCodec, look: &Look) -> String {
    let mut text = String::new();
    for (index, trajectory) in rollout.trajectories.iter().enumerate() {
        let _ = writeln!(text, "{}", heading(index, trajectory, rollout));
        for segment in trajectory.segments() {
            let (before, after) = match segment.origin {
                Origin::Prompt => look.prompt,
                Origin::Policy { .. } => look.trained,
                Origin::Environment => look.environment,
            };
            let decoded = codec.decode(&segment.tokens, false);
            // Colours end at a line's end on many terminals.
            let lines: Vec<String> = decoded
                .split('\n')
                .map(|line| format!("{before}{line}{after}"))
                .collect();
            text.push_str(&lines.join("\n"));
        }
        text.push('\n');
    }
    text
}

fn heading(index: usize, trajectory: &Trajectory, rollout: &Rollout) -> String {
    let versions = trajectory.segments().iter().filter_map(|s| match s.origin {
        Origin::Policy { version, .. } => Some(version.0),
        _ => None,
    });
    let mut versions: Vec<u64> = versions.collect();
    versions.sort_unstable();
    versions.dedup();
    let sampled = trajectory.num_sampled();
    // Only scored rollouts enter the loss.
    let trains = if rollout.outcome.verdict().is_some() {
        sampled
    } else {
        0
    };
    format!(
        "── trajectory {index}: {} tokens, {} of the prompt, {sampled} sampled by versions {versions:?}, {trains} train ──",
        trajectory.num_tokens(),
        trajectory.prompt_length()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_core::{Outcome as Scored, Segment, Verdict, WeightVersion};
    use slime_model::text::Text;

    fn rollout(outcome: Scored) -> Rollout {
        let codec = Text::bytes().unwrap();
        let mut trajectory = Trajectory::from_prompt(codec.encode("2+2=").unwrap());
        let mut push = |text: &str, version: Option<u64>| {
            let tokens = codec.encode(text).unwrap();
            let origin = version.map_or(Origin::Environment, |v| Origin::Policy {
                logprobs: vec![-0.5; tokens.len()],
                version: WeightVersion(v),
            });
            trajectory.push(Segment { origin, tokens }).unwrap();
        };
        push("I ask\na tool", Some(3));
        push("[4]", None);
        push("4", Some(4));
        Rollout {
            id: RolloutId(7),
            index: 0,
            seed: 1,
            trajectories: vec![trajectory],
            outcome,
            scoring: Default::default(),
            shaped: None,
        }
    }

    #[test]
    fn trained_text_is_told_from_the_rest_with_and_without_colours() {
        let codec = Text::bytes().unwrap();
        let scored = Scored::Scored(Verdict {
            reward: 1.0,
            metrics: vec![],
        });
        let plain = paint(&rollout(scored.clone()), &codec, &PLAIN);
        assert_eq!(
            plain,
            "── trajectory 0: 20 tokens, 4 of the prompt, 13 sampled by versions [3, 4], 13 train ──\n2+2=«I ask»\n«a tool»[4]«4»\n"
        );
        let coloured = paint(&rollout(scored), &codec, &COLOURED);
        assert!(
            coloured.contains("\x1b[1;32mI ask\x1b[0m\n\x1b[1;32ma tool\x1b[0m\x1b[2m[4]\x1b[0m"),
            "{coloured:?}"
        );
        let failed = paint(&rollout(Scored::Timeout("slow".into())), &codec, &PLAIN);
        assert!(failed.contains(", 0 train ──"), "{failed}");
    }
}
