//! Routing replay: several train steps of one rollout step use the experts that the first pass chose.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use slime_model::layers::Recompute;
use slime_trainer::algo::weights::Aggregation;
use slime_trainer::data::{Batch, MicroBatch};
use slime_trainer::{Error, TrainConfig, Trainer};
use support::{bits, f32_cpu, network, records, trainer, weights};

fn config(use_routing_replay: bool) -> TrainConfig {
    TrainConfig {
        use_routing_replay,
        num_steps_per_rollout: Some(2),
        recompute_granularity: Recompute::Full,
        // Far enough for routers to change their minds between the two steps.
        lr: 0.2,
        max_tokens_per_gpu: 60,
        ..TrainConfig::default()
    }
}

#[test]
fn replayed_experts_change_the_steps_after_the_first() {
    let ops = f32_cpu();
    let trained = |replay| {
        let mut trainer = trainer(&ops, "qwen3-moe-tiny", config(replay));
        let records = records(2, trainer.network().spec().vocab, 5);
        let metrics = trainer.train(&records).unwrap();
        (bits(&trainer), metrics)
    };
    let (free, of_free) = trained(false);
    let (replayed, of_replayed) = trained(true);
    assert_eq!(of_free.len(), 2);
    assert_eq!(
        of_free[0].loss, of_replayed[0].loss,
        "the first step chooses the same"
    );
    assert_ne!(of_free[1].loss, of_replayed[1].loss);
    assert_ne!(free, replayed);
}

#[test]
fn a_model_without_experts_has_no_routes_to_replay() {
    let ops = f32_cpu();
    let (spec, weights) = weights(&*ops, "qwen3-tiny");
    let error = Trainer::new(ops, spec, weights, config(true))
        .err()
        .unwrap();
    assert!(matches!(error, Error::Config(_)));
    assert!(
        error
            .to_string()
            .contains("use_routing_replay: has no effect: qwen3 has no experts")
    );
}

#[test]
fn routes_are_recorded_for_every_row_that_trains() {
    let ops = f32_cpu();
    let network = network(&ops, "glm4-moe-tiny");
    let (tokens, mask) = (vec![5, 9, 3, 7, 11, 2], vec![0, 0, 1, 1, 0, 1]);
    let batch = Batch::from_masked(&[(&tokens, &mask)], Aggregation::TokenMean, 0);
    let micro = &MicroBatch::pack(&batch, 100)[0];
    let (_, routes) = network
        .forward_recording(&micro.ids, &micro.sequences, &micro.rows)
        .unwrap();
    let last = routes.layers.last().unwrap();
    let chosen: Vec<bool> = last
        .chunks(2)
        .map(|r| r[0] != slime_model::layers::Routes::FREE)
        .collect();
    assert_eq!(
        chosen,
        [false, true, true, false, true],
        "rows 1, 2 and 4 train"
    );
    assert!(routes.layers[0].is_empty(), "the first layer is dense");
}

#[test]
fn the_engines_experts_are_taken_from_the_records() {
    let ops = f32_cpu();
    let config = || TrainConfig {
        use_rollout_routing_replay: true,
        ..TrainConfig::default()
    };
    let model = "glm4-moe-tiny";
    let mut reference = trainer(&ops, model, TrainConfig::default());
    let network = network(&ops, model);
    let mut records = records(1, network.spec().vocab, 3);
    for record in &mut records {
        let (layers, top_k) = (network.spec().layers.len(), 2);
        let every: Vec<u32> = (0..record.tokens.len() as u32).collect();
        let layout = slime_kernels::Sequences::from_lengths([every.len()]);
        let (_, routes) = network
            .forward_recording(&record.tokens, &layout, &every)
            .unwrap();
        let mut told: Vec<u32> = Vec::new();
        for token in 0..every.len() - 1 {
            for layer in 0..layers {
                match &routes.layers[layer] {
                    dense if dense.is_empty() => told.extend([0, 0]),
                    experts => told.extend(&experts[token * top_k..][..top_k]),
                }
            }
        }
        let bytes: Vec<u8> = told.iter().flat_map(|e| e.to_le_bytes()).collect();
        record.routed_experts = Some(STANDARD.encode(bytes));
    }
    // The trainer's own choice, told by the records: the same bits.
    let mut told = trainer(&ops, model, config());
    reference.train(&records).unwrap();
    told.train(&records).unwrap();
    assert_eq!(bits(&told), bits(&reference));
    // Other experts: other gradients.
    let mut other = records.clone();
    for record in &mut other {
        let text = record.routed_experts.as_mut().unwrap();
        let mut bytes = STANDARD.decode(&*text).unwrap();
        bytes.iter_mut().step_by(4).for_each(|b| *b = (*b + 1) % 6);
        *text = STANDARD.encode(bytes);
    }
    let mut moved = trainer(&ops, model, config());
    moved.train(&other).unwrap();
    assert_ne!(bits(&moved), bits(&reference));

    // The old log-probs are those of the experts that train, so the first step's ratios are 1.
    let several = TrainConfig {
        num_steps_per_rollout: Some(3),
        ..config()
    };
    let first = &trainer(&ops, model, several).train(&other).unwrap()[0];
    assert!(first.ppo_kl.unwrap().abs() < 1e-6, "{:?}", first.ppo_kl);
    assert_eq!(first.clipfrac, Some(0.0));

    records[0].routed_experts = Some("AAAA".into());
    let error = told.train(&records).unwrap_err().to_string();
    assert!(
        error.contains("routed_experts has 3 bytes, should have"),
        "{error}"
    );
    records[0].routed_experts = None;
    let error = told.train(&records).unwrap_err().to_string();
    assert!(
        error.contains("needs routed_experts, and it has none"),
        "{error}"
    );
}
