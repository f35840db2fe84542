//! How a policy is asked for tokens, and why it stopped.

use serde::{Deserialize, Serialize};

/// Sampling parameters, with SGLang's names and meanings.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SamplingParams {
    /// At most this many tokens are sampled.
    pub max_new_tokens: u32,
    /// 0 is greedy.
    pub temperature: f64,
    /// Nucleus mass kept, in (0, 1].
    pub top_p: f64,
    /// Tokens kept; -1 keeps all.
    pub top_k: i64,
    /// Tokens below `min_p ×` the largest probability are dropped.
    pub min_p: f64,
    /// Strings that end the turn; they are cut from the text, not from the tokens.
    pub stop: Vec<String>,
    /// Token ids that end the turn, beside the model's own end tokens.
    pub stop_token_ids: Vec<u32>,
    /// Fixes every random choice of this request.
    pub sampling_seed: Option<u64>,
    /// Sample on past the model's end tokens.
    pub ignore_eos: bool,
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self {
            max_new_tokens: 128,
            temperature: 1.0,
            top_p: 1.0,
            top_k: -1,
            min_p: 0.0,
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            sampling_seed: None,
            ignore_eos: false,
        }
    }
}

/// Why a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FinishReason {
    /// An end token, a stop string or a stop id.
    Stop,
    /// The token budget.
    Length,
    /// The engine or the host gave up on the request; the tokens so far are kept.
    Abort,
}
