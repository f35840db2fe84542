//! The nouns everyone says, their ids, and the ports through which the wings meet.
//!
//! No I/O, no tensors, no async runtime: a port that waits returns a boxed future and leaves the
//! waiting to its caller. Read [`trajectory`] first, then [`ports`].
#![forbid(unsafe_code)]

pub mod group;
pub mod ids;
pub mod json;
pub mod message;
pub mod outcome;
pub mod ports;
pub mod prompt;
pub mod record;
pub mod sampling;
pub mod trajectory;

pub use group::{Group, Rollout};
pub use ids::{GroupId, PromptId, Rank, RolloutId, Step, WeightVersion};
pub use message::{Message, Tool};
pub use outcome::{Accounting, Outcome, Verdict};
pub use prompt::{Prompt, PromptBody};
pub use record::RolloutRecord;
pub use sampling::{FinishReason, SamplingParams};
pub use trajectory::{Origin, Segment, Trajectory, TrajectoryError};
