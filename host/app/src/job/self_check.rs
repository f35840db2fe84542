//! Before the first sample: do the servers and the trainer give the same tokens the same log-probs?
//!
//! Every server samples a few tokens at the run's temperature, and the trainer scores them. Where the two differ, the
//! likely cause is named, because a run would go on and learn from wrong ratios. It compares no texts: templates and
//! tokenizers meet nowhere here, tokens do.

use super::Learn;
use crate::error::{Failure, Result};
use slime_core::SamplingParams;
use slime_core::ports::SampleRequest;
use slime_rollout::pool::endpoint::generate::by_way;
use slime_rollout::pool::endpoint::input_logprobs::input_logprobs;
use slime_rollout::{Address, Pool};
use std::time::Duration;

/// Tokens sampled from each server.
const TOKENS: u32 = 16;
/// How long a server has for them.
const DEADLINE: Duration = Duration::from_secs(120);
/// Mean difference that arithmetic of 16 bits explains.
const ROUNDING: f64 = 0.03;
/// Mean difference that arithmetic of 32 bits does not exceed.
const EXACT: f64 = 1e-3;

/// What a server and the trainer said about the same tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// Mean of |difference| over the tokens.
    pub mean: f64,
    /// The largest.
    pub max: f64,
    /// What is probably wrong.
    pub cause: Option<String>,
}

impl Finding {
    /// `server`: log-probs with the sampled tokens; `raw`: of the same tokens without a temperature; `trainer`: at the
    /// run's. `is_f32`: both compute in 32 bits.
    pub fn of(
        server: &[f64],
        raw: &[f64],
        trainer: &[f64],
        temperature: f64,
        is_f32: bool,
    ) -> Self {
        let (mean, max) = distance(server, trainer);
        let tolerance = if is_f32 { EXACT } else { ROUNDING };
        let cause = (!mean.is_finite() || mean > tolerance).then(|| {
            let untempered = temperature != 1.0 && distance(server, raw).0 < EXACT;
            if untempered {
                format!(
                    "temperature: the server reports log-probs before it divides by {temperature}; start it without SGLANG_RETURN_ORIGINAL_LOGPROB"
                )
            } else if mean <= ROUNDING {
                "number format: the server computes in 16 bits, the trainer in 32; start it with --dtype float32 (--sglang-dtype float32), or accept the difference".into()
            } else if distance(&server[..1], &trainer[..1]).0 <= tolerance {
                "positions or attention: the first token agrees and later ones do not; look at rope scaling, the sliding window and the attention backend".into()
            } else {
                "weights: the server holds others than the trainer, or another model; see what its log says about the update, and whether quantisation is on".into()
            }
        });
        Self { mean, max, cause }
    }

    /// Whether a run on it would learn from noise.
    pub fn is_fatal(&self) -> bool {
        self.cause.is_some() && (!self.mean.is_finite() || self.mean > ROUNDING)
    }
}

fn distance(a: &[f64], b: &[f64]) -> (f64, f64) {
    let differences: Vec<f64> = a.iter().zip(b).map(|(a, b)| (a - b).abs()).collect();
    let mean = differences.iter().sum::<f64>() / differences.len().max(1) as f64;
    if a.len() != b.len() || a.is_empty() {
        return (f64::NAN, f64::NAN);
    }
    (mean, differences.into_iter().fold(0.0, f64::max))
}

/// Ask every server of `pool` to go on from `prompt`, and the trainer for its opinion.
///
/// # Errors
/// A server that does not answer, or one whose log-probs are not the trainer's.
pub async fn run(
    pool: &Pool,
    learner: &dyn Learn,
    prompt: &[u32],
    temperature: f64,
    is_f32: bool,
) -> Result<Vec<(Address, Finding)>> {
    let mut findings = Vec::new();
    let rid = format!("self-check-{}", std::process::id());
    for (index, way) in pool.ways(&rid).iter().enumerate() {
        let failed = |e: String| Failure::run(format!("self-check of {}: {e}", way.address()));
        let request = SampleRequest {
            rid: format!("{rid}-{index}"),
            session: 0,
            tokens: prompt.to_vec(),
            params: SamplingParams {
                max_new_tokens: TOKENS,
                temperature,
                ignore_eos: true,
                ..SamplingParams::default()
            },
        };
        let answer = by_way(way, &request, DEADLINE)
            .await
            .map_err(|e| failed(e.to_string()))?;
        let all = [prompt, &answer.tokens].concat();
        let raw = match way.prefill {
            None => input_logprobs(&way.server, &all, DEADLINE)
                .await
                .map_err(|e| failed(e.to_string()))?,
            // Neither half of a pair scores tokens by itself.
            Some(_) => Vec::new(),
        };
        let trainer = tokio::task::block_in_place(|| learner.log_probs(&all))?;
        let new = prompt.len() - 1..;
        let wide = |values: &[f32]| values.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
        let finding = Finding::of(
            &wide(&answer.logprobs),
            raw.get(new.clone()).unwrap_or_default(),
            trainer.get(new).unwrap_or_default(),
            temperature,
            is_f32,
        );
        if let (true, Some(cause)) = (finding.is_fatal(), &finding.cause) {
            let message = format!(
                "{} and the trainer differ by {:.4} in the log-prob of {TOKENS} tokens (largest {:.4})",
                way.address(),
                finding.mean,
                finding.max
            );
            return Err(Failure::run(message).help(format!("the likely cause is {cause}")));
        }
        findings.push((way.address().clone(), finding));
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAW: [f64; 3] = [-1.0, -2.0, -0.5];

    fn shifted(by: [f64; 3]) -> Vec<f64> {
        RAW.iter().zip(by).map(|(x, by)| x + by).collect()
    }

    #[test]
    fn equal_log_probs_are_no_finding() {
        let found = Finding::of(&RAW, &RAW, &shifted([1e-6, 0.0, -1e-6]), 1.0, true);
        assert!(found.cause.is_none() && found.mean < 1e-6 && found.max < 2e-6);
    }

    #[test]
    fn each_cause_is_named_by_what_it_does_to_the_numbers() {
        let cause = |server: &[f64], trainer: &[f64], t: f64, is_f32: bool| {
            let found = Finding::of(server, &RAW, trainer, t, is_f32);
            (found.cause.clone().unwrap_or_default(), found.is_fatal())
        };
        let (said, fatal) = cause(&RAW, &shifted([0.4, -0.9, 0.2]), 0.7, true);
        assert!(said.starts_with("temperature") && fatal, "{said}");
        let small = shifted([0.01, -0.01, 0.02]);
        let (said, fatal) = cause(&RAW, &small, 1.0, true);
        assert!(said.starts_with("number format") && !fatal, "{said}");
        assert_eq!(cause(&RAW, &small, 1.0, false), (String::new(), false));
        let (said, fatal) = cause(&RAW, &shifted([0.0, -0.9, 0.7]), 1.0, true);
        assert!(said.starts_with("positions") && fatal, "{said}");
        let (said, fatal) = cause(&RAW, &shifted([2.0, -0.9, 0.7]), 1.0, true);
        assert!(said.starts_with("weights") && fatal, "{said}");
        let (said, fatal) = cause(&RAW, &[f64::NAN; 3], 1.0, true);
        assert!(said.starts_with("weights") && fatal, "{said}");
    }
}
