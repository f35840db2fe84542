//! Named flags: slime's and Megatron's names for keys of a recipe.
//!
//! One table, so that a slime script ports line by line. A flag of slime that this build cannot honour is
//! refused with a sentence, never ignored.

mod table;

use super::layer::{Origin, Setting, from_text};
use super::problem::Problem;
use clap::{Arg, ArgAction, ArgMatches, Command, error::Error};
use table::{FLAGS, Flag, Takes};

/// Which verbs take a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Group {
    /// Length, place, checkpoints.
    Run,
    /// Weights and device.
    Model,
    /// Prompts.
    Data,
    /// Held-out prompts.
    Eval,
    /// Sampling.
    Rollout,
    /// Advantages and loss.
    Algorithm,
    /// Optimizer and batches.
    Train,
}

use Group::{Algorithm, Data, Eval, Model, Rollout, Run, Train};

/// Flags of slime, Megatron and SGLang that this build cannot honour, with the sentence that says so.
pub fn refusal(name: &str) -> Option<String> {
    if let Some(rest) = name.strip_prefix("sglang-") {
        return Some(format!(
            "--sglang-{rest} configures a server that this build does not launch: start `python -m sglang.launch_server --{rest} …` \
             yourself and give its address with --rollout-external-engine-addrs"
        ));
    }
    let reason = match name {
        "custom-tis-function-path" => "truncated importance sampling is built in: --use-tis",
        "calculate-per-token-loss" => "use --loss-aggregation token-mean",
        "disable-rewards-normalization" => {
            "use --advantage-estimator with --disable-grpo-std-normalization, or reinforce_plus_plus"
        }
        "colocate" | "offload" | "offload-train" | "offload-rollout" => {
            "trainer and embedded engine share the machine already; leave it out"
        }
        "actor-num-nodes"
        | "actor-num-gpus-per-node"
        | "rollout-num-gpus"
        | "rollout-num-gpus-per-engine" => "this build trains on one rank; leave it out",
        "use-dynamic-batch-size" => {
            "batches are always packed by --max-tokens-per-gpu; leave it out"
        }
        "micro-batch-size" => "batches are packed by tokens; use --max-tokens-per-gpu",
        "rm-type" | "custom-rm-path" | "rm-url" => {
            "rewards come from a verifier plugin: name it after the verb, like `run plugins/math`"
        }
        "custom-generate-function-path" | "rollout-function-path" => {
            "rollouts are driven by a generator plugin: name it after the verb"
        }
        "dynamic-sampling-filter-path" => "use --set rollout.filter=nonzero-std",
        "partial-rollout" => {
            "unfinished rollouts are always continued from their tokens; leave it out"
        }
        "rollout-max-prompt-len" => {
            "a prompt that leaves no room in --rollout-max-context-len is an outcome of its own; leave it out"
        }
        "load" => "a run is continued with --resume",
        "use-wandb" | "wandb-project" | "wandb-group" => {
            "metrics are in metrics.jsonl and tensorboard/, which W&B imports; leave it out"
        }
        "use-tensorboard" => "TensorBoard files are always written; leave it out",
        _ => return None,
    };
    Some(format!("--{name}: {reason}"))
}

/// The flags of `groups`, as clap arguments.
pub fn augment(mut command: Command, groups: &[Group]) -> Command {
    for flag in FLAGS.iter().filter(|f| groups.contains(&f.group)) {
        let arg = Arg::new(flag.name)
            .long(flag.name)
            .help(flag.help)
            .help_heading(heading(flag.group));
        command = command.arg(match flag.takes {
            Takes::One(value) => arg
                .value_name(value)
                .allow_negative_numbers(true)
                .action(ArgAction::Set),
            Takes::Many(value) => arg
                .value_name(value)
                .num_args(1..)
                .action(ArgAction::Append),
            Takes::Pairs => arg
                .value_names(["NAME", "PATH"])
                .num_args(1..)
                .action(ArgAction::Append),
            Takes::Nothing => arg.action(ArgAction::SetTrue),
        });
    }
    command
}

fn heading(group: Group) -> &'static str {
    match group {
        Run => "Run",
        Model => "Model",
        Data => "Data",
        Eval => "Evaluation",
        Rollout => "Rollout",
        Algorithm => "Algorithm",
        Train => "Training",
    }
}

/// The group of a flag that exists, for a verb that does not take it.
pub fn exists(name: &str) -> bool {
    FLAGS.iter().any(|flag| flag.name == name)
}

