//! A mixture of experts: each row goes to the few gated MLPs that a router chooses for it.
//!
//! Rows are sorted by expert, go through the experts' matrices in groups, and a token's results are added in the order
//! in which its experts were chosen. The router's weight is multiplied into the activation, before the last product,
//! so that adding up is a plain sum and nothing of the size of the result is kept. Choosing runs on the device where it can,
//! else on the host ([`super::routing`]); which experts were chosen can be recorded and replayed ([`Routes`]). Where ranks share the
//! experts, rows travel to them and back ([`super::dispatch`]).

use super::dispatch::Sorted;
use super::routing::Chosen;
use super::{Gated, Gradients, ParamId, Pass, SavedGated, Weights};
use crate::spec::Routing;
use slime_kernels::{ColumnMap, Ops, Result};

/// Router, experts and what every row passes besides.
#[derive(Clone, Debug)]
pub struct Moe {
    /// The model's layer it belongs to.
    pub layer: usize,
    /// How experts are chosen.
    pub routing: Routing,
    /// `[experts, hidden]`.
    pub router: ParamId,
    /// `[1, experts]`: added to the scores for choosing only. It has no gradient.
    pub bias: Option<ParamId>,
    /// `[experts × 2 × intermediate, hidden]`: an expert's rows of gate, then of up.
    pub gate_up: ParamId,
    /// `[experts × hidden, intermediate]`.
    pub down: ParamId,
    /// An MLP that every row passes.
    pub shared: Option<Shared>,
}

/// An MLP that every row passes, and how much of what it gives is taken.
#[derive(Clone, Debug)]
pub struct Shared {
    /// The MLP.
    pub mlp: Gated,
    /// `[1, hidden]`: the sigmoid of `x · w` multiplies the row; all of it where there is none.
    pub gate: Option<ParamId>,
}

/// What the shared MLP keeps.
struct SavedShared<O: Ops> {
    mlp: SavedGated<O>,
    /// With a gate: what the MLP gave, and the gate's logit, repeated over the row.
    gate: Option<(O::Tensor, O::Tensor)>,
}

/// One column over `cols`.
fn repeated(cols: usize) -> ColumnMap {
    ColumnMap::copies(1, vec![Some(0); cols])
}

impl Shared {
    fn logit<O: Ops>(&self, x: &O::Tensor, gate: ParamId, pass: Pass<'_, O>) -> Result<O::Tensor> {
        let logit = pass.ops.matmul_nt(x, pass.weights.get(gate))?;
        let cols = pass.ops.shape(x).1;
        pass.ops.map_columns(&[&logit], &repeated(cols))
    }

    fn forward<O: Ops>(
        &self,
        x: &O::Tensor,
        pass: Pass<'_, O>,
        keep_all: bool,
    ) -> Result<(O::Tensor, SavedShared<O>)> {
        let input = pass.peers.enter(x)?;
        let (y, mlp) = self.mlp.forward(&input, pass.ops, pass.weights, keep_all)?;
        let y = pass.peers.leave(y)?;
        let Some(gate) = self.gate else {
            return Ok((y, SavedShared { mlp, gate: None }));
        };
        let logit = self.logit(x, gate, pass)?;
        let gated = pass.ops.gate(&y, &logit)?;
        let gate = Some((y, logit));
        Ok((gated, SavedShared { mlp, gate }))
    }

    fn infer<O: Ops>(&self, x: &O::Tensor, pass: Pass<'_, O>) -> Result<O::Tensor> {
        let y = self
            .mlp
            .infer(&pass.peers.enter(x)?, pass.ops, pass.weights)?;
        let y = pass.peers.leave(y)?;
        match self.gate {
            Some(gate) => pass.ops.gate(&y, &self.logit(x, gate, pass)?),
            None => Ok(y),
        }
    }

