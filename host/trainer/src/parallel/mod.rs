//! Training on several ranks: Megatron's tensor, sequence, pipeline, context, expert and data parallelism.
//!
//! Every rank runs the same program on its own part ([`shard`]) of the model ([`stage`]) and its own part of the batch
//! ([`share`], [`slice`](mod@slice)); what they tell each other goes through [`mesh`]. One rank's arithmetic is the
//! definition of correct: `tests/parallel` compares every layout with it. Read [`layout`] first, then [`rank`].

mod buckets;
mod checkpoint;
mod copies;
mod critic;
mod fit;
pub mod head;
pub mod layout;
pub mod mesh;
pub mod pipeline;
pub mod place;
pub mod processes;
pub mod rank;
mod replay;
pub mod schedule;
pub mod shard;
pub mod share;
pub mod slice;
pub mod stage;
pub mod trainer;
pub mod whole;
pub mod zero;

pub use layout::ParallelConfig;
pub use mesh::Mesh;
pub use place::{Axis, Place};
pub use processes::{ProcessTrainer, follow, member};
pub use rank::Rank;
pub use trainer::{ParallelTrainer, Training};