/// What the flags given say.
pub fn settings(matches: &ArgMatches) -> (Vec<Setting>, Vec<Problem>) {
    let (mut settings, mut problems) = (Vec::new(), Vec::new());
    for flag in FLAGS {
        let Ok(Some(mut values)) = matches.try_get_raw(flag.name) else {
            continue;
        };
        if matches.value_source(flag.name) != Some(clap::parser::ValueSource::CommandLine) {
            continue;
        }
        let given: Vec<String> = values
            .by_ref()
            .map(|v| v.to_string_lossy().into_owned())
            .collect();
        for (key, text) in texts(flag, &given) {
            let shown = if matches!(flag.takes, Takes::Nothing) {
                String::new()
            } else {
                format!(" {}", given.join(" "))
            };
            match from_text(&key, &text, Origin::Flag(format!("--{}{shown}", flag.name))) {
                Ok(setting) => settings.push(setting),
                Err(problem) => problems.push(problem),
            }
        }
    }
    (settings, problems)
}

/// The keys a flag sets, each with its value as text.
fn texts(flag: &Flag, given: &[String]) -> Vec<(String, String)> {
    match flag.takes {
        Takes::One(_) => given
            .iter()
            .map(|text| (flag.key.to_owned(), text.clone()))
            .collect(),
        Takes::Nothing => vec![(flag.key.to_owned(), "true".to_owned())],
        Takes::Many(_) => {
            let quoted = |text: &String| match flag.key {
                "rollout.stop_token_ids" => text.clone(),
                _ => toml::Value::String(text.clone()).to_string(),
            };
            vec![(
                flag.key.to_owned(),
                format!(
                    "[{}]",
                    given.iter().map(quoted).collect::<Vec<_>>().join(", ")
                ),
            )]
        }
        Takes::Pairs => match given {
            [path] => vec![(format!("{}.eval", flag.key), path.clone())],
            pairs => pairs
                .chunks(2)
                .map(|p| {
                    (
                        format!("{}.{}", flag.key, p[0]),
                        p.get(1).cloned().unwrap_or_default(),
                    )
                })
                .collect(),
        },
    }
}

/// The named flags of a verb, for clap's derive: `Flags<{groups as bits}>`.
#[derive(Clone, Debug, Default)]
pub struct Flags<const GROUPS: u32> {
    /// What was said, lowest first.
    pub settings: Vec<Setting>,
    /// What was said wrongly.
    pub problems: Vec<Problem>,
}

/// The groups of a verb as bits, for [`Flags`].
pub const fn bits(groups: &[Group]) -> u32 {
    let (mut bits, mut i) = (0, 0);
    while i < groups.len() {
        bits |= 1 << groups[i] as u32;
        i += 1;
    }
    bits
}

const ALL: [Group; 7] = [Run, Model, Data, Eval, Rollout, Algorithm, Train];

fn groups(bits: u32) -> Vec<Group> {
    ALL.into_iter()
        .filter(|group| bits & (1 << *group as u32) != 0)
        .collect()
}

impl<const GROUPS: u32> clap::FromArgMatches for Flags<GROUPS> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let (settings, problems) = settings(matches);
        Ok(Self { settings, problems })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl<const GROUPS: u32> clap::Args for Flags<GROUPS> {
    fn augment_args(command: Command) -> Command {
        augment(command, &groups(GROUPS))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{merge::merge, schema};
    use super::*;

    #[test]
    fn every_flag_sets_a_key_that_exists() {
        for flag in FLAGS {
            assert!(
                schema::is_key(flag.key)
                    || flag.takes == Takes::Pairs && schema::is_section(flag.key),
                "--{}",
                flag.name
            );
        }
    }

    #[test]
    fn a_slime_script_sets_what_it_set_there() {
        let command = augment(Command::new("run"), &ALL);
        let matches = command.get_matches_from([
            "run",
            "--rollout-batch-size",
            "32",
            "--use-kl-loss",
            "--kl-loss-coef",
            "0.00",
            "--eps-clip-high",
            "0.28",
            "--rollout-stop",
            "a",
            "b",
            "--rollout-stop-token-ids",
            "7",
            "8",
            "--eval-prompt-data",
            "aime",
            "x.jsonl",
            "--disable-grpo-std-normalization",
            "--rollout-top-k",
            "-1",
            "--lr",
            "1e-6",
        ]);
        let (settings, problems) = settings(&matches);
        assert!(problems.is_empty(), "{problems:?}");
        let config = merge(settings).unwrap().config;
        assert_eq!(config.rollout.batch_size, Some(32));
        assert_eq!(config.rollout.stop, Some(vec!["a".into(), "b".into()]));
        assert_eq!(config.rollout.stop_token_ids, Some(vec![7, 8]));
        assert_eq!(config.rollout.top_k, Some(-1));
        assert_eq!(config.algorithm.use_kl_loss, Some(true));
        assert_eq!(config.algorithm.disable_grpo_std_normalization, Some(true));
        assert_eq!(config.eval.prompt_data["aime"], "x.jsonl");
        assert_eq!(config.train.lr, Some(1e-6));
        assert_eq!(config.data.shuffle, None);
    }
}
