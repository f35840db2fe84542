//! The rollout record: one trajectory as it stands in files, in the run database and in a batch.

use crate::{FinishReason, Group, GroupId, Rollout, RolloutId, Step, Trajectory, WeightVersion};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One trajectory of one rollout, flat. The format of rollout JSONL files and of parquet columns.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RolloutRecord {
    /// The rollout step that asked for it.
    #[serde(default)]
    pub step: Step,
    /// Rollouts of one prompt share it.
    pub group_id: GroupId,
    /// Trajectories of one rollout share it.
    pub rollout_id: RolloutId,
    /// The rollout's place in its group.
    #[serde(default)]
    pub index: u32,
    /// Prompt and response.
    pub tokens: Vec<u32>,
    /// How many of `tokens` follow the prompt.
    pub response_length: usize,
    /// `[response_length]`: 1 trains.
    pub loss_mask: Vec<u8>,
    /// `[response_length]`: the engine's log-prob, 0 where `loss_mask` is 0. Empty when it was not recorded.
    #[serde(default)]
    pub rollout_log_probs: Vec<f32>,
    /// The experts of every token but the last, as SGLang tells them: base64 of 32-bit numbers, least significant byte
    /// first, `[tokens - 1, layers, experts of a token]`; tokens of the environment at the end may be missing. Absent
    /// when they were not recorded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed_experts: Option<String>,
    /// What trains: the verdict, or what shapers made of it. `null` unless the outcome is `scored`.
    pub reward: Option<f64>,
    /// Name of the outcome's kind.
    #[serde(default = "scored")]
    pub outcome: String,
    /// Why the last turn ended.
    #[serde(default)]
    pub finish_reason: Option<FinishReason>,
    /// `[response_length]`: the version that sampled each token, 0 where none did. Empty when it was not recorded.
    #[serde(default)]
    pub weight_versions: Vec<WeightVersion>,
    /// `[response_length]`: a teacher's log-prob of each token, 0 where `loss_mask` is 0. Empty without a teacher.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub teacher_log_probs: Vec<f32>,
    /// The gold answer.
    #[serde(default)]
    pub label: Option<String>,
    /// The prompt's metadata, with `prompt_id` and `seed`.
    #[serde(default)]
    pub metadata: Map<String, Value>,
}

fn scored() -> String {
    "scored".into()
}

impl RolloutRecord {
    /// Flatten one trajectory.
    pub fn new(group: &Group, rollout: &Rollout, trajectory: &Trajectory) -> Self {
        let tokens = trajectory.tokens();
        let mut metadata = group.prompt.metadata.clone();
        metadata.insert("prompt_id".into(), group.prompt.id.to_string().into());
        metadata.insert("seed".into(), rollout.seed.into());
        Self {
            step: group.step,
            group_id: group.id,
            rollout_id: rollout.id,
            index: rollout.index,
            response_length: tokens.len() - trajectory.prompt_length(),
            tokens,
            loss_mask: trajectory.loss_mask(),
            rollout_log_probs: trajectory.logprobs(),
            routed_experts: trajectory.routed_experts.clone(),
            reward: rollout.training_reward(),
            outcome: rollout.outcome.kind().into(),
            finish_reason: trajectory.finish,
            weight_versions: trajectory.versions(),
            teacher_log_probs: Vec::new(),
            label: group.prompt.label.clone(),
            metadata,
        }
    }

    /// Whether the record may vote in a baseline and enter the loss.
    pub fn is_scored(&self) -> bool {
        self.outcome == "scored"
    }

    /// Check what a file may get wrong.
    ///
    /// # Errors
    /// One sentence that names the field and both sizes.
    pub fn validate(&self) -> Result<(), String> {
        let len = self.response_length;
        if len > self.tokens.len() {
            return Err(format!(
                "response_length is {len}, but there are only {} tokens",
                self.tokens.len()
            ));
        }
        if len == self.tokens.len() && len > 0 {
            return Err("response_length equals the number of tokens: a trajectory needs at least one prompt token".into());
        }
        if self.loss_mask.len() != len {
            return Err(format!(
                "loss_mask has {} values, response_length is {len}",
                self.loss_mask.len()
            ));
        }
        if self.loss_mask.iter().any(|&m| m > 1) {
            return Err("loss_mask holds a value other than 0 and 1".into());
        }
        for (name, have) in [
            ("rollout_log_probs", self.rollout_log_probs.len()),
            ("weight_versions", self.weight_versions.len()),
            ("teacher_log_probs", self.teacher_log_probs.len()),
        ] {
            if have != 0 && have != len {
                return Err(format!(
                    "{name} has {have} values, response_length is {len}; leave it empty if it was not recorded"
                ));
            }
        }
        match self.reward {
            Some(reward) if !reward.is_finite() => Err(format!("reward {reward} is not finite")),
            None if self.is_scored() => Err("outcome is `scored`, but reward is null".into()),
            _ => Ok(()),
        }
    }
}
