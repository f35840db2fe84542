//! The operations, as one trait that every backend implements.
//!
//! Contract of every implementation:
//! - tensors are two-dimensional and row-major, `[rows, cols]`; a vector is `[1, n]`;
//! - arithmetic that trainer maths calls fp32 (norm statistics, softmax, log-prob, gradients of weights)
//!   is done in [`Ops::Float`]'s precision, whatever the model's dtype;
//! - **a row's result does not depend on the other rows of the call**, nor on the number of threads: sums run
//!   in an order fixed by the row alone. So a token's log-prob is the same bits in any batch, prefix caches
//!   change nothing, and a resumed run repeats an uninterrupted one;
//! - results that a gradient is accumulated into are added to (`+=`), every other result is returned new.

use crate::{Result, attend_keys, pieces};
use std::ops::Range;

/// How attention heads are laid out in a packed row: `[query heads | key heads | value heads] × dim`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heads {
    /// Query heads.
    pub query: usize,
    /// Key and value heads; divides `query`.
    pub kv: usize,
    /// Width of one head.
    pub dim: usize,
}

impl Heads {
    /// Width of a packed qkv row.
    pub fn qkv_cols(&self) -> usize {
        (self.query + 2 * self.kv) * self.dim
    }

    /// Width of the attention output.
    pub fn out_cols(&self) -> usize {
        self.query * self.dim
    }
}

/// Where each sequence begins in a packed batch: `[num_sequences + 1]`, from 0 to the number of tokens,
/// never decreasing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequences {
    /// Cumulative lengths.
    pub offsets: Vec<usize>,
}

impl Sequences {
    /// From the sequences' lengths.
    pub fn from_lengths(lengths: impl IntoIterator<Item = usize>) -> Self {
        let mut offsets = vec![0];
        let mut end = 0;
        for len in lengths {
            end += len;
            offsets.push(end);
        }
        Self { offsets }
    }

    /// Tokens in all sequences.
    pub fn num_tokens(&self) -> usize {
        self.offsets.last().copied().unwrap_or(0)
    }

    /// Each sequence's range of rows.
    pub fn ranges(&self) -> impl Iterator<Item = std::ops::Range<usize>> + '_ {
        self.offsets.windows(2).map(|w| w[0]..w[1])
    }

    /// Position of each token in its own sequence.
    pub fn positions(&self) -> Vec<u32> {
        self.ranges().flat_map(|r| 0..r.len() as u32).collect()
    }
}

/// Which columns of some tensors side by side make a column of another: output column `c` is the sum of the inputs'
/// columns `sources[starts[c]..starts[c + 1]]`, which count through all inputs; 0 where there is none.
///
/// Whatever moves columns is one of these, and its backward is [`Self::transposed`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnMap {
    /// `[output columns + 1]`, from 0 to the number of sources.
    pub starts: Vec<u32>,
    /// In the order in which they are added.
    pub sources: Vec<u32>,
    /// Columns of all inputs together.
    pub num_inputs: usize,
}

/// How a router's logits become experts and weights: softmax or sigmoid scores, of which the `top_k` largest (with a bias)
/// are chosen, among the best `groups` (how many there are, how many are kept; a group is as good as its best two). A
/// weight is `scale` times the score, over the sum of the chosen scores if `renormalise`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Route {
    /// Experts there are.
    pub experts: usize,
    /// Experts of each row.
    pub top_k: usize,
    /// Else softmax.
    pub is_sigmoid: bool,
    /// Divide by the sum.
    pub renormalise: bool,
    /// Multiplied into the weights.
    pub scale: f64,
    /// `(count, kept)`.
    pub groups: Option<(usize, usize)>,
}

impl Route {
    /// No expert: the router chooses for this row.
    pub const FREE: u32 = u32::MAX;
}

impl ColumnMap {
    /// Every output column copies one input column, or is 0.
    pub fn copies(num_inputs: usize, columns: impl IntoIterator<Item = Option<usize>>) -> Self {
        let (mut starts, mut sources) = (vec![0], Vec::new());
        for column in columns {
            sources.extend(column.map(|c| c as u32));
            starts.push(sources.len() as u32);
        }
        Self {
            starts,
            sources,
            num_inputs,
        }
    }

    /// Columns it makes.
    pub fn num_outputs(&self) -> usize {
        self.starts.len() - 1
    }

