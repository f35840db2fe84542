//! One optimizer step's forward and backward: micro-batches in, gradients and metrics out.
//!
//! Metrics are computed from each token's log-prob at the end, in the batch's own order, so they are the same bits
//! however the batch was packed.

use crate::Result;
use crate::algo::gspo;
use crate::algo::objective::{Objective, PolicyLoss, Token};
use crate::data::{Batch, MicroBatch};
use crate::head::{Head, Slopes};
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
    pub(crate) fn token(&self, number: usize, logp: f64, entropy: f64) -> Token {
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
            correction: columns.correction.get(number).copied(),
            drift: f64::NAN,
        }
    }

    /// Give every token its trajectory's drift and, where the ratio is the trajectory's, the mean of its log-ratios. A NaN
    /// stays with its token.
    pub(crate) fn spread_ratio(&self, tokens: &mut [Token], lengths: impl Iterator<Item = usize>) {
        let mut start = 0;
        for len in lengths {
            let own = &mut tokens[start..start + len];
            let ratios: Vec<f64> = own
                .iter()
                .map(|t| t.log_ratio)
                .filter(|r| !r.is_nan())
                .collect();
            let mean = gspo::log_ratio(&ratios);
            for token in own.iter_mut().filter(|t| !t.log_ratio.is_nan()) {
                token.drift = -mean;
                if self.objective.loss == PolicyLoss::Sequence {
                    token.log_ratio = mean;
                }
            }
            start += len;
        }
    }

    fn lengths<'b>(&'b self, members: &'b [usize]) -> impl Iterator<Item = usize> + 'b {
        members.iter().map(|&i| self.batch.sequences[i].rows.len())
    }

    /// The tokens of whole sequences, given their scores in order.
    fn tokens(
        &self,
        numbers: &[usize],
        members: &[usize],
        logp: &[f64],
        entropy: &[f64],
    ) -> Vec<Token> {
        let scored = numbers.iter().zip(logp.iter().zip(entropy));
        let mut tokens: Vec<Token> = scored
            .map(|(&number, (&logp, &entropy))| self.token(number, logp, entropy))
            .collect();
        if self.objective.needs_trajectory() {
            self.spread_ratio(&mut tokens, self.lengths(members));
        }
        tokens
    }

    /// Slopes of the objective by each log-prob and each entropy of the batch, given all of them: what the head asks for
    /// piece by piece.
    pub fn slopes(&self, scores: &Scores) -> Slopes {
        let numbers: Vec<usize> = (0..self.batch.num_trained()).collect();
        let members: Vec<usize> = (0..self.batch.sequences.len()).collect();
        let tokens = self.tokens(&numbers, &members, &scores.logp, &scores.entropy);
        let slope = |token: &Token| {
            let loss = self.objective.token(token);
            (loss.dlogp, loss.dentropy)
        };
        tokens.iter().map(slope).unzip()
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
    let (hidden, activations) = network.forward_replaying(
        &micro.ids,
        &micro.sequences,
        &micro.rows,
        recompute,
        micro.routes.as_ref(),
    )?;
    let objective = &evaluation.objective;
    let mut with_ratio = None;
    if objective.needs_trajectory() {
        let stats = head.stats(&hidden, &micro.targets)?;
        let (logp, entropy) = (&stats.logprob, &stats.entropy);
        with_ratio = Some(evaluation.tokens(&micro.tokens, &micro.members, logp, entropy));
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
    if objective.needs_trajectory() {
        evaluation.spread_ratio(&mut tokens, batch.sequences.iter().map(|s| s.rows.len()));
    }
    let mut sums = Sums::default();
    for (number, token) in tokens.iter().enumerate() {
        sums.add(objective, token, evaluation.old_is_engine);
        sums.teach(token, batch.columns.teacher[number]);
    }
    let policy = |value: f64| (objective.loss != PolicyLoss::Likelihood).then_some(value);
    // Weights add up to 1 only where every rollout trains and lengths are what they are divided by. A mean is one all the same.
    let mean = |sum: f64| {
        if sums.weight > 0.0 {
            sum / sums.weight
        } else {
            0.0
        }
    };
    let clipfrac = policy(mean(sums.clipped));
    let corrects = objective.tis.is_some() || !batch.columns.correction.is_empty();
    TrainMetrics {
        loss: sums.loss,
        pg_loss: policy(sums.pg),
        ppo_kl: policy(mean(sums.ppo_kl)),
        kl_loss: objective.kl.map(|_| mean(sums.kl)),
        entropy: mean(sums.entropy),
        clipfrac,
        pg_clipfrac: clipfrac,
        dual_clipfrac: objective.clip.dual.and(policy(mean(sums.dual_clipped))),
        tis: corrects.then_some(mean(sums.tis)),
        tis_clipfrac: corrects.then_some(mean(sums.tis_clipped)),
        rejected: (!batch.columns.correction.is_empty()).then_some(mean(sums.rejected)),
        opsm_clipfrac: objective.opsm_delta.map(|_| mean(sums.opsm_masked)),
        mismatch_kl: (sums.recorded > 0.0).then(|| sums.mismatch_kl / sums.recorded),
        mismatch_k3: (sums.recorded > 0.0).then(|| sums.mismatch_k3 / sums.recorded),
        opd_reverse_kl: (sums.taught > 0.0).then(|| sums.reverse_kl / sums.taught),
        train_rollout_logprob_abs_diff: (sums.recorded > 0.0).then(|| sums.gap / sums.recorded),
        train_rollout_logprob_abs_diff_max: (sums.recorded > 0.0).then_some(sums.max_gap),
        advantage_abs: policy(mean(sums.advantage)),
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
    /// Of all tokens that are not masked.
    weight: f64,
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
    rejected: f64,
    opsm_masked: f64,
    mismatch_kl: f64,
    mismatch_k3: f64,
    reverse_kl: f64,
    taught: f64,
    masked_tokens: usize,
    ratio_clamped: usize,
}

impl Sums {
    fn add(&mut self, objective: &Objective, token: &Token, old_is_engine: bool) {
        let loss = objective.token(token);
        if loss.masked {
            self.masked_tokens += 1;
            return;
        }
        let w = token.weight;
        self.weight += w;
        if loss.rejected {
            self.rejected += w;
        }
        let share = |flag: bool| if flag { w } else { 0.0 };
        self.loss += w * loss.loss;
        self.pg += w * loss.pg;
        self.kl += w * loss.kl;
        self.entropy += w * token.entropy;
        self.ppo_kl += w * (token.old - token.logp);
        self.clipped += share(loss.clipped);
        self.dual_clipped += share(loss.dual_clipped);
        self.tis += w * loss.tis;
        self.tis_clipped += share(loss.tis_clipped);
        self.opsm_masked += share(loss.opsm_masked);
        self.advantage += w * token.advantage.abs();
        self.ratio_clamped += usize::from(loss.ratio_clamped);
        if !token.rollout.is_nan() {
            // Of the policy that was sampled from, where it is known: later steps of a rollout have moved on.
            let own = if old_is_engine { token.logp } else { token.old };
            let gap = (own - token.rollout).abs();
            self.gap += w * gap;
            self.recorded += w;
            self.max_gap = self.max_gap.max(gap);
            let d = own - token.rollout;
            self.mismatch_kl -= w * d;
            self.mismatch_k3 += w * (d.exp_m1() - d);
        }
    }

    /// How far the student is from its teacher, where there is one.
    fn teach(&mut self, token: &Token, teacher: f64) {
        let gap = token.old - teacher;
        if gap.is_finite() {
            self.reverse_kl += token.weight * gap;
            self.taught += token.weight;
        }
    }
}
