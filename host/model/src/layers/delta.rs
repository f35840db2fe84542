//! A gated delta net (arXiv:2412.06464, as Qwen3-Next has it): a short convolution over queries, keys and values, a rule
//! that corrects one matrix a head token by token, a norm of what it gives, and a gate.
//!
//! It knows no position. Serving caches its memory instead of keys and values.

use super::{Gradients, Linear, Norm, Paged, ParamId, Pass};
use slime_kernels::{ColumnMap, DeltaHeads, DeltaRule, Ops, Result, Sequences};
use std::sync::Arc;

/// Its parameters.
#[derive(Clone, Debug)]
pub struct DeltaParams {
    /// `[heads' columns + values × value_dim, hidden]`: queries, keys, values and the output's gate.
    pub input: Linear,
    /// `[2 values, hidden]`: β and decay.
    pub gates: Linear,
    /// `[heads' columns, taps]`.
    pub conv: ParamId,
    /// `[1, values]`.
    pub a_log: ParamId,
    /// `[1, values]`.
    pub dt_bias: ParamId,
    /// `[1, value_dim]`, of each head of the rule's output.
    pub norm: Norm,
}

/// A gated delta net.
#[derive(Clone, Debug)]
pub struct DeltaNet {
    heads: DeltaHeads,
    params: DeltaParams,
    maps: Arc<Maps>,
}

#[derive(Debug)]
struct Maps {
    /// Projection → queries, keys, values.
    mixed: ColumnMap,
    /// Projection → the output's gate.
    gate: ColumnMap,
    /// `[mixed | gate]` → projection.
    back: ColumnMap,
    /// Projection of gates → `[β | decay]`, and back.
    rule: ColumnMap,
    rule_back: ColumnMap,
    /// `[gate | normed]` of one head, side by side and apart.
    beside: ColumnMap,
    apart: [ColumnMap; 2],
}

impl Maps {
    fn new(h: DeltaHeads, by_key_head: bool) -> Self {
        let (keys, values) = (h.keys * h.key_dim, h.values * h.value_dim);
        let total = 2 * keys + 2 * values;
        let group = h.values / h.keys;
        // A key head's columns: its query, its key, its group's values, their gates.
        let (of_group, stride) = (group * h.value_dim, 2 * h.key_dim + 2 * group * h.value_dim);
        let place = |column: usize| -> usize {
            if !by_key_head {
                return column;
            }
            let key = |c: usize, offset: usize| c / h.key_dim * stride + offset + c % h.key_dim;
            let value = |c: usize, offset: usize| c / of_group * stride + offset + c % of_group;
            match column {
                c if c < keys => key(c, 0),
                c if c < 2 * keys => key(c - keys, h.key_dim),
                c if c < 2 * keys + values => value(c - 2 * keys, 2 * h.key_dim),
                c => value(c - 2 * keys - values, 2 * h.key_dim + of_group),
            }
        };
        let gate_place = |column: usize| -> usize {
            let (part, head) = (column / h.values, column % h.values);
            if by_key_head {
                head / group * 2 * group + part * group + head % group
            } else {
                column
            }
        };
        let copies = |n: usize, columns: &mut dyn Iterator<Item = usize>| {
            ColumnMap::copies(n, columns.map(Some))
        };
        let all: Vec<usize> = (0..total).map(place).collect();
        let rule = copies(2 * h.values, &mut (0..2 * h.values).map(gate_place));
        let width = h.value_dim;
        Self {
            mixed: copies(total, &mut all[..h.cols()].iter().copied()),
            gate: copies(total, &mut all[h.cols()..].iter().copied()),
            back: copies(total, &mut all.iter().copied()).transposed(),
            rule_back: rule.transposed(),
            rule,
            beside: copies(2 * width, &mut (0..2 * width)),
            apart: [
                copies(2 * width, &mut (0..width)),
                copies(2 * width, &mut (width..2 * width)),
            ],
        }
    }
}

/// What it keeps for its backward.
pub struct SavedDelta<O: Ops> {
    /// Queries, keys and values before the convolution.
    mixed: O::Tensor,
    /// After it.
    convolved: O::Tensor,
    /// `[β | decay]`.
    gates: O::Tensor,
    /// A row a head: what the rule gave, and `1 / rms` of it.
    out: O::Tensor,
    stat: O::Float,
    /// A row a head: `[gate | normed]`.
    beside: O::Tensor,
}

/// The projections of a row.
struct Projected<O: Ops> {
    mixed: O::Tensor,
    gate: O::Tensor,
    gates: O::Tensor,
}

impl DeltaNet {
    /// Of these heads. `by_key_head`: the projections are stored a key head at a time.
    pub fn new(heads: DeltaHeads, by_key_head: bool, params: DeltaParams) -> Self {
        Self {
            heads,
            params,
            maps: Arc::new(Maps::new(heads, by_key_head)),
        }
    }

