//! What goes wrong when training is spread over ranks, each with the test that catches it. Numbers are those of the list in
//! docs/book/parallel.md, which also names the tests that live beside other code.

use super::cases::{experts, sequence_parallel, sizes};
use super::toy::{Toy, config, distance, mixed, on_many, on_one, outcome, ranks, records};
use super::watched::{watched, watched_as};
use super::{DOUBLE, gaps};
use slime_core::RolloutRecord;
use slime_kernels::{Cpu, Ops};
use slime_model::{ParamKind, params};
use slime_trainer::TrainConfig;
use slime_trainer::algo::Estimator;
use slime_trainer::parallel::slice::{LocalMicro, Slicing};
use slime_trainer::parallel::trainer::PATIENCE;
use slime_trainer::parallel::{ParallelConfig, ParallelTrainer, Training};
use std::collections::BTreeMap;
use std::sync::Arc;

type F64 = Cpu<f64>;

fn one(toy: Toy, config: &TrainConfig, records: &[RolloutRecord]) -> super::Outcome {
    on_one(&Arc::new(F64::new()), toy, config, records)
}

fn many(
    toy: Toy,
    config: &TrainConfig,
    parallel: &ParallelConfig,
    records: &[RolloutRecord],
) -> super::Outcome {
    on_many(F64::new, toy, config, parallel, records).unwrap()
}

#[test]
fn pitfall_01_norms_on_split_heads_and_rows_get_the_gradient_of_all_of_them() {
    let parallel = sequence_parallel(sizes(2, 1, 1, 1));
    let (got, want) = (
        many(Toy::PLAIN, &config(), &parallel, &mixed()),
        one(Toy::PLAIN, &config(), &mixed()),
    );
    let mut compared = 0;
    for param in params(&Toy::PLAIN.spec())
        .iter()
        .filter(|p| p.kind.is_norm())
    {
        let (got, want) = (&got.gradients[&param.name], &want.gradients[&param.name]);
        assert!(want.iter().any(|g| g.abs() > 1e-6), "{}", param.name);
        assert!(distance(got, want) < DOUBLE.1, "{}", param.name);
        compared += 1;
    }
    assert_eq!(compared, 4 * 4 + 1);
}

#[test]
fn pitfall_02_j12_replicas_of_key_heads_stay_the_same_bits_and_equal_one_rank() {
    let toy = Toy {
        kv: 2,
        ..Toy::PLAIN
    };
    let mut trainer = ranks(F64::new, toy, &config(), &sizes(4, 1, 1, 1)).unwrap();
    let metrics = trainer.train(&mixed()).unwrap();
    assert_eq!(metrics.len(), 3);
    let at = |kind| {
        trainer
            .params()
            .iter()
            .position(|p| p.kind == kind)
            .unwrap()
    };
    let qkv = at(ParamKind::Qkv);
    let held = trainer
        .on_all(move |rank| {
            let range = rank.stage.shards[qkv].key_replicas.clone();
            assert!(!range.is_empty());
            let data = F64::new().read_f64(&rank.stage.weights.0[qkv])?;
            Ok(data[range].iter().map(|x| x.to_bits()).collect::<Vec<_>>())
        })
        .unwrap();
    assert!(held[0] == held[1] && held[2] == held[3] && held[0] != held[2]);
    let got = outcome(&trainer, metrics).unwrap();
    let gaps = gaps(&got, &one(toy, &config(), &mixed()));
    assert!(
        gaps.gradient < DOUBLE.1 && gaps.weight < DOUBLE.2,
        "{gaps:?}"
    );
}

#[test]
fn pitfall_03_gradients_of_experts_are_summed_over_those_who_hold_them_and_not_scaled() {
    let toy = Toy {
        family: "qwen3_moe",
        ..Toy::PLAIN
    };
    let want = one(toy, &config(), &mixed());
    // Four ranks train on different sequences, two hold each expert.
    let parallel = experts(2, 1, sizes(1, 1, 1, 4));
    let got = many(toy, &config(), &parallel, &mixed());
    let mut compared = 0;
    for param in params(&toy.spec()) {
        if matches!(param.kind, ParamKind::ExpertGateUp | ParamKind::ExpertDown) {
            let (got, want) = (&got.gradients[&param.name], &want.gradients[&param.name]);
            assert!(distance(got, want) < DOUBLE.1, "{}", param.name);
            assert!(want.iter().any(|g| g.abs() > 1e-6), "{}", param.name);
            compared += 1;
        }
    }
    assert_eq!(compared, 6);
}

