//! One optimizer step's forward and backward: micro-batches in, gradients and metrics out.
//!
//! Metrics are computed from each token's log-prob at the end, in the batch's own order, so they are the same bits
//! however the batch was packed.

use crate::Result;
use crate::algo::gspo;
use crate::algo::objective::{Objective, PolicyLoss, Token};
use crate::data::{Batch, MicroBatch};
use crate::head::Head;
use crate::metrics::TrainMetrics;
use slime_kernels::Ops;
use slime_model::Network;
use slime_model::layers::{Gradients, Recompute};
use tracing::debug_span;

/// The policy's numbers of every token that trains, `[trained tokens]` each.
#[derive(Clone, Debug)]
pub struct Scores {
    /// Log-prob.
    pub logp: Vec<f64>,
    /// Entropy.
    pub entropy: Vec<f64>,
}

impl Scores {
    /// Not known yet.
    pub fn unknown(num_tokens: usize) -> Self {
        Self {
            logp: vec![f64::NAN; num_tokens],
            entropy: vec![f64::NAN; num_tokens],
        }
    }
}

/// The objective and the batch it is evaluated on.
pub struct Evaluation<'a> {
    /// What is minimised.
    pub objective: Objective,
    /// The batch.
    pub batch: &'a Batch<'a>,
    /// The old policy's log-probs are the engine's (`use_rollout_logprobs`), so they say nothing of the gap between
    /// trainer and engine.
    pub old_is_engine: bool,
}

impl Evaluation<'_> {
    /// One token, given its scores. Without an old log-prob the policy is its own old policy and the ratio is 1.
    fn token(&self, number: usize, logp: f64, entropy: f64) -> Token {
        let columns = &self.batch.columns;
        let old = if columns.old[number].is_nan() {
            logp
        } else {
            columns.old[number]
        };
        Token {
            logp,
            entropy,
            log_ratio: logp - old,
            old,
            reference: columns.reference[number],
            rollout: columns.rollout[number],
            advantage: columns.advantage[number],
            weight: columns.weight[number],
        }
    }

    /// Replace each token's log-ratio by its trajectory's mean. A NaN stays with its token.
    fn spread_ratio(&self, tokens: &mut [Token], lengths: impl Iterator<Item = usize>) {
        let mut start = 0;
        for len in lengths {
            let own = &mut tokens[start..start + len];
            let ratios: Vec<f64> = own
                .iter()
                .map(|t| t.log_ratio)
                .filter(|r| !r.is_nan())
                .collect();
            let mean = gspo::log_ratio(&ratios);
            own.iter_mut()
                .filter(|t| !t.log_ratio.is_nan())
                .for_each(|t| t.log_ratio = mean);
            start += len;
        }
    }

    fn lengths<'b>(&'b self, members: &'b [usize]) -> impl Iterator<Item = usize> + 'b {
        members.iter().map(|&i| self.batch.sequences[i].rows.len())
    }
}

/// Forward and backward of one micro-batch: adds to `grads`, fills `scores`.
///
/// # Errors
/// The device failed.
pub fn micro_step<O: Ops>(
    network: &Network<O>,
    head: &Head<'_, O>,
    evaluation: &Evaluation<'_>,
    micro: &MicroBatch,
    recompute: &[Recompute],
    grads: &mut Gradients<O>,
    scores: &mut Scores,
) -> Result<()> {
    let forward = debug_span!("forward", num_tokens = micro.ids.len()).entered();
    let (hidden, activations) =
        network.forward_train(&micro.ids, &micro.sequences, &micro.rows, recompute)?;
    let objective = &evaluation.objective;
    let mut with_ratio = None;
    if objective.needs_trajectory() {
        let stats = head.stats(&hidden, &micro.targets)?;
        let scored = micro
            .tokens
            .iter()
            .zip(stats.logprob.iter().zip(&stats.entropy));
        let mut tokens: Vec<Token> = scored
            .map(|(&number, (&logp, &entropy))| evaluation.token(number, logp, entropy))
            .collect();
        evaluation.spread_ratio(&mut tokens, evaluation.lengths(&micro.members));
        with_ratio = Some(tokens);
    }
    drop(forward);
    let _backward = debug_span!("backward").entered();
    let dweight = grads.get(network.head());
    let (dhidden, stats) = head.backward(&hidden, &micro.targets, dweight, |rows, stats| {
        let slope = |(row, (&logp, &entropy)): (usize, (&f64, &f64))| {
            let loss = match &with_ratio {
                Some(tokens) => objective.token(&tokens[row]),
                None => objective.token(&evaluation.token(micro.tokens[row], logp, entropy)),
            };
            (loss.dlogp, loss.dentropy)
        };
        rows.zip(stats.logprob.iter().zip(&stats.entropy))
            .map(slope)
            .unzip()
    })?;
    drop(hidden);
    for (row, &number) in micro.tokens.iter().enumerate() {
        scores.logp[number] = stats.logprob[row];
        scores.entropy[number] = stats.entropy[row];
    }
    if let Some(dhidden) = dhidden {
        network.backward(&dhidden, activations, grads)?;
    }
    Ok(())
}

