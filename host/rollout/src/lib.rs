//! Everything that waits on a network or a prompt file: sources, the pool of engines, the sampler,
//! the Data Buffer and publishing.
//!
//! It refuses to know a tensor, a plugin's runtime or the order of a run: those belong to the trainer,
//! the runtime and the program. Read [`source`], then [`collect`], [`pool`], [`buffer`] and [`publish`],
//! in the order in which a prompt travels.
//!
//! The building blocks of the one loop, which itself lives in the program:
//!
//! ```text
//! sampler.serve(publisher.publish(dir, version).await?.version)
//! sampler.groups(step, buffer.missing(n, served)?).await?     each group durable as it completes
//! buffer.take(step, n, served)?                               max_lag enforced, order by group id
//! trainer …                                                   another crate
//! buffer.trained(step)?
//! ```
//! A one-step-ahead run calls `sampler.groups(step + 1, …)` in a task of its own while step `step`
//! trains; a fully asynchronous one asks a [`Continuous`] sampler, which never pauses. Nothing else changes.
#![forbid(unsafe_code)]

pub mod buffer;
pub mod collect;
mod error;
pub mod fence;
pub mod gateway;
mod models;
pub mod pool;
pub mod publish;
pub mod seed;
pub mod source;
mod teacher;
pub mod whole;

pub use buffer::{Buffer, Conservation, Identity, Start, Taken};
pub use collect::{Collected, Continuous, Limits, Sampler, SamplerConfig, SingleTurn};
pub use error::RolloutError;
pub use fence::Fence;
pub use gateway::{Gateway, GatewayConfig};
pub use models::NamedModels;
pub use pool::{Address, Pool, PoolConfig};
pub use publish::{Publisher, WeightDirs};
pub use source::{Mixer, PromptFile, RowKeys};
pub use teacher::Teacher;
pub use whole::WholeFile;

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Lock, and go on after another thread's panic: every value guarded in this crate is consistent
/// between statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