#[test]
fn pitfall_20_experts_results_are_added_in_one_order_however_ranks_dawdle() {
    let toy = Toy {
        family: "qwen3_moe",
        ..Toy::PLAIN
    };
    let parallel = experts(2, 1, sizes(1, 1, 1, 2));
    let of = |slowest, seed| {
        let (mut trainer, _) = watched_as(toy, &config(), &parallel, slowest, seed);
        let metrics = trainer.train(&mixed()).unwrap();
        outcome(&trainer, metrics).unwrap()
    };
    let calm = of(0, 0);
    assert!(of(300, 1) == calm && of(300, 2) == calm);
}

#[test]
fn pitfall_04_rows_that_pad_the_vocabulary_are_not_in_the_softmax() {
    // 263 rows over 2 and 4 ranks need padding, and the tokenizer knows 259. With all logits equal the entropy says how
    // many tokens were counted.
    let flat = |param: &slime_model::ParamSpec| {
        let weight = super::toy::weight(param);
        Ok(match param.kind {
            ParamKind::Head => vec![0.0; weight.len()],
            _ => weight,
        })
    };
    for tp in [1, 2, 4] {
        let training = Training {
            spec: Toy::PLAIN.spec(),
            config: TrainConfig::default(),
            parallel: sizes(tp, 1, 1, 1),
            vocab: 259,
        };
        let device = |_| Ok(Arc::new(F64::new()));
        let trainer =
            ParallelTrainer::of_threads(training, Arc::new(flat), device, PATIENCE).unwrap();
        let scores = trainer.log_probs(&[&[3, 141, 59, 258]]).unwrap();
        for entropy in &scores[0].entropy {
            assert!((entropy - 259f64.ln()).abs() < 1e-12, "tp{tp}: {entropy}");
        }
        for logprob in &scores[0].logprobs {
            assert!((logprob + 259f64.ln()).abs() < 1e-12, "tp{tp}: {logprob}");
        }
    }
}

#[test]
fn pitfall_05_gradients_do_not_depend_on_how_many_micro_batches_a_step_has() {
    let of = |tokens| {
        let config = TrainConfig {
            max_tokens_per_gpu: tokens,
            num_steps_per_rollout: Some(1),
            ..config()
        };
        many(Toy::PLAIN, &config, &sizes(1, 1, 1, 2), &mixed())
    };
    let whole = of(10_000);
    for tokens in [1, 20, 35] {
        let split = of(tokens);
        assert!(split.metrics[0].micro_batches > whole.metrics[0].micro_batches);
        let gaps = gaps(&split, &whole);
        assert!(gaps.gradient < DOUBLE.1 && gaps.loss < 1e-12, "{gaps:?}");
    }
}

#[test]
fn pitfall_06_advantages_are_whitened_over_all_tokens_not_each_ranks_own() {
    let config = TrainConfig {
        advantage_estimator: Estimator::ReinforcePlusPlus,
        normalize_advantages: true,
        use_kl_loss: false,
        kl_loss_coef: 0.0,
        kl_coef: 0.1,
        ..config()
    };
    let want = one(Toy::PLAIN, &config, &mixed());
    let got = many(Toy::PLAIN, &config, &sizes(1, 1, 2, 2), &mixed());
    for (got, want) in got.metrics.iter().zip(&want.metrics) {
        let (got, want) = (got.advantage_abs.unwrap(), want.advantage_abs.unwrap());
        assert!((got - want).abs() < 1e-12 && want > 0.1, "{got} {want}");
    }
}

#[test]
fn pitfall_07_a_rank_without_a_token_that_trains_takes_part_in_every_call() {
    // One response token: with 4 ranks a sequence, three of them hold none.
    let records = records(&[(20, 1), (17, 1)], 4);
    let batch_of = |cp_rank| {
        let tokens = records[0].tokens.clone();
        let micro = slime_trainer::data::MicroBatch {
            members: vec![0],
            sequences: slime_kernels::Sequences::from_lengths([20]),
            ids: tokens[..20].to_vec(),
            rows: vec![19],
            targets: vec![tokens[20]],
            tokens: vec![0],
            routes: None,
        };
        let slicing = Slicing {
            cp: 4,
            cp_rank,
            multiple: 1,
        };
        LocalMicro::new(&micro, slicing).rows.len()
    };
    assert_eq!((0..4).map(batch_of).collect::<Vec<_>>(), [0, 1, 0, 0]);
    let config = TrainConfig {
        num_steps_per_rollout: Some(1),
        ..config()
    };
    for estimator in [Estimator::Grpo, Estimator::Gspo] {
        let config = TrainConfig {
            advantage_estimator: estimator,
            ..config.clone()
        };
        let got = many(Toy::PLAIN, &config, &sizes(2, 1, 4, 1), &records);
        let gaps = gaps(&got, &one(Toy::PLAIN, &config, &records));
        assert!(gaps.gradient < DOUBLE.1, "{gaps:?}");
    }
}

