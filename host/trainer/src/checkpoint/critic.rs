//! The critic's part of a checkpoint: two sets of parameters, its network's and its value head's.

use super::pieces::Library;
use super::tensors::{self, Data, Reader};
use super::{CRITIC, MASTER, MOMENTS, prefix, read_float, read_weight};
use crate::Result;
use crate::critic::Critic;
use crate::optim::Optimizer;
use crate::optim::precision::Precision;
use slime_kernels::Ops;
use slime_model::ParamSpec;
use slime_model::layers::Weights;
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
            save_set(
                ops,
                params,
                weights,
                optimizer,
                &dir.join(model),
                &dir.join(moments),
            )?;
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
        let [network, head] = FILES.map(|(model, moments)| (dir.join(model), dir.join(moments)));
        let weights = self.network.weights_mut();
        load_set(
            &*ops,
            &params,
            weights,
            &mut self.optimizer,
            &network.0,
            &network.1,
        )?;
        let (params, weights) = (&self.head_params, &mut self.head);
        load_set(
            &*ops,
            params,
            weights,
            &mut self.head_optimizer,
            &head.0,
            &head.1,
        )
    }
}

fn save_set<O: Ops>(
    ops: &O,
    params: &[ParamSpec],
    weights: &Weights<O>,
    optimizer: &Optimizer<O>,
    model: &Path,
    moments: &Path,
) -> Result<()> {
    let wide = Precision::of_weights(ops)? == Precision::Double;
    tensors::write(model, params, &[""], wide, |_, i| {
        read_weight(ops, &weights.0[i], wide)
    })?;
    let wide = Precision::of_accumulators(ops)? == Precision::Double;
    let mut prefixes = MOMENTS.to_vec();
    let mut sets = vec![&optimizer.m, &optimizer.v];
    if let Some(master) = &optimizer.master {
        prefixes.push(MASTER);
        sets.push(master);
    }
    tensors::write(moments, params, &prefixes, wide, |set, i| {
        read_float(ops, &sets[set][i], wide)
    })
}

fn load_set<O: Ops>(
    ops: &O,
    params: &[ParamSpec],
    weights: &mut Weights<O>,
    optimizer: &mut Optimizer<O>,
    model: &Path,
    moments: &Path,
) -> Result<()> {
    let wide = Precision::of_weights(ops)? == Precision::Double;
    let mut model = Reader::open(model, params, &[""], wide)?;
    let wide = Precision::of_accumulators(ops)? == Precision::Double;
    let mut prefixes = MOMENTS.to_vec();
    if optimizer.master.is_some() {
        prefixes.push(MASTER);
    }
    let mut moments = Reader::open(moments, params, &prefixes, wide)?;
    for (i, param) in params.iter().enumerate() {
        weights.0[i] = match model.read(param, "")? {
            Data::F32(data) => ops.tensor(param.rows, param.cols, &data)?,
            Data::F64(data) => ops.tensor_f64(param.rows, param.cols, &data)?,
        };
        optimizer.restore(ops, i, &weights.0[i], |state| {
            moments.read(param, prefix(state))
        })?;
    }
    Ok(())
}