    fn backward<O: Ops>(
        &self,
        dy: &O::Tensor,
        x: O::Tensor,
        saved: SavedShared<O>,
        pass: Pass<'_, O>,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let (ops, weights) = (pass.ops, pass.weights);
        let mlp = |dy: &O::Tensor, x: &O::Tensor, grads: &mut Gradients<O>| {
            let dy = pass.peers.leave_backward(dy)?;
            let input = || pass.peers.enter(x);
            let dx = self
                .mlp
                .backward(&dy, input, saved.mlp, ops, weights, grads)?;
            pass.peers.enter_backward(dx)
        };
        let (Some(gate), Some((y, logit))) = (self.gate, saved.gate) else {
            return mlp(dy, &x, grads);
        };
        let (dmlp, dlogit) = ops.gate_backward(dy, &y, &logit)?;
        let once = repeated(ops.shape(&x).1).transposed();
        let dlogit = ops.map_columns(&[&dlogit], &once)?;
        ops.accumulate_tn(&dlogit, &x, grads.get(gate))?;
        let dx = ops.matmul_nn(&dlogit, weights.get(gate))?;
        let more = mlp(&dmlp, &x, grads)?;
        ops.add(&dx, &more)
    }
}

/// What it keeps for its backward. What is `None` is rebuilt.
pub struct SavedMoe<O: Ops> {
    chosen: Chosen,
    sorted: Sorted<O>,
    /// `[rows here, 2 × intermediate]`, by expert.
    gate_up: O::Tensor,
    shared: Option<SavedShared<O>>,
}

impl Moe {
    fn logits<O: Ops>(&self, x: &O::Tensor, ops: &O, weights: &Weights<O>) -> Result<O::Float> {
        ops.logits(x, weights.get(self.router))
    }

    fn choose<O: Ops>(&self, x: &O::Tensor, pass: Pass<'_, O>) -> Result<Chosen> {
        let (ops, routing) = (pass.ops, &self.routing);
        let logits = self.logits(x, ops, pass.weights)?;
        if !ops.computes() {
            return Ok(Chosen::evenly(routing, ops.shape(x).0));
        }
        let bias = self.bias.map(|bias| pass.weights.get(bias));
        let forced = pass.routes.of_layer(self.layer);
        routing.check_forced(forced, ops.shape(x).0)?;
        let chosen = match ops.route(&logits, bias, forced, &routing.route())? {
            Some((experts, weights)) => Chosen { experts, weights },
            None => {
                let logits = ops.read_float_f64(&logits)?;
                let bias = bias.map(|bias| ops.read_f64(bias)).transpose()?;
                Chosen::new(routing, &logits, bias.as_deref(), forced)?
            }
        };
        pass.routes.record(self.layer, &chosen.experts);
        Ok(chosen)
    }

    /// Gradient of the router's logits, from that of each choice's weight.
    fn dlogits<O: Ops>(
        &self,
        x: &O::Tensor,
        chosen: &Chosen,
        dweights: &[f64],
        pass: Pass<'_, O>,
    ) -> Result<O::Tensor> {
        let (ops, experts) = (pass.ops, self.routing.experts);
        let logits = self.logits(x, ops, pass.weights)?;
        let rows = ops.shape(x).0;
        if !ops.computes() {
            return ops.tensor(rows, experts, &[]);
        }
        let Chosen {
            experts: chose,
            weights,
        } = chosen;
        let rule = self.routing.route();
        if let Some(dlogits) = ops.route_backward(&logits, &rule, chose, weights, dweights)? {
            return Ok(dlogits);
        }
        let logits = ops.read_float_f64(&logits)?;
        let dlogits = chosen.backward(&self.routing, &logits, dweights);
        ops.tensor_f64(rows, experts, &dlogits)
    }

    fn sort<O: Ops>(&self, chosen: &Chosen, pass: Pass<'_, O>) -> Result<Sorted<O>> {
        let peers = pass.peers.experts.as_ref();
        Sorted::new(pass.ops, peers, chosen, &self.routing)
    }

    fn gate_up<O: Ops>(
        &self,
        x: &O::Tensor,
        sorted: &Sorted<O>,
        pass: Pass<'_, O>,
    ) -> Result<O::Tensor> {
        let rows = sorted.out(x, pass.ops)?;
        let weight = pass.weights.get(self.gate_up);
        pass.ops.grouped_nt(&rows, weight, sorted.offsets())
    }