fn scores(parallel: &ParallelConfig, sequences: &[&[u32]]) -> Vec<Vec<f64>> {
    let config = TrainConfig {
        max_tokens_per_gpu: 200,
        ..TrainConfig::default()
    };
    let trainer = ranks(F64::new, Toy::PLAIN, &config, parallel).unwrap();
    let scores = trainer.log_probs(sequences).unwrap();
    scores.into_iter().map(|s| s.logprobs).collect()
}

#[test]
fn pitfall_09_positions_and_masks_are_those_of_the_whole_sequence() {
    let tokens: Vec<u32> = (0..45).map(|i| (i * 37 + 11) % 259).collect();
    let lengths = [2, 7, 8, 9, 23, 45];
    let sequences: Vec<&[u32]> = lengths.iter().map(|&n| &tokens[..n]).collect();
    let whole = scores(&sizes(1, 1, 1, 1), &sequences);
    let split = scores(&sizes(1, 1, 4, 1), &sequences);
    for (len, (split, whole)) in lengths.iter().zip(split.iter().zip(&whole)) {
        assert_eq!((split.len(), whole.len()), (len - 1, len - 1));
        for (t, (a, b)) in split.iter().zip(whole).enumerate() {
            assert!((a - b).abs() < 1e-11, "token {t} of {len}: {a} {b}");
        }
    }
    // Two tokens of the first chunk change places: every later token notices, wherever it lies, and no earlier one.
    let mut swapped = tokens.clone();
    swapped.swap(3, 4);
    let other = scores(&sizes(1, 1, 4, 1), &[&swapped]);
    for t in 0..44 {
        let same = (other[0][t] - split[5][t]).abs() < 1e-12;
        assert_eq!(same, t < 2, "token {t}");
    }
}

#[test]
fn pitfall_10_the_last_token_of_a_sequence_does_not_predict_the_first_of_the_next() {
    let tokens: Vec<u32> = (0..19).map(|i| (i * 53 + 7) % 259).collect();
    for parallel in [
        sizes(1, 1, 1, 1),
        sizes(1, 1, 2, 1),
        sequence_parallel(sizes(2, 1, 2, 1)),
    ] {
        let got = scores(&parallel, &[&tokens, &tokens, &tokens[..5]]);
        assert_eq!(got[0], got[1]);
        // A shorter sequence is cut into other chunks, so with cp the same sums are merged in another order.
        for (a, b) in got[0].iter().zip(&got[2]) {
            assert!((a - b).abs() < 1e-12, "{}: {a} {b}", parallel.short());
        }
    }
}

#[test]
fn pitfall_11_j05_pads_and_dummy_sequences_leave_no_nan() {
    // Memory is full of NaN when it is handed out, so a pad that is read before it is written shows.
    let poisoned = on_many(
        F64::poisoning,
        Toy::PLAIN,
        &config(),
        &sequence_parallel(sizes(4, 1, 2, 1)),
        &mixed(),
    );
    let gaps = gaps(&poisoned.unwrap(), &one(Toy::PLAIN, &config(), &mixed()));
    assert!(gaps.gradient < DOUBLE.1 && gaps.loss < DOUBLE.0, "{gaps:?}");
}

#[test]
fn pitfall_14_j09_j10_the_gradient_norm_counts_each_element_once_in_every_layout() {
    let toy = Toy {
        kv: 2,
        tied: true,
        ..Toy::PLAIN
    };
    let config = TrainConfig {
        num_steps_per_rollout: Some(1),
        ..config()
    };
    let want = one(toy, &config, &mixed()).metrics[0].grad_norm.unwrap();
    for parallel in [
        sizes(4, 1, 1, 1),
        sequence_parallel(sizes(4, 1, 1, 1)),
        sizes(1, 2, 1, 1),
        sizes(1, 1, 2, 3),
        sequence_parallel(sizes(4, 2, 1, 1)),
    ] {
        let got = many(toy, &config, &parallel, &mixed()).metrics[0]
            .grad_norm
            .unwrap();
        assert!(
            (got / want - 1.0).abs() < 1e-11,
            "{}: {got} {want}",
            parallel.short()
        );
    }
}

