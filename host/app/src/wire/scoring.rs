//! Who scores what in a run: a verifier for every source, then what all groups go through.
//!
//! A source is scored by the verifier that it names, else by the recipe's (`data.verifier`), else by the only one there is,
//! else by its own plugin. It refuses to guess among several. Read `slime_rollout::collect::Scoring` for what is done.

use super::plugins::{Scorers, Scores};
use crate::config::plan::{Plan, Prompts};
use crate::config::{Problem, Resolved};
use crate::error::Result;
use slime_core::ports::Verifier;
use slime_rollout::collect::Scoring;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The scoring of a run.
pub struct RunScoring {
    /// Of rollouts that train.
    pub training: Scoring,
    /// Of held-out data sets, in order.
    pub sets: Vec<Scoring>,
    /// Smallest and largest reward.
    pub reward_range: (f64, f64),
    /// The range of every verifier that repeats, by name.
    pub ranges: BTreeMap<String, (f64, f64)>,
}

/// Which plugin scores which source.
struct Choice<'a> {
    plan: &'a Plan,
    scorers: &'a Scorers,
    said: &'a Resolved,
    used: BTreeSet<String>,
    problems: Vec<Problem>,
}

impl RunScoring {
    /// Decide it. `only_source` is the only plugin that makes prompts up; `trains` says whether rollouts train, or only
    /// held-out ones are scored.
    ///
    /// # Errors
    /// A source that nobody or anybody could score, a name that is no verifier's, a verifier that scores nothing.
    pub fn new(
        plan: &Plan,
        scorers: &Scorers,
        only_source: Option<&str>,
        said: &Resolved,
        trains: bool,
    ) -> Result<Self> {
        let mut choice = Choice {
            plan,
            scorers,
            said,
            used: BTreeSet::new(),
            problems: Vec::new(),
        };
        let default = choice.default();
        let mut training = choice.with(None);
        if trains {
            for part in &plan.mix {
                let own = match &part.prompts {
                    Prompts::Plugin { plugin, .. } => Some(plugin.as_str()),
                    Prompts::File(_) => None,
                };
                let key = format!("data.sources.{}", part.name);
                let named = part.verifier.as_deref();
                if let Some(verifier) = choice.of(&key, named, default.as_deref(), own) {
                    training.by_source.insert(part.name.clone(), verifier);
                }
            }
        }
        let sets = plan.eval.iter().flat_map(|eval| &eval.sets);
        let sets: Vec<Scoring> = sets
            .map(|set| {
                let key = format!("eval.prompt_data.{}", set.name);
                let verifier = choice.of(&key, set.verifier.as_deref(), default.as_deref(), None);
                choice.with(verifier)
            })
            .collect();
        let own_prompts = plan.eval.as_ref().is_some_and(|eval| eval.sets.is_empty());
        if (trains && plan.mix.is_empty()) || own_prompts {
            let own = only_source.filter(|_| plan.data.is_none());
            training.verifier = choice.of("run.plugins", None, default.as_deref(), own);
        }
        choice.unused();
        let range = |a: (f64, f64), b: (f64, f64)| (a.0.min(b.0), a.1.max(b.1));
        let single = choice.used.iter().map(|name| scorers.verifiers[name].range);
        let reward_range = match scorers.groups.last() {
            Some(last) => last.range,
            None => single.reduce(range).unwrap_or((0.0, 1.0)),
        };
        let repeats = scorers.verifiers.iter().filter(|(_, s)| !s.is_judge);
        crate::cli::collected(choice.problems)?;
        Ok(Self {
            training,
            sets,
            reward_range,
            ranges: repeats.map(|(name, s)| (name.clone(), s.range)).collect(),
        })
    }
}

