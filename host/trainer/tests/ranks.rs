//! Gradients do not depend on how a step's sequences are dealt to data-parallel ranks, nor on micro-batches: one, two and
//! three ranks as threads, their gradients added, in f64.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use slime_kernels::Ops;
use slime_model::Network;
use slime_model::layers::{Gradients, Recompute};
use slime_trainer::TrainConfig;
use slime_trainer::advantages;
use slime_trainer::algo::Estimator;
use slime_trainer::algo::mismatch::Level;
use slime_trainer::algo::weights::Aggregation;
use slime_trainer::data::rollouts::{Limits, rollouts};
use slime_trainer::data::{Batch, MicroBatch, first_fit};
use slime_trainer::head::Head;
use slime_trainer::passes;
use slime_trainer::step::{Evaluation, Scores, micro_step};
use support::{distance, f64_cpu, network, records};

const MODEL: &str = "qwen3-tiny";
const VOCAB: usize = 89;

fn configs() -> Vec<TrainConfig> {
    let base = TrainConfig {
        use_kl_loss: true,
        kl_loss_coef: 0.1,
        entropy_coef: 0.01,
        ..TrainConfig::default()
    };
    vec![
        base.clone(),
        TrainConfig {
            loss_aggregation: Aggregation::TokenMean,
            use_tis: true,
            tis_level: Level::Sequence,
            tis_batch_normalize: true,
            ..base.clone()
        },
        TrainConfig {
            advantage_estimator: Estimator::Gspo,
            use_opsm: true,
            ..base.clone()
        },
        TrainConfig {
            advantage_estimator: Estimator::ReinforcePlusPlus,
            normalize_advantages: true,
            ..base
        },
    ]
}

/// The gradient of the whole step, sequences dealt to `ranks` threads, each packing its own.
fn gradient(
    network: &Network<slime_kernels::Cpu<f64>>,
    evaluation: &Evaluation<'_>,
    ranks: usize,
    max_tokens: usize,
) -> Vec<f64> {
    let batch = evaluation.batch;
    let one = |rank: usize| {
        let ops = &**network.ops();
        let head = Head {
            ops,
            weight: network.weights().get(network.head()),
            temperature: 0.8,
            vocab: VOCAB,
            chunk_rows: None,
        };
        let own: Vec<usize> = (0..batch.sequences.len())
            .filter(|i| i % ranks == rank)
            .collect();
        let lengths: Vec<usize> = own
            .iter()
            .map(|&i| batch.sequences[i].inputs().len())
            .collect();
        let mut grads = Gradients::zeros(ops, network.weights()).unwrap();
        let mut scores = Scores::unknown(batch.num_trained());
        for bin in first_fit(&lengths, max_tokens) {
            let members = bin.into_iter().map(|at| own[at]).collect();
            let micro = MicroBatch::new(&batch.sequences, members);
            micro_step(
                network,
                &head,
                evaluation,
                &micro,
                &[Recompute::None],
                &mut grads,
                &mut scores,
            )
            .unwrap();
        }
        let all = grads.0.iter().flat_map(|g| ops.read_float_f64(g).unwrap());
        all.collect::<Vec<f64>>()
    };
    let parts: Vec<Vec<f64>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..ranks)
            .map(|rank| scope.spawn(move || one(rank)))
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    parts
        .into_iter()
        .reduce(|a, b| a.iter().zip(&b).map(|(x, y)| x + y).collect())
        .unwrap()
}

#[test]
fn d08_d09_ranks_and_micro_batches_add_up_to_the_gradient_of_one() {
    let ops = f64_cpu();
    let network = network(&ops, MODEL);
    let all = records(3, VOCAB, 9);
    let limits = Limits {
        vocab: VOCAB,
        max_positions: 64,
    };
    let grouped = rollouts(&all, limits).unwrap();
    for config in configs() {
        assert_eq!(config.validate(), Ok(()));
        let mut batches = [Batch::new(
            &grouped,
            0..grouped.len(),
            config.loss_aggregation,
            0,
        )];
        let columns = &mut batches[0].columns;
        for i in 0..columns.weight.len() {
            columns.old[i] = columns.rollout[i] + [0.1, -0.2, 0.05][i % 3];
            columns.reference[i] = columns.old[i] + [0.2, -0.1][i % 2];
        }
        advantages::fill(&config, &grouped, &mut batches);
        if let Some(mismatch) = config.mismatch() {
            passes::correct(&mut batches[0], &mismatch);
        }
        let evaluation = Evaluation {
            objective: config.objective(),
            batch: &batches[0],
            old_is_engine: false,
        };
        let whole = gradient(&network, &evaluation, 1, 10_000);
        for ranks in [1, 2, 3] {
            for max_tokens in [10_000, 40, 1] {
                let got = gradient(&network, &evaluation, ranks, max_tokens);
                let gap = distance(&got, &whole);
                assert!(gap < 1e-10, "{ranks} ranks, {max_tokens} tokens: {gap:e}");
            }
        }
    }
}
