//! Gradients of the whole model against finite differences in f64, and against themselves however they are computed.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use slime_kernels::Ops;
use slime_model::Network;
use slime_model::layers::{Gradients, Recompute};
use slime_trainer::algo::clip::Clip;
use slime_trainer::algo::importance::Truncation;
use slime_trainer::algo::kl::KlKind;
use slime_trainer::algo::objective::{KlTerm, Objective, PolicyLoss};
use slime_trainer::algo::weights::Aggregation;
use slime_trainer::data::{Batch, MicroBatch};
use slime_trainer::head::Head;
use slime_trainer::step::{Evaluation, Scores, metrics, micro_step};
use std::sync::Arc;
use support::{Numbers, distance, f32_cpu, f64_cpu, models, network};

fn objective(loss: PolicyLoss) -> Objective {
    let policy = loss != PolicyLoss::Likelihood;
    Objective {
        loss,
        clip: Clip {
            low: 0.2,
            high: 0.28,
            dual: policy.then_some(3.0),
        },
        kl: policy.then_some(KlTerm {
            kind: KlKind::K3,
            coef: 0.05,
            unbiased: false,
        }),
        entropy_coef: 0.02,
        tis: (loss == PolicyLoss::Clipped).then_some(Truncation {
            low: 0.0,
            high: 2.0,
        }),
        opsm_delta: None,
    }
}

/// Four sequences with every column filled; ratios lie on both sides of the clip.
fn batch<'a>(sequences: &'a [(Vec<u32>, Vec<u8>)], scores: &Scores) -> Batch<'a> {
    let pairs: Vec<(&[u32], &[u8])> = sequences.iter().map(|(t, m)| (&t[..], &m[..])).collect();
    let mut batch = Batch::from_masked(&pairs, Aggregation::RolloutMean, 0);
    let columns = &mut batch.columns;
    for number in 0..scores.logp.len() {
        let logp = scores.logp[number];
        columns.old[number] = logp - [0.05, 0.4, -0.1, -0.5, 0.15][number % 5];
        columns.reference[number] = logp + [0.3, -0.2, 0.1][number % 3];
        columns.rollout[number] = columns.old[number] + [0.02, -0.04][number % 2];
    }
    for (index, sequence) in batch.sequences.iter().enumerate() {
        batch.columns.advantage[sequence.trained.clone()].fill([1.0, -0.7, 0.4][index % 3]);
    }
    batch
}

fn sequences(vocab: usize) -> Vec<(Vec<u32>, Vec<u8>)> {
    let mut numbers = Numbers(3);
    [9, 4, 13, 6]
        .map(|len| {
            let mut mask = vec![1; len];
            mask[..3].fill(0);
            if len > 8 {
                mask[5] = 0;
            }
            (numbers.tokens(len, vocab), mask)
        })
        .to_vec()
}

fn head<O: Ops>(network: &Network<O>) -> Head<'_, O> {
    Head {
        ops: &**network.ops(),
        weight: network.weights().get(network.head()),
        temperature: 0.8,
        vocab: network.spec().vocab - 3,
        chunk_rows: Some(5),
    }
}

fn scores<O: Ops>(network: &Network<O>, batch: &Batch<'_>) -> Scores {
    let mut scores = Scores::unknown(batch.num_trained());
    for micro in MicroBatch::pack(batch, 1000) {
        let hidden = network
            .forward(&micro.ids, &micro.sequences, &micro.rows)
            .unwrap();
        let stats = head(network).stats(&hidden, &micro.targets).unwrap();
        for (row, &number) in micro.tokens.iter().enumerate() {
            scores.logp[number] = stats.logprob[row];
            scores.entropy[number] = stats.entropy[row];
        }
    }
    scores
}

fn gradients<O: Ops>(
    network: &Network<O>,
    evaluation: &Evaluation<'_>,
    max_tokens: usize,
    recompute: Recompute,
) -> Gradients<O> {
    let mut grads = Gradients::zeros(&**network.ops(), network.weights()).unwrap();
    let mut scores = Scores::unknown(evaluation.batch.num_trained());
    for micro in MicroBatch::pack(evaluation.batch, max_tokens) {
        let recompute = [recompute];
        micro_step(
            network,
            &head(network),
            evaluation,
            &micro,
            &recompute,
            &mut grads,
            &mut scores,
        )
        .unwrap();
    }
    grads
}

#[test]
fn every_parameter_kinds_gradient_is_the_slope_of_the_loss() {
    for (index, model) in models().iter().enumerate() {
        finite_differences(model, objective(PolicyLoss::Clipped));
        // What the other losses do does not depend on the model.
        if index < 4 {
            finite_differences(model, objective(PolicyLoss::Sequence));
            finite_differences(model, objective(PolicyLoss::Likelihood));
        }
    }
}