#[test]
fn pitfall_15_a_tied_embedding_gets_both_gradients_on_the_first_and_the_last_stage() {
    let toy = Toy {
        family: "llama",
        kv: 4,
        tied: true,
    };
    let mut trainer = ranks(F64::new, toy, &config(), &sizes(1, 2, 1, 2)).unwrap();
    let metrics = trainer.train(&mixed()).unwrap();
    let held = trainer
        .on_all(|rank| Ok(F64::new().read_f64(&rank.stage.weights.0[0])?))
        .unwrap();
    assert!(held.iter().all(|copy| *copy == held[0] && !copy.is_empty()));
    let gaps = gaps(
        &outcome(&trainer, metrics).unwrap(),
        &one(toy, &config(), &mixed()),
    );
    assert!(
        gaps.gradient < DOUBLE.1 && gaps.weight < DOUBLE.2,
        "{gaps:?}"
    );
}

#[test]
fn pitfall_16_padding_of_buckets_is_never_updated_counted_or_saved() {
    let total: usize = params(&Toy::PLAIN.spec()).iter().map(|p| p.len()).sum();
    assert!(
        !total.is_multiple_of(7),
        "the toy no longer needs padding over 7 ranks"
    );
    let mut trainer = ranks(F64::new, Toy::PLAIN, &config(), &sizes(1, 1, 1, 7)).unwrap();
    let metrics = trainer.train(&mixed()).unwrap();
    let held = trainer.on_all(|rank| {
        let segments = rank.optimizer.segments.iter();
        Ok(segments.map(|s| s.range.len()).sum::<usize>())
    });
    assert_eq!(held.unwrap().iter().sum::<usize>(), total);
    let gaps = gaps(
        &outcome(&trainer, metrics).unwrap(),
        &one(Toy::PLAIN, &config(), &mixed()),
    );
    assert!(gaps.loss < DOUBLE.0 && gaps.weight < DOUBLE.2, "{gaps:?}");
}

#[test]
fn pitfall_17_slow_gathers_never_leave_stale_weights() {
    let (mut trainer, _) = watched(&sizes(1, 1, 1, 3), 3000, 1);
    let metrics = trainer.train(&mixed()).unwrap();
    let held = trainer
        .on_all(|rank| {
            let ops = F64::new();
            let all = rank.stage.weights.0.iter().map(|w| ops.read_f64(w));
            Ok(all.collect::<slime_kernels::Result<Vec<_>>>()?)
        })
        .unwrap();
    assert!(held[0] == held[1] && held[0] == held[2]);
    let gaps = gaps(
        &outcome(&trainer, metrics).unwrap(),
        &one(Toy::PLAIN, &config(), &mixed()),
    );
    assert!(gaps.weight < DOUBLE.2, "{gaps:?}");
}

#[test]
fn pitfall_18_small_gradients_of_many_micro_batches_are_not_lost() {
    let lengths: Vec<_> = (0..64).map(|i| (2 + i % 4, 3 + i % 5)).collect();
    let records = records(&lengths, 21);
    let of = |tokens| {
        let config = TrainConfig {
            max_tokens_per_gpu: tokens,
            num_steps_per_rollout: Some(1),
            ..config()
        };
        on_many(
            Cpu::<f32>::new,
            Toy::PLAIN,
            &config,
            &sizes(1, 1, 1, 1),
            &records,
        )
        .unwrap()
    };
    let (one_by_one, whole) = (of(1), of(100_000));
    assert!(one_by_one.metrics[0].micro_batches > 50 && whole.metrics[0].micro_batches == 1);
    let gaps = gaps(&one_by_one, &whole);
    assert!(gaps.gradient < 1e-5, "{gaps:?}");
}

#[test]
fn pitfall_29_no_buffer_is_reused_before_its_reader_is_done() {
    let layout = sequence_parallel(sizes(2, 2, 1, 1));
    let of = |slowest, seed| {
        let (mut trainer, _) = watched(&layout, slowest, seed);
        let metrics = trainer.train(&mixed()).unwrap();
        outcome(&trainer, metrics).unwrap()
    };
    let calm = of(0, 0);
    assert!(of(400, 1) == calm && of(400, 2) == calm);
}

