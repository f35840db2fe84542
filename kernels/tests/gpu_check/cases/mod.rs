//! What is computed, generically over the backend, so that both run the same lines.

mod list;
mod run;

pub(crate) use list::all;

use crate::families;
use slime_kernels::{Heads, Ops, Result, RopeStyle, Route};
use std::ops::Range;

/// How near two backends should come.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Stored in bf16.
    Rounded,
    /// Kept in fp32, from inputs that both have exactly.
    Float,
    /// Kept in fp32, from intermediate results in bf16.
    FloatOfRounded,
    /// Stored in bf16, from an output that was merged in bf16 twice: a single pair of query and key has nothing to average.
    Merged,
    /// Moved, not computed.
    Exact,
}

pub(crate) struct Output {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) values: Vec<f64>,
}

#[derive(Clone, Debug)]
enum Body {
    Rows {
        rows: usize,
        cols: usize,
    },
    Pieces {
        rows: usize,
        cols: usize,
    },
    Matmul {
        rows: usize,
        inputs: usize,
        outputs: usize,
    },
    Experts {
        inputs: usize,
        outputs: usize,
        rows: Vec<usize>,
    },
    ExpertRows {
        rows: usize,
        cols: usize,
        each: usize,
    },
    Routing {
        rows: usize,
        rule: Route,
    },
    Embedding {
        vocab: usize,
        hidden: usize,
        tokens: usize,
    },
    Norm {
        rows: usize,
        cols: usize,
    },
    Rotation {
        heads: Heads,
        rotary: usize,
        style: RopeStyle,
        norms: bool,
        tokens: usize,
    },
    Attention {
        heads: Heads,
        lengths: Vec<usize>,
    },
    /// Queries and keys of each span, both counted from row 0 of their side.
    Keys {
        heads: Heads,
        rows: usize,
        others: usize,
        spans: Vec<[Range<usize>; 2]>,
    },
    Paged {
        heads: Heads,
        contexts: Vec<(usize, usize)>,
    },
    SwiGlu {
        rows: usize,
        cols: usize,
    },
    Head {
        rows: usize,
        /// None: logits are given, and nothing of cublasLt's runs.
        hidden: Option<usize>,
        cols: usize,
        vocab: usize,
        temperature: f64,
    },
    AdamW {
        count: usize,
    },
    SumSquares {
        count: usize,
    },
    Family(families::Body),
}

pub(crate) struct Case {
    pub(crate) op: &'static str,
    pub(crate) shape: String,
    body: Body,
}

/// Numbers of a fixed stream, exact in bf16, in about ±2.
pub(crate) fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut uniform = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 24) as f32
    };
    (0..count)
        .map(|_| {
            let sum = uniform() + uniform() + uniform() + uniform();
            f32::from_bits(((sum - 2.0) * 1.7).to_bits() & 0xffff_0000)
        })
        .collect()
}

pub(crate) fn tensor<O: Ops>(o: &O, seed: u64, rows: usize, cols: usize) -> Result<O::Tensor> {
    o.tensor(rows, cols, &numbers(seed, rows * cols))
}

/// `scale` is a power of two, so that the numbers stay exact.
pub(crate) fn scaled<O: Ops>(
    o: &O,
    seed: u64,
    rows: usize,
    cols: usize,
    scale: f32,
) -> Result<O::Tensor> {
    let values: Vec<f32> = numbers(seed, rows * cols)
        .into_iter()
        .map(|v| v * scale)
        .collect();
    o.tensor(rows, cols, &values)
}

fn ids(seed: u64, count: usize, below: usize) -> Vec<u32> {
    numbers(seed, count)
        .into_iter()
        .map(|v| (v.abs() * 7919.0) as u32 % below as u32)
        .collect()
}

/// Cache blocks of `size` tokens for sequences of so many tokens each, and how many blocks that is. They are handed out from the
/// end, so that a sequence's blocks are not in order.
pub(crate) fn tables(
    size: usize,
    contexts: impl Iterator<Item = usize> + Clone,
) -> (Vec<Vec<u32>>, usize) {
    let blocks = contexts.map(|context| context.div_ceil(size));
    let total: usize = blocks.clone().sum();
    let mut next = total as u32;
    let mut taken = |count: usize| (0..count).map(|_| (next -= 1, next).1).collect();
    (blocks.map(&mut taken).collect(), total)
}

pub(crate) struct Outputs<'a, O: Ops>(&'a O, Vec<Output>);

impl<O: Ops> Outputs<'_, O> {
    pub(crate) fn tensor(&mut self, name: &'static str, x: &O::Tensor) -> Result<()> {
        self.put(name, Kind::Rounded, self.0.read_f64(x)?);
        Ok(())
    }
    pub(crate) fn float(&mut self, name: &'static str, kind: Kind, x: &O::Float) -> Result<()> {
        self.put(name, kind, self.0.read_float_f64(x)?);
        Ok(())
    }
    pub(crate) fn put(&mut self, name: &'static str, kind: Kind, values: Vec<f64>) {
        self.1.push(Output { name, kind, values });
    }
}

impl Case {
    pub(crate) fn run<O: Ops>(&self, o: &O) -> Result<Vec<Output>> {
        let mut out = Outputs(o, Vec::new());
        self.body.run(o, &mut out)?;
        Ok(out.1)
    }
}
