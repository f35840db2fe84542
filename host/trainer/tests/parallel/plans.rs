//! What the plan says against what really happens: FLOPs counted, memory measured, calls of all ranks.

use super::cases::{experts, sequence_parallel, sizes};
use super::toy::{Toy, config, mixed, weight};
use super::watched::watched_as;
use slime_kernels::Cpu;
use slime_kernels::comm::Simulated;
use slime_kernels::comm::simulated::{Exchange, Noted};
use slime_kernels::shapes::{Meter, Shapes, Widths, Work};
use slime_model::families::{HfConfig, from_config};
use slime_model::layers::Recompute;
use slime_model::{ModelSpec, ParamSpec};
use slime_trainer::TrainConfig;
use slime_trainer::parallel::shard::Shard;
use slime_trainer::parallel::trainer::{PATIENCE, Weights};
use slime_trainer::parallel::{Mesh, ParallelConfig, ParallelTrainer, Place, Rank, Training};
use slime_trainer::plan::flops::{self, Passing};
use slime_trainer::plan::record::{Event, Groups};
use slime_trainer::plan::{Machine, Recorded, Workload, record, replay, search};
use std::sync::{Arc, Mutex};

const WORK: Workload = Workload {
    sequences: 8,
    length: 24,
    prompt: 1,
};

#[test]
fn pitfall_33_the_flops_that_mfu_is_quoted_with_are_those_of_the_products_made() {
    let spec = Toy::PLAIN.spec();
    let meter = Meter::new(Widths::CPU);
    let ops = Arc::new(Shapes::new(meter.clone()));
    let place = Place::new(&ParallelConfig::default(), 0);
    let mesh = Mesh::new(place, 4, |name, members| {
        let comm = Simulated::new(
            ops.clone(),
            name,
            members,
            0,
            Arc::new(|_: &str, _: &[usize], _| {}),
        )?;
        Ok(Arc::new(comm))
    });
    let config = TrainConfig {
        recompute_granularity: Recompute::None,
        ..TrainConfig::default()
    };
    let device = ops.clone();
    let both = (config, ParallelConfig::default());
    let mut rank = Rank::new(ops, spec.clone(), mesh.unwrap(), both, 263, &move |_, s| {
        Ok(device.tensor_of(s.rows, s.cols))
    })
    .unwrap();
    meter.take_work();
    rank.train(&WORK.records()).unwrap();
    let work = meter.take_work();
    let (mut products, mut attention, mut gradient) = (0.0, 0.0, 0.0);
    for work in &work {
        match work {
            Work::Gemm { .. } => products += work.flops(),
            Work::Attention {
                backward: false, ..
            } => attention += work.flops(),
            Work::Attention { .. } => gradient += work.flops(),
            Work::Move { .. } => {}
        }
    }
    // The last token of a sequence is only a target, and every other trains: no row is left out anywhere.
    let (n, len) = (8.0, 23.0);
    let passing = Passing {
        tokens: n * len,
        pairs: n * len * (len + 1.0) / 2.0,
        rows: n * len,
    };
    let without = Passing {
        pairs: 0.0,
        ..passing
    };
    assert_eq!(products, flops::training(&spec, without));
    let pairs = flops::forward(&spec, passing) - flops::forward(&spec, without);
    assert_eq!(attention, pairs);
    assert_eq!(gradient, 2.5 * pairs);
}

/// A call's kind, from what a real rank notes of it.
fn kind(said: &str) -> &'static str {
    match said {
        said if said.ends_with("_host") => "host",
        said if said.starts_with('>') => "send",
        said if said.starts_with('<') => "recv",
        said if said.starts_with("all_reduce") => "sum",
        said if said.starts_with("all_gather") => "gather",
        said if said.starts_with("reduce_scatter") => "scatter",
        "all_to_all" => "exchange",
        "rotate" => "rotate",
        other => panic!("{other}"),
    }
}

