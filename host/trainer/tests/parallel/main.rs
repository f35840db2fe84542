//! Every layout of ranks against one rank, in f64 and f32. `cargo parity --all` runs the whole matrix and prints it; the
//! rows marked quick run here.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod cases;
mod compact;
mod failures;
mod golden;
#[cfg(unix)]
#[path = "../support/limited.rs"]
mod limited;
mod optimizer;
mod pitfalls;
mod plans;
mod processes;
mod reshard;
mod sft;
mod toy;
mod watched;
mod whole;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cases::{Case, sizes};
use slime_kernels::{Cpu, Ops};
use slime_model::layers::Recompute;
use slime_trainer::parallel::trainer::{PATIENCE, Weights};
use slime_trainer::parallel::{ParallelConfig, ParallelTrainer, Training};
use slime_trainer::{Error, TrainConfig, TrainMetrics};
use std::sync::Arc;
use toy::{Gaps, Outcome, Toy, config, gaps, mixed, on_many, on_one};

fn compare<O: Ops>(case: &Case, device: fn() -> O) -> Gaps {
    let one = on_one(&Arc::new(device()), case.toy, &case.config, &case.records);
    let many = on_many(
        device,
        case.toy,
        &case.config,
        &case.parallel,
        &case.records,
    );
    gaps(&many.unwrap(), &one)
}

/// Tolerances of f64: losses, gradients, parameters.
const DOUBLE: (f64, f64, f64) = (1e-10, 1e-11, 1e-10);

fn holds(case: &Case, gaps: &Gaps, bounds: (f64, f64, f64)) {
    holds_within(&format!("{} / {}", case.group, case.name), gaps, bounds);
}

fn holds_within(what: &str, gaps: &Gaps, (loss, gradient, weight): (f64, f64, f64)) {
    let within = gaps.loss <= loss && gaps.gradient <= gradient && gaps.weight <= weight;
    assert!(within, "{what}: {gaps:?}");
}

fn quick(group: &str) {
    let rows: Vec<Case> = cases::all()
        .into_iter()
        .filter(|case| case.quick && case.group == group)
        .collect();
    assert!(!rows.is_empty(), "{group}");
    for case in rows {
        holds(&case, &compare(&case, Cpu::<f64>::new), DOUBLE);
    }
}

#[test]
fn tensor_and_sequence_parallel_ranks_equal_one_rank() {
    quick("tp");
}

#[test]
fn pipelined_ranks_equal_one_rank() {
    quick("pp");
}

#[test]
fn ranks_that_share_sequences_equal_one_rank() {
    quick("cp");
}

#[test]
fn data_parallel_ranks_equal_one_rank() {
    quick("dp");
}

#[test]
fn ranks_that_share_experts_equal_one_rank() {
    quick("ep");
}

#[test]
fn ranks_that_replay_experts_equal_one_rank_that_does() {
    quick("replay");
}

#[test]
fn ranks_that_train_a_critic_equal_one_rank_that_does() {
    quick("critic");
    // And there is something to be equal in: values are clipped, and the layers learn.
    let mut rows = cases::all().into_iter();
    let case = rows.find(|case| case.group == "critic").unwrap();
    let ops = Arc::new(Cpu::<f64>::new());
    let metrics = on_one(&ops, case.toy, &case.config, &case.records).metrics;
    let clipped = |m: &&TrainMetrics| m.value_clipfrac.is_some_and(|share| share > 0.1);
    assert!(metrics.iter().any(|m| clipped(&m)), "{metrics:?}");
    let explained: Vec<_> = metrics.iter().filter_map(|m| m.value_explained).collect();
    assert!(
        explained.len() == 4 && metrics[3].critic_grad_norm > Some(0.0),
        "{metrics:?}"
    );
}

#[test]
fn ranks_that_distil_from_a_teacher_equal_one_rank_that_does() {
    quick("teacher");
}

#[test]
fn ranks_without_a_teacher_ask_for_one_and_take_the_records() {
    let config = TrainConfig {
        use_opd: true,
        ..config()
    };
    let layout = sizes(1, 1, 1, 2);
    let training = Training {
        spec: Toy::PLAIN.spec(),
        config: TrainConfig {
            use_kl_loss: false,
            kl_loss_coef: 0.0,
            ..config
        },
        parallel: layout,
        vocab: 259,
    };
    let device = |_| Ok(Arc::new(Cpu::<f64>::new()));
    let weights: Weights = Arc::new(|param| Ok(toy::weight(param)));
    let mut trainer = ParallelTrainer::of_threads(training, weights, device, PATIENCE).unwrap();
    let mut records = mixed();
    let error = trainer.train(&records).unwrap_err();
    assert!(matches!(error, Error::NoTeacher), "{error}");
    for record in &mut records {
        record.teacher_log_probs = record.rollout_log_probs.iter().map(|p| p - 0.1).collect();
    }
    let metrics = trainer.train(&records).unwrap();
    assert!(metrics.iter().all(|m| m.opd_reverse_kl.is_some()));
}

/// Or ranks that ignore what is to be replayed would pass.
#[test]
fn every_row_of_replay_trains_otherwise_without_it() {
    let mut seen = 0;
    for case in cases::all().iter().filter(|case| case.group == "replay") {
        if case.parallel.world() > 2 && case.toy.family == "qwen3_moe" {
            continue;
        }
        let ops = Arc::new(Cpu::<f64>::new());
        let replayed = on_one(&ops, case.toy, &case.config, &case.records);
        let mut free = case.config.clone();
        (free.use_routing_replay, free.use_rollout_routing_replay) = (false, false);
        let free = on_one(&ops, case.toy, &free, &case.records);
        let gaps = gaps(&free, &replayed);
        assert!(
            gaps.loss > 1e-4 && gaps.gradient > 1e-2,
            "{}: {gaps:?}",
            case.name
        );
        seen += 1;
    }
    assert!(seen >= 8);
}

