//! Where prompts come from when they come from files.
//!
//! The draw is a function of (seed, source, index), so a run resumes without replaying. Sources that
//! make prompts up are plugins and belong to the runtime. Read `file.rs`, then `row.rs`.

mod file;
mod mixer;
mod row;
mod rows;
mod shuffle;
mod slice;

pub use file::PromptFile;
pub use mixer::Mixer;
pub use row::RowKeys;
pub use shuffle::permutation;
pub use slice::PathSlice;
