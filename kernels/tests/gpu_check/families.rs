//! What only some families compute: products of single heads, convolutions and delta rules.

use crate::cases::{Kind, Outputs, numbers, scaled, tables, tensor};
use slime_kernels::{DeltaHeads, DeltaRule, HeadParts, Ops, PagedSequence, Result, Sequences};
use std::ops::Range;

#[derive(Clone, Debug)]
pub(crate) enum Body {
    Heads {
        rows: usize,
        cols: usize,
        height: usize,
        parts: HeadParts,
    },
    Conv {
        cols: usize,
        taps: usize,
        lengths: Vec<usize>,
    },
    Delta {
        heads: DeltaHeads,
        lengths: Vec<usize>,
        tokens: Tokens,
    },
    /// Each sequence comes in parts of so many tokens, the parts of all together.
    DeltaPaged {
        heads: DeltaHeads,
        taps: usize,
        parts: Vec<[usize; 3]>,
    },
}

/// What a rule's tokens are like.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Tokens {
    Usual,
    /// Gates far from 0: alphas of nearly 0 and nearly 1, betas too.
    Decided,
    /// Keys that nearly point the same way, hardly forgotten: each is mostly in the memory already.
    Alike,
}

/// Operands of a rule over `rows` tokens.
struct Operands<O: Ops> {
    qkv: O::Tensor,
    gates: O::Tensor,
    a_log: O::Tensor,
    dt_bias: O::Tensor,
}

impl<O: Ops> Operands<O> {
    fn new(o: &O, rows: usize, heads: DeltaHeads, tokens: Tokens) -> Result<Self> {
        let is_alike = matches!(tokens, Tokens::Alike);
        // Exact in bf16.
        let moved = |seed, rows: usize, cols: usize, by: f32| {
            let values: Vec<f32> = numbers(seed, rows * cols)
                .into_iter()
                .map(|v| f32::from_bits((v + by).to_bits() & 0xffff_0000))
                .collect();
            o.tensor(rows, cols, &values)
        };
        let of_gates = match tokens {
            Tokens::Decided => 4.0,
            _ => 1.0,
        };
        Ok(Self {
            qkv: moved(1, rows, heads.cols(), if is_alike { 2.0 } else { 0.0 })?,
            gates: scaled(o, 2, rows, 2 * heads.values, of_gates)?,
            a_log: scaled(o, 3, 1, heads.values, 0.5)?,
            dt_bias: moved(4, 1, heads.values, if is_alike { -4.0 } else { 0.0 })?,
        })
    }

    fn rule(&self, heads: DeltaHeads) -> DeltaRule<'_, O> {
        DeltaRule {
            heads,
            a_log: &self.a_log,
            dt_bias: &self.dt_bias,
        }
    }
}

impl Body {
    /// As [`crate::cases::Case::is_quick`].
    pub(crate) fn is_quick(&self) -> bool {
        match self {
            Self::Heads { rows, .. } => *rows == 7,
            Self::Conv { taps, .. } => *taps == 2,
            Self::Delta { heads, tokens, .. } => {
                heads.key_dim == 32 && !matches!(tokens, Tokens::Decided)
            }
            Self::DeltaPaged { heads, .. } => heads.key_dim == 32,
        }
    }

