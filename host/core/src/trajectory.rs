//! One token sequence, made of segments that say who wrote them.
//!
//! The loss mask is derived from the segments' origins, so it cannot disagree with the tokens or be
//! forged; policy log-probs exist exactly where policy tokens do.

use crate::{FinishReason, WeightVersion};
use serde::{Deserialize, Serialize};

/// Who wrote a segment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Origin {
    /// The rendered prompt.
    Prompt,
    /// The policy. One log-prob a token, as the engine reported it, and the weights that sampled them.
    Policy {
        /// `[tokens]`, natural logarithm, at the sampling temperature.
        logprobs: Vec<f32>,
        /// The weights that sampled these tokens.
        version: WeightVersion,
    },
    /// A tool, a user turn, or chat-template glue. Never trained on.
    Environment,
}

/// Consecutive tokens of one origin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Who wrote them.
    pub origin: Origin,
    /// Token ids as they came; never decoded and encoded again.
    pub tokens: Vec<u32>,
}

/// What is wrong with a segment or the order of segments.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrajectoryError {
    /// Policy tokens and log-probs differ in number.
    #[error(
        "segment {segment}: {num_tokens} policy tokens came with {num_logprobs} log-probs; the engine must return one for each"
    )]
    LogprobCount {
        /// Index of the segment.
        segment: usize,
        /// Tokens in it.
        num_tokens: usize,
        /// Log-probs in it.
        num_logprobs: usize,
    },
    /// A log-prob is NaN or above zero by more than rounding.
    #[error("segment {segment}: log-prob {value} at token {token} is not a log-probability")]
    InvalidLogprob {
        /// Index of the segment.
        segment: usize,
        /// Index within it.
        token: usize,
        /// The value, as text so that the error compares.
        value: String,
    },
    /// A prompt segment after the first.
    #[error("segment {segment} is a prompt, but only the first may be")]
    LatePrompt {
        /// Index of the segment.
        segment: usize,
    },
}

/// One token sequence of a rollout.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Trajectory {
    segments: Vec<Segment>,
    /// Why the last policy turn ended; `None` before the first.
    pub finish: Option<FinishReason>,
    /// The experts of every token up to the last that the policy wrote, without that one; see
    /// [`RolloutRecord::routed_experts`](crate::RolloutRecord::routed_experts).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed_experts: Option<String>,
}

impl Trajectory {
    /// A trajectory that starts from a rendered prompt.
    pub fn from_prompt(tokens: Vec<u32>) -> Self {
        Self {
            segments: vec![Segment {
                origin: Origin::Prompt,
                tokens,
            }],
            finish: None,
            routed_experts: None,
        }
    }

    /// Append a segment.
    ///
    /// # Errors
    /// A segment that would break an invariant of this type is refused and nothing is appended.
    pub fn push(&mut self, segment: Segment) -> Result<(), TrajectoryError> {
        let index = self.segments.len();
        match &segment.origin {
            Origin::Prompt if index > 0 => {
                return Err(TrajectoryError::LatePrompt { segment: index });
            }
            Origin::Policy { logprobs, .. } => {
                if logprobs.len() != segment.tokens.len() {
                    return Err(TrajectoryError::LogprobCount {
                        segment: index,
                        num_tokens: segment.tokens.len(),
                        num_logprobs: logprobs.len(),
                    });
                }
                // 1e-3 leaves room for the rounding of a low-precision engine.
                if let Some(token) = logprobs.iter().position(|&p| p.is_nan() || p > 1e-3) {
                    let value = logprobs[token].to_string();
                    return Err(TrajectoryError::InvalidLogprob {
                        segment: index,
                        token,
                        value,
                    });
                }
            }
            _ => {}
        }
        if !segment.tokens.is_empty() || index == 0 {
            self.segments.push(segment);
        }
        Ok(())
    }

    /// The segments, in order.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Number of tokens in all segments.
    pub fn num_tokens(&self) -> usize {
        self.segments.iter().map(|s| s.tokens.len()).sum()
    }

    /// Number of tokens before the first that is not the prompt's.
    pub fn prompt_length(&self) -> usize {
        match self.segments.first() {
            Some(Segment {
                origin: Origin::Prompt,
                tokens,
            }) => tokens.len(),
            _ => 0,
        }
    }

    /// Every token, in order.
    pub fn tokens(&self) -> Vec<u32> {
        self.segments
            .iter()
            .flat_map(|s| s.tokens.iter().copied())
            .collect()
    }

