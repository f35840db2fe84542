//! What changes logits before the temperature: columns that are no tokens, penalties, biases, the minimum length.
//!
//! Order and formulas are SGLang's: frequency and presence are subtracted, repetition scales, then the bias.
//! Penalties look at sampled tokens only, never at the prompt.

use crate::request::Params;
use std::collections::BTreeMap;

/// How often each token was sampled by one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Counts(BTreeMap<u32, u32>);

impl Counts {
    pub(crate) fn add(&mut self, token: u32) {
        *self.0.entry(token).or_default() += 1;
    }
}

/// Change `logits: [vocab]` in place. `sampled` tokens were sampled before; `ends` are the model's end tokens.
pub(crate) fn adjust(
    logits: &mut [f32],
    params: &Params,
    counts: &Counts,
    sampled: usize,
    ends: &[u32],
) {
    for (&token, &count) in &counts.0 {
        let Some(z) = logits.get_mut(token as usize) else {
            continue;
        };
        let mut x = f64::from(*z);
        x -= params.frequency_penalty * f64::from(count) + params.presence_penalty;
        x = if x < 0.0 {
            x * params.repetition_penalty
        } else {
            x / params.repetition_penalty
        };
        *z = x as f32;
    }
    if sampled < params.min_new_tokens {
        for &token in ends.iter().chain(&params.stop_token_ids) {
            if let Some(z) = logits.get_mut(token as usize) {
                *z = f32::NEG_INFINITY;
            }
        }
    }
    for &(token, bias) in &params.logit_bias {
        if let Some(z) = logits.get_mut(token as usize) {
            *z += bias;
        }
    }
}
