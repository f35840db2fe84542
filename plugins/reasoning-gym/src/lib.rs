//! Puzzles made up from a seed, each with a check: after the idea of reasoning-gym (arXiv:2505.24760), tasks of our own.
//!
//! Ten tasks in `tasks`, each at five levels; `source` draws one, `verifier` checks an answer by the task's own rule,
//! so that every right answer counts where a task has several. `"task"` in the prompt's metadata says which it is.
#![forbid(unsafe_code)]

mod arithmetic;
mod logic;
mod source;
mod tasks;
mod verifier;
mod words;

pub use source::Puzzles;
pub use verifier::Checks;
