//! The second half of a block: norm, then a feed-forward body for each row alone.
//!
//! The body is the gated MLP, `down(silu(gate x) · up x)` with gate and up as one matrix, or a [`Moe`].

use super::norm::{PostNorm, SavedPost};
use super::{Gradients, Linear, Moe, Norm, Pass, Recompute, SavedMoe, Stream, Weights};
use slime_kernels::comm::Begun;
use slime_kernels::{Ops, Result};

/// Norm and body of one block.
#[derive(Clone, Debug)]
pub struct Mlp {
    /// Norm of the stream before it.
    pub norm: Norm,
    /// What happens to a row.
    pub body: Body,
    /// Norm of what is added to the stream, where the family has one.
    pub post: Option<PostNorm>,
}

/// What happens to a row.
#[derive(Clone, Debug)]
pub enum Body {
    /// One gated MLP.
    Gated(Gated),
    /// A choice among many.
    Moe(Moe),
}

/// `down(silu(gate x) · up x)`.
#[derive(Clone, Debug)]
pub struct Gated {
    /// `[2 × intermediate, hidden]`: rows of gate, then rows of up.
    pub gate_up: Linear,
    /// `[hidden, intermediate]`.
    pub down: Linear,
}

/// What a gated MLP keeps for its backward.
pub struct SavedGated<O: Ops> {
    /// `[rows, 2 × intermediate]`.
    gate_up: O::Tensor,
    /// `[rows, intermediate]`; rebuilt where it is `None`.
    activated: Option<O::Tensor>,
}

/// What the MLP keeps for its backward. What is `None` is rebuilt.
pub struct SavedMlp<O: Ops> {
    /// The summed stream, `[rows, hidden]`.
    sum: O::Tensor,
    /// `1 / rms` of each row.
    stat: O::Float,
    /// Normed rows.
    normed: Option<O::Tensor>,
    /// What the body keeps.
    body: SavedBody<O>,
    /// With a norm after the body.
    post: Option<SavedPost<O>>,
}

/// What a body keeps.
#[allow(clippy::large_enum_variant, reason = "there is one a layer")]
enum SavedBody<O: Ops> {
    Gated(SavedGated<O>),
    /// A gated MLP makes all of it again.
    Nothing,
    Moe(SavedMoe<O>),
}

impl Gated {
    /// `x: [rows, hidden]` → the same shape.
    ///
    /// # Errors
    /// The device failed.
    pub fn forward<O: Ops>(
        &self,
        x: &O::Tensor,
        ops: &O,
        weights: &Weights<O>,
        keep_all: bool,
    ) -> Result<(O::Tensor, SavedGated<O>)> {
        let gate_up = self.gate_up.forward(x, ops, weights)?;
        let activated = ops.swiglu(&gate_up)?;
        let y = self.down.forward(&activated, ops, weights)?;
        let activated = keep_all.then_some(activated);
        Ok((y, SavedGated { gate_up, activated }))
    }

    /// The same without keeping anything.
    ///
    /// # Errors
    /// The device failed.
    pub fn infer<O: Ops>(&self, x: &O::Tensor, ops: &O, weights: &Weights<O>) -> Result<O::Tensor> {
        let gate_up = self.gate_up.forward(x, ops, weights)?;
        self.down.forward(&ops.swiglu(&gate_up)?, ops, weights)
    }

    /// `dy` → `dx`. `x` is what forward took, asked for when it is needed.
    ///
    /// # Errors
    /// The device failed.
    pub fn backward<O: Ops>(
        &self,
        dy: &O::Tensor,
        x: impl FnOnce() -> Result<O::Tensor>,
        saved: SavedGated<O>,
        ops: &O,
        weights: &Weights<O>,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let da = self.down.input_gradient(dy, ops, weights)?;
        let dgate_up = self.backward_of_activation(dy, da, saved, ops, grads)?;
        self.gate_up.backward(&dgate_up, &x()?, ops, weights, grads)
    }

    /// `dy` and the gradient of the activation → that of gate and up; adds that of `down`.
    fn backward_of_activation<O: Ops>(
        &self,
        dy: &O::Tensor,
        da: O::Tensor,
        saved: SavedGated<O>,
        ops: &O,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        if let Some(activated) = saved.activated {
            self.down.accumulate(dy, &activated, ops, grads)?;
            drop(activated);
            return ops.swiglu_backward(&da, &saved.gate_up);
        }
        let (dgate_up, activated) = ops.swiglu_backward_again(&da, &saved.gate_up)?;
        drop((da, saved.gate_up));
        self.down.accumulate(dy, &activated, ops, grads)?;
        Ok(dgate_up)
    }
}

impl Mlp {
    /// What the backward needs, everything kept. Of a gated MLP without a norm behind it, the last product is spared.
    ///
    /// # Errors
    /// The device failed.
    pub fn keep<O: Ops>(&self, stream: Stream<O>, pass: Pass<'_, O>) -> Result<SavedMlp<O>> {
        match (&self.body, &self.post) {
            (Body::Gated(gated), None) => {
                let x = self.norm.forward(stream, pass.ops, pass.weights)?;
                let on = (pass.ops, pass.weights);
                let gate_up = pass.peers.entered(&gated.gate_up, &x.out, on)?;
                let activated = Some(pass.ops.swiglu(&gate_up)?);
                let body = SavedBody::Gated(SavedGated { gate_up, activated });
                Ok(SavedMlp {
                    sum: x.sum,
                    stat: x.stat,
                    normed: Some(x.out),
                    body,
                    post: None,
                })
            }
            _ => Ok(self.forward(stream, pass, Recompute::None)?.1),
        }
    }