#[test]
fn pitfall_30_calls_have_one_order_even_if_every_send_waits_for_its_receiver() {
    // Replayed with calls that block until all members have come, a send and its receive being one call of two members.
    // Messages forward and backward have a stream each, as on a GPU, so a rank's calls of one stream are in order.
    let moe = Toy {
        family: "glm4_moe",
        ..Toy::PLAIN
    };
    for (toy, layout) in [
        (Toy::PLAIN, sequence_parallel(sizes(2, 2, 2, 1))),
        (Toy::PLAIN, sizes(1, 4, 1, 2)),
        (moe, experts(2, 2, sequence_parallel(sizes(2, 2, 1, 2)))),
    ] {
        let (mut trainer, log) = watched_as(toy, &config(), &layout, 0, 0);
        trainer.train(&mixed()).unwrap();
        let log = log.lock().unwrap().clone();
        let stream_of = |call: &str| match call.split_once([' ']).map(|(_, op)| op) {
            Some(op) if op.contains("> ") || op.contains("< ") => {
                // The tag's parity is the direction.
                1 + usize::from(call.ends_with(['1', '3', '5', '7', '9']))
            }
            _ => 0,
        };
        let mut queues: BTreeMap<(usize, usize), std::collections::VecDeque<String>> =
            BTreeMap::new();
        for (&rank, calls) in &log {
            for call in calls {
                let key = (rank, stream_of(call));
                queues
                    .entry(key)
                    .or_default()
                    .push_back(call.replace("> ", "~ ").replace("< ", "~ "));
            }
        }
        let members = |call: &str, rank: usize| -> usize {
            if call.contains('~') {
                return 2;
            }
            let inside = call.split_once('[').unwrap().1.split_once(']').unwrap().0;
            assert!(inside.split(", ").any(|m| m == rank.to_string()));
            inside.split(", ").count()
        };
        loop {
            let mut fronts: BTreeMap<String, Vec<(usize, usize)>> = BTreeMap::new();
            for (key, queue) in &queues {
                if let Some(call) = queue.front() {
                    fronts.entry(call.clone()).or_default().push(*key);
                }
            }
            if fronts.is_empty() {
                break;
            }
            let ready: Vec<(usize, usize)> = fronts
                .iter()
                .filter(|(call, keys)| keys.len() == members(call, keys[0].0))
                .flat_map(|(_, keys)| keys.clone())
                .collect();
            assert!(
                !ready.is_empty(),
                "{} stands still: {fronts:?}",
                layout.short()
            );
            for key in ready {
                queues.get_mut(&key).unwrap().pop_front();
            }
        }
    }
}

#[test]
fn pitfall_31_the_first_step_has_ratio_one_in_every_layout() {
    for parallel in [
        sizes(1, 1, 1, 1),
        sequence_parallel(sizes(2, 2, 2, 1)),
        sizes(1, 1, 1, 3),
    ] {
        let config = TrainConfig {
            num_steps_per_rollout: Some(2),
            ..config()
        };
        let got = on_many(Cpu::<f32>::new, Toy::PLAIN, &config, &parallel, &mixed()).unwrap();
        // The old log-probs are a pass of their own, of the same micro-batches: the same bits, so the KL is exactly 0.
        assert_eq!(got.metrics[0].ppo_kl, Some(0.0), "{}", parallel.short());
    }
}

#[test]
fn pitfall_32_a_model_that_was_cut_into_shards_is_exported_byte_by_byte() {
    for family in ["llama", "qwen2", "qwen3", "glm4_moe", "deepseek_v3"] {
        let toy = Toy {
            family,
            kv: if family == "deepseek_v3" { 8 } else { 2 },
            tied: false,
        };
        let tp2 = sequence_parallel(sizes(2, 1, 1, 1));
        let mut layouts = vec![tp2, sequence_parallel(sizes(4, 2, 1, 1))];
        if family.ends_with("moe") || family == "deepseek_v3" {
            layouts.push(experts(2, 1, sequence_parallel(sizes(2, 1, 1, 1))));
            layouts.push(experts(2, 2, sizes(1, 1, 2, 2)));
        }
        for parallel in layouts {
            let trainer = ranks(Cpu::<f32>::new, toy, &TrainConfig::default(), &parallel).unwrap();
            for param in trainer.params().iter() {
                let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
                let got = trainer.read_param(param).unwrap();
                assert!(
                    bits(&got) == bits(&super::toy::weight(param)),
                    "{}",
                    param.name
                );
            }
        }
    }
}
