//! The critic's part of a checkpoint: two sets of parameters, its network's and its value head's.

use super::CRITIC;
use super::pieces::Library;
use super::sets::{load_set, save_set};
use crate::Result;
use crate::critic::Critic;
use slime_kernels::Ops;
use std::path::Path;

/// Weights and optimizer states, network first.
pub(super) const FILES: [(&str, &str); 2] = [
    ("critic.safetensors", "critic_optimizer.safetensors"),
    (
        "critic_head.safetensors",
        "critic_head_optimizer.safetensors",
    ),
];

impl<O: Ops> Critic<O> {
    pub(super) fn save(&self, dir: &Path) -> Result<()> {
        let ops = &**self.network.ops();
        let network = (&self.network.params()[..], self.network.weights());
        let sets = [
            (network, &self.optimizer),
            ((&self.head_params[..], &self.head), &self.head_optimizer),
        ];
        for ((model, moments), ((params, weights), optimizer)) in FILES.into_iter().zip(sets) {
            let files = [model, moments].map(|file| dir.join(file));
            save_set(ops, params, weights, optimizer, &files)?;
        }
        Ok(())
    }

    /// The same from what several ranks have written.
    pub(super) fn take(&mut self, library: &mut Library) -> Result<()> {
        let ops = self.network.ops().clone();
        let params = self.network.params().clone();
        let weights = self.network.weights_mut();
        library.take_set(&*ops, CRITIC, &params, weights, &mut self.optimizer)?;
        let (params, weights) = (&self.head_params, &mut self.head);
        library.take_set(&*ops, CRITIC, params, weights, &mut self.head_optimizer)
    }

    pub(super) fn load(&mut self, dir: &Path) -> Result<()> {
        let ops = self.network.ops().clone();
        let params = self.network.params().clone();
        let [network, head] = FILES.map(|(model, moments)| [model, moments].map(|f| dir.join(f)));
        let weights = self.network.weights_mut();
        load_set(&*ops, &params, weights, &mut self.optimizer, &network)?;
        let (params, weights) = (&self.head_params, &mut self.head);
        load_set(&*ops, params, weights, &mut self.head_optimizer, &head)
    }
}
