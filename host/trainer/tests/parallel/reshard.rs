//! Checkpoints saved under one layout and loaded under another: the same bits, and the same next step.

use super::cases::{experts, sequence_parallel, sizes};
use super::toy::{Outcome, Toy, config, gaps, mixed, outcome, ranks, records, weight};
use slime_core::Step;
use slime_kernels::{Cpu, Ops};
use slime_model::{ParamSpec, params};
use slime_trainer::algo::Estimator;
use slime_trainer::parallel::{ParallelConfig, ParallelTrainer};
use slime_trainer::{Error, TrainConfig, TrainMetrics, Trainer};
use std::path::Path;
use std::sync::Arc;

type F32 = Cpu<f32>;

const TOY: Toy = Toy {
    family: "qwen3",
    kv: 2,
    tied: true,
};

fn plain() -> TrainConfig {
    TrainConfig {
        use_kl_loss: false,
        kl_loss_coef: 0.0,
        ..config()
    }
}

const EXPERTS: Toy = Toy {
    family: "glm4_moe",
    ..TOY
};

fn fresh(toy: Toy, parallel: &ParallelConfig) -> ParallelTrainer<F32> {
    ranks(F32::new, toy, &plain(), parallel).unwrap()
}

/// Weights as bits, and moments as a checkpoint of one rank's layout holds them.
fn bits(toy: Toy, trainer: &ParallelTrainer<F32>, dir: &Path) -> (Vec<u32>, Vec<u8>) {
    let all = trainer.params().clone();
    let weights = all.iter().flat_map(|p| trainer.read_param(p).unwrap());
    let weights = weights.map(f32::to_bits).collect();
    trainer.save(dir, Step(7)).unwrap();
    let mut one = fresh(toy, &ParallelConfig::default());
    assert_eq!(one.load(dir).unwrap(), Step(7));
    let again = dir.with_extension("one");
    one.save(&again, Step(7)).unwrap();
    (
        weights,
        std::fs::read(again.join("rank_0_optimizer.safetensors")).unwrap(),
    )
}

/// What `saved` wrote is in each of `others` bit by bit, and the next step is the same.
fn moves(toy: Toy, saved: &ParallelConfig, others: &[ParallelConfig]) {
    let root = tempfile::tempdir().unwrap();
    let mut first = fresh(toy, saved);
    first.train(&mixed()).unwrap();
    let dir = root.path().join("step_7");
    let (weights, moments) = bits(toy, &first, &dir);
    let next = records(&[(3, 7), (4, 9), (2, 5), (6, 3)], 77);
    let after = |trainer: &mut ParallelTrainer<F32>| -> Outcome {
        let metrics = trainer.train(&next).unwrap();
        outcome(trainer, metrics).unwrap()
    };
    let continued = after(&mut first);
    for (number, parallel) in others.iter().chain([saved]).enumerate() {
        let mut other = fresh(toy, parallel);
        assert_eq!(other.load(&dir).unwrap(), Step(7));
        let again = root.path().join(format!("again_{number}"));
        let (other_weights, other_moments) = bits(toy, &other, &again);
        assert!(other_weights == weights, "{}", parallel.short());
        assert!(other_moments == moments, "{}", parallel.short());
        // The counters came along too: the next step is the one that the first trainer makes.
        let gaps = gaps(&after(&mut other), &continued);
        assert!(
            gaps.loss < 1e-4 && gaps.weight < 1e-4,
            "{} {gaps:?}",
            parallel.short()
        );
        if parallel == saved {
            assert!(
                gaps.loss == 0.0 && gaps.gradient == 0.0 && gaps.weight == 0.0,
                "{gaps:?}"
            );
        }
    }
}

#[test]
fn a_checkpoint_of_any_layout_loads_into_any_other_bit_by_bit() {
    let others = [
        ParallelConfig::default(),
        sizes(4, 1, 1, 1),
        sizes(1, 4, 1, 1),
        sizes(1, 1, 2, 3),
        sequence_parallel(sizes(4, 2, 1, 1)),
    ];
    moves(TOY, &sequence_parallel(sizes(2, 2, 1, 2)), &others);
}

