//! Training a model on rollout records: advantages, objective, packing, gradients, optimizer, checkpoints.
//!
//! It waits on no network, reads no prompt and runs nobody's code. Read [`trainer`] first, then [`step`]; an
//! algorithm is one file in [`algo`].
#![forbid(unsafe_code)]

pub mod advantages;
pub mod algo;
pub mod checkpoint;
pub mod config;
pub mod critic;
pub mod data;
pub mod error;
pub mod head;
pub mod metrics;
pub mod optim;
pub mod parallel;
pub mod passes;
pub mod plan;
pub mod step;
pub mod trainer;

pub use config::{Problem, TrainConfig};
pub use error::{Error, Result};
pub use metrics::TrainMetrics;
pub use trainer::{OnProgress, Phase, Progress, SftSequence, TokenScores, Trainer};
