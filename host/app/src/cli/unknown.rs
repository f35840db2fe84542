//! Unknown flags, all at once, each with what was probably meant.
//!
//! clap would stop at the first. It also cannot know that a flag belongs to another verb or to a slime script whose
//! option this build does not have.

use crate::config::problem::Place;
use crate::config::{Problem, Problems, flags, schema};
use clap::Command;
use std::sync::Arc;

/// Check every `--flag` of a command line against the command it is for.
///
/// # Errors
/// One problem a flag.
pub fn check(root: &Command, argv: &[String]) -> Result<(), Problems> {
    // The program's path is of no interest, and may be long.
    let words = argv.iter().skip(1).map(String::as_str);
    let words: Vec<&str> = std::iter::once(root.get_name()).chain(words).collect();
    let line: Arc<str> = words.join(" ").into();
    let (mut command, mut problems, mut at) = (root, Vec::new(), 0);
    let mut value_expected = false;
    for (index, word) in words.iter().enumerate() {
        let span = at..at + word.len();
        at += word.len() + 1;
        if index == 0 {
            continue;
        }
        if *word == "--" {
            break;
        }
        if let Some(flag) = word.strip_prefix("--") {
            let (name, value) = flag
                .split_once('=')
                .map_or((flag, None), |(name, value)| (name, Some(value)));
            let known = command
                .get_arguments()
                .chain(root.get_arguments())
                .find(|arg| arg.get_long() == Some(name));
            if known.is_none() && !["help", "version"].contains(&name) {
                let place = Place {
                    name: "command line".into(),
                    text: line.clone(),
                    span,
                };
                problems.push(problem(command, name).at(Some(place)));
            }
            value_expected =
                value.is_none() && known.is_some_and(|arg| arg.get_action().takes_values());
        } else if !value_expected && let Some(verb) = command.find_subcommand(word) {
            command = verb;
        } else {
            value_expected = false;
        }
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Problems(problems))
    }
}

fn problem(command: &Command, name: &str) -> Problem {
    let verb = command.get_name();
    if let Some(reason) = flags::refusal(name) {
        return Problem::new(reason);
    }
    if flags::exists(name) {
        let problem = Problem::new(format!("--{name} has no effect in `{verb}`"));
        // Verbs of one model take it by its own flag.
        let takes_a_model = command
            .get_arguments()
            .any(|arg| arg.get_long() == Some("model"));
        return match name {
            "hf-checkpoint" if takes_a_model => problem.help("the model is --model DIR here"),
            _ => problem.help("leave it out"),
        };
    }
    let longs = command
        .get_arguments()
        .filter_map(|arg| arg.get_long())
        .map(|long| (long, long));
    let problem = Problem::new(format!("unknown flag --{name}"));
    match schema::nearest(name, longs) {
        Some(meant) => problem.help(format!("did you mean --{meant}?")),
        None => problem.help(format!("`slime-host {verb} --help` lists every flag")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    fn messages(line: &str) -> Vec<(String, Option<String>)> {
        let argv: Vec<String> = line.split(' ').map(str::to_owned).collect();
        match check(&super::super::Cli::command(), &argv) {
            Ok(()) => Vec::new(),
            Err(problems) => problems
                .0
                .into_iter()
                .map(|p| (p.message, p.help))
                .collect(),
        }
    }

    #[test]
    fn every_unknown_flag_is_reported_with_what_was_meant() {
        let found = messages(
            "slime-host --log json run plugins/x --rollout-batchsize 8 --lr 1e-6 --use-wandb --frob",
        );
        assert_eq!(found.len(), 3, "{found:?}");
        assert_eq!(found[0].0, "unknown flag --rollout-batchsize");
        assert_eq!(
            found[0].1.as_deref(),
            Some("did you mean --rollout-batch-size?")
        );
        assert!(found[1].0.starts_with("--use-wandb: "));
        assert!(found[2].1.as_deref().unwrap().contains("--help"));
    }

    #[test]
    fn a_flag_of_another_verb_is_named_as_such() {
        assert_eq!(
            messages("slime-host rollout x --lr 1")[0].0,
            "--lr has no effect in `rollout`"
        );
        assert_eq!(
            messages("slime-host sft --sglang-args=[]")[0].0,
            "--sglang-args has no effect in `sft`"
        );
        let (said, cure) = messages("slime-host serve --hf-checkpoint model").remove(0);
        assert_eq!(said, "--hf-checkpoint has no effect in `serve`");
        assert_eq!(cure.as_deref(), Some("the model is --model DIR here"));
    }

    #[test]
    fn known_flags_and_values_pass() {
        assert!(messages("slime-host run x --seed-less=1").len() == 1);
        assert!(
            messages("slime-host run x --set seed=1 -c a.toml --rollout-top-k -1 --help")
                .is_empty()
        );
        assert!(messages("slime-host config show -c a.toml --set seed=1").is_empty());
    }
}