#[test]
fn simulated_ranks_make_the_calls_of_real_ones_in_their_order() {
    let of = |family| Toy {
        family,
        ..Toy::PLAIN
    };
    let config = TrainConfig {
        use_kl_loss: false,
        kl_loss_coef: 0.0,
        ..config()
    };
    for (toy, parallel) in [
        (Toy::PLAIN, sequence_parallel(sizes(2, 2, 2, 1))),
        (
            of("glm4_moe"),
            experts(2, 2, sequence_parallel(sizes(2, 2, 1, 2))),
        ),
        (
            of("deepseek_v3"),
            experts(2, 1, sequence_parallel(sizes(2, 1, 2, 1))),
        ),
        (of("qwen3_next"), sequence_parallel(sizes(2, 2, 1, 1))),
    ] {
        let (mut trainer, log) = watched_as(toy, &config, &parallel, 0, 0);
        trainer.train(&mixed()).unwrap();
        for (&rank, real) in log.lock().unwrap().iter() {
            let noted: Arc<Mutex<Vec<String>>> = Arc::default();
            let book = noted.clone();
            let told = Arc::new(move |name: &str, members: &[usize], call: Noted| {
                let kind = match call.exchange {
                    Exchange::AllReduce => "sum",
                    Exchange::AllGather => "gather",
                    Exchange::ReduceScatter => "scatter",
                    Exchange::AllToAll => "exchange",
                    Exchange::Rotate => "rotate",
                    Exchange::Send { .. } => "send",
                    Exchange::Recv { .. } => "recv",
                    Exchange::Host => "host",
                    Exchange::Wait(_) => return,
                };
                let said = format!("{name}{members:?} {kind}");
                book.lock().unwrap().push(said);
            });
            let ops = Arc::new(Shapes::new(Meter::new(Widths::GPU)));
            let place = Place::new(&parallel, rank);
            let mesh = Mesh::new(place, 4, |name, members| {
                let comm = Simulated::new(ops.clone(), name, members, rank, told.clone())?;
                Ok(Arc::new(comm))
            });
            let device = ops.clone();
            let both = (config.clone(), parallel.clone());
            let make = move |_: &ParamSpec, s: &Shard| Ok(device.tensor_of(s.rows, s.cols));
            let made = Rank::new(ops, toy.spec(), mesh.unwrap(), both, 259, &make);
            made.unwrap().train(&mixed()).unwrap();
            let real: Vec<String> = real
                .iter()
                .map(|call| {
                    let (group, said) = call.split_once("] ").unwrap();
                    format!("{group}] {}", kind(said))
                })
                .collect();
            let simulated = noted.lock().unwrap();
            let apart = real.iter().zip(simulated.iter()).position(|(a, b)| a != b);
            assert_eq!(apart, None, "rank {rank} of {}", parallel.short());
            assert_eq!(real.len(), simulated.len());
            assert!(real.len() > 20, "{}", real.len());
        }
    }
}

#[test]
fn the_plans_memory_is_what_the_cpus_pool_really_hands_out() {
    let plain = Toy::PLAIN;
    for (toy, parallel, recompute) in [
        (plain, ParallelConfig::default(), Recompute::None),
        (plain, ParallelConfig::default(), Recompute::Selective),
        (plain, sizes(1, 1, 1, 2), Recompute::Full),
        (plain, sizes(1, 1, 1, 1), Recompute::Mlp),
        (
            plain,
            sequence_parallel(sizes(2, 2, 1, 1)),
            Recompute::Selective,
        ),
    ] {
        let config = TrainConfig {
            recompute_granularity: recompute,
            max_tokens_per_gpu: 3200,
            log_probs_chunk_size: Some(800),
            ..TrainConfig::default()
        };
        let devices: Arc<Mutex<Vec<(usize, Arc<Cpu<f32>>)>>> = Arc::default();
        let made = devices.clone();
        let training = Training {
            spec: toy.spec(),
            config: config.clone(),
            parallel: parallel.clone(),
            vocab: 263,
        };
        let weights: Weights = Arc::new(|param| Ok(weight(param)));
        let device = move |rank| {
            let cpu = Arc::new(Cpu::<f32>::new());
            made.lock().unwrap().push((rank, cpu.clone()));
            Ok(cpu)
        };
        let mut trainer = ParallelTrainer::of_threads(training, weights, device, PATIENCE).unwrap();
        // Large enough for what a step keeps to be more than what products lay out for a moment.
        let work = Workload {
            sequences: 64,
            length: 101,
            prompt: 1,
        };
        let records = work.records();
        trainer.train(&records).unwrap();
        for (rank, cpu) in devices.lock().unwrap().iter() {
            let planned = record(
                &toy.spec(),
                (&config, &parallel),
                &records,
                &Machine::h200(),
                &Arc::new(Groups::default()),
                Widths::CPU,
                *rank,
            );
            let planned = planned.unwrap().memory.peak() as f64;
            let gap = planned / cpu.peak_bytes() as f64 - 1.0;
            assert!(
                gap.abs() < 0.02,
                "{} {recompute:?} rank {rank}: planned {planned}, measured {}",
                parallel.short(),
                cpu.peak_bytes()
            );
        }
    }
}