/// The step's metrics, but for what the optimizer adds.
pub fn metrics(evaluation: &Evaluation<'_>, scores: &Scores) -> TrainMetrics {
    let (batch, objective) = (evaluation.batch, &evaluation.objective);
    let mut tokens: Vec<Token> = (0..batch.num_trained())
        .map(|number| evaluation.token(number, scores.logp[number], scores.entropy[number]))
        .collect();
    let raw_kl: Vec<f64> = tokens.iter().map(|t| -t.log_ratio).collect();
    if objective.needs_trajectory() {
        evaluation.spread_ratio(&mut tokens, batch.sequences.iter().map(|s| s.rows.len()));
    }
    let mut sums = Sums::default();
    for (token, raw_kl) in tokens.iter().zip(raw_kl) {
        sums.add(objective, token, raw_kl, evaluation.old_is_engine);
    }
    let policy = |value: f64| (objective.loss != PolicyLoss::Likelihood).then_some(value);
    let clipfrac = policy(sums.clipped);
    TrainMetrics {
        loss: sums.loss,
        pg_loss: policy(sums.pg),
        ppo_kl: policy(sums.ppo_kl),
        kl_loss: objective.kl.map(|_| sums.kl),
        entropy: sums.entropy,
        clipfrac,
        pg_clipfrac: clipfrac,
        dual_clipfrac: objective.clip.dual.and(policy(sums.dual_clipped)),
        tis: objective.tis.map(|_| sums.tis),
        tis_clipfrac: objective.tis.map(|_| sums.tis_clipped),
        train_rollout_logprob_abs_diff: (sums.recorded > 0.0).then(|| sums.gap / sums.recorded),
        train_rollout_logprob_abs_diff_max: (sums.recorded > 0.0).then_some(sums.max_gap),
        advantage_abs: policy(sums.advantage),
        tokens: batch.num_tokens(),
        trained_tokens: batch.num_trained(),
        masked_tokens: sums.masked_tokens,
        ratio_clamped: sums.ratio_clamped,
        rollouts: batch.num_rollouts,
        masked_rollouts: batch.num_masked_rollouts,
        ..TrainMetrics::default()
    }
}

/// Weighted sums over tokens.
#[derive(Default)]
struct Sums {
    loss: f64,
    pg: f64,
    kl: f64,
    entropy: f64,
    ppo_kl: f64,
    clipped: f64,
    dual_clipped: f64,
    tis: f64,
    tis_clipped: f64,
    advantage: f64,
    gap: f64,
    max_gap: f64,
    recorded: f64,
    masked_tokens: usize,
    ratio_clamped: usize,
}

impl Sums {
    fn add(&mut self, objective: &Objective, token: &Token, raw_kl: f64, old_is_engine: bool) {
        let loss = objective.token(token);
        if loss.masked {
            self.masked_tokens += 1;
            return;
        }
        let w = token.weight;
        let share = |flag: bool| if flag { w } else { 0.0 };
        self.loss += w * loss.loss;
        self.pg += w * loss.pg;
        self.kl += w * loss.kl;
        self.entropy += w * token.entropy;
        self.ppo_kl += w * raw_kl;
        self.clipped += share(loss.clipped);
        self.dual_clipped += share(loss.dual_clipped);
        self.tis += w * loss.tis;
        self.tis_clipped += share(loss.tis_clipped);
        self.advantage += w * token.advantage.abs();
        self.ratio_clamped += usize::from(loss.ratio_clamped);
        if !token.rollout.is_nan() {
            // Of the policy that was sampled from, where it is known: later steps of a rollout have moved on.
            let own = if old_is_engine { token.logp } else { token.old };
            let gap = (own - token.rollout).abs();
            self.gap += w * gap;
            self.recorded += w;
            self.max_gap = self.max_gap.max(gap);
        }
    }
}
