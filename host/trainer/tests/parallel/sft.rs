//! Supervised fine-tuning on ranks against one rank, whose loss and gradients `tests/parity.rs` compares with PyTorch.

use super::cases::{experts, sequence_parallel, sizes};
use super::processes::{led, training};
use super::toy::{Gaps, Numbers, Outcome, Toy, gaps, one_rank, outcome, outcome_of_one, ranks};
use super::{DOUBLE, holds_within};
use slime_core::Step;
use slime_kernels::{Cpu, Ops};
use slime_trainer::algo::weights::Aggregation;
use slime_trainer::optim::schedule::DecayStyle;
use slime_trainer::parallel::ParallelConfig;
use slime_trainer::{Error, SftSequence, TrainConfig, TrainMetrics};
use std::sync::Arc;

const EXPERTS: Toy = Toy {
    family: "qwen3_moe",
    ..Toy::PLAIN
};

fn config() -> TrainConfig {
    TrainConfig {
        lr: 2e-3,
        lr_decay_style: DecayStyle::Linear,
        lr_decay_iters: Some(8),
        lr_warmup_iters: 1,
        max_tokens_per_gpu: 40,
        log_probs_chunk_size: Some(5),
        clip_grad: 0.5,
        ..TrainConfig::default()
    }
}

type Conversations = Vec<(Vec<u32>, Vec<u8>)>;

/// Three steps: several turns, one token, nothing that trains, and a step with fewer sequences than ranks.
fn steps() -> Vec<Conversations> {
    let mut numbers = Numbers(19);
    let mut sequence = |len: usize, trains: fn(usize) -> bool| {
        let tokens = (0..len).map(|_| numbers.below(259) as u32).collect();
        (tokens, (0..len).map(|at| u8::from(trains(at))).collect())
    };
    vec![
        vec![
            sequence(23, |at| at > 6 && at % 9 != 0),
            sequence(9, |at| at == 8),
            sequence(31, |at| (5..11).contains(&at) || at > 20),
            sequence(12, |_| false),
            sequence(14, |_| true),
            sequence(2, |_| true),
        ],
        vec![sequence(17, |at| at > 3)],
        vec![
            sequence(6, |at| at > 2),
            sequence(38, |at| at > 10),
            sequence(5, |at| at > 3),
        ],
    ]
}

fn borrowed(sequences: &Conversations) -> Vec<SftSequence<'_>> {
    let each = sequences.iter();
    each.map(|(tokens, loss_mask)| SftSequence { tokens, loss_mask })
        .collect()
}

fn on_one<O: Ops>(device: fn() -> O, toy: Toy, config: &TrainConfig) -> Outcome {
    let ops = Arc::new(device());
    let mut trainer = one_rank(&ops, toy, config);
    let metrics = steps()
        .iter()
        .map(|step| trainer.sft_step(&borrowed(step)).unwrap())
        .collect();
    outcome_of_one(&ops, &trainer, metrics)
}

fn on_many<O: Ops>(
    device: fn() -> O,
    toy: Toy,
    config: &TrainConfig,
    parallel: &ParallelConfig,
) -> Outcome {
    let mut trainer = ranks(device, toy, config, parallel).unwrap();
    let metrics = steps()
        .iter()
        .map(|step| trainer.sft_step(&borrowed(step)).unwrap())
        .collect();
    outcome(&trainer, metrics).unwrap()
}

fn layouts() -> Vec<(Toy, ParallelConfig)> {
    let interleaved = ParallelConfig {
        virtual_pipeline_model_parallel_size: 2,
        ..sizes(1, 2, 1, 1)
    };
    vec![
        (Toy::PLAIN, sizes(1, 1, 1, 2)),
        (Toy::PLAIN, sizes(2, 1, 1, 1)),
        (Toy::PLAIN, sequence_parallel(sizes(2, 1, 1, 1))),
        (Toy::PLAIN, sizes(1, 2, 1, 1)),
        (Toy::PLAIN, interleaved),
        (Toy::PLAIN, sizes(1, 1, 2, 1)),
        (EXPERTS, experts(2, 1, sizes(1, 1, 1, 2))),
        (EXPERTS, experts(2, 1, sequence_parallel(sizes(2, 2, 1, 2)))),
        (Toy::PLAIN, sequence_parallel(sizes(2, 1, 2, 2))),
    ]
}