#[test]
fn a_large_machines_ranks_make_matching_calls_and_come_to_an_end() {
    let spec = Toy::PLAIN.spec();
    let parallel = sequence_parallel(sizes(2, 4, 2, 2));
    // 24 tokens go in, which divide over the chunks of two cp ranks.
    let work = Workload { length: 25, ..WORK };
    let (groups, records) = (Arc::new(Groups::default()), work.records());
    let config = TrainConfig {
        max_tokens_per_gpu: 24,
        ..TrainConfig::default()
    };
    let all: Vec<Recorded> = (0..32)
        .map(|rank| {
            let both = (&config, &parallel);
            record(
                &spec,
                both,
                &records,
                &Machine::h200(),
                &groups,
                Widths::GPU,
                rank,
            )
            .unwrap()
        })
        .collect();
    // Ranks of one stage are alike: the same calls of the same sizes, in the same order.
    for rank in &all {
        assert_eq!(
            rank.calls,
            all[rank.rank / 8 * 8].calls,
            "rank {}",
            rank.rank
        );
    }
    let outcome = replay(&all, &groups.list());
    assert_eq!(outcome.halted, None);
    assert_eq!(outcome.ranks.len(), 32);
    // One rank a stage, the others taken to be like it, comes nearly to the same step: ranks differ in the ids they hold.
    let few: Vec<Recorded> = all.iter().step_by(8).cloned().collect();
    let fewer = replay(&few, &groups.list());
    let gap = fewer.step_s / outcome.step_s - 1.0;
    assert!(gap.abs() < 0.02, "{gap}");
    assert!(outcome.bubble() > 0.0 && outcome.exchanging() > 0.0);
}

/// Peaks of train steps on H200s, measured by `nccl --speed` and `gpu_speed` (docs/performance.md): sequences of 4,096 tokens.
#[test]
fn the_plans_memory_is_near_what_h200s_handed_out() {
    const GIB: f64 = (1u64 << 30) as f64;
    for (model, parallel, gpus, sequences, micro, compact, measured) in [
        ("qwen3-1.7b", "", 1, 16, 2, false, 43.7),
        ("qwen3-1.7b", "", 2, 32, 2, false, 32.7),
        ("qwen3-1.7b", "tp2", 2, 32, 2, false, 24.1),
        ("qwen3-1.7b", "tp2", 2, 32, 4, false, 29.0),
        ("qwen3-4b", "", 1, 8, 2, false, 93.0),
        ("qwen3-4b", "", 2, 16, 2, false, 69.0),
        ("qwen3-4b", "tp2", 2, 16, 2, false, 48.6),
        ("qwen3-8b", "", 1, 8, 2, true, 122.5),
        ("qwen3-8b", "", 2, 16, 2, true, 107.0),
        ("qwen3-8b", "tp2", 2, 16, 2, true, 62.9),
    ] {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/golden/published");
        let text = std::fs::read_to_string(format!("{folder}/{model}.json")).unwrap();
        let config = HfConfig::new(model, serde_json::from_str(&text).unwrap()).unwrap();
        let spec = Arc::new(ModelSpec {
            max_positions: 4096,
            ..from_config(&config).unwrap()
        });
        let parallel = match gpus {
            1 => ParallelConfig::default(),
            _ => ParallelConfig::from_words(parallel, gpus).unwrap(),
        };
        let config = TrainConfig {
            entropy_coef: 0.01,
            max_tokens_per_gpu: 4096 * micro,
            use_precision_aware_optimizer: compact,
            ..TrainConfig::default()
        };
        let work = Workload {
            sequences,
            length: 4096,
            prompt: 128,
        };
        let (both, machine) = ((&config, &parallel), Machine::h200());
        let (records, groups) = (work.records(), Arc::new(Groups::default()));
        let planned = record(&spec, both, &records, &machine, &groups, Widths::GPU, 0).unwrap();
        let planned = planned.memory.peak() as f64 / GIB;
        // What it does not know: workspaces of products and of attention, and blocks a little too large.
        let share = planned / measured;
        let layout = parallel.short();
        assert!(
            (0.95..1.02).contains(&share),
            "{model}, {layout}, {micro}: {planned:.1} of {measured} GiB"
        );
    }
}