fn finite_differences(model: &str, objective: Objective) {
    let ops = f64_cpu();
    let mut network = network(&ops, model);
    let sequences = sequences(network.spec().vocab - 3);
    let pairs: Vec<(&[u32], &[u8])> = sequences.iter().map(|(t, m)| (&t[..], &m[..])).collect();
    let plain = Batch::from_masked(&pairs, Aggregation::RolloutMean, 0);
    let batch = batch(&sequences, &scores(&network, &plain));
    let evaluation = Evaluation {
        objective,
        batch: &batch,
        old_is_engine: false,
    };
    let grads = gradients(&network, &evaluation, 1000, Recompute::Selective);
    let mut numbers = Numbers(17);
    let mut moved = 0;
    for (index, param) in network.params().clone().iter().enumerate() {
        let slopes = ops.read_float_f64(&grads.0[index]).unwrap();
        let original = network.weights().0[index].clone();
        let values = ops.read_f64(&original).unwrap();
        for _ in 0..4 {
            let at = numbers.below(values.len());
            let mut loss_at = |step: f64| {
                let mut values = values.clone();
                values[at] += step;
                network.weights_mut().0[index] =
                    ops.tensor_f64(param.rows, param.cols, &values).unwrap();
                metrics(&evaluation, &scores(&network, &batch)).loss
            };
            let mut slope_at = |step: f64| (loss_at(step) - loss_at(-step)) / (2.0 * step);
            let (far, want) = (slope_at(1e-5), slopes[at]);
            let fits = |slope: f64| (slope - want).abs() <= 2e-6 * want.abs() + 2e-9;
            // Where the loss bends sharply, two slopes together tell the tangent (Richardson).
            let slope = if fits(far) {
                far
            } else {
                (4.0 * slope_at(5e-6) - far) / 3.0
            };
            let what = format!("{model} {:?} {}[{at}]", objective.loss, param.name);
            assert!(fits(slope), "{what}: {slope} and {far} are not {want}");
            moved += usize::from(slopes[at].abs() > 1e-6);
        }
        network.weights_mut().0[index] = original;
    }
    assert!(moved > 20, "{model}: only {moved} slopes are not 0");
}

fn all_numbers<O: Ops>(ops: &O, grads: &Gradients<O>) -> Vec<f64> {
    grads
        .0
        .iter()
        .flat_map(|g| ops.read_float_f64(g).unwrap())
        .collect()
}

#[test]
fn recomputing_more_or_less_gives_the_same_bits() {
    for model in &models() {
        let ops = f32_cpu();
        let network = network(&ops, model);
        let sequences = sequences(network.spec().vocab - 3);
        let pairs: Vec<(&[u32], &[u8])> = sequences.iter().map(|(t, m)| (&t[..], &m[..])).collect();
        let plain = Batch::from_masked(&pairs, Aggregation::RolloutMean, 0);
        let batch = batch(&sequences, &scores(&network, &plain));
        let evaluation = Evaluation {
            objective: objective(PolicyLoss::Clipped),
            batch: &batch,
            old_is_engine: false,
        };
        let bits = |recompute| {
            let grads = gradients(&network, &evaluation, 20, recompute);
            all_numbers(&*ops, &grads)
                .into_iter()
                .map(f64::to_bits)
                .collect::<Vec<_>>()
        };
        let none = bits(Recompute::None);
        assert!(none == bits(Recompute::Selective), "{model} selective");
        assert!(none == bits(Recompute::Mlp), "{model} mlp");
        assert!(none == bits(Recompute::Full), "{model} full");
    }
}

fn micro_batches_agree<O: Ops>(ops: &Arc<O>, tolerance: f64) {
    let network = network(ops, "qwen3-tiny");
    let vocab = network.spec().vocab - 3;
    let mut numbers = Numbers(5);
    let sequences: Vec<(Vec<u32>, Vec<u8>)> = (0..14)
        .map(|i| (numbers.tokens(8 + i % 3, vocab), vec![1; 8 + i % 3]))
        .collect();
    let pairs: Vec<(&[u32], &[u8])> = sequences.iter().map(|(t, m)| (&t[..], &m[..])).collect();
    let plain = Batch::from_masked(&pairs, Aggregation::RolloutMean, 0);
    let batch = batch(&sequences, &scores(&network, &plain));
    for loss in [PolicyLoss::Clipped, PolicyLoss::Sequence] {
        let evaluation = Evaluation {
            objective: objective(loss),
            batch: &batch,
            old_is_engine: false,
        };
        let mut one = None;
        for (max_tokens, count) in [(1000, 1), (64, 2), (18, 7)] {
            assert_eq!(MicroBatch::pack(&batch, max_tokens).len(), count);
            let grads = gradients(&network, &evaluation, max_tokens, Recompute::Selective);
            let all = all_numbers(&**ops, &grads);
            let one = one.get_or_insert_with(|| all.clone());
            let gap = distance(&all, one);
            assert!(
                gap <= tolerance,
                "{loss:?} in {count} micro-batches: {gap:e}"
            );
        }
    }
}

#[test]
fn one_two_or_seven_micro_batches_give_the_same_gradient() {
    micro_batches_agree(&f64_cpu(), 1e-12);
    micro_batches_agree(&f32_cpu(), 1e-6);
}
