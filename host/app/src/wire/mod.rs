//! From a plan to the concrete types behind the ports: model, plugins, sources, engine.
//!
//! It opens and checks; it runs no loop. What it refuses is still a problem of the configuration, because nothing has
//! been sampled or trained yet. Read `model`, then the others in any order.

pub mod around;
pub mod caster;
pub mod device;
pub mod dry_run;
pub mod engine;
pub mod http;
pub mod model;
pub mod plugins;
pub mod pulled;
pub mod registry;
pub mod scoring;
pub mod servers;
pub mod sources;
pub mod tools;

pub use device::Computer;
pub use engine::{Serving, Whose};
pub use model::Model;
pub use plugins::Plugins;
pub use pulled::is_reference;
pub use scoring::RunScoring;

use crate::config::{Problem, Resolved};
use crate::error::Failure;
use slime_rollout::RolloutError;
use std::fmt::Display;

/// A refusal, at the first of `keys` that somebody said.
pub fn refused(said: &Resolved, keys: &[&str], error: impl Display) -> Problem {
    let place = keys.iter().find_map(|key| said.place(key));
    Problem::new(error.to_string()).at(place)
}

/// An error of the rollout side, once a run has begun.
pub fn rollout_failed(error: RolloutError) -> Failure {
    match error {
        RolloutError::TakenOver { .. } => Failure::elsewhere(error.to_string()),
        _ => Failure::run(error.to_string()),
    }
}
