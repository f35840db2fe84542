//! `slime-host import`: a slime launch script as a recipe on stdout; what could not be carried over on stderr.
//!
//! It reads a script's words and runs nothing. Read [`script`] for the words and [`crate::config::flags::slime`] for what
//! becomes of each flag.

mod script;

use super::{Context, Outcome};
use crate::config::flags::slime::{self, Fate};
use crate::config::flags::{refusal, setting};
use crate::config::layer::{Origin, Setting, from_text};
use crate::config::merge::merge;
use crate::config::{Plan, Problem, Resolved, Verb};
use crate::error::Result;
use script::{Script, Word};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What to read.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A launch script, or a file of its arguments
    script: PathBuf,
    /// Plugins that take the place of its reward and generate functions
    plugins: Vec<PathBuf>,
}

/// A script as a recipe.
#[derive(Debug, Default)]
pub struct Imported {
    /// Keys, as flags said them.
    settings: Vec<Setting>,
    /// Sentences about what a person must look at.
    pub left: Vec<String>,
    /// Flags that need nothing, by the reason.
    pub needless: BTreeMap<String, Vec<String>>,
}

/// Do it.
///
/// # Errors
/// The script cannot be read.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    let text = std::fs::read_to_string(&args.script).map_err(|e| {
        Problem::new(format!("cannot read {}: {e}", args.script.display()))
            .help("give the path of a launch script")
    })?;
    let mut imported = import(&text);
    if !args.plugins.is_empty() {
        let names: Vec<String> = args
            .plugins
            .iter()
            .map(|p| p.display().to_string())
            .collect();
        imported.settings.push(Setting {
            key: "run.plugins".into(),
            value: Some(names.into()),
            origin: Origin::Flag("plugins".into()),
        });
    }
    let resolved = imported.resolve()?;
    let console = &context.console;
    if !imported.left.is_empty() {
        console.line(" to look at:");
    }
    for sentence in &imported.left {
        console.line(&format!("   {sentence}"));
    }
    for problem in Plan::new(&resolved, Verb::Run)
        .err()
        .map(|p| p.0)
        .unwrap_or_default()
    {
        console.line(&format!("   the recipe: {problem}"));
    }
    for (reason, flags) in &imported.needless {
        console.line(&format!(" left out: {} ({reason})", flags.join(", ")));
    }
    let name = args
        .script
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    super::data(&format!(
        "# From {name}, by slime-host import.\n\n{}",
        resolved.to_toml(false)
    ))
}

impl Imported {
    /// The recipe.
    ///
    /// # Errors
    /// Two flags contradict each other.
    pub fn resolve(&self) -> std::result::Result<Resolved, Problem> {
        merge(self.settings.clone())
    }

    fn set(&mut self, key: &str, text: &str, said: &str) {
        match from_text(key, text, Origin::Flag(said.to_owned())) {
            Ok(setting) => self.settings.push(setting),
            Err(problem) => self.left.push(format!("{said}: {problem}")),
        }
    }

    fn flag(&mut self, name: &str, values: &[String]) {
        let said = format!("--{name} {}", values.join(" "))
            .trim_end()
            .to_owned();
        if name == "ref-load" && values.iter().any(|path| path.ends_with("_torch_dist")) {
            let why = "a Megatron checkpoint; the reference is the model that the run starts from, or an HF directory";
            return self.left.push(format!("{said}: {why}"));
        }
        match slime::fate(name) {
            None | Some(Fate::Same) => match setting(name, values) {
                Some(results) => {
                    for result in results {
                        match result {
                            Ok(setting) => self.settings.push(setting),
                            Err(problem) => self.left.push(format!("{said}: {problem}")),
                        }
                    }
                }
                None if name.starts_with("sglang-") => self
                    .left
                    .push(format!("{said}: give it to the server that you start, or leave it beside --rollout-num-engines")),
                None => self.left.push(
                    refusal(name).unwrap_or_else(|| format!("{said}: unknown, and left out")),
                ),
            },
            Some(Fate::Renamed(other)) => self.left.push(format!("{said}: use --{other}")),
            Some(Fate::Sets("rollout.fully_async", _)) => {
                self.set("rollout.fully_async", "true", &said);
                self.set("rollout.max_lag", "1", &said);
                self.left.push(format!(
                    "{said}: rollouts that a step does not wait for go on while it trains, one version behind (fully_async, max_lag = 1)"
                ));
            }
            Some(Fate::Sets(key, value)) => self.set(key, value, &said),
            Some(Fate::Always(why)) => {
                let flags = self.needless.entry(why.to_owned()).or_default();
                flags.push(format!("--{name}"));
            }
            Some(Fate::Zero(_)) if values.iter().all(|value| value.parse() == Ok(0.0)) => {}
            Some(Fate::Plugin(what)) => self.left.push(format!("{said}: {what}")),
            Some(Fate::Zero(why) | Fate::Refused(why)) => self.left.push(format!("{said}: not carried over, {why}")),
        }
    }
}