#[test]
fn experts_that_were_saved_under_one_layout_load_under_any_other_bit_by_bit() {
    let saved = experts(2, 1, sequence_parallel(sizes(2, 2, 1, 1)));
    let others = [
        ParallelConfig::default(),
        sequence_parallel(sizes(4, 1, 1, 1)),
        experts(4, 1, sizes(1, 1, 1, 4)),
        experts(2, 2, sizes(1, 1, 2, 2)),
    ];
    moves(EXPERTS, &saved, &others);
}

#[test]
fn one_rank_and_many_read_each_others_checkpoints() {
    let root = tempfile::tempdir().unwrap();
    let (spec, ops) = (TOY.spec(), Arc::new(F32::new()));
    let tensors = || -> Vec<_> {
        params(&spec)
            .iter()
            .map(|p| ops.tensor(p.rows, p.cols, &weight(p)).unwrap())
            .collect()
    };
    let new = || Trainer::new(ops.clone(), spec.clone(), tensors(), plain()).unwrap();
    let mut one = new();
    one.train(&mixed()).unwrap();
    let dir = root.path().join("one");
    one.save(&dir, Step(3)).unwrap();
    let mut many = fresh(TOY, &sequence_parallel(sizes(2, 2, 1, 2)));
    assert_eq!(many.load(&dir).unwrap(), Step(3));
    assert_eq!(many.num_updates().unwrap(), one.num_updates());
    for param in one.network().params().iter() {
        let (a, b) = (
            one.read_param(param).unwrap(),
            many.read_param(param).unwrap(),
        );
        assert!(a == b, "{}", param.name);
    }
    let back = root.path().join("many");
    many.save(&back, Step(4)).unwrap();
    let mut again = new();
    assert_eq!(again.load(&back).unwrap(), Step(4));
    let third = root.path().join("again");
    again.save(&third, Step(3)).unwrap();
    for file in ["model.safetensors", "optimizer.safetensors", "index.json"] {
        let read = |dir: &Path| std::fs::read(dir.join(file)).unwrap();
        assert!(read(&dir) == read(&third), "{file}");
    }
}

/// What trains next is the same whoever saved: layers, value head and all counters of the critic came along.
#[test]
fn a_critic_moves_between_layouts_and_one_rank() {
    let root = tempfile::tempdir().unwrap();
    let config = TrainConfig {
        advantage_estimator: Estimator::Ppo,
        critic_lr: Some(5e-3),
        num_critic_only_steps: 2,
        ..plain()
    };
    let (spec, ops) = (TOY.spec(), Arc::new(Cpu::<f64>::new()));
    let one = || {
        let tensor = |p: &ParamSpec| {
            ops.tensor_f64(
                p.rows,
                p.cols,
                &weight(p).into_iter().map(f64::from).collect::<Vec<_>>(),
            )
        };
        let tensors = params(&spec).iter().map(|p| tensor(p).unwrap()).collect();
        let trainer = Trainer::new(ops.clone(), spec.clone(), tensors, config.clone());
        trainer.unwrap().with_vocab(259)
    };
    let many = |layout: &ParallelConfig| ranks(Cpu::<f64>::new, TOY, &config, layout).unwrap();
    let (first, second) = (sequence_parallel(sizes(2, 2, 1, 2)), sizes(1, 1, 2, 3));
    // One rank trains a step, then the critic alone once more, then both.
    let mut whole = one();
    let steps: Vec<_> = (0..3).map(|_| whole.train(&mixed()).unwrap()).collect();
    assert!(steps[1][0].grad_norm.is_none() && steps[2][0].grad_norm.is_some());
    let near = |got: &[TrainMetrics], at: usize| {
        for (got, want) in got.iter().zip(&steps[at]) {
            for (a, b) in [
                (got.value_loss, want.value_loss),
                (got.critic_grad_norm, want.critic_grad_norm),
                (got.grad_norm, want.grad_norm),
            ] {
                let gap = a.unwrap_or(0.0) - b.unwrap_or(0.0);
                assert!(
                    gap.abs() < 1e-9 && a.is_some() == b.is_some(),
                    "{got:?} {want:?}"
                );
            }
        }
    };
    let dir = |name: &str| root.path().join(name);
    let mut a = one();
    near(&a.train(&mixed()).unwrap(), 0);
    a.save(&dir("one"), Step(1)).unwrap();
    let mut b = many(&first);
    assert_eq!(b.load(&dir("one")).unwrap(), Step(1));
    near(&b.train(&mixed()).unwrap(), 1);
    b.save(&dir("first"), Step(2)).unwrap();
    let mut c = many(&second);
    assert_eq!(c.load(&dir("first")).unwrap(), Step(2));
    near(&c.train(&mixed()).unwrap(), 2);
    let mut d = one();
    assert_eq!(d.load(&dir("first")).unwrap(), Step(2));
    near(&d.train(&mixed()).unwrap(), 2);
    // A checkpoint without a critic, and the reverse.
    let mut plain = ranks(Cpu::<f64>::new, TOY, &self::plain(), &first).unwrap();
    let error = plain.load(&dir("first")).unwrap_err().to_string();
    assert!(
        error.contains("holds a critic, and the algorithm has none"),
        "{error}"
    );
    plain.save(&dir("plain"), Step(2)).unwrap();
    let error = c.load(&dir("plain")).unwrap_err().to_string();
    assert!(error.contains("holds no critic"), "{error}");
}

