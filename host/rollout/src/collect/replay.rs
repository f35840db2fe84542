//! A stored rollout once more: the same generator and verifier, with the policy's turns read from the record.
//!
//! What a plugin cannot change (the sampled tokens) is given back; what it decides (turns, messages, stops, the
//! verdict) is decided anew and compared, byte for byte.

use super::driver::Driver;
use super::live::Tally;
use super::render::prompt_tokens;
use slime_core::ports::{BoxFuture, Policy, PolicyError, SampleRequest, Sampled};
use slime_core::{FinishReason, Origin, Prompt, Rollout, Trajectory, WeightVersion};
use std::sync::{Arc, Mutex};

/// One turn of the record, by what the policy had read before it.
struct Turn {
    context: Vec<u32>,
    tokens: Vec<u32>,
    logprobs: Vec<f32>,
    versions: Vec<(WeightVersion, usize)>,
    finish: Option<FinishReason>,
}

/// Answers with what was sampled when the same context was read.
struct Recorded(Mutex<Vec<Turn>>);

impl Recorded {
    fn of(trajectories: &[Trajectory]) -> Self {
        Self(Mutex::new(trajectories.iter().flat_map(turns).collect()))
    }
}

/// The turns of one trajectory: a run of segments that the policy wrote is one.
fn turns(trajectory: &Trajectory) -> Vec<Turn> {
    let mut turns: Vec<Turn> = Vec::new();
    let (mut context, mut open) = (Vec::new(), false);
    for segment in trajectory.segments() {
        if let Origin::Policy { logprobs, version } = &segment.origin {
            if !open {
                turns.push(Turn {
                    context: context.clone(),
                    tokens: Vec::new(),
                    logprobs: Vec::new(),
                    versions: Vec::new(),
                    finish: Some(FinishReason::Stop),
                });
                open = true;
            }
            if let Some(turn) = turns.last_mut() {
                turn.tokens.extend_from_slice(&segment.tokens);
                turn.logprobs.extend_from_slice(logprobs);
                turn.versions.push((*version, segment.tokens.len()));
            }
        } else {
            open = false;
        }
        context.extend_from_slice(&segment.tokens);
    }
    if let Some(last) = turns.last_mut() {
        last.finish = trajectory.finish;
    }
    turns
}

impl Policy for Recorded {
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        let mut turns = crate::lock(&self.0);
        let found = turns.iter().position(|turn| turn.context == request.tokens);
        let answer = match found.map(|at| turns.remove(at)) {
            Some(turn) => {
                let most = request.params.max_new_tokens as usize;
                if turn.tokens.len() > most {
                    let (asked, len) = (most, turn.tokens.len());
                    Err(PolicyError::Refused(format!(
                        "the record has a turn of {len} tokens where {asked} are asked for"
                    )))
                } else {
                    Ok(Sampled {
                        tokens: turn.tokens,
                        logprobs: turn.logprobs,
                        versions: turn.versions,
                        finish: turn.finish,
                        ..Sampled::default()
                    })
                }
            }
            None => Err(PolicyError::Refused(format!(
                "the record has no turn after these {} tokens",
                request.tokens.len()
            ))),
        };
        Box::pin(std::future::ready(answer))
    }
}

impl Driver {
    /// Run a stored rollout once more and say in what it differs; empty where it does in nothing.
    ///
    /// Costs are not compared, and neither is the finish of turns before the last, which no record holds.
    pub async fn replay(&self, prompt: &Prompt, stored: &Rollout) -> Vec<String> {
        let driver = Self {
            policy: Arc::new(Recorded::of(&stored.trajectories)),
            ..self.clone()
        };
        let rendered = prompt_tokens(self.codec.as_ref(), prompt, &self.config.template_kwargs);
        let tokens = match rendered {
            Ok(tokens) => tokens,
            Err(error) => return vec![format!("the prompt does not render: {error}")],
        };
        let tally = Arc::<Tally>::default();
        let again = driver
            .rollout(
                &Arc::new(prompt.clone()),
                &tokens,
                stored.id,
                stored.index,
                0,
                stored.seed,
                &tally,
                &Arc::default(),
            )
            .await;
        differences(stored, &again)
    }
}

fn differences(stored: &Rollout, again: &Rollout) -> Vec<String> {
    let mut all = Vec::new();
    let (a, b) = (&stored.trajectories, &again.trajectories);
    if a.len() != b.len() {
        all.push(format!("{} trajectories, now {}", a.len(), b.len()));
    }
    for (index, (a, b)) in a.iter().zip(b).enumerate() {
        let at = a.tokens().iter().zip(&b.tokens()).position(|(a, b)| a != b);
        if a.tokens() != b.tokens() {
            let at = at.unwrap_or(a.num_tokens().min(b.num_tokens()));
            all.push(format!("trajectory {index}: tokens differ from {at} on"));
        } else if a.segments() != b.segments() {
            all.push(format!("trajectory {index}: its segments differ"));
        }
        if a.finish != b.finish {
            all.push(format!(
                "trajectory {index}: it ended with {:?}, now {:?}",
                a.finish, b.finish
            ));
        }
    }
    if stored.outcome != again.outcome {
        all.push(format!("{}, now {}", stored.outcome, again.outcome));
    }
    all
}
