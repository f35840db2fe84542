//! All rollouts of one prompt.

use crate::{Accounting, GroupId, Outcome, Prompt, RolloutId, RolloutRecord, Step, Trajectory};
use serde::{Deserialize, Serialize};

/// One execution of a generator for one prompt, scored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rollout {
    /// Unique within the run.
    pub id: RolloutId,
    /// Its place in the group, from 0.
    pub index: u32,
    /// Fixed every random choice of the rollout.
    pub seed: u64,
    /// At least one unless the outcome is an infrastructure failure.
    pub trajectories: Vec<Trajectory>,
    /// The verdict, or why there is none.
    pub outcome: Outcome,
    /// What scoring it cost.
    pub scoring: Accounting,
    /// What shapers made of the reward, for training only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shaped: Option<f64>,
}

impl Rollout {
    /// The reward that trains: the verdict's, or what shapers made of it. `None` unless it was scored.
    pub fn training_reward(&self) -> Option<f64> {
        let raw = self.outcome.reward()?;
        Some(self.shaped.unwrap_or(raw))
    }
}

/// All rollouts of one prompt in one step, ordered by index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Unique within the run.
    pub id: GroupId,
    /// The step that asked for it.
    pub step: Step,
    /// What the rollouts started from.
    pub prompt: Prompt,
    /// Ordered by index.
    pub rollouts: Vec<Rollout>,
}

impl Group {
    /// Rewards of the scored rollouts, in order of index.
    pub fn rewards(&self) -> Vec<f64> {
        self.rollouts
            .iter()
            .filter_map(|r| r.outcome.reward())
            .collect()
    }

    /// One record a trajectory, in order of rollout and trajectory.
    pub fn records(&self) -> Vec<RolloutRecord> {
        self.rollouts
            .iter()
            .flat_map(|rollout| {
                rollout
                    .trajectories
                    .iter()
                    .map(move |trajectory| RolloutRecord::new(self, rollout, trajectory))
            })
            .collect()
    }
}
