//! FLOPs of a model, by the formula that MFU is quoted with.
//!
//! ```text
//! forward   2 N tokens + 2 V h rows + 4 d heads pairs        N: weights of the layers' matrices that a token passes,
//!                                                               of experts those it goes to
//! training  3 × forward
//! ```
//!
//! Causal pairs count once; the head counts for the rows whose logits are made. The attention's output projection is
//! `heads d × h`, which is not `h × h` for every model. Recomputation is never counted.

use slime_model::ModelSpec;

/// What passes through a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Passing {
    /// Tokens.
    pub tokens: f64,
    /// Tokens that see each other: `Σ L (L + 1) / 2`.
    pub pairs: f64,
    /// Rows whose logits are made.
    pub rows: f64,
}

/// FLOPs of a forward pass.
pub fn forward(spec: &ModelSpec, passing: Passing) -> f64 {
    let (mut scanned, mut attended) = (0.0, 0.0);
    for layer in &spec.layers {
        scanned += layer.attn.scan_flops();
        attended += layer.attn.pair_flops();
    }
    let head = (spec.vocab * spec.hidden) as f64;
    let of_token = 2.0 * (spec.param_counts().multiplied as f64 - head) + scanned;
    of_token * passing.tokens + 2.0 * head * passing.rows + attended * passing.pairs
}

/// FLOPs of a train step: the forward and twice as much for its gradient.
pub fn training(spec: &ModelSpec, passing: Passing) -> f64 {
    3.0 * forward(spec, passing)
}