    /// The map of gradients: each input column gathers what was made of it, in the outputs' order.
    pub fn transposed(&self) -> Self {
        let mut users = vec![Vec::new(); self.num_inputs];
        for (output, range) in self.starts.windows(2).enumerate() {
            for source in &self.sources[range[0] as usize..range[1] as usize] {
                users[*source as usize].push(output as u32);
            }
        }
        let mut starts = vec![0];
        for list in &users {
            starts.push(starts[starts.len() - 1] + list.len() as u32);
        }
        Self {
            starts,
            sources: users.concat(),
            num_inputs: self.num_outputs(),
        }
    }
}

/// A part of every head's columns of `x`, and a part of every head's rows of `w`: head `h` has the columns
/// `h × (x's columns / heads) + x_start` on, and the rows `h × (w's rows / heads) + w_start ..+ len`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeadParts {
    /// Heads.
    pub heads: usize,
    /// First column of a head's part of `x`.
    pub x_start: usize,
    /// First row of a head's part of `w`.
    pub w_start: usize,
    /// Rows of that part.
    pub len: usize,
}

/// Heads of a gated delta rule: rows are `[keys × key_dim queries | the same of keys | values × value_dim]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Key heads, and query heads.
    pub keys: usize,
    /// Value heads; a multiple of the key heads, which they share in groups.
    pub values: usize,
    /// Width of a query or key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
}

impl DeltaHeads {
    /// Width of a row.
    pub fn cols(&self) -> usize {
        2 * self.keys * self.key_dim + self.values * self.value_dim
    }

    /// Numbers that a sequence's memory takes after a convolution over `taps` tokens: its last inputs, and a matrix a
    /// value head.
    pub fn state_len(&self, taps: usize) -> usize {
        taps.saturating_sub(1) * self.cols() + self.values * self.key_dim * self.value_dim
    }
}

/// A gated delta rule's own weights.
pub struct DeltaRule<'a, O: Ops + ?Sized> {
    /// Its heads.
    pub heads: DeltaHeads,
    /// `[1, values]`.
    pub a_log: &'a O::Tensor,
    /// `[1, values]`.
    pub dt_bias: &'a O::Tensor,
}

/// Which pairs of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// `(i, i + dims / 2)`: Llama, Qwen.
    Half,
    /// `(2 i, 2 i + 1)`: GLM-4, DeepSeek.
    Interleaved,
}

/// Cosines and sines of every position, computed once in f64 by the model.
pub struct RopeTable<O: Ops + ?Sized> {
    /// `[max_positions, dims / 2]`.
    pub cos: O::Float,
    /// `[max_positions, dims / 2]`.
    pub sin: O::Float,
    /// Leading dimensions of each head that rotate; the rest pass.
    pub dims: usize,
    /// Which pairs rotate.
    pub style: RopeStyle,
}

/// Weights of the per-head RMSNorm on queries and keys.
pub struct Norms<'a, O: Ops + ?Sized> {
    /// `[1, dim]`.
    pub query: &'a O::Tensor,
    /// `[1, dim]`.
    pub key: &'a O::Tensor,
    /// Added to the mean square.
    pub eps: f64,
}

/// Rows of one sequence that attend through a paged cache.
#[derive(Clone, Debug)]
pub struct PagedSequence<'a> {
    /// Its rows in this call, which are its newest tokens.
    pub rows: std::ops::Range<usize>,
    /// Tokens in the cache, these rows included. Row `rows.end - 1` sees all of them.
    pub context: usize,
    /// Cache blocks that hold them, in order; the last may be partly filled.
    pub blocks: &'a [u32],
}

/// Rows whose queries see all of some other rows' keys, with no causal mask: a step of attention over keys that lie on
/// several ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeySpan {
    /// Rows that look.
    pub queries: Range<usize>,
    /// Rows that are looked at.
    pub keys: Range<usize>,
}

/// In [`Ops::logits_backward`]: the row's target is none of these columns (it lies on another rank's).
pub const NO_TARGET: u32 = u32::MAX;

/// What the head knows of each target token; each `[rows]`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TokenStats {
    /// `u_y - lse`, with `u = z / temperature`.
    pub logprob: Vec<f64>,
    /// `lse - Σ p u`.
    pub entropy: Vec<f64>,
    /// `log Σ exp u`.
    pub lse: Vec<f64>,
}

/// How the next token of a row is drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// 1 / temperature.
    pub inv_temperature: f64,
    /// Where in the cumulative distribution, `[0, 1)`; `None` takes the likeliest.
    pub uniform: Option<f64>,
}

/// A token that was drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Drawn {
    /// Its id.
    pub token: u32,
    /// Its log-prob at the row's temperature; NaN if the logits hold no finite number, or a NaN.
    pub logprob: f64,
}

