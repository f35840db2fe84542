//! The model's layers, each with an explicit forward and backward and a typed struct of what it keeps.
//!
//! Written once for every device and precision, over [`Ops`]. No autograd, no file, no loss: a layer takes
//! rows and leaves rows. Read [`block`] first, then [`attention`] with its cores [`grouped`], [`latent`] and
//! [`delta`], and [`mlp`] with [`moe`]; [`crate::network`] stacks them.

pub mod attention;
pub mod block;
pub mod delta;
mod dispatch;
pub mod grouped;
pub mod latent;
pub mod linear;
pub mod mlp;
pub mod moe;
pub mod norm;
pub mod peers;
pub mod rope;
pub mod routing;
pub mod wiring;

pub use attention::{Attention, Core, Paged};
pub use block::{Block, Recompute, SavedBlock};
pub use delta::{DeltaNet, DeltaParams, SavedDelta};
pub use grouped::{Grouped, OutputGate, QkNorm, SavedGrouped};
pub use latent::{Bottleneck, Latent, LatentWidths, SavedLatent};
pub use linear::Linear;
pub use mlp::{Body, Gated, Mlp, SavedGated};
pub use moe::{Moe, SavedMoe, Shared};
pub use norm::{Norm, PostNorm, Stream};
pub use peers::{Experts, Peers};
pub use routing::{Replay, Routes};
pub use wiring::Wiring;

use slime_kernels::{Error, Ops, Result, RopeTable};

/// Index of a parameter in the model's list of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ParamId(pub usize);

/// Every parameter's tensor, in the order of the model's parameter list.
pub struct Weights<O: Ops>(pub Vec<O::Tensor>);

impl<O: Ops> Weights<O> {
    /// The parameter's tensor, `[rows, cols]`.
    pub fn get(&self, id: ParamId) -> &O::Tensor {
        &self.0[id.0]
    }
}

/// Main gradients, one a parameter, in the accumulator's precision. Backward only ever adds to them.
pub struct Gradients<O: Ops>(pub Vec<O::Float>);

impl<O: Ops> Gradients<O> {
    /// Zeros in the shapes of `weights`.
    ///
    /// # Errors
    /// The device has no room.
    pub fn zeros(ops: &O, weights: &Weights<O>) -> Result<Self> {
        let zeros = |w| {
            let (rows, cols) = ops.shape(w);
            ops.float_zeros(rows, cols)
        };
        weights.0.iter().map(zeros).collect::<Result<_>>().map(Self)
    }

    /// Set every gradient to zero.
    ///
    /// # Errors
    /// The device failed.
    pub fn zero(&mut self, ops: &O) -> Result<()> {
        self.0.iter_mut().try_for_each(|g| ops.zero(g))
    }

    /// One parameter's gradient.
    pub fn get(&mut self, id: ParamId) -> &mut O::Float {
        &mut self.0[id.0]
    }

    /// Two parameters' gradients at once; the ids differ.
    pub fn pair(&mut self, a: ParamId, b: ParamId) -> (&mut O::Float, &mut O::Float) {
        let [a, b] = self
            .0
            .get_disjoint_mut([a.0, b.0])
            .expect("two parameters of one layer differ");
        (a, b)
    }
}

/// What all layers of one pass over packed rows share.
pub struct Pass<'a, O: Ops> {
    /// The device.
    pub ops: &'a O,
    /// The parameters.
    pub weights: &'a Weights<O>,
    /// Cosines and sines.
    pub rope: &'a RopeTable<O>,
    /// Each row's position in its sequence.
    pub positions: &'a O::Ids,
    /// Who computes it together with this rank.
    pub peers: &'a Peers<O>,
    /// What routers do besides choosing.
    pub routes: Replay<'a>,
}

// By hand: a derive would ask for `O: Clone`.
impl<O: Ops> Clone for Pass<'_, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<O: Ops> Copy for Pass<'_, O> {}

/// The rows a caller wants, of all rows of a pass: where they are, and how many there are in all.
pub struct Rows<O: Ops> {
    /// Distinct row numbers.
    pub ids: O::Ids,
    /// Rows of the whole pass.
    pub of: usize,
}

impl<O: Ops> Rows<O> {
    /// `None` when `rows` is every row in order, so that nothing needs to be moved.
    ///
    /// # Errors
    /// A row outside the pass.
    pub fn select(ops: &O, rows: &[u32], of: usize) -> Result<Option<Self>> {
        if rows.len() == of && rows.iter().enumerate().all(|(i, &r)| i == r as usize) {
            return Ok(None);
        }
        if let Some(&row) = rows.iter().find(|&&r| r as usize >= of) {
            return Err(Error::Shape {
                op: "rows",
                detail: format!("row {row} is wanted of a pass of {of} rows"),
            });
        }
        Ok(Some(Self {
            ids: ops.ids(rows)?,
            of,
        }))
    }
}