#[test]
fn a_checkpoint_that_lost_a_ranks_file_is_refused_by_name() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("step_1");
    fresh(TOY, &sizes(2, 1, 1, 1)).save(&dir, Step(1)).unwrap();
    std::fs::remove_file(dir.join("rank_1.safetensors")).unwrap();
    let error = fresh(TOY, &sizes(4, 1, 1, 1)).load(&dir).unwrap_err();
    assert!(error.to_string().contains("rank_1.safetensors"), "{error}");
    let other = Toy { kv: 4, ..TOY };
    let mut trainer = ranks(F32::new, other, &plain(), &sizes(2, 1, 1, 1)).unwrap();
    let error = trainer.load(&dir).unwrap_err();
    assert!(matches!(error, Error::OtherModel { .. }), "{error}");
}

#[test]
fn pitfall_16_a_checkpoint_holds_no_padding() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("step_1");
    // 263 tokens over 4 ranks and buckets over 3 need padding.
    fresh(TOY, &sizes(4, 1, 1, 3)).save(&dir, Step(1)).unwrap();
    let elements: usize = params(&TOY.spec()).iter().map(|p| p.len()).sum();
    let mut bytes = 0;
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let file = std::fs::read(&path).unwrap();
            let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
            bytes += file.len() - 8 - header;
        }
    }
    assert_eq!(bytes, 3 * 4 * elements);
}

/// Run by the next test in a process of its own, whose files may not grow beyond a few kilobytes.
#[test]
#[ignore = "needs the file size limit that its parent sets"]
fn ranks_save_under_a_file_size_limit() {
    let dir = std::env::var("CHECKPOINT_DIR").unwrap();
    let mut trainer = fresh(TOY, &sizes(1, 1, 1, 2));
    trainer.train(&mixed()).unwrap();
    let error = trainer.save(Path::new(&dir), Step(2)).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("rank_"), "{text}");
}

#[cfg(unix)]
#[test]
fn i08_a_disk_full_of_ranks_leaves_the_old_checkpoint_and_hangs_nobody() {
    let root = tempfile::tempdir().unwrap();
    let at = root.path().join("step_1");
    let trainer = fresh(TOY, &sizes(1, 1, 1, 2));
    let before = bits(TOY, &trainer, &at);
    let failed =
        super::limited::passes_on_a_full_disk("reshard::ranks_save_under_a_file_size_limit", &at);
    assert!(failed, "the save did not fail as a full disk makes it fail");
    let mut again = fresh(TOY, &sizes(1, 1, 1, 2));
    assert_eq!(again.load(&at).unwrap(), Step(7));
    assert!(bits(TOY, &again, &at) == before);
    let names = std::fs::read_dir(root.path()).unwrap();
    let hidden = names.filter(|e| {
        e.as_ref()
            .unwrap()
            .file_name()
            .to_string_lossy()
            .starts_with('.')
    });
    assert_eq!(hidden.count(), 0, "what was begun is gone");
}