/// One AdamW step, decoupled decay, bias-corrected:
/// `m ← β₁ m + (1-β₁) g`, `v ← β₂ v + (1-β₂) g²`, `p ← p - lr (m̂ / (√v̂ + eps) + weight_decay p)`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Learning rate of this step.
    pub lr: f64,
    /// β₁.
    pub beta1: f64,
    /// β₂.
    pub beta2: f64,
    /// Outside the root.
    pub eps: f64,
    /// 0 for norms and biases.
    pub weight_decay: f64,
    /// 1 at the first step.
    pub step: u64,
    /// The gradient is multiplied by this first (clipping).
    pub grad_scale: f64,
}

/// One parameter of [`Ops::adamw_all`].
pub struct Update<'a, O: Ops + ?Sized> {
    /// Takes the place of the step's own; 0 for norms and biases.
    pub weight_decay: f64,
    /// Main gradient.
    pub grad: &'a O::Float,
    /// First moment.
    pub m: &'a mut O::Float,
    /// Second moment.
    pub v: &'a mut O::Float,
    /// Full-precision weight, where the weight itself is rounded.
    pub master: Option<&'a mut O::Float>,
    /// The weight.
    pub weight: &'a mut O::Tensor,
}

/// What a device has been asked for and does not have yet: calling it waits.
pub type Later<'a, T> = Box<dyn FnOnce() -> Result<T> + 'a>;

/// The way between any two devices.
pub(crate) fn through_host<O: Ops + ?Sized>(
    to: &O,
    from: &O,
    tensors: &[O::Tensor],
) -> Result<Vec<O::Tensor>> {
    let moved = tensors.iter().map(|x| {
        let (rows, cols) = from.shape(x);
        to.tensor_f64(rows, cols, &from.read_f64(x)?)
    });
    moved.collect()
}

