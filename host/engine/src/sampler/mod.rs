//! From a row of logits to a token and its log-prob.
//!
//! The log-prob is `log_softmax(z / T)` before top-k, top-p and min-p, as SGLang reports it (greedy requests:
//! of `z` itself); penalties and biases have changed `z` before. The token is the inverse of the cumulative
//! distribution at a number that depends on (seed, position) only, so no other row of the batch matters.
//! Read `softmax.rs` for the arithmetic, `nucleus.rs` for what is cut off.

mod adjust;
mod nucleus;
mod softmax;

use crate::random;
use crate::request::{Params, Token};
pub(crate) use adjust::{Counts, adjust};
use softmax::Softmax;

/// The logits hold a NaN, or no finite number at all.
#[derive(Debug, PartialEq)]
pub(crate) struct NotFinite;

/// One draw from `logits: [vocab]`. `scratch` is as long and keeps nothing.
///
/// `position` is the place that the token will have in its sequence, so a continuation under the same seed
/// draws what the uninterrupted request would have drawn.
pub(crate) fn sample(
    logits: &[f32],
    scratch: &mut [f32],
    params: &Params,
    seed: u64,
    position: usize,
    top: usize,
) -> Result<Token, NotFinite> {
    let temperature = if params.greedy() {
        1.0
    } else {
        params.temperature
    };
    let softmax = Softmax::of(logits, scratch, temperature).ok_or(NotFinite)?;
    let index = if params.greedy() {
        softmax.argmax
    } else {
        let u = random::uniform(seed, position as u64);
        let weights = &scratch[..logits.len()];
        let cut = nucleus::Cut {
            top_k: params.top_k,
            top_p: params.top_p,
            min_p: params.min_p,
        };
        if cut.keeps_all(logits.len()) {
            softmax.pick(weights, u)
        } else {
            cut.pick(weights, softmax.total, u)
        }
    };
    Ok(Token {
        id: index as u32,
        logprob: Some(softmax.logprob(logits[index])),
        top: most_likely(logits, &softmax, top),
    })
}

/// Log-prob of a known token under `z` itself: what prompt tokens are reported with, whatever the temperature.
pub(crate) fn score(
    logits: &[f32],
    scratch: &mut [f32],
    token: u32,
    top: usize,
) -> Result<Token, NotFinite> {
    let softmax = Softmax::of(logits, scratch, 1.0).ok_or(NotFinite)?;
    Ok(Token {
        id: token,
        logprob: logits.get(token as usize).map(|&z| softmax.logprob(z)),
        top: most_likely(logits, &softmax, top),
    })
}

/// The `top` largest, best first; among equals the smaller id first.
fn most_likely(logits: &[f32], softmax: &Softmax, top: usize) -> Vec<(f32, u32)> {
    if top == 0 {
        return Vec::new();
    }
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let better = |a: &u32, b: &u32| {
        logits[*b as usize]
            .total_cmp(&logits[*a as usize])
            .then(a.cmp(b))
    };
    if top < order.len() {
        order.select_nth_unstable_by(top - 1, better);
        order.truncate(top);
    }
    order.sort_unstable_by(better);
    let with_logprob = order
        .into_iter()
        .map(|i| (softmax.logprob(logits[i as usize]), i));
    with_logprob.filter(|(lp, _)| lp.is_finite()).collect()
}

#[cfg(test)]
mod tests;
