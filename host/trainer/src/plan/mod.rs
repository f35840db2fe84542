//! What a layout would cost before anything is launched: memory by class, waiting, traffic, time of a step.
//!
//! ```text
//! layout ─► every rank's own code over shapes (record) ─► its calls and its peak of memory
//! all ranks' calls ─► a clock for each (replay) ─► step time, bubble, traffic by group
//! layouts that fit ─► the fastest (search); one layout, rank by rank (everyone)
//! ```
//!
//! Nothing here is a second model of the trainer: sizes, order of calls and peak come from running it. Only the rates in
//! [`machine`] are assumptions. Read [`record`] next.

mod cores;
pub mod everyone;
pub mod flops;
pub mod machine;
pub mod picture;
pub mod record;
pub mod replay;
pub mod search;

pub use everyone::{Everyone, everyone};
pub use machine::Machine;
pub use record::{Memory, Recorded, Workload, record};
pub use replay::{Outcome, replay};
pub use search::{Candidate, search};
