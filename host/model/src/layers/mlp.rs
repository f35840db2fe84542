//! The gated MLP: `down(silu(gate x) · up x)`, gate and up as one matrix.

use super::{Gradients, Linear, Norm, Pass, Stream};
use slime_kernels::{Ops, Result};

/// Norm, gate and up, SwiGLU, down.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// Norm of the stream before it.
    pub norm: Norm,
    /// `[2 × intermediate, hidden]`: rows of gate, then rows of up.
    pub gate_up: Linear,
    /// `[hidden, intermediate]`.
    pub down: Linear,
}

/// What the MLP keeps for its backward. What is `None` is rebuilt.
pub struct SavedMlp<O: Ops> {
    /// The summed stream, `[rows, hidden]`.
    sum: O::Tensor,
    /// `1 / rms` of each row.
    stat: O::Float,
    /// Normed rows.
    normed: Option<O::Tensor>,
    /// `[rows, 2 × intermediate]`.
    gate_up: O::Tensor,
    /// `[rows, intermediate]`.
    activated: Option<O::Tensor>,
}

impl Mlp {
    /// Everything up to the activation, kept for the backward.
    ///
    /// # Errors
    /// The device failed.
    pub fn keep<O: Ops>(&self, stream: Stream<O>, pass: Pass<'_, O>) -> Result<SavedMlp<O>> {
        let (ops, weights) = (pass.ops, pass.weights);
        let x = self.norm.forward(stream, ops, weights)?;
        let rows = pass.peers.enter(&x.out)?;
        let gate_up = self.gate_up.forward(&rows, ops, weights)?;
        let activated = Some(ops.swiglu(&gate_up)?);
        Ok(SavedMlp {
            sum: x.sum,
            stat: x.stat,
            normed: Some(x.out),
            gate_up,
            activated,
        })
    }

    /// The stream before → the stream after. Without `keep_all`, what is elementwise is left to be rebuilt.
    ///
    /// # Errors
    /// The device failed.
    pub fn forward<O: Ops>(
        &self,
        stream: Stream<O>,
        pass: Pass<'_, O>,
        keep_all: bool,
    ) -> Result<(Stream<O>, SavedMlp<O>)> {
        let mut saved = self.keep(stream, pass)?;
        let activated = saved
            .activated
            .as_ref()
            .expect("keep computes the activation");
        let delta = self.down.forward(activated, pass.ops, pass.weights)?;
        let delta = pass.peers.leave(delta)?;
        if !keep_all {
            saved.normed = None;
            saved.activated = None;
        }
        Ok((
            Stream {
                base: saved.sum.clone(),
                delta: Some(delta),
            },
            saved,
        ))
    }

    /// The same without keeping anything.
    ///
    /// # Errors
    /// The device failed.
    pub fn infer<O: Ops>(&self, stream: Stream<O>, pass: Pass<'_, O>) -> Result<Stream<O>> {
        let (ops, weights) = (pass.ops, pass.weights);
        let x = self.norm.forward(stream, ops, weights)?;
        let rows = pass.peers.enter(&x.out)?;
        let gate_up = self.gate_up.forward(&rows, ops, weights)?;
        let delta = self.down.forward(&ops.swiglu(&gate_up)?, ops, weights)?;
        Ok(Stream {
            base: x.sum,
            delta: Some(pass.peers.leave(delta)?),
        })
    }

    /// `dstream`, the gradient of the stream after this layer → that of the stream before it.
    ///
    /// # Errors
    /// The device failed.
    pub fn backward<O: Ops>(
        &self,
        dstream: &O::Tensor,
        saved: SavedMlp<O>,
        pass: Pass<'_, O>,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let (ops, weights) = (pass.ops, pass.weights);
        let activated = match saved.activated {
            Some(activated) => activated,
            None => ops.swiglu(&saved.gate_up)?,
        };
        let dy = pass.peers.leave_backward(dstream)?;
        let da = self.down.backward(&dy, &activated, ops, weights, grads)?;
        drop((dy, activated));
        let dgate_up = ops.swiglu_backward(&da, &saved.gate_up)?;
        drop((da, saved.gate_up));
        let normed = match saved.normed {
            Some(normed) => normed,
            None => self.norm.again(&saved.sum, ops, weights)?,
        };
        let rows = pass.peers.enter(&normed)?;
        let dy = self
            .gate_up
            .backward(&dgate_up, &rows, ops, weights, grads)?;
        drop((dgate_up, normed, rows));
        let dy = pass.peers.enter_backward(dy)?;
        self.norm.backward(
            &dy,
            &saved.sum,
            &saved.stat,
            Some(dstream),
            ops,
            weights,
            grads,
        )
    }
}
