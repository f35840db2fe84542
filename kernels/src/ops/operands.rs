//! What operations take and give besides tensors.

use super::Ops;
use crate::Result;
use std::ops::Range;

/// Elements of a tensor that become a rectangle of another.
#[derive(Clone, Debug)]
pub struct Patch<'a, T> {
    /// Whose they are.
    pub from: &'a T,
    /// Which, row-major.
    pub elements: Range<usize>,
    /// Where the first one goes.
    pub to: usize,
    /// Elements of a line.
    pub width: usize,
    /// From a line's first place to the next one's.
    pub stride: usize,
}

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

impl HeadParts {
    /// Do `x_cols` columns hold parts of `inner` columns, and `w_rows` rows parts of `len` rows?
    pub(crate) fn fits(&self, x_cols: usize, w_rows: usize, inner: usize) -> bool {
        let heads = self.heads;
        heads > 0
            && x_cols.is_multiple_of(heads)
            && w_rows.is_multiple_of(heads)
            && self.x_start + inner <= x_cols / heads
            && self.w_start + self.len <= w_rows / heads
    }
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

/// Work that was recorded, done once more by each call.
pub type Replay = Box<dyn Fn() -> Result<()> + Send>;