/// What a metric says is there on both sides or on neither.
fn keys(metrics: &TrainMetrics) -> Vec<String> {
    let all = serde_json::to_value(metrics).unwrap();
    let all = all.as_object().unwrap().iter();
    all.filter(|(_, value)| !value.is_null())
        .map(|(name, _)| name.clone())
        .collect()
}

#[test]
fn ranks_fine_tune_as_one_rank_does() {
    for (toy, parallel) in layouts() {
        let one = on_one(Cpu::<f64>::new, toy, &config());
        let many = on_many(Cpu::<f64>::new, toy, &config(), &parallel);
        holds_within(&parallel.short(), &gaps(&many, &one), DOUBLE);
        assert_eq!(keys(&many.metrics[0]), keys(&one.metrics[0]));
        assert!(one.metrics[0].loss > 0.0 && one.metrics[0].trained_tokens > 40);
    }
}

#[test]
fn ranks_fine_tune_as_one_rank_does_in_f32_and_under_another_aggregation() {
    let config = TrainConfig {
        loss_aggregation: Aggregation::TokenMean,
        ..config()
    };
    for (toy, parallel) in layouts() {
        let one = on_one(Cpu::<f32>::new, toy, &config);
        let many = on_many(Cpu::<f32>::new, toy, &config, &parallel);
        let gaps: Gaps = gaps(&many, &one);
        holds_within(&parallel.short(), &gaps, (1e-5, 1e-4, 1e-4));
    }
}

#[test]
fn fine_tuning_continues_under_another_layout_as_if_nothing_had_happened() {
    let one = on_one(Cpu::<f64>::new, EXPERTS, &config());
    let layouts = [
        experts(2, 1, sequence_parallel(sizes(2, 2, 1, 1))),
        experts(2, 1, sizes(1, 1, 2, 2)),
        ParallelConfig::default(),
    ];
    let root = tempfile::tempdir().unwrap();
    let mut metrics = Vec::new();
    for (number, (step, parallel)) in steps().iter().zip(&layouts).enumerate() {
        let mut trainer = ranks(Cpu::<f64>::new, EXPERTS, &config(), parallel).unwrap();
        if number > 0 {
            let dir = root.path().join(format!("step_{number}"));
            assert_eq!(trainer.load(&dir).unwrap(), Step(number as u64));
        }
        metrics.push(trainer.sft_step(&borrowed(step)).unwrap());
        let dir = root.path().join(format!("step_{}", number + 1));
        trainer.save(&dir, Step(number as u64 + 1)).unwrap();
        if number + 1 == layouts.len() {
            let many = outcome(&trainer, metrics.clone()).unwrap();
            holds_within("resharded twice", &gaps(&many, &one), DOUBLE);
        }
    }
}

#[test]
fn processes_fine_tune_to_the_bits_of_threads() {
    let (toy, parallel) = (EXPERTS, experts(2, 1, sequence_parallel(sizes(2, 2, 1, 1))));
    let threads = on_many(Cpu::<f32>::new, toy, &config(), &parallel);
    let training = training(toy, &config(), &parallel);
    let (left, ends) = led(&training, parallel.world(), |mut trainer| {
        let bad = SftSequence {
            tokens: &[1, 9999],
            loss_mask: &[0, 1],
        };
        let refused = trainer.sft_step(&[bad]).unwrap_err();
        assert!(
            matches!(refused, Error::Sequence { index: 0, .. }),
            "{refused}"
        );
        let metrics: Vec<_> = steps()
            .iter()
            .map(|step| trainer.sft_step(&borrowed(step)).unwrap())
            .collect();
        let params = slime_model::params(&toy.spec());
        for param in &params {
            let weight: Vec<f32> = trainer.read_param(param).unwrap();
            let weight: Vec<f64> = weight.into_iter().map(f64::from).collect();
            assert!(weight == threads.weights[&param.name], "{}", param.name);
        }
        metrics
    });
    ends.into_iter().for_each(|end| end.unwrap());
    assert_eq!(left.unwrap(), threads.metrics);
}
