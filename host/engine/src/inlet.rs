//! Weights of this process's own, into a running engine: tensors on its device, without a file and without the host.
//!
//! It is for a trainer beside the engine. What an update means is the engine's (`scheduler`), whichever way the weights
//! came. Read `model.rs` for what is checked before they are served.

use crate::Result;
use crate::engine::EngineHandle;
use crate::forward::Source;
use crate::scheduler::Update;
use slime_kernels::Ops;
use std::sync::Arc;

/// A way into one engine, which computes on `O`.
pub struct Inlet<O: Ops> {
    engine: EngineHandle,
    ops: Arc<O>,
}

impl<O: Ops> Clone for Inlet<O> {
    fn clone(&self) -> Self {
        Self {
            engine: self.engine.clone(),
            ops: self.ops.clone(),
        }
    }
}

impl<O: Ops> Inlet<O> {
    pub(crate) fn new(engine: EngineHandle, ops: Arc<O>) -> Self {
        Self { engine, ops }
    }

    /// The engine's device, where tensors for it have to lie.
    pub fn ops(&self) -> &Arc<O> {
        &self.ops
    }

    /// Serve `tensors`, all parameters in the model's order and on [`Self::ops`], from the next step on; they must not be
    /// changed any more. `version`, `flush` and `abort_all` are those of [`EngineHandle::update_weights_from_disk`], and so
    /// is what is returned.
    ///
    /// # Errors
    /// A shape that is not the model's, or a number that is not finite; the old weights are then still served, whole.
    pub async fn update(
        &self,
        tensors: Vec<O::Tensor>,
        version: Option<String>,
        flush: bool,
        abort_all: bool,
    ) -> Result<usize> {
        let source = Source::Device(Box::new(tensors));
        self.engine
            .update(Update {
                source,
                version,
                flush,
                abort_all,
            })
            .await
    }
}