/// A device that computes.
pub trait Ops: Send + Sync + 'static {
    /// Activations and weights, in the model's dtype. Cloning shares the storage.
    type Tensor: Clone + Send + Sync + 'static;
    /// Accumulators: main gradients, optimizer states, statistics. At least fp32.
    type Float: Send + Sync + 'static;
    /// Token ids or positions.
    type Ids: Send + Sync + 'static;
    /// Keys and values of every layer, in blocks of [`Self::kv_block_tokens`] tokens.
    type KvCache: Send + 'static;

    /// Numbers come out of it. A device of shapes only notes what is done.
    fn computes(&self) -> bool {
        true
    }

    // ---- moving numbers ----

    /// Upload, rounding to the model's dtype.
    fn tensor(&self, rows: usize, cols: usize, data: &[f32]) -> Result<Self::Tensor>;
    /// Upload without going through f32 (tests run in f64).
    fn tensor_f64(&self, rows: usize, cols: usize, data: &[f64]) -> Result<Self::Tensor>;
    /// `[rows, cols]`.
    fn shape(&self, x: &Self::Tensor) -> (usize, usize);
    /// Download.
    fn read(&self, x: &Self::Tensor) -> Result<Vec<f32>>;
    /// Download without rounding to f32.
    fn read_f64(&self, x: &Self::Tensor) -> Result<Vec<f64>>;
    /// `tensors` of `other`, a device of the same kind, in this one's keeping. They are whole when this returns, and what
    /// `other` does to its own later changes none of them.
    fn adopt(&self, other: &Self, tensors: &[Self::Tensor]) -> Result<Vec<Self::Tensor>> {
        through_host(self, other, tensors)
    }
    /// Whether every number is finite.
    fn all_finite(&self, tensors: &[Self::Tensor]) -> Result<bool> {
        for x in tensors {
            // No short cut, so that it vectorises.
            if !self.read(x)?.iter().fold(true, |ok, x| ok & x.is_finite()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
    /// Zeros, `[rows, cols]`.
    fn float_zeros(&self, rows: usize, cols: usize) -> Result<Self::Float>;
    /// Upload.
    fn float(&self, rows: usize, cols: usize, data: &[f32]) -> Result<Self::Float>;
    /// Upload without going through f32.
    fn float_f64(&self, rows: usize, cols: usize, data: &[f64]) -> Result<Self::Float>;
    /// `[rows, cols]`.
    fn float_shape(&self, x: &Self::Float) -> (usize, usize);
    /// Download.
    fn read_float(&self, x: &Self::Float) -> Result<Vec<f32>>;
    /// Download without rounding to f32.
    fn read_float_f64(&self, x: &Self::Float) -> Result<Vec<f64>>;
    /// Weights in the accumulator's precision.
    fn widened(&self, x: &Self::Tensor) -> Result<Self::Float> {
        let (rows, cols) = self.shape(x);
        self.float_f64(rows, cols, &self.read_f64(x)?)
    }
    /// Set to zero.
    fn zero(&self, x: &mut Self::Float) -> Result<()>;
    /// Upload ids or positions.
    fn ids(&self, ids: &[u32]) -> Result<Self::Ids>;

    // ---- rows ----

    /// Rows `rows` of `x`, in the order given: `[rows.len(), cols]`.
    fn gather_rows(&self, x: &Self::Tensor, rows: &Self::Ids) -> Result<Self::Tensor>;
    /// The reverse: a zero `[num_rows, cols]` into which row `i` of `x` is written at `rows[i]`; `rows` are distinct.
    fn scatter_rows(
        &self,
        x: &Self::Tensor,
        rows: &Self::Ids,
        num_rows: usize,
    ) -> Result<Self::Tensor>;
    /// `x + y`, same shape.
    fn add(&self, x: &Self::Tensor, y: &Self::Tensor) -> Result<Self::Tensor>;
    /// `x + b`, `b: [1, cols]` added to every row.
    fn add_bias(&self, x: &Self::Tensor, b: &Self::Tensor) -> Result<Self::Tensor>;
    /// `db += Σ_rows dy`, `db: [1, cols]`.
    fn accumulate_bias(&self, dy: &Self::Tensor, db: &mut Self::Float) -> Result<()>;

    /// `y_r = p_r x_r`, `p: [rows, 1]`.
    fn scale_rows(&self, x: &Self::Tensor, p: &Self::Float) -> Result<Self::Tensor>;
    /// `x_r · y_r` of each row: `[rows, 1]`.
    fn row_dots(&self, x: &Self::Tensor, y: &Self::Tensor) -> Result<Self::Float>;
    /// `y_t = Σ_j x[places[t × each + j]]`, in the order of `j`: `[places / each, cols]`. The backward of a gather that
    /// takes each row `each` times, and the sum over a token's experts.
    fn sum_rows(&self, x: &Self::Tensor, places: &Self::Ids, each: usize) -> Result<Self::Tensor>;
    /// Columns of `inputs`, moved and added as `map` says: `[rows, map.num_outputs()]`.
    fn map_columns(&self, inputs: &[&Self::Tensor], map: &ColumnMap) -> Result<Self::Tensor>;

    // ---- matrices ----

    /// `x Wᵀ`: `x: [rows, in]`, `w: [out, in]` → `[rows, out]`.
    fn matmul_nt(&self, x: &Self::Tensor, w: &Self::Tensor) -> Result<Self::Tensor>;
    /// `dy W`: `dy: [rows, out]`, `w: [out, in]` → `[rows, in]`.
    fn matmul_nn(&self, dy: &Self::Tensor, w: &Self::Tensor) -> Result<Self::Tensor>;
    /// `dW += dyᵀ x`: `dy: [rows, out]`, `x: [rows, in]`, `dw: [out, in]`.
    fn accumulate_tn(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        dw: &mut Self::Float,
    ) -> Result<()>;

    // ---- matrices of experts and heads ----

    /// `y_r = x_r W_eᵀ` for the rows `offsets[e]..offsets[e + 1]` of each expert `e`: `x: [rows, in]`,
    /// `w: [experts × out, in]` → `[rows, out]`.
    fn grouped_nt(
        &self,
        x: &Self::Tensor,
        w: &Self::Tensor,
        offsets: &[usize],
    ) -> Result<Self::Tensor>;
    /// `dx_r = dy_r W_e`: `dy: [rows, out]`, `w: [experts × out, in]` → `[rows, in]`.
    fn grouped_nn(
        &self,
        dy: &Self::Tensor,
        w: &Self::Tensor,
        offsets: &[usize],
    ) -> Result<Self::Tensor>;
    /// `dW_e += dy_eᵀ x_e`. An expert without rows keeps its bits.
    fn accumulate_grouped_tn(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        offsets: &[usize],
        dw: &mut Self::Float,
    ) -> Result<()>;
    /// `y_h = x_h W_h` of each head: `x_h: [rows, len]`, `W_h: [len, r]` → `[rows, heads × r]`.
    fn heads_nn(
        &self,
        x: &Self::Tensor,
        w: &Self::Tensor,
        parts: HeadParts,
    ) -> Result<Self::Tensor>;
    /// `y_h = x_h W_hᵀ` of each head: `x_h: [rows, r]`, `W_h: [len, r]` → `[rows, heads × len]`.
    fn heads_nt(
        &self,
        x: &Self::Tensor,
        w: &Self::Tensor,
        parts: HeadParts,
    ) -> Result<Self::Tensor>;

    /// Experts and weights of each row of `logits: [rows, experts]`, `[rows × top_k]`, best first. `bias: [1, experts]` is
    /// added to the scores for choosing; where a row's `forced` choices are all there ([`Route::FREE`] is none) they are
    /// taken. `None` leaves it to the caller's host.
    fn route(
        &self,
        logits: &Self::Float,
        bias: Option<&Self::Tensor>,
        forced: Option<&[u32]>,
        rule: &Route,
    ) -> Result<Option<(Vec<u32>, Vec<f64>)>> {
        let _ = (logits, bias, forced, rule);
        Ok(None)
    }
    /// Gradient of the logits, `[rows, experts]`, from those of the weights that [`Self::route`] gave. `None` as there.
    fn route_backward(
        &self,
        logits: &Self::Float,
        rule: &Route,
        experts: &[u32],
        weights: &[f64],
        dweights: &[f64],
    ) -> Result<Option<Self::Tensor>> {
        let _ = (logits, rule, experts, weights, dweights);
        Ok(None)
    }

    // ---- embedding ----

    /// `table[ids]`: `[tokens, hidden]`. An id outside the table is an error.
    fn embed(&self, table: &Self::Tensor, ids: &Self::Ids) -> Result<Self::Tensor>;
    /// `dtable[ids] += dx`, in an order fixed by the ids.
    fn accumulate_embed(
        &self,
        dx: &Self::Tensor,
        ids: &Self::Ids,
        dtable: &mut Self::Float,
    ) -> Result<()>;

    // ---- RMSNorm ----

    /// `y = x r w`, `r = 1 / √(mean x² + eps)` → `(y, r: [rows, 1])`. `w: [1, cols]`.
    fn rmsnorm(
        &self,
        x: &Self::Tensor,
        w: &Self::Tensor,
        eps: f64,
    ) -> Result<(Self::Tensor, Self::Float)>;
    /// `s = x + delta; y = rmsnorm(s)` → `(s, y, r)`.
    fn add_rmsnorm(
        &self,
        x: &Self::Tensor,
        delta: &Self::Tensor,
        w: &Self::Tensor,
        eps: f64,
    ) -> Result<(Self::Tensor, Self::Tensor, Self::Float)>;
    /// `dx (+ residual)` and `dw +=`. `x` is what was normalised, `r` its saved statistic, `residual` the gradient
    /// that reaches `x` past the norm.
    fn rmsnorm_backward(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        r: &Self::Float,
        w: &Self::Tensor,
        residual: Option<&Self::Tensor>,
        dw: &mut Self::Float,
    ) -> Result<Self::Tensor>;

    /// [`Self::rmsnorm_backward`], and what forward gave, `rmsnorm(x, w, eps)`: a device that has the rows in hand writes
    /// it without reading them again.
    #[allow(
        clippy::too_many_arguments,
        reason = "the operands of one fused backward"
    )]
    fn rmsnorm_backward_again(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        r: &Self::Float,
        w: &Self::Tensor,
        eps: f64,
        residual: Option<&Self::Tensor>,
        dw: &mut Self::Float,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        let dx = self.rmsnorm_backward(dy, x, r, w, residual, dw)?;
        Ok((dx, self.rmsnorm(x, w, eps)?.0))
    }

    // ---- queries and keys ----

    /// Norm (if any) and rotate queries and keys of packed rows `[tokens, qkv_cols]`; values pass.
    /// Returns the rows and, with norms, `r: [tokens, query + kv]`.
    fn qk_norm_rope(
        &self,
        qkv: &Self::Tensor,
        heads: Heads,
        positions: &Self::Ids,
        rope: &RopeTable<Self>,
        norms: Option<Norms<'_, Self>>,
    ) -> Result<(Self::Tensor, Option<Self::Float>)>;
    /// Gradient with respect to the rows before norm and rotation. With norms: `qkv` are those rows, `r` the saved
    /// statistic, and `dnorms` (query, key) are added to.
    #[allow(
        clippy::too_many_arguments,
        reason = "the operands of one fused backward"
    )]
    fn qk_norm_rope_backward(
        &self,
        dqkv: &Self::Tensor,
        heads: Heads,
        positions: &Self::Ids,
        rope: &RopeTable<Self>,
        norms: Option<(Norms<'_, Self>, &Self::Tensor, &Self::Float)>,
        dnorms: Option<(&mut Self::Float, &mut Self::Float)>,
    ) -> Result<Self::Tensor>;

    // ---- attention ----

    /// Causal attention inside each sequence over rotated rows `qkv: [tokens, qkv_cols]`
    /// → `(o: [tokens, out_cols], lse: [query heads, tokens])`. Never builds `[tokens, tokens]`.
    fn attention(
        &self,
        qkv: &Self::Tensor,
        heads: Heads,
        sequences: &Sequences,
        scale: f64,
    ) -> Result<(Self::Tensor, Self::Float)>;
    /// Gradient of the packed rows, `[tokens, qkv_cols]`.
    #[allow(
        clippy::too_many_arguments,
        reason = "the operands of one fused backward"
    )]
    fn attention_backward(
        &self,
        dout: &Self::Tensor,
        qkv: &Self::Tensor,
        out: &Self::Tensor,
        lse: &Self::Float,
        heads: Heads,
        sequences: &Sequences,
        scale: f64,
    ) -> Result<Self::Tensor>;

    /// Attention of rows over the keys and values of others, merged into what was found before:
    /// `kv: [other rows, 2 kv dim]` are keys, then values; `out: [rows, out_cols]` and `lse: [query heads, rows]` are what
    /// [`Self::attention`] or an earlier call gave. Only rows named in `spans` change. A backend without a kernel of its
    /// own computes it on the host in f64.
    #[allow(clippy::too_many_arguments, reason = "the operands of one merge")]
    fn attend_keys(
        &self,
        qkv: &Self::Tensor,
        kv: &Self::Tensor,
        heads: Heads,
        spans: &[KeySpan],
        scale: f64,
        out: &Self::Tensor,
        lse: &Self::Float,
    ) -> Result<(Self::Tensor, Self::Float)> {
        attend_keys::forward(self, qkv, kv, heads, spans, scale, out, lse)
    }
    /// Gradients of [`Self::attend_keys`], given the output and lse after the last merge: of the packed rows
    /// (`[rows, qkv_cols]`, 0 in their keys and values) and of `kv`.
    #[allow(
        clippy::too_many_arguments,
        reason = "the operands of one fused backward"
    )]
    fn attend_keys_backward(
        &self,
        dout: &Self::Tensor,
        qkv: &Self::Tensor,
        kv: &Self::Tensor,
        heads: Heads,
        spans: &[KeySpan],
        scale: f64,
        out: &Self::Tensor,
        lse: &Self::Float,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        attend_keys::backward(self, dout, qkv, kv, heads, spans, scale, out, lse)
    }

    // ---- attention through a cache (serving) ----

    /// Tokens a cache block holds.
    fn kv_block_tokens(&self) -> usize;
    /// A cache of `num_blocks` blocks for `num_layers` layers.
    fn kv_cache(&self, num_layers: usize, num_blocks: usize, heads: Heads)
    -> Result<Self::KvCache>;
    /// Write the keys and values of rotated rows into `slots[row] = block × block_tokens + offset`.
    fn kv_write(
        &self,
        cache: &mut Self::KvCache,
        layer: usize,
        qkv: &Self::Tensor,
        heads: Heads,
        slots: &[usize],
    ) -> Result<()>;
    /// Attention of rows whose keys and values are in the cache already: `[rows, out_cols]`. Gives the bits that
    /// [`Self::attention`] gives for the same token.
    fn attention_paged(
        &self,
        cache: &Self::KvCache,
        layer: usize,
        qkv: &Self::Tensor,
        heads: Heads,
        sequences: &[PagedSequence<'_>],
        scale: f64,
    ) -> Result<Self::Tensor>;

    // ---- SwiGLU ----

    /// `silu(g) u` of rows `[g | u]`: `[tokens, 2 f]` → `[tokens, f]`.
    fn swiglu(&self, gate_up: &Self::Tensor) -> Result<Self::Tensor>;
    /// `[dg | du]`: `[tokens, 2 f]`.
    fn swiglu_backward(&self, da: &Self::Tensor, gate_up: &Self::Tensor) -> Result<Self::Tensor>;

    /// [`Self::swiglu_backward`], and what [`Self::swiglu`] gave.
    fn swiglu_backward_again(
        &self,
        da: &Self::Tensor,
        gate_up: &Self::Tensor,
    ) -> Result<(Self::Tensor, Self::Tensor)> {
        Ok((self.swiglu_backward(da, gate_up)?, self.swiglu(gate_up)?))
    }

    // ---- gates and linear attention ----

    /// The same numbers in rows of another length.
    fn reshape(&self, x: &Self::Tensor, rows: usize, cols: usize) -> Result<Self::Tensor>;
    /// `x sigmoid(gate)`, same shape.
    fn gate(&self, x: &Self::Tensor, gate: &Self::Tensor) -> Result<Self::Tensor>;
    /// `(dx, dgate)`.
    fn gate_backward(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        gate: &Self::Tensor,
    ) -> Result<(Self::Tensor, Self::Tensor)>;
    /// `silu(Σ_j w_j x_(t - K + 1 + j))` of each column inside each sequence: `x: [tokens, cols]`, `w: [cols, K]`.
    fn causal_conv(
        &self,
        x: &Self::Tensor,
        w: &Self::Tensor,
        sequences: &Sequences,
    ) -> Result<Self::Tensor>;
    /// `dx`; adds `dw`.
    fn causal_conv_backward(
        &self,
        dy: &Self::Tensor,
        x: &Self::Tensor,
        w: &Self::Tensor,
        sequences: &Sequences,
        dw: &mut Self::Float,
    ) -> Result<Self::Tensor>;
    /// The gated delta rule over rows `qkv: [tokens, rule.heads.cols()]` with gates `[β | decay]: [tokens, 2 values]`
    /// → `[tokens, values × value_dim]`.
    fn gated_delta(
        &self,
        qkv: &Self::Tensor,
        gates: &Self::Tensor,
        rule: &DeltaRule<'_, Self>,
        sequences: &Sequences,
    ) -> Result<Self::Tensor>;
    /// `(dqkv, dgates)`; adds to `dweights`, the gradients of `a_log` and `dt_bias`.
    fn gated_delta_backward(
        &self,
        dout: &Self::Tensor,
        qkv: &Self::Tensor,
        gates: &Self::Tensor,
        rule: &DeltaRule<'_, Self>,
        sequences: &Sequences,
        dweights: (&mut Self::Float, &mut Self::Float),
    ) -> Result<(Self::Tensor, Self::Tensor)>;
    /// Convolution and rule for rows whose sequences' memories lie in `states: [cache blocks, state_len]`: a block
    /// holds the memory after the last of its tokens that was computed. Gives the bits of the two operations above.
    fn gated_delta_paged(
        &self,
        states: &mut Self::Float,
        x: &Self::Tensor,
        conv: &Self::Tensor,
        gates: &Self::Tensor,
        rule: &DeltaRule<'_, Self>,
        sequences: &[PagedSequence<'_>],
    ) -> Result<Self::Tensor>;

    // ---- head ----

    /// Bytes of logits that are best made at once: enough rows to fill the device, few enough to leave room.
    fn logits_chunk_bytes(&self) -> usize {
        64 << 20
    }
    /// `h Wᵀ` kept in the accumulator's precision: `[rows, vocab]`.
    fn logits(&self, h: &Self::Tensor, w: &Self::Tensor) -> Result<Self::Float>;
    /// Log-prob of the target, entropy and lse of each row at a temperature. Columns from `vocab` on are −inf.
    fn token_stats(
        &self,
        logits: &Self::Float,
        targets: &Self::Ids,
        inv_temperature: f64,
        vocab: usize,
    ) -> Result<TokenStats>;
    /// [`Self::token_stats`], asked for now and waited for when the answer is called: what is queued in between keeps the
    /// device busy. The logits may be given up meanwhile.
    fn token_stats_later<'a>(
        &'a self,
        logits: &Self::Float,
        targets: &Self::Ids,
        inv_temperature: f64,
        vocab: usize,
    ) -> Result<Later<'a, TokenStats>> {
        let stats = self.token_stats(logits, targets, inv_temperature, vocab)?;
        Ok(Box::new(move || Ok(stats)))
    }
    /// `dz` for `dL/dlogprob = a` and `dL/dentropy = b` per row, consuming the logits:
    /// `dz_v = (a (1[v=y] - p_v) + b p_v (E₁ - u_v)) / temperature`, `E₁ = lse - entropy`. 0 from `vocab` on.
    /// A target of [`NO_TARGET`] is none of the columns.
    #[allow(
        clippy::too_many_arguments,
        reason = "the operands of one fused backward"
    )]
    fn logits_backward(
        &self,
        logits: Self::Float,
        targets: &Self::Ids,
        inv_temperature: f64,
        vocab: usize,
        stats: &TokenStats,
        a: &[f64],
        b: &[f64],
    ) -> Result<Self::Tensor>;

    /// The next token of each row of `logits: [rows, padded vocab]`, from the first `vocab` columns. `None`: this device
    /// leaves it to the host, which reads the logits.
    fn draw(
        &self,
        _logits: &Self::Float,
        _draws: &[Draw],
        _vocab: usize,
    ) -> Result<Option<Vec<Drawn>>> {
        Ok(None)
    }

    // ---- pieces of parameters (several ranks) ----

    /// Elements `range`, row-major, of each part, end to end, then zeros up to `len`: `[1, len]`.
    fn join(&self, parts: &[(&Self::Tensor, Range<usize>)], len: usize) -> Result<Self::Tensor> {
        pieces::join(self, parts, len)
    }
    /// Elements `range` of `x`, row-major, as `[rows, cols]`.
    fn cut(
        &self,
        x: &Self::Tensor,
        range: Range<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<Self::Tensor> {
        pieces::cut(self, x, range, rows, cols)
    }
    /// [`Self::join`] of accumulators.
    fn join_float(
        &self,
        parts: &[(&Self::Float, Range<usize>)],
        len: usize,
    ) -> Result<Self::Float> {
        pieces::join_float(self, parts, len)
    }
    /// [`Self::cut`] of an accumulator.
    fn cut_float(
        &self,
        x: &Self::Float,
        range: Range<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<Self::Float> {
        pieces::cut_float(self, x, range, rows, cols)
    }
    /// Columns `cols` of `x`: `[rows, cols.len()]`.
    fn columns(&self, x: &Self::Tensor, cols: Range<usize>) -> Result<Self::Tensor> {
        pieces::columns(self, x, cols)
    }
    /// `x` with `y` added to the columns from `at` on.
    fn add_columns(&self, x: &Self::Tensor, y: &Self::Tensor, at: usize) -> Result<Self::Tensor> {
        pieces::add_columns(self, x, y, at)
    }

    // ---- optimizer ----

    /// `Σ x²`, in a fixed order, in f64.
    fn sum_squares(&self, x: &Self::Float) -> Result<f64>;
    /// `Σ x²` over all of them, in order. A device adds them up before it answers.
    fn sum_squares_of_all(&self, all: &[&Self::Float]) -> Result<f64> {
        all.iter()
            .try_fold(0.0, |sum, x| Ok(sum + self.sum_squares(x)?))
    }
    /// Zeros for a moment of Adam's in as few bits as the device keeps one in: where weights are rounded, as many as theirs,
    /// rounded by chance so that small changes count on average. Operations other than Adam's need not read it.
    fn compact_moment(&self, rows: usize, cols: usize) -> Result<Self::Float> {
        self.float_zeros(rows, cols)
    }
    /// The same for a piece of parameter `param` that begins at its element `start`: chance depends on these, so that pieces are
    /// rounded as the whole is, and copies alike.
    fn compact_piece(
        &self,
        rows: usize,
        cols: usize,
        _param: usize,
        _start: usize,
    ) -> Result<Self::Float> {
        self.compact_moment(rows, cols)
    }
    /// The master of a weight, kept as the bits that the weight lacks where the device can.
    fn compact_master(&self, weight: &Self::Tensor) -> Result<Self::Float> {
        self.widened(weight)
    }
    /// New numbers in the place of an accumulator's, kept as it keeps them.
    fn assign(&self, to: &mut Self::Float, data: &[f32]) -> Result<()> {
        let (rows, cols) = self.float_shape(to);
        *to = self.float(rows, cols, data)?;
        Ok(())
    }
    /// One step on one parameter. Without `master` the weight itself is the master (CPU).
    #[allow(
        clippy::too_many_arguments,
        reason = "the operands of one fused update"
    )]
    fn adamw(
        &self,
        step: &AdamW,
        grad: &Self::Float,
        m: &mut Self::Float,
        v: &mut Self::Float,
        master: Option<&mut Self::Float>,
        weight: &mut Self::Tensor,
    ) -> Result<()>;
    /// The same step on many parameters, each with its own decay.
    fn adamw_all(&self, step: &AdamW, updates: Vec<Update<'_, Self>>) -> Result<()> {
        updates.into_iter().try_for_each(|update| {
            let weight_decay = update.weight_decay;
            let step = AdamW {
                weight_decay,
                ..*step
            };
            let Update {
                grad,
                m,
                v,
                master,
                weight,
                ..
            } = update;
            self.adamw(&step, grad, m, v, master, weight)
        })
    }
}
