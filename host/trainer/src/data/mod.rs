//! From rollout records to micro-batches.
//!
//! ```text
//! records ─► rollouts (by id) ─► batches (one a train step) ─► micro-batches (packed by a token budget)
//! ```
//!
//! Everything here is integers and host numbers; no tensor is made. Read [`rollouts`], [`batch`], [`pack`].

pub mod batch;
pub mod pack;
pub mod rollouts;
pub mod routes;

pub use batch::{Batch, Columns, Sequence};
pub use pack::{MicroBatch, first_fit};
pub use rollouts::{Rollout, split_steps};
