//! From the trainer to the engine of the same process: tensors, copied on the device.
//!
//! The copies are made when a version is published, so what the trainer does next cannot reach what is being sampled with.
//! Read `publish.rs` for when this way is taken.

use super::ranks::Ranks;
use slime_core::ports::BoxFuture;
use slime_engine::Inlet;
use slime_kernels::Ops;
use slime_model::ParamSpec;
use slime_rollout::publish::{Handed, Known};
use slime_trainer::Result;
use std::sync::Arc;

/// Rows of a vector that are compared after an update.
const ROWS: usize = 256;

/// The engine beside a trainer.
pub struct Beside<O: Ops> {
    /// The way into it.
    pub inlet: Inlet<O>,
    /// Bytes of one number there.
    pub number_bytes: u64,
}

impl<O: Ops> Beside<O> {
    /// Copy what `trainer` holds of `params`, all of the model's.
    ///
    /// # Errors
    /// The device failed or is full.
    pub fn take(&self, trainer: &Ranks<O>, params: &[ParamSpec]) -> Result<Arc<dyn Handed>> {
        let tensors = trainer.copy_to(self.inlet.ops(), params)?;
        let known = looked_at(params).into_iter().map(|param| {
            let (part, values) = (&param.parts[0], trainer.read_param(param)?);
            let width: usize = part.shape.iter().skip(1).product();
            let most = if width == 1 { ROWS } else { 1 };
            let rows = most.min(part.shape[0]);
            Ok(Known {
                name: part.name.clone(),
                rows,
                values: values[..rows * width].to_vec(),
            })
        });
        let numbers: usize = params.iter().map(ParamSpec::len).sum();
        Ok(Arc::new(Tensors {
            inlet: self.inlet.clone(),
            known: known.collect::<Result<_>>()?,
            num_bytes: numbers as u64 * self.number_bytes,
            tensors,
        }))
    }
}

/// The ends of the model, and its smallest matrix: little to read, and not all of one kind.
fn looked_at(params: &[ParamSpec]) -> Vec<&ParamSpec> {
    let is_vector = |p: &&ParamSpec| p.rows == 1 || p.cols == 1;
    let mut vectors = params.iter().filter(is_vector);
    let (first, last) = (vectors.next(), vectors.next_back());
    let matrices = params.iter().filter(|p| !is_vector(p));
    let smallest = matrices.min_by_key(|p| p.len());
    first.into_iter().chain(smallest).chain(last).collect()
}

/// A version's tensors, in the engine's keeping.
struct Tensors<O: Ops> {
    inlet: Inlet<O>,
    tensors: Vec<O::Tensor>,
    known: Vec<Known>,
    num_bytes: u64,
}

impl<O: Ops> Handed for Tensors<O> {
    fn install<'a>(&'a self, label: &'a str) -> BoxFuture<'a, std::result::Result<(), String>> {
        Box::pin(async move {
            let tensors = self.tensors.clone();
            let installed = self
                .inlet
                .update(tensors, Some(label.to_owned()), true, false);
            installed.await.map(drop).map_err(|e| e.to_string())
        })
    }

    fn num_bytes(&self) -> u64 {
        self.num_bytes
    }

    fn known(&self) -> &[Known] {
        &self.known
    }
}