    fn rule<'a, O: Ops>(&self, pass: Pass<'a, O>) -> DeltaRule<'a, O> {
        DeltaRule {
            heads: self.heads,
            a_log: pass.weights.get(self.params.a_log),
            dt_bias: pass.weights.get(self.params.dt_bias),
        }
    }

    fn project<O: Ops>(&self, x: &O::Tensor, pass: Pass<'_, O>) -> Result<Projected<O>> {
        let ops = pass.ops;
        let all = self.params.input.forward(x, ops, pass.weights)?;
        let gates = self.params.gates.forward(x, ops, pass.weights)?;
        Ok(Projected {
            mixed: ops.map_columns(&[&all], &self.maps.mixed)?,
            gate: ops.map_columns(&[&all], &self.maps.gate)?,
            gates: ops.map_columns(&[&gates], &self.maps.rule)?,
        })
    }

    /// Norm and gate of the rule's output: `(y, out, stat, beside)`.
    #[allow(clippy::type_complexity, reason = "what finishing gives and keeps")]
    fn finish<O: Ops>(
        &self,
        out: &O::Tensor,
        gate: &O::Tensor,
        pass: Pass<'_, O>,
    ) -> Result<(O::Tensor, O::Tensor, O::Float, O::Tensor)> {
        let (ops, norm) = (pass.ops, &self.params.norm);
        let (rows, cols) = ops.shape(out);
        let (by_head, width) = (rows * self.heads.values, self.heads.value_dim);
        let out = ops.reshape(out, by_head, width)?;
        let (normed, stat) = ops.rmsnorm(&out, &norm.factor(ops, pass.weights)?, norm.eps)?;
        let gate = ops.reshape(gate, by_head, width)?;
        let beside = ops.map_columns(&[&gate, &normed], &self.maps.beside)?;
        let y = ops.reshape(&ops.swiglu(&beside)?, rows, cols)?;
        Ok((y, out, stat, beside))
    }

    /// `x: [tokens, hidden]` → `[tokens, values × value_dim]`.
    ///
    /// # Errors
    /// The device failed.
    pub fn forward<O: Ops>(
        &self,
        x: &O::Tensor,
        sequences: &Sequences,
        pass: Pass<'_, O>,
    ) -> Result<(O::Tensor, SavedDelta<O>)> {
        let p = self.project(x, pass)?;
        let conv = pass.weights.get(self.params.conv);
        let convolved = pass.ops.causal_conv(&p.mixed, conv, sequences)?;
        let rule = self.rule(pass);
        let out = pass
            .ops
            .gated_delta(&convolved, &p.gates, &rule, sequences)?;
        let (y, out, stat, beside) = self.finish(&out, &p.gate, pass)?;
        let saved = SavedDelta {
            mixed: p.mixed,
            convolved,
            gates: p.gates,
            out,
            stat,
            beside,
        };
        Ok((y, saved))
    }

    /// The same for the newest rows of sequences whose memories are in the cache.
    ///
    /// # Errors
    /// The device failed, or a block lies outside the cache.
    pub fn infer_paged<O: Ops>(
        &self,
        x: &O::Tensor,
        paged: Paged<'_, O>,
        pass: Pass<'_, O>,
    ) -> Result<O::Tensor> {
        let p = self.project(x, pass)?;
        let conv = pass.weights.get(self.params.conv);
        let states = paged.cache.state(paged.layer)?;
        let (rule, sequences) = (self.rule(pass), paged.sequences);
        let out = pass
            .ops
            .gated_delta_paged(states, &p.mixed, conv, &p.gates, &rule, sequences)?;
        Ok(self.finish(&out, &p.gate, pass)?.0)
    }

    /// Gradient of what forward gave → that of `x`, which `normed` gives again.
    ///
    /// # Errors
    /// The device failed.
    pub fn backward<O: Ops>(
        &self,
        dout: O::Tensor,
        normed: impl FnOnce() -> Result<O::Tensor>,
        saved: SavedDelta<O>,
        sequences: &Sequences,
        pass: Pass<'_, O>,
        grads: &mut Gradients<O>,
    ) -> Result<O::Tensor> {
        let (ops, weights, params) = (pass.ops, pass.weights, &self.params);
        let (rows, cols) = ops.shape(&dout);
        let (by_head, width) = (rows * self.heads.values, self.heads.value_dim);
        let dy = ops.reshape(&dout, by_head, width)?;
        let dbeside = ops.swiglu_backward(&dy, &saved.beside)?;
        let dgate = ops.map_columns(&[&dbeside], &self.maps.apart[0])?;
        let dnormed = ops.map_columns(&[&dbeside], &self.maps.apart[1])?;
        drop((dy, dbeside, saved.beside));
        let (out, stat) = (&saved.out, &saved.stat);
        let drule = params
            .norm
            .backward(&dnormed, out, stat, None, ops, weights, grads)?;
        let drule = ops.reshape(&drule, rows, cols)?;
        let (dconvolved, dgates) = ops.gated_delta_backward(
            &drule,
            &saved.convolved,
            &saved.gates,
            &self.rule(pass),
            sequences,
            grads.pair(params.a_log, params.dt_bias),
        )?;
        drop((drule, saved.convolved, saved.gates));
        let (conv, dconv) = (weights.get(params.conv), grads.get(params.conv));
        let dmixed = ops.causal_conv_backward(&dconvolved, &saved.mixed, conv, sequences, dconv)?;
        drop((dconvolved, saved.mixed));
        let dgate = ops.reshape(&dgate, rows, cols)?;
        let dinput = ops.map_columns(&[&dmixed, &dgate], &self.maps.back)?;
        let dgates = ops.map_columns(&[&dgates], &self.maps.rule_back)?;
        let x = normed()?;
        let dx = params.input.backward(&dinput, &x, ops, weights, grads)?;
        let more = params.gates.backward(&dgates, &x, ops, weights, grads)?;
        ops.add(&dx, &more)
    }
}