#[test]
fn a_record_whose_experts_do_not_fit_is_refused_by_all_ranks_and_the_trainer_goes_on() {
    let layout = cases::experts(2, 1, sizes(1, 1, 1, 2));
    let toy = Toy {
        family: "qwen3_moe",
        ..Toy::PLAIN
    };
    let config = TrainConfig {
        use_rollout_routing_replay: true,
        ..config()
    };
    let mut trainer = toy::ranks(Cpu::<f64>::new, toy, &config, &layout).unwrap();
    let good = toy::routed(mixed(), toy);
    let mut bad = good.clone();
    // The third rollout: one rank alone trains on it.
    let bytes: Vec<u8> = [9u32, 1].iter().flat_map(|e| e.to_le_bytes()).collect();
    let num = (bad[2].tokens.len() - 1) * 4;
    bad[2].routed_experts = Some(STANDARD.encode(bytes.repeat(num)));
    let error = trainer.train(&bad).unwrap_err().to_string();
    assert!(
        error.contains("expert 9 for token 0 in layer 0, and the model has 8")
            && error.contains("rollout 2"),
        "{error}"
    );
    bad[2].routed_experts = None;
    let error = trainer.train(&bad).unwrap_err().to_string();
    assert!(
        error.contains("needs routed_experts, and it has none"),
        "{error}"
    );
    trainer.train(&good).unwrap();
}

/// Old and reference log-probs, advantages, loss, optimizer.
#[test]
fn a_whole_grpo_step_on_tp2_pp2_cp2_on_tp2_ep4_with_pp2_too_and_on_dp3_equals_one_ranks() {
    quick("rl step");
}

#[test]
fn combined_layouts_equal_one_rank() {
    quick("combinations");
}

#[test]
fn eight_ranks_in_f32_equal_one_rank_to_its_rounding() {
    let mut case = cases::all()
        .into_iter()
        .find(|case| case.group == "combinations")
        .unwrap();
    // One step: later ones start from weights that Adam has already moved by whole steps where gradients are noise.
    case.config.num_steps_per_rollout = Some(1);
    holds(&case, &compare(&case, Cpu::<f32>::new), (1e-5, 1e-5, 1e-5));
}

fn run(toy: Toy, parallel: &ParallelConfig, change: impl FnOnce(&mut TrainConfig)) -> Outcome {
    let mut config = config();
    change(&mut config);
    on_many(Cpu::<f32>::new, toy, &config, parallel, &mixed()).unwrap()
}

#[test]
fn pitfall_19_recomputing_changes_no_bit_and_no_choice_of_experts() {
    let experts = Toy {
        family: "qwen3_moe",
        ..Toy::PLAIN
    };
    let folded = cases::experts(2, 1, cases::sequence_parallel(sizes(2, 1, 1, 1)));
    for (toy, layout) in [
        (Toy::PLAIN, cases::sequence_parallel(sizes(2, 1, 2, 1))),
        (experts, folded),
    ] {
        let of = |granularity, layers| {
            run(toy, &layout, |c| {
                c.recompute_granularity = granularity;
                c.recompute_num_layers = layers;
            })
        };
        let kept = of(Recompute::None, None);
        assert!(of(Recompute::Selective, None) == kept);
        assert!(of(Recompute::Mlp, None) == kept);
        assert!(of(Recompute::Full, None) == kept);
        assert!(of(Recompute::Full, Some(2)) == kept);
    }
}

/// Layer kinds of other families, where they may be divided.
#[test]
fn ranks_of_other_families_equal_one_rank() {
    quick("families");
}

#[test]
fn the_size_of_gradient_buckets_changes_no_bit() {
    let of = |size| {
        let layout = ParallelConfig {
            ddp_bucket_size: size,
            ..sizes(1, 1, 1, 3)
        };
        let mut outcome = run(Toy::PLAIN, &layout, |c| c.clip_grad = 0.0);
        // The norm sums squares slice by slice, so its last bits follow the buckets; without clipping nothing else does.
        outcome.metrics.iter_mut().for_each(|m| m.grad_norm = None);
        outcome
    };
    let whole = of(None);
    assert!(of(Some(1)) == whole);
    assert!(of(Some(37 * 1024 / 4)) == whole);
}

#[test]
fn a_run_on_ranks_repeats_bit_by_bit() {
    let layout = cases::sequence_parallel(sizes(2, 2, 1, 2));
    assert!(run(Toy::PLAIN, &layout, |_| {}) == run(Toy::PLAIN, &layout, |_| {}));
}

#[test]
fn a_layout_that_does_not_fit_the_model_is_refused_at_once_with_the_cure() {
    let refuse = |parallel: ParallelConfig| {
        let error = on_many(Cpu::<f32>::new, Toy::PLAIN, &config(), &parallel, &mixed());
        error.map(drop).unwrap_err().to_string()
    };
    let message = refuse(ParallelConfig {
        sequence_parallel: true,
        ..sizes(1, 3, 1, 1)
    });
    assert!(
        message.contains("sequence_parallel") && message.contains("leave it out"),
        "{message}"
    );
    assert!(
        message.contains("decoder_last_pipeline_num_layers"),
        "{message}"
    );
    let message = refuse(sizes(3, 1, 1, 1));
    assert!(message.contains("8 query heads"), "{message}");
}
