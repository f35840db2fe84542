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

mod operands;

pub use operands::{
    AdamW, ColumnMap, DeltaHeads, DeltaRule, Draw, Drawn, HeadParts, Heads, KeySpan, Later,
    NO_TARGET, Norms, PagedSequence, Patch, Replay, RopeStyle, RopeTable, Route, Sequences,
    TokenStats, Update,
};

use crate::{Result, check, head};
use std::ops::Range;

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
    /// Where rows of a serving step lie in a cache, and what they see of it.
    type Tables: Send + Sync + 'static;

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
    /// The numbers of `from`, of the same shape, in the place of `to`'s, whose storage nobody shares: what was recorded reads
    /// them from then on.
    fn assign_tensor(&self, to: &mut Self::Tensor, from: &Self::Tensor) -> Result<()> {
        *to = from.clone();
        Ok(())
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
    /// As many others in their place.
    fn assign_ids(&self, to: &mut Self::Ids, ids: &[u32]) -> Result<()> {
        *to = self.ids(ids)?;
        Ok(())
    }

    // ---- work done again ----

    /// Note what `work` asks of this device instead of doing it; each call of the answer then does all of it, with the numbers
    /// that lie where `work` found its operands: [`Self::assign_ids`] and [`Self::assign_tables`] put others there. `work`
    /// has been done before, and its operands outlive the answer. `None`: a device that gains nothing by it. Work that the host
    /// takes part in is an error, after which the device is as it was.
    fn record(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Option<Replay>> {
        let _ = work;
        Ok(None)
    }

    // ---- rows ----

    /// Rows `rows` of `x`, which a device shows without moving them.
    fn rows(&self, x: &Self::Tensor, rows: Range<usize>) -> Result<Self::Tensor> {
        let (has, cols) = self.shape(x);
        check::within("rows", &rows, has)?;
        self.cut(x, rows.start * cols..rows.end * cols, rows.len(), cols)
    }
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
    /// `Σ_i x_i` in order, same shape, rounded once.
    fn sum(&self, all: &[&Self::Tensor]) -> Result<Self::Tensor>;
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
    /// `[rows, cols]` for [`Self::put_nt`] and [`Self::put_nn`] to fill.
    fn room(&self, rows: usize, cols: usize) -> Result<Self::Tensor>;
    /// [`Self::matmul_nt`] into the rows of `y` from `at` on; nobody shares `y`'s storage.
    fn put_nt(
        &self,
        x: &Self::Tensor,
        w: &Self::Tensor,
        y: &mut Self::Tensor,
        at: usize,
    ) -> Result<()>;
    /// [`Self::matmul_nn`] into the rows of `dx` from `at` on; nobody shares `dx`'s storage.
    fn put_nn(
        &self,
        dy: &Self::Tensor,
        w: &Self::Tensor,
        dx: &mut Self::Tensor,
        at: usize,
    ) -> Result<()>;
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
    /// [`Self::attention`] or an earlier call gave. Only rows named in `spans` change.
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
    ) -> Result<(Self::Tensor, Self::Float)>;
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
    ) -> Result<(Self::Tensor, Self::Tensor)>;

    // ---- attention through a cache (serving) ----

    /// Tokens a cache block holds.
    fn kv_block_tokens(&self) -> usize;
    /// A cache of `num_blocks` blocks for `num_layers` layers.
    fn kv_cache(&self, num_layers: usize, num_blocks: usize, heads: Heads)
    -> Result<Self::KvCache>;
    /// Row `r` of a step writes at `slots[r] = block × block_tokens + offset`, and sees what its sequence in `sequences` says.
    /// Sequences whose contexts reach up to `longest` may come in their place.
    fn tables(
        &self,
        slots: &[usize],
        sequences: &[PagedSequence<'_>],
        longest: usize,
    ) -> Result<Self::Tables>;
    /// As many others in their place, each of one row.
    fn assign_tables(
        &self,
        to: &mut Self::Tables,
        slots: &[usize],
        sequences: &[PagedSequence<'_>],
    ) -> Result<()> {
        *to = self.tables(slots, sequences, 0)?;
        Ok(())
    }
    /// Write the keys and values of rotated rows into their slots.
    fn kv_write(
        &self,
        cache: &mut Self::KvCache,
        layer: usize,
        qkv: &Self::Tensor,
        heads: Heads,
        tables: &Self::Tables,
    ) -> Result<()>;
    /// Attention of rows whose keys and values are in the cache already: `[rows, out_cols]`. Gives the bits that
    /// [`Self::attention`] gives for the same token.
    fn attention_paged(
        &self,
        cache: &Self::KvCache,
        layer: usize,
        qkv: &Self::Tensor,
        heads: Heads,
        tables: &Self::Tables,
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
        head::CPU_CHUNK_BYTES
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
    fn join(&self, parts: &[(&Self::Tensor, Range<usize>)], len: usize) -> Result<Self::Tensor>;
    /// Elements `range` of `x`, row-major, as `[rows, cols]`.
    fn cut(
        &self,
        x: &Self::Tensor,
        range: Range<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<Self::Tensor>;
    /// [`Self::join`] of accumulators.
    fn join_float(&self, parts: &[(&Self::Float, Range<usize>)], len: usize)
    -> Result<Self::Float>;
    /// [`Self::cut`] of an accumulator.
    fn cut_float(
        &self,
        x: &Self::Float,
        range: Range<usize>,
        rows: usize,
        cols: usize,
    ) -> Result<Self::Float>;
    /// `[rows, cols]` laid together from patches, which write every element once.
    fn lay_out(
        &self,
        patches: &[Patch<'_, Self::Tensor>],
        rows: usize,
        cols: usize,
    ) -> Result<Self::Tensor>;
    /// Columns `cols` of `x`: `[rows, cols.len()]`.
    fn columns(&self, x: &Self::Tensor, cols: Range<usize>) -> Result<Self::Tensor>;
    /// `x` with `y` added to the columns from `at` on.
    fn add_columns(&self, x: &Self::Tensor, y: &Self::Tensor, at: usize) -> Result<Self::Tensor>;

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