/// What a script says.
pub fn import(text: &str) -> Imported {
    let script = Script::read(text);
    let mut imported = Imported::default();
    let mut words = script.words.iter().peekable();
    while let Some(word) = words.next() {
        let Word::Flag(name) = word else { continue };
        let mut values = Vec::new();
        while let Some(Word::Value(value)) = words.peek() {
            values.push(value.clone());
            words.next();
        }
        imported.flag(name, &values);
    }
    if script.is_async {
        imported.set("rollout.max_lag", "1", "train_async.py");
        imported.left.push(
            "train_async.py: the next step is sampled while this one trains (max_lag = 1)".into(),
        );
    }
    if imported.settings.iter().any(|s| s.key == "rollout.max_lag")
        && !imported.settings.iter().any(|s| {
            ["algorithm.use_tis", "algorithm.use_rollout_logprobs"].contains(&s.key.as_str())
        })
    {
        imported.set("algorithm.allow_uncorrected_lag", "true", "train_async.py");
        imported.left.push("the script corrects nothing for tokens of older weights; use_tis = true would (allow_uncorrected_lag says that it does not)".into());
    }
    // What a script leaves to Megatron is not what this program does without being told.
    for (key, value) in [
        ("train.weight_decay", "0.01"),
        ("train.adam_beta2", "0.999"),
        ("train.lr_decay_style", "linear"),
    ] {
        if !imported.settings.iter().any(|s| s.key == key) {
            imported.set(key, value, "Megatron's default");
        }
    }
    for name in script.unknown_variables {
        imported
            .left
            .push(format!("${name} is set outside the script: replace it"));
    }
    imported
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn scripts() -> Vec<(String, String)> {
        let dir = Path::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../tests/golden/slime-scripts"
        ));
        let mut all: Vec<(String, String)> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.extension().is_some_and(|e| e == "sh"))
            .map(|path| {
                (
                    path.file_stem().unwrap().to_string_lossy().into_owned(),
                    std::fs::read_to_string(&path).unwrap(),
                )
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn ten_launch_scripts_become_recipes_that_lack_nothing_but_their_plugins() {
        let all = scripts();
        assert!(all.len() >= 10, "{}", all.len());
        for (name, text) in all {
            let mut imported = import(&text);
            assert!(
                !imported.left.iter().any(|s| s.contains("unknown")),
                "{name}: {:?}",
                imported.left
            );
            imported.set("run.plugins", "[\"plugins/math\"]", "a plugin");
            let resolved = imported.resolve().unwrap();
            assert!(
                resolved.config.model.path.is_some()
                    && resolved.config.rollout.batch_size.is_some(),
                "{name}"
            );
            let again =
                merge(crate::config::layer::from_file("r.toml", &resolved.to_toml(false)).0)
                    .unwrap();
            assert_eq!(again.config, resolved.config, "{name}");
            let problems = Plan::new(&resolved, Verb::Run)
                .err()
                .map(|p| p.0)
                .unwrap_or_default();
            let others: Vec<String> = problems
                .iter()
                .map(ToString::to_string)
                // Layouts of many ranks, and what slime accepts without effect, are for a person to decide.
                .filter(|p| !p.contains("_parallel_size") && !p.contains("no effect"))
                .filter(|p| !p.contains("experts over ranks") && !p.contains("runs on one rank"))
                .collect();
            assert_eq!(others, Vec::<String>::new(), "{name}");
        }
    }

    #[test]
    fn a_script_is_carried_over_flag_by_flag() {
        let text = "#!/bin/bash\nBASE=${BASE_DIR:-/data}\nROLLOUT_ARGS=(\n   --prompt-data $BASE/dapo.jsonl\n   --input-key prompt # the question\n   # --label-key gone\n\
                    --rollout-batch-size 32 --n-samples-per-prompt 8\n   --rollout-stop \"a b\" c\n   --partial-rollout\n)\nGRPO=(--advantage-estimator grpo --calculate-per-token-loss\n\
                    --rm-type deepscaler --sglang-mem-fraction-static 0.7)\nray job submit --address=\"http://x\" -- python3 train.py --colocate --hf-checkpoint $MODEL/q \\\n  ${GRPO[@]} ${ROLLOUT_ARGS[@]}\n";
        let imported = import(text);
        let config = imported.resolve().unwrap().config;
        assert_eq!(config.data.prompt_data.as_deref(), Some("/data/dapo.jsonl"));
        assert_eq!(config.data.input_key.as_deref(), Some("prompt"));
        assert_eq!(config.data.label_key, None, "a comment says nothing");
        assert_eq!(config.rollout.stop, Some(vec!["a b".into(), "c".into()]));
        assert_eq!(
            (config.rollout.fully_async, config.rollout.max_lag),
            (Some(true), Some(1))
        );
        assert_eq!(
            config.algorithm.loss_aggregation,
            Some(slime_trainer::algo::weights::Aggregation::TokenMean)
        );
        assert_eq!(config.model.path.unwrap().to_str(), Some("$MODEL/q"));
        let left = imported.left.join("\n");
        for part in [
            "--rm-type deepscaler: a verifier plugin",
            "--sglang-mem-fraction-static 0.7: give it to the server",
            "$MODEL is set outside",
            "allow_uncorrected_lag",
        ] {
            assert!(left.contains(part), "{part} is not in\n{left}");
        }
        assert!(!left.contains("address"), "ray's own flags are ray's");
        let needless: Vec<&String> = imported.needless.values().flatten().collect();
        assert_eq!(needless, ["--colocate"]);
    }

    #[test]
    fn what_a_script_leaves_to_megatron_is_written_down_and_what_is_not_computed_is_said() {
        let text = "python3 train.py --hf-checkpoint /q --adam-beta2 0.95 --moe-aux-loss-coeff 1e-3 --moe-router-bias-update-rate 0\n";
        let imported = import(text);
        let config = imported.resolve().unwrap().config;
        assert_eq!(config.train.adam_beta2, Some(0.95));
        assert_eq!(config.train.weight_decay, Some(0.01));
        let left = imported.left.join("\n");
        assert!(
            left.contains("--moe-aux-loss-coeff 1e-3: not carried over"),
            "{left}"
        );
        assert!(!left.contains("bias-update"), "{left}");
    }
}