    pub(crate) fn run<O: Ops>(&self, o: &O, out: &mut Outputs<'_, O>) -> Result<()> {
        match *self {
            Self::Heads {
                rows,
                cols,
                height,
                parts,
            } => {
                let (x, dim) = (tensor(o, 1, rows, parts.heads * cols)?, parts.len);
                let w = tensor(o, 2, parts.heads * height, 24)?;
                out.tensor("nn", &o.heads_nn(&x, &w, parts)?)?;
                let w = tensor(o, 3, parts.heads * height, dim)?;
                out.tensor("nt", &o.heads_nt(&x, &w, parts)?)
            }
            Self::Conv {
                cols,
                taps,
                ref lengths,
            } => {
                let sequences = Sequences::from_lengths(lengths.iter().copied());
                let rows = sequences.num_tokens();
                let (x, w) = (tensor(o, 1, rows, cols)?, tensor(o, 2, cols, taps)?);
                out.tensor("y", &o.causal_conv(&x, &w, &sequences)?)?;
                let dy = tensor(o, 3, rows, cols)?;
                let mut dw = o.float(cols, taps, &numbers(4, cols * taps))?;
                let dx = o.causal_conv_backward(&dy, &x, &w, &sequences, &mut dw)?;
                out.tensor("dx", &dx)?;
                out.float("dw", Kind::Float, &dw)
            }
            Self::Delta {
                heads,
                ref lengths,
                tokens,
            } => {
                let sequences = Sequences::from_lengths(lengths.iter().copied());
                let rows = sequences.num_tokens();
                let x = Operands::new(o, rows, heads, tokens)?;
                let rule = x.rule(heads);
                let y = o.gated_delta(&x.qkv, &x.gates, &rule, &sequences)?;
                out.tensor("o", &y)?;
                let dout = tensor(o, 5, rows, heads.values * heads.value_dim)?;
                let start = |seed| o.float(1, heads.values, &numbers(seed, heads.values));
                let (mut da_log, mut ddt_bias) = (start(6)?, start(7)?);
                let dweights = (&mut da_log, &mut ddt_bias);
                let (dqkv, dgates) =
                    o.gated_delta_backward(&dout, &x.qkv, &x.gates, &rule, &sequences, dweights)?;
                out.tensor("dqkv", &dqkv)?;
                out.tensor("dgates", &dgates)?;
                // Of tokens alike the gates' gradients nearly cancel, so that their sums are mostly roundings.
                if !matches!(tokens, Tokens::Alike) {
                    out.float("da_log", Kind::FloatOfRounded, &da_log)?;
                    out.float("ddt_bias", Kind::FloatOfRounded, &ddt_bias)?;
                }
                Ok(())
            }
            Self::DeltaPaged {
                heads,
                taps,
                ref parts,
            } => {
                let size = o.kv_block_tokens();
                let (tables, total) = tables(size, parts.iter().map(|s| s.iter().sum()));
                let mut states = o.float_zeros(total, heads.state_len(taps))?;
                let conv = tensor(o, 8, heads.cols(), taps)?;
                for part in 0..3 {
                    let (mut sequences, mut rows) = (Vec::new(), 0);
                    for (parts, blocks) in parts.iter().zip(&tables) {
                        let own: Range<usize> = rows..rows + parts[part];
                        rows = own.end;
                        let context = parts[..=part].iter().sum();
                        sequences.extend((!own.is_empty()).then_some(PagedSequence {
                            rows: own,
                            context,
                            blocks,
                        }));
                    }
                    let x = Operands::new(o, rows, heads, Tokens::Usual)?;
                    let rule = x.rule(heads);
                    let y = o.gated_delta_paged(
                        &mut states,
                        &x.qkv,
                        &conv,
                        &x.gates,
                        &rule,
                        &sequences,
                    )?;
                    out.tensor(["first", "then", "last"][part], &y)?;
                }
                Ok(())
            }
        }
    }
}

pub(crate) fn all() -> Vec<(&'static str, Body)> {
    let mut list = Vec::new();
    for (rows, heads, cols, x_start, height, w_start, len) in [
        (0, 2, 24, 0, 24, 0, 24),
        (1, 1, 24, 0, 24, 0, 24),
        (7, 3, 40, 16, 48, 8, 24),
        (130, 5, 64, 8, 72, 40, 32),
    ] {
        let parts = HeadParts {
            heads,
            x_start,
            w_start,
            len,
        };
        list.push((
            "heads",
            Body::Heads {
                rows,
                cols,
                height,
                parts,
            },
        ));
    }
    for (cols, taps, lengths) in [
        (8, 4, vec![]),
        (8, 4, vec![1]),
        (72, 1, vec![3, 0, 17]),
        (136, 2, vec![65, 1, 2, 0, 64]),
        (1032, 4, vec![1, 2, 3, 4, 5, 130, 0, 16]),
    ] {
        list.push((
            "causal_conv",
            Body::Conv {
                cols,
                taps,
                lengths,
            },
        ));
    }
    let heads = |keys, values, key_dim, value_dim| DeltaHeads {
        keys,
        values,
        key_dim,
        value_dim,
    };
    let all = [
        heads(1, 1, 16, 8),
        heads(2, 4, 32, 24),
        heads(1, 3, 64, 40),
        heads(2, 2, 128, 128),
    ];
    let mut delta = |heads, lengths, tokens| {
        let body = Body::Delta {
            heads,
            lengths,
            tokens,
        };
        list.push(("gated_delta", body));
    };
    for (heads, lengths) in all.into_iter().zip([
        vec![1],
        vec![0, 5, 33, 1, 0, 16],
        vec![70, 32, 31],
        vec![64, 3, 100],
    ]) {
        delta(heads, lengths, Tokens::Usual);
    }
    delta(all[1], vec![], Tokens::Usual);
    // Chunks are of 64 tokens.
    let borders = vec![63, 64, 65, 0, 129, 1, 128, 200];
    for tokens in [Tokens::Usual, Tokens::Decided, Tokens::Alike] {
        delta(all[1], borders.clone(), tokens);
        delta(all[3], vec![65, 129], tokens);
    }
    delta(heads(2, 2, 16, 48), vec![129, 63], Tokens::Usual);
    delta(heads(1, 2, 96, 192), vec![65, 64], Tokens::Decided);
    for (heads, taps) in all.into_iter().zip([1, 2, 4, 4]) {
        let parts = vec![[1, 0, 1], [16, 16, 1], [0, 70, 5], [15, 1, 40], [130, 2, 1]];
        list.push(("gated_delta_paged", Body::DeltaPaged { heads, taps, parts }));
    }
    list
}
