//! A stored rollout once more: the same generator and verifier, with the policy's turns read from the record.
//!
//! What a plugin cannot change (the sampled tokens) is given back; what it decides (turns, messages, stops, the
//! verdict) is decided anew and compared, byte for byte.

use super::driver::Driver;
use super::live::Tally;
use super::render::prompt_tokens;
use slime_core::ports::{BoxFuture, Policy, PolicyError, SampleRequest, Sampled};
use slime_core::{
    FinishReason, Group, Origin, Outcome, Prompt, Rollout, RolloutId, Trajectory, WeightVersion,
};
use std::collections::BTreeSet;
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
    /// Run a stored group's rollouts once more, those that `wants` names, and say in what each differs; empty where it
    /// does in nothing. What the machine did to a rollout is not the plugins' to repeat, and is left out.
    ///
    /// Costs are not compared, and neither is the finish of turns before the last, which no record holds.
    pub async fn replay(
        &self,
        stored: &Group,
        wants: impl Fn(&Rollout) -> bool,
    ) -> Vec<(RolloutId, Vec<String>)> {
        let repeats =
            |r: &Rollout| !matches!(r.outcome, Outcome::InfraFailed(_) | Outcome::Cancelled(_));
        // What looks at the whole group needs all of it.
        let whole = !(self.scoring.groups.is_empty() && self.scoring.shapers.is_empty());
        let prompt = &stored.prompt;
        let rendered = prompt_tokens(self.codec.as_ref(), prompt, &self.config.template_kwargs);
        let (tokens, fault) = match rendered {
            Ok(tokens) => (tokens, None),
            Err(error) => (
                Vec::new(),
                Some(format!("the prompt does not render: {error}")),
            ),
        };
        let mut again = stored.clone();
        let mut waiting = BTreeSet::new();
        if fault.is_none() {
            for rollout in &mut again.rollouts {
                if repeats(rollout) && (whole || wants(rollout)) {
                    let (now, waits) = self.again(prompt, &tokens, rollout).await;
                    *rollout = now;
                    waiting.extend(waits.then_some(rollout.index));
                }
            }
            if whole {
                let codec = self.codec.as_ref();
                self.scoring.judge(codec, &mut again, waiting).await;
                // A group whose shaper failed was never trained on.
                let _ = self.scoring.shape(codec, &mut again).await;
            }
        }
        let both = stored.rollouts.iter().zip(&again.rollouts);
        let both = both.filter(|(stored, _)| repeats(stored) && wants(stored));
        both.map(|(stored, again)| {
            let found = match &fault {
                Some(fault) => vec![fault.clone()],
                None => differences(stored, again),
            };
            (stored.id, found)
        })
        .collect()
    }

    async fn again(&self, prompt: &Prompt, tokens: &[u32], stored: &Rollout) -> (Rollout, bool) {
        let driver = Self {
            policy: Arc::new(Recorded::of(&stored.trajectories)),
            ..self.clone()
        };
        let tally = Arc::<Tally>::default();
        let prompt = Arc::new(prompt.clone());
        let (id, index, seed) = (stored.id, stored.index, stored.seed);
        let turns = Arc::default();
        driver
            .rollout(&prompt, tokens, id, index, 0, seed, &tally, &turns)
            .await
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
    if stored.shaped != again.shaped {
        let shaped = |r: &Rollout| r.shaped.map_or("not at all".into(), |s| s.to_string());
        all.push(format!(
            "shaped to {}, now {}",
            shaped(stored),
            shaped(again)
        ));
    }
    all
}