    /// Number of tokens after the prompt, what tools answered included.
    pub fn response_len(&self) -> usize {
        self.num_tokens() - self.prompt_length()
    }

    /// Tokens after the prompt, in order.
    pub fn response_tokens(&self) -> Vec<u32> {
        self.response()
            .flat_map(|s| s.tokens.iter().copied())
            .collect()
    }

    /// 1 where the policy wrote the token, else 0; one value a response token.
    pub fn loss_mask(&self) -> Vec<u8> {
        self.spread(|_| 1u8, 0)
    }

    /// The engine's log-prob where the policy wrote the token, else 0; one value a response token.
    pub fn logprobs(&self) -> Vec<f32> {
        self.response()
            .flat_map(|s| match &s.origin {
                Origin::Policy { logprobs, .. } => logprobs.clone(),
                _ => vec![0.0; s.tokens.len()],
            })
            .collect()
    }

    /// The version that sampled each response token; [`WeightVersion`] 0 where no policy did.
    pub fn versions(&self) -> Vec<WeightVersion> {
        self.spread(|version| version, WeightVersion(0))
    }

    /// The oldest version among the sampled tokens.
    pub fn oldest_version(&self) -> Option<WeightVersion> {
        self.segments
            .iter()
            .filter_map(|s| match s.origin {
                Origin::Policy { version, .. } => Some(version),
                _ => None,
            })
            .min()
    }

    /// How many tokens the policy wrote.
    pub fn num_sampled(&self) -> usize {
        self.segments
            .iter()
            .filter(|s| matches!(s.origin, Origin::Policy { .. }))
            .map(|s| s.tokens.len())
            .sum()
    }

    fn response(&self) -> impl Iterator<Item = &Segment> {
        self.segments.iter().filter(|s| s.origin != Origin::Prompt)
    }

    fn spread<T: Copy>(&self, policy: impl Fn(WeightVersion) -> T, other: T) -> Vec<T> {
        self.response()
            .flat_map(|s| {
                let value = match s.origin {
                    Origin::Policy { version, .. } => policy(version),
                    _ => other,
                };
                std::iter::repeat_n(value, s.tokens.len())
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(tokens: &[u32], version: u64) -> Segment {
        Segment {
            origin: Origin::Policy {
                logprobs: vec![-0.5; tokens.len()],
                version: WeightVersion(version),
            },
            tokens: tokens.to_vec(),
        }
    }

    #[test]
    fn the_mask_has_one_run_for_each_policy_turn() {
        let mut t = Trajectory::from_prompt(vec![1, 2]);
        t.push(policy(&[3, 4, 5, 9], 1)).unwrap();
        t.push(Segment {
            origin: Origin::Environment,
            tokens: vec![6, 7],
        })
        .unwrap();
        t.push(policy(&[8, 4, 9], 2)).unwrap();
        assert_eq!(t.loss_mask(), [1, 1, 1, 1, 0, 0, 1, 1, 1]);
        assert_eq!(
            t.versions().iter().map(|v| v.0).collect::<Vec<_>>(),
            [1, 1, 1, 1, 0, 0, 2, 2, 2]
        );
        assert_eq!(t.tokens(), [1, 2, 3, 4, 5, 9, 6, 7, 8, 4, 9]);
        assert_eq!(t.oldest_version(), Some(WeightVersion(1)));
        assert_eq!(
            (t.prompt_length(), t.num_sampled(), t.logprobs().len()),
            (2, 7, 9)
        );
    }

    #[test]
    fn policy_tokens_without_a_logprob_each_are_refused() {
        let mut t = Trajectory::from_prompt(vec![1]);
        let mut bad = policy(&[2, 3], 1);
        bad.tokens.push(4);
        assert!(matches!(
            t.push(bad),
            Err(TrajectoryError::LogprobCount {
                num_tokens: 3,
                num_logprobs: 2,
                ..
            })
        ));
        let nan = Origin::Policy {
            logprobs: vec![f32::NAN],
            version: WeightVersion(1),
        };
        assert!(
            t.push(Segment {
                origin: nan,
                tokens: vec![2]
            })
            .is_err()
        );
        assert_eq!(t.num_tokens(), 1);
    }

    #[test]
    fn a_second_prompt_is_refused() {
        let mut t = Trajectory::from_prompt(vec![1]);
        let again = Segment {
            origin: Origin::Prompt,
            tokens: vec![2],
        };
        assert_eq!(
            t.push(again),
            Err(TrajectoryError::LatePrompt { segment: 1 })
        );
    }
}