impl Choice<'_> {
    /// Everybody who looks at groups, after `verifier`.
    fn with(&self, verifier: Option<Arc<dyn Verifier>>) -> Scoring {
        let groups = self.scorers.groups.iter();
        Scoring {
            verifier,
            groups: groups.map(|s| Arc::clone(&s.verifier)).collect(),
            shapers: self.scorers.shapers.clone(),
            ..Scoring::default()
        }
    }

    /// The verifier of sources that name none: the recipe's, or the only one.
    fn default(&self) -> Option<String> {
        let mut all = self.scorers.verifiers.keys();
        let only = all.next().filter(|_| self.scorers.verifiers.len() == 1);
        self.plan.verifier.as_ref().or(only).cloned()
    }

    fn find(&mut self, key: &str, name: &str) -> Option<Arc<dyn Verifier>> {
        let found: Option<&Scores<dyn Verifier>> = self.scorers.verifiers.get(name);
        if found.is_none() {
            let names: Vec<&str> = self.scorers.verifiers.keys().map(String::as_str).collect();
            let what = format!("`{key}`: no verifier is called {name}");
            let help = match names.is_empty() {
                true => "no plugin of this run is a verifier or judge".to_owned(),
                false => format!("the verifiers are {}", names.join(", ")),
            };
            self.refuse(key, what, help);
        }
        let verifier = Arc::clone(&found?.verifier);
        self.used.insert(name.to_owned());
        Some(verifier)
    }

    /// Who scores the source of `key`: whom it names, the default, or its own plugin.
    fn of(
        &mut self,
        key: &str,
        named: Option<&str>,
        default: Option<&str>,
        own: Option<&str>,
    ) -> Option<Arc<dyn Verifier>> {
        if let Some(name) = named {
            return self.find(key, name);
        }
        if let Some(name) = default {
            let key = match self.plan.verifier {
                Some(_) => "data.verifier",
                None => "run.plugins",
            };
            return self.find(key, name);
        }
        if let Some(own) = own.filter(|own| self.scorers.verifiers.contains_key(*own)) {
            return self.find(key, own);
        }
        let names: Vec<&str> = self.scorers.verifiers.keys().map(String::as_str).collect();
        if !names.is_empty() {
            let both = if names.len() == 2 { "both " } else { "all " };
            let names = names.join(" and ");
            let (what, help) = match key {
                "run.plugins" => (
                    format!("{names} are {both}verifiers"),
                    "name one of them, or say which: `data.verifier = \"NAME\"`",
                ),
                _ => (
                    format!("`{key}` names no verifier, and {names} are {both}verifiers"),
                    "add `verifier = \"NAME\"` to it, or `data.verifier` for all that name none",
                ),
            };
            self.refuse(key, what, help.to_owned());
        }
        None
    }

    /// A verifier that scores nothing was named for nothing.
    fn unused(&mut self) {
        let idle = self.scorers.verifiers.keys();
        let idle: Vec<String> = idle.filter(|n| !self.used.contains(*n)).cloned().collect();
        if self.problems.is_empty() {
            for name in idle {
                let what =
                    format!("{name} is a verifier and scores nothing: every source has another");
                let help =
                    format!("leave it out, or let a source name it: `verifier = \"{name}\"`");
                self.refuse("run.plugins", what, help);
            }
        }
    }

    fn refuse(&mut self, key: &str, what: String, help: String) {
        let place = self.said.place(key);
        self.problems.push(Problem::new(what).help(help).at(place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::layer::from_file;
    use crate::config::merge::merge;
    use crate::config::plan::Verb;
    use crate::error::Failure;
    use slime_core::ports::{BoxFuture, ScoreRequest, Scored};

    struct Named(&'static str);

    impl Verifier for Named {
        fn name(&self) -> &str {
            self.0
        }
        fn score(&self, _: ScoreRequest) -> BoxFuture<'_, Scored> {
            unreachable!("nothing is scored here")
        }
    }

    /// Who scores each of these sources, or what was refused.
    fn who(
        names: &[&'static str],
        only_source: Option<&str>,
        recipe: &str,
        sources: &[&str],
    ) -> std::result::Result<Vec<String>, String> {
        let base = "[model]\nbuiltin = \"tiny\"\n[run]\nnum_rollout = 2\nplugins = [\"p\"]\n";
        let (settings, problems) = from_file("r.toml", &format!("{base}{recipe}"));
        assert!(problems.is_empty(), "{problems:?}");
        let said = merge(settings).unwrap();
        let plan = Plan::new(&said, Verb::Run).unwrap();
        let scores = |name: &'static str| Scores {
            verifier: Arc::new(Named(name)) as Arc<dyn Verifier>,
            range: (0.0, if name == "f1" { 2.0 } else { 1.0 }),
            is_judge: false,
        };
        let verifiers = names.iter().map(|name| ((*name).to_owned(), scores(name)));
        let scorers = Scorers {
            verifiers: verifiers.collect(),
            ..Scorers::default()
        };
        let all = RunScoring::new(&plan, &scorers, only_source, &said, true);
        let all = all.map_err(|e| match e {
            Failure::Config(found) => found.0.iter().map(ToString::to_string).collect::<String>(),
            other => other.to_string(),
        })?;
        let eval = all.sets.first().unwrap_or(&all.training);
        let name = |source: &&str| {
            let scoring = if source.starts_with("held") {
                eval
            } else {
                &all.training
            };
            let verifier = scoring.verifier(source);
            verifier.map_or_else(String::new, |v| v.name().to_owned())
        };
        Ok(sources.iter().map(name).collect())
    }

    #[test]
    fn a_source_is_scored_by_whom_it_names_else_by_the_recipes_else_by_its_own_plugin() {
        let mixed = "[data.sources]\na = { path = \"a\", verifier = \"math\" }\nb = { plugin = \"arith\" }\n";
        let all = ["arith", "math"];
        assert_eq!(
            who(&["math"], None, "[data]\nprompt_data = \"x\"\n", &["train"]).unwrap(),
            ["math"]
        );
        assert_eq!(
            who(&all, None, mixed, &["a", "b"]).unwrap(),
            ["math", "arith"]
        );
        let said = format!("[data]\nverifier = \"f1\"\n{mixed}");
        assert_eq!(
            who(&["f1", "math"], None, &said, &["a", "b"]).unwrap(),
            ["math", "f1"]
        );
        assert_eq!(
            who(&["arith"], Some("arith"), "", &["arith"]).unwrap(),
            ["arith"]
        );
        let held = "[eval]\ninterval = 1\n[eval.prompt_data]\nheld = { path = \"h\", verifier = \"math\" }\n";
        assert_eq!(
            who(&all, Some("arith"), held, &["arith", "held"]).unwrap(),
            ["arith", "math"]
        );
    }

    #[test]
    fn what_several_could_score_is_refused_and_so_is_a_verifier_without_work() {
        let several = who(&["f1", "math"], None, "[data]\nprompt_data = \"x\"\n", &[]).unwrap_err();
        assert!(
            several.contains("f1 and math are both verifiers"),
            "{several}"
        );
        let mixed =
            "[data.sources]\na = { path = \"a\", verifier = \"math\" }\nb = { path = \"b\" }\n";
        let nobody = who(&["f1", "math"], None, mixed, &[]).unwrap_err();
        assert!(
            nobody.contains("`data.sources.b` names no verifier"),
            "{nobody}"
        );
        let wrong = who(&["f1"], None, &mixed.replace("math", "maths"), &[]).unwrap_err();
        assert!(wrong.contains("no verifier is called maths"), "{wrong}");
        let idle = "[data]\nprompt_data = \"x\"\nverifier = \"math\"\n";
        let idle = who(&["f1", "math"], None, idle, &[]).unwrap_err();
        assert!(
            idle.contains("f1 is a verifier and scores nothing"),
            "{idle}"
        );
    }
}
