//! What goes on inside a step, on the bar: how many rollouts have ended, how much is trained.

use crate::telemetry::console::Progress as Bar;
use slime_core::{Outcome, Step};
use slime_rollout::collect::Progress;
use slime_trainer::{OnProgress, Phase};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Shows a step's sampling.
pub struct Watch {
    bar: Bar,
    what: &'static str,
    total: AtomicUsize,
    done: AtomicUsize,
}

impl Watch {
    /// On `bar`, under the name `what`.
    pub fn new(bar: Bar, what: &'static str) -> Self {
        Self {
            bar,
            what,
            total: AtomicUsize::new(0),
            done: AtomicUsize::new(0),
        }
    }
}

impl Progress for Watch {
    fn begin(&self, _step: Step, num_groups: usize, num_samples: u32) {
        self.total
            .store(num_groups * num_samples as usize, Ordering::Relaxed);
        self.done.store(0, Ordering::Relaxed);
    }

    fn rollout(&self, _step: Step, _outcome: &Outcome, _num_tokens: usize) {
        let done = self.done.fetch_add(1, Ordering::Relaxed) + 1;
        self.bar.say(format!(
            "· {} {done}/{}",
            self.what,
            self.total.load(Ordering::Relaxed)
        ));
    }

    fn end(&self, _step: Step) {
        self.bar.say(String::new());
    }
}

/// Shows a train step.
pub fn on_train(bar: Bar) -> OnProgress {
    Box::new(move |progress| {
        let what = match progress.phase {
            Phase::Reference => "reference",
            Phase::Teacher => "teacher",
            Phase::OldLogProbs => "old log-probs",
            Phase::Critic => "critic",
            Phase::Train => "train",
            Phase::Update => "update",
        };
        let percent = 100 * progress.tokens.0 / progress.tokens.1.max(1);
        bar.say(format!("· {what} {percent} %"));
    })
}
