//! What a recipe may not say: values out of range, contradictions, and options without effect.
//!
//! An option that changes nothing in this run is refused, because its author believes that it does. A recipe's file
//! may hold sections for other verbs; `--set`, flags and environment speak of this verb only and are held to it.

mod data;
mod lag;
mod model;
mod ranges;
mod servers;
#[cfg(test)]
mod tests;

use super::layer::Origin;
use super::problem::{Problem, Problems};
use super::servers::LaunchPlan;
use super::{Plan, Resolved, Verb};

/// A key, its value, what holds of it, and that in words.
type Range = (&'static str, Option<f64>, fn(f64) -> bool, &'static str);

/// Collects problems while a plan is made.
pub struct Check<'a> {
    said: &'a Resolved,
    verb: Verb,
    problems: Vec<Problem>,
}

impl<'a> Check<'a> {
    /// Nothing found yet.
    pub fn new(said: &'a Resolved, verb: Verb) -> Self {
        Self {
            said,
            verb,
            problems: Vec::new(),
        }
    }

    /// Add a problem at the place where `key` was said, if it was.
    pub fn refuse(&mut self, key: &str, message: impl Into<String>, help: impl Into<String>) {
        self.problems
            .push(Problem::new(message).help(help).at(self.said.place(key)));
    }

    /// Add a problem that knows its place.
    pub fn add(&mut self, problem: Problem) {
        self.problems.push(problem);
    }

    /// A value that had to be read from text.
    pub fn parse<T>(&mut self, key: &str, result: Result<T, String>) -> Option<T> {
        result
            .map_err(|message| {
                self.problems
                    .push(Problem::new(format!("`{key}`: {message}")).at(self.said.place(key)))
            })
            .ok()
    }

    /// The plan, if nothing was found.
    pub fn done(self, plan: Plan) -> Result<Plan, Problems> {
        if self.problems.is_empty() {
            Ok(plan)
        } else {
            Err(Problems(self.problems))
        }
    }

    /// Every rule that needs only what was said, and which servers follow from it.
    pub fn rules(&mut self, launch: Option<&LaunchPlan>) {
        self.sections();
        self.ranges();
        self.sources();
        self.teacher(launch);
        self.model();
        self.batches();
        self.parallel();
        self.servers();
        self.without_effect();
        self.lag();
        self.length();
    }

    fn useless(&mut self, key: &str, why: &str, help: &str) {
        if self.said.says(key) {
            self.refuse(key, format!("`{key}` has no effect: {why}"), help);
        }
    }

    fn sections(&mut self) {
        for (key, origin) in &self.said.origins {
            if !self.verb.reads(key) && !matches!(origin, Origin::File { .. }) {
                let message = format!("`{key}` has no effect in `{}`", self.verb.name());
                self.refuse(
                    key,
                    message,
                    "leave it out; a file may hold it for other verbs",
                );
            }
        }
    }
}
