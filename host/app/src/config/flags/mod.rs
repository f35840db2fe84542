//! Named flags: slime's and Megatron's names for keys of a recipe.
//!
//! One table, so that a slime script ports line by line. A flag of slime that this build cannot honour is
//! refused with a sentence, never ignored.

pub mod sglang;
pub mod slime;
mod table;

use super::layer::{Origin, Setting, from_text};
use super::plan::Verb;
use super::problem::Problem;
use clap::{Arg, ArgAction, ArgMatches, Command, error::Error};
use slime::Fate;
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
    let reason = match slime::fate(name)? {
        Fate::Same => return None,
        Fate::Renamed(other) => format!("use --{other}"),
        Fate::Sets(key, value) => format!("use --set {key}={value}"),
        Fate::Always(why) | Fate::Zero(why) => format!("{why}; leave it out"),
        Fate::Plugin(what) => format!("{what}: name it after the verb, like `run plugins/math`"),
        Fate::Refused(why) => why.to_owned(),
    };
    Some(format!("--{name}: {reason}"))
}

/// The flags of `groups`, as clap arguments: of a verb those whose key it reads.
pub fn augment(mut command: Command, groups: &[Group], verb: Option<Verb>) -> Command {
    let reads = |flag: &&Flag| verb.is_none_or(|verb| verb.reads(flag.key));
    let taken = FLAGS.iter().filter(|f| groups.contains(&f.group));
    for flag in taken.filter(reads) {
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

/// What a flag of this program sets, given the words that follow it. `None` where there is no such flag.
pub fn setting(name: &str, given: &[String]) -> Option<Vec<Result<Setting, Problem>>> {
    let flag = FLAGS.iter().find(|flag| flag.name == name)?;
    let said = format!("--{name} {}", given.join(" "));
    let one = |(key, text): (String, String)| {
        from_text(&key, &text, Origin::Flag(said.trim_end().to_owned()))
    };
    Some(texts(flag, given).into_iter().map(one).collect())
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

/// Where [`bits`] holds the verb, above all groups.
const VERB: u32 = 8;

/// A verb and the groups it takes flags of as bits, for [`Flags`]; without one all flags of the groups are taken.
pub const fn bits(verb: Option<Verb>, groups: &[Group]) -> u32 {
    let (mut bits, mut i) = (0, 0);
    if let Some(verb) = verb {
        bits = (verb as u32 + 1) << VERB;
    }
    while i < groups.len() {
        bits |= 1 << groups[i] as u32;
        i += 1;
    }
    bits
}

/// What a whole recipe is said with.
pub const ALL: [Group; 7] = [Run, Model, Data, Eval, Rollout, Algorithm, Train];

fn groups(bits: u32) -> Vec<Group> {
    ALL.into_iter()
        .filter(|group| bits & (1 << *group as u32) != 0)
        .collect()
}

fn verb(bits: u32) -> Option<Verb> {
    Verb::ALL
        .into_iter()
        .find(|verb| *verb as u32 + 1 == bits >> VERB)
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
        augment(command, &groups(GROUPS), verb(GROUPS))
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
    fn a_verb_takes_no_flag_whose_key_it_refuses() {
        let names = |verb| {
            let command = augment(Command::new("verb"), &ALL, Some(verb));
            let longs = command.get_arguments().filter_map(Arg::get_long);
            longs.map(str::to_owned).collect::<Vec<_>>()
        };
        let has = |verb, name: &str| names(verb).iter().any(|known| known == name);
        assert!(has(Verb::Run, "num-rollout") && has(Verb::Rollout, "num-rollout"));
        assert!(!has(Verb::Sft, "num-rollout") && !has(Verb::Eval, "skip-eval-before-train"));
        assert!(has(Verb::Eval, "rollout-seed"), "it stands in no section");
        for verb in Verb::ALL {
            assert_eq!(super::verb(bits(Some(verb), &ALL)), Some(verb));
            assert_eq!(groups(bits(Some(verb), &ALL)), ALL);
        }
    }

    #[test]
    fn a_slime_script_sets_what_it_set_there() {
        let command = augment(Command::new("run"), &ALL, None);
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
        assert_eq!(config.eval.prompt_data["aime"].path, "x.jsonl");
        assert_eq!(config.train.lr, Some(1e-6));
        assert_eq!(config.data.shuffle, None);
    }

    fn parsed(flags: &[&str]) -> crate::config::sections::RunConfig {
        let command = augment(Command::new("run"), &ALL, None);
        let matches = command.get_matches_from([&["run"], flags].concat());
        let (settings, problems) = settings(&matches);
        assert!(problems.is_empty(), "{problems:?}");
        merge(settings).unwrap().config
    }

    #[test]
    fn n02_a_flag_that_is_absent_says_nothing() {
        let config = parsed(&[]);
        assert_eq!(config, crate::config::sections::RunConfig::default());
        assert_eq!(parsed(&["--use-tis"]).algorithm.use_tis, Some(true));
    }

    #[test]
    fn n05_a_flag_is_never_abbreviated() {
        for short in [
            "--rollout-stop-token",
            "--eps-clip-hi",
            "--use-t",
            "--lambda",
        ] {
            let command = augment(Command::new("run"), &ALL, None);
            assert!(
                command.try_get_matches_from(["run", short, "1"]).is_err(),
                "{short}"
            );
        }
        assert_eq!(parsed(&["--eps-clip", "0.1"]).algorithm.eps_clip_high, None);
    }
}