    fn experts<O: Ops>(
        &self,
        gate_up: &O::Tensor,
        sorted: &Sorted<O>,
        pass: Pass<'_, O>,
    ) -> Result<O::Tensor> {
        let ops = pass.ops;
        let activated = ops.scale_rows(&ops.swiglu(gate_up)?, &sorted.weights)?;
        let down = pass.weights.get(self.down);
        let results = ops.grouped_nt(&activated, down, sorted.offsets())?;
        sorted.back(results, ops)
    }

    /// `x: [rows, hidden]` → the same shape.
    ///
    /// # Errors
    /// The device failed, or the routes to replay are another model's.
    pub fn forward<O: Ops>(
        &self,
        x: &O::Tensor,
        pass: Pass<'_, O>,
        keep_all: bool,
    ) -> Result<(O::Tensor, SavedMoe<O>)> {
        let chosen = self.choose(x, pass)?;
        let sorted = self.sort(&chosen, pass)?;
        let gate_up = self.gate_up(x, &sorted, pass)?;
        let mut y = self.experts(&gate_up, &sorted, pass)?;
        let mut kept = None;
        if let Some(shared) = &self.shared {
            let (more, saved) = shared.forward(x, pass, keep_all)?;
            y = pass.ops.add(&y, &more)?;
            kept = Some(saved);
        }
        let saved = SavedMoe {
            chosen,
            sorted,
            gate_up,
            shared: kept,
        };
        Ok((y, saved))
    }

    /// The same without keeping anything.
    ///
    /// # Errors
    /// As [`Self::forward`].
    pub fn infer<O: Ops>(&self, x: &O::Tensor, pass: Pass<'_, O>) -> Result<O::Tensor> {
        let chosen = self.choose(x, pass)?;
        let sorted = self.sort(&chosen, pass)?;
        let y = self.experts(&self.gate_up(x, &sorted, pass)?, &sorted, pass)?;
        match &self.shared {
            Some(shared) => pass.ops.add(&y, &shared.infer(x, pass)?),
            None => Ok(y),
        }
    }

    /// `dy` → `dx`. `x` is what forward took, asked for when it is needed.
    ///
    /// # Errors
    /// The device failed.
    pub fn backward<O: Ops>(
        &self,
        dy: &O::Tensor,
        x: impl FnOnce() -> Result<O::Tensor>,
        saved: SavedMoe<O>,
        pass: Pass<'_, O>,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let (ops, weights) = (pass.ops, pass.weights);
        let (x, chosen, sorted) = (x()?, saved.chosen, saved.sorted);
        let offsets = sorted.offsets();
        let activated = ops.swiglu(&saved.gate_up)?;
        let dresults = sorted.out(dy, ops)?;
        let scaled = ops.scale_rows(&activated, &sorted.weights)?;
        ops.accumulate_grouped_tn(&dresults, &scaled, offsets, grads.get(self.down))?;
        drop(scaled);
        let dscaled = ops.grouped_nn(&dresults, weights.get(self.down), offsets)?;
        drop(dresults);
        let dweights = ops.read_float_f64(&ops.row_dots(&dscaled, &activated)?)?;
        let dweights = sorted.numbers_back(dweights)?;
        drop(activated);
        let dactivated = ops.scale_rows(&dscaled, &sorted.weights)?;
        let dgate_up = ops.swiglu_backward(&dactivated, &saved.gate_up)?;
        drop((dscaled, dactivated, saved.gate_up));
        let rows = sorted.out(&x, ops)?;
        ops.accumulate_grouped_tn(&dgate_up, &rows, offsets, grads.get(self.gate_up))?;
        drop(rows);
        let drows = ops.grouped_nn(&dgate_up, weights.get(self.gate_up), offsets)?;
        drop(dgate_up);
        let dx = sorted.back(drows, ops)?;

        let dlogits = self.dlogits(&x, &chosen, &dweights, pass)?;
        ops.accumulate_tn(&dlogits, &x, grads.get(self.router))?;
        let dx = ops.add(&dx, &ops.matmul_nn(&dlogits, weights.get(self.router))?)?;
        match (&self.shared, saved.shared) {
            (Some(shared), Some(saved)) => {
                let more = shared.backward(dy, x, saved, pass, grads)?;
                ops.add(&dx, &more)
            }
            _ => Ok(dx),
        }
    }
}