    /// The stream before → the stream after, and what `recompute` does not leave to be made again.
    ///
    /// # Errors
    /// The device failed.
    pub fn forward<O: Ops>(
        &self,
        stream: Stream<O>,
        pass: Pass<'_, O>,
        recompute: Recompute,
    ) -> Result<(Stream<O>, SavedMlp<O>)> {
        let keep_all = recompute == Recompute::None;
        let x = self.norm.forward(stream, pass.ops, pass.weights)?;
        let (delta, body) = match &self.body {
            Body::Gated(gated) => {
                let on = (pass.ops, pass.weights);
                let gate_up = pass.peers.entered(&gated.gate_up, &x.out, on)?;
                let activated = pass.ops.swiglu(&gate_up)?;
                let saved = match recompute {
                    Recompute::Mlp => SavedBody::Nothing,
                    _ => SavedBody::Gated(SavedGated {
                        gate_up,
                        activated: keep_all.then(|| activated.clone()),
                    }),
                };
                (pass.peers.left(&gated.down, &activated, on)?, saved)
            }
            Body::Moe(moe) => {
                let (y, saved) = moe.forward(&x.out, pass, keep_all)?;
                (y, SavedBody::Moe(saved))
            }
        };
        let (delta, post) = PostNorm::apply(self.post.as_ref(), delta, pass)?;
        let saved = SavedMlp {
            sum: x.sum.clone(),
            stat: x.stat,
            normed: keep_all.then_some(x.out),
            body,
            post,
        };
        Ok((
            Stream {
                base: x.sum,
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
        let x = self.norm.forward(stream, pass.ops, pass.weights)?;
        let delta = match &self.body {
            Body::Gated(gated) => {
                let on = (pass.ops, pass.weights);
                let gate_up = pass.peers.entered(&gated.gate_up, &x.out, on)?;
                let activated = pass.ops.swiglu(&gate_up)?;
                drop(gate_up);
                pass.peers.left(&gated.down, &activated, on)?
            }
            Body::Moe(moe) => moe.infer(&x.out, pass)?,
        };
        let (delta, _) = PostNorm::apply(self.post.as_ref(), delta, pass)?;
        Ok(Stream {
            base: x.sum,
            delta: Some(delta),
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
        if let (Body::Gated(gated), SavedBody::Gated(_), None, None) =
            (&self.body, &saved.body, &saved.normed, &pass.peers.tp)
        {
            return self.backward_rebuilding(gated, dstream, saved, pass, grads);
        }
        let (ops, weights) = (pass.ops, pass.weights);
        let on = (ops, weights);
        let dy = PostNorm::backward(self.post.as_ref(), dstream, saved.post, pass, grads)?;
        let (sum, kept) = (&saved.sum, saved.normed);
        let normed = || match kept {
            Some(normed) => Ok(normed),
            None => self.norm.again(sum, ops, weights),
        };
        let dx = match (&self.body, saved.body) {
            (Body::Gated(gated), SavedBody::Gated(saved)) => {
                let (da, dy) = pass.peers.left_backward(&gated.down, &dy, on)?;
                let rows = pass.peers.begin_enter(normed()?)?;
                let dgate_up = gated.backward_of_activation(&dy, da, saved, ops, grads)?;
                pass.peers
                    .entered_backward(&gated.gate_up, &dgate_up, rows, on, grads)?
            }
            (Body::Gated(gated), SavedBody::Nothing) => {
                let rows = pass.peers.enter(&normed()?)?;
                let gate_up = gated.gate_up.forward(&rows, ops, weights)?;
                let saved = SavedGated {
                    gate_up,
                    activated: None,
                };
                let (da, dy) = pass.peers.left_backward(&gated.down, &dy, on)?;
                let dgate_up = gated.backward_of_activation(&dy, da, saved, ops, grads)?;
                let rows = Begun::done(rows);
                pass.peers
                    .entered_backward(&gated.gate_up, &dgate_up, rows, on, grads)?
            }
            (Body::Moe(moe), SavedBody::Moe(saved)) => {
                moe.backward(&dy, normed, saved, pass, grads)?
            }
            _ => unreachable!("a body's backward takes what its own forward kept"),
        };
        drop(dy);
        self.norm
            .backward(&dx, sum, &saved.stat, Some(dstream), ops, weights, grads)
    }

    /// The same alone, where normed rows are rebuilt: the norm's backward, which reads the stream, gives them too, and the first
    /// matrix's gradient waits for them.
    fn backward_rebuilding<O: Ops>(
        &self,
        gated: &Gated,
        dstream: &O::Tensor,
        saved: SavedMlp<O>,
        pass: Pass<'_, O>,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let (ops, weights) = (pass.ops, pass.weights);
        let SavedBody::Gated(body) = saved.body else {
            unreachable!("a body's backward takes what its own forward kept")
        };
        let dy = PostNorm::backward(self.post.as_ref(), dstream, saved.post, pass, grads)?;
        let da = gated.down.input_gradient(&dy, ops, weights)?;
        let dgate_up = gated.backward_of_activation(&dy, da, body, ops, grads)?;
        drop(dy);
        let dx = gated.gate_up.input_gradient(&dgate_up, ops, weights)?;
        let (sum, stat) = (&saved.sum, &saved.stat);
        let (dsum, normed) =
            self.norm
                .backward_again(&dx, sum, stat, Some(dstream), ops, weights, grads)?;
        drop(dx);
        gated.gate_up.accumulate(&dgate_up, &normed, ops, grads)?;
        Ok(dsum)
    }
}
