//! A group off the wasm target: plain values, for unit tests of plugins.

use crate::Finished;

/// All rollouts of one prompt, in order of their index.
#[derive(Clone, Debug, Default)]
pub struct Group {
    rollouts: Vec<(Finished, Option<f64>)>,
}

impl Group {
    /// A group made by hand: each rollout with its reward, `None` where it was not scored.
    pub fn new(rollouts: impl IntoIterator<Item = (Finished, Option<f64>)>) -> Self {
        Self {
            rollouts: rollouts.into_iter().collect(),
        }
    }

    /// Number of rollouts.
    pub fn size(&self) -> u32 {
        u32::try_from(self.rollouts.len()).unwrap_or(u32::MAX)
    }

    /// The rollout at `index`.
    pub fn get(&self, index: u32) -> Option<Finished> {
        Some(self.rollouts.get(index as usize)?.0.clone())
    }

    /// Its reward; `None` where it was not scored, which is not the same as 0.
    pub fn reward(&self, index: u32) -> Option<f64> {
        self.rollouts.get(index as usize)?.1
    }

    /// How its scoring ended, by name.
    pub fn outcome(&self, index: u32) -> String {
        match self.rollouts.get(index as usize) {
            Some((_, Some(_))) => "scored".into(),
            Some((_, None)) => "error".into(),
            None => String::new(),
        }
    }

    /// Every rollout, in order.
    pub fn rollouts(&self) -> Vec<Finished> {
        self.rollouts.iter().map(|(item, _)| item.clone()).collect()
    }

    /// Every reward, in order.
    pub fn rewards(&self) -> Vec<Option<f64>> {
        self.rollouts.iter().map(|(_, reward)| *reward).collect()
    }
}