#[test]
fn the_search_puts_what_fits_first_and_recomputes_no_more_than_it_must() {
    let spec = Toy::PLAIN.spec();
    let work = Workload {
        sequences: 16,
        length: 64,
        prompt: 8,
    };
    let roomy = search(&spec, &config(), 8, work, &Machine::h200());
    // The toy's recipe asks for a reference, which nobody gives a plan.
    assert!(roomy.is_err());
    let config = TrainConfig {
        max_tokens_per_gpu: 128,
        ..TrainConfig::default()
    };
    let roomy = search(&spec, &config, 8, work, &Machine::h200()).unwrap();
    assert!(
        roomy
            .iter()
            .all(|c| c.fits && c.recompute.0 == Recompute::None)
    );
    assert!(
        roomy
            .windows(2)
            .all(|w| w[0].outcome.step_s <= w[1].outcome.step_s)
    );
    let need = roomy.iter().map(|c| c.memory.peak()).min().unwrap() as f64;
    let tight = Machine {
        memory_bytes: need * 1.2,
        ..Machine::h200()
    };
    let squeezed = search(&spec, &config, 8, work, &tight).unwrap();
    assert!(
        squeezed
            .iter()
            .any(|c| c.fits && c.recompute.0 != Recompute::None)
    );
    let order: Vec<bool> = squeezed.iter().map(|c| c.fits).collect();
    assert!(order.is_sorted_by(|a, b| a >= b) && order.contains(&false));
}

#[test]
fn gradients_leave_while_the_backward_of_the_last_micro_batch_goes_on() {
    let spec = Toy::PLAIN.spec();
    let (groups, records) = (Arc::new(Groups::default()), WORK.records());
    let beside = |ddp_bucket_size| {
        let parallel = ParallelConfig {
            ddp_bucket_size,
            ..sizes(1, 1, 1, 2)
        };
        let config = TrainConfig {
            max_tokens_per_gpu: 48,
            ..TrainConfig::default()
        };
        let both = (&config, &parallel);
        let machine = Machine::h200();
        let of_rank = record(&spec, both, &records, &machine, &groups, Widths::GPU, 0).unwrap();
        assert!(of_rank.micro_batches > 1);
        let events = &of_rank.events;
        let named = |event: &Event, name: &str| match event {
            Event::Meet { group, .. } | Event::Begin { group, .. } => {
                groups.list()[*group as usize].0 == name
            }
            _ => false,
        };
        let seconds = |events: &[Event]| -> f64 {
            let of = |event: &Event| match event {
                Event::Compute(seconds) => *seconds,
                _ => 0.0,
            };
            events.iter().map(of).sum()
        };
        // The ranks' tokens meet after the passes, before the update.
        let end = events.iter().position(|e| named(e, "world")).unwrap();
        let sums = |e: &Event| named(e, "dp_cp");
        let first = events[..end].iter().position(sums).unwrap();
        let last = events[..end].iter().rposition(sums).unwrap();
        let micro = seconds(&events[..end]) / of_rank.micro_batches as f64;
        seconds(&events[first..last]) / micro
    };
    // Of one micro-batch's time, two thirds of which is its backward.
    let (each, all) = (beside(Some(1)), beside(None));
    assert!((0.4..0.8).contains(&each), "{each}");
    assert!(all < 0.01, "{all}");
}

#[test]
fn a_stage_that_another_waits_for_waits_for_no_gradients() {
    let spec = Toy::PLAIN.spec();
    let (groups, records) = (Arc::new(Groups::default()), WORK.records());
    let parallel = ParallelConfig {
        ddp_bucket_size: Some(1),
        ..sizes(1, 4, 1, 2)
    };
    let config = TrainConfig {
        max_tokens_per_gpu: 48,
        ..TrainConfig::default()
    };
    for stage in 0..4 {
        let both = (&config, &parallel);
        let (machine, rank) = (Machine::h200(), 2 * stage);
        let of_rank = record(&spec, both, &records, &machine, &groups, Widths::GPU, rank).unwrap();
        let leaves = |event: &Event| matches!(event, Event::Begin { group, .. } if groups.list()[*group as usize].0 == "dp_cp");
        let waits = |event: &Event| matches!(event, Event::Wait { group, .. } if groups.list()[*group as usize].0 == "dp_cp");
        let first = of_rank.events.iter().position(leaves).unwrap();
        let sent = of_rank
            .events
            .iter()
            .rposition(|e| matches!(e, Event::Send { .. }));
        let before = match sent.filter(|sent| *sent > first) {
            Some(sent) => &of_rank.events[first..sent],
            None => &[],
        };
        // Some leave before the last message does, and none is waited for.
        assert_eq!(before.iter().any(leaves), stage > 0, "stage {stage}");
        assert!(!before.iter().any(waits), "stage {stage}");
    }
}
