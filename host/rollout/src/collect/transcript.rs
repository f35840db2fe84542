//! A token sequence with a note of which turn sampled each segment, so that forks which share a turn do
//! not train it twice.

use crate::lock;
use slime_core::ports::Sampled;
use slime_core::{Origin, Segment, Trajectory, TrajectoryError};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// A rollout's account of its sampled segments.
#[derive(Debug, Default)]
pub(super) struct Ownership {
    next: AtomicU64,
    /// Which live trajectory trains a segment: the first that was finished with it.
    owners: Mutex<HashMap<u64, u64>>,
}

/// A trajectory being grown.
#[derive(Clone, Debug)]
pub(super) struct Transcript {
    pub(super) trajectory: Trajectory,
    /// One a segment; `None` where no policy wrote it.
    names: Vec<Option<u64>>,
}

impl Transcript {
    pub(super) fn new(prompt: Vec<u32>) -> Self {
        Self {
            trajectory: Trajectory::from_prompt(prompt),
            names: vec![None],
        }
    }

    /// Tokens after the prompt.
    pub(super) fn response_len(&self) -> usize {
        self.trajectory.response_len()
    }

    pub(super) fn push_environment(&mut self, tokens: Vec<u32>) -> Result<(), TrajectoryError> {
        self.push(
            Segment {
                origin: Origin::Environment,
                tokens,
            },
            None,
        )
    }

    /// One segment for each version that sampled a part.
    pub(super) fn push_sampled(
        &mut self,
        sampled: &Sampled,
        ownership: &Ownership,
    ) -> Result<(), TrajectoryError> {
        let covered: usize = sampled.versions.iter().map(|(_, len)| len).sum();
        if covered != sampled.tokens.len() || sampled.logprobs.len() != sampled.tokens.len() {
            return Err(TrajectoryError::LogprobCount {
                segment: self.names.len(),
                num_tokens: sampled.tokens.len(),
                num_logprobs: sampled.logprobs.len().min(covered),
            });
        }
        self.trajectory.routed_experts = sampled.routed_experts.clone();
        let mut start = 0;
        for &(version, len) in &sampled.versions {
            let part = start..start + len;
            let origin = Origin::Policy {
                logprobs: sampled.logprobs[part.clone()].to_vec(),
                version,
            };
            let name = ownership.next.fetch_add(1, Ordering::Relaxed);
            self.push(
                Segment {
                    origin,
                    tokens: sampled.tokens[part].to_vec(),
                },
                Some(name),
            )?;
            start += len;
        }
        Ok(())
    }

    fn push(&mut self, segment: Segment, name: Option<u64>) -> Result<(), TrajectoryError> {
        self.trajectory.push(segment)?;
        // An empty segment is not kept.
        if self.trajectory.segments().len() > self.names.len() {
            self.names.push(name);
        }
        Ok(())
    }

    /// The trajectory in which live trajectory `id` trains what nobody else does. A segment that another
    /// one trains is environment here.
    pub(super) fn owned_by(&self, id: u64, ownership: &Ownership) -> Trajectory {
        let mut owners = lock(&ownership.owners);
        let mut owned = Trajectory::default();
        for (segment, name) in self.trajectory.segments().iter().zip(&self.names) {
            let mine = name.is_none_or(|name| *owners.entry(name).or_insert(id) == id);
            let origin = if mine {
                segment.origin.clone()
            } else {
                Origin::Environment
            };
            owned
                .push(Segment {
                    origin,
                    tokens: segment.tokens.clone(),
                })
                .expect("it was valid when it was pushed");
        }
        owned.finish = self.trajectory.finish;
        owned.routed_experts = self.trajectory.routed_experts.clone();
        owned
    }
}
