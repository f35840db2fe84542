//! Every estimator and every loss on 50 random ragged batches, against PyTorch in float64: groups of one, constant
//! groups, fan-out, rollouts that were not scored, masked tokens, empty masks, shuffled records.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use safetensors::SafeTensors;
use serde_json::Value;
use slime_core::{GroupId, RolloutId, RolloutRecord};
use slime_trainer::algo::value;
use slime_trainer::data::rollouts::{Limits, rollouts};
use slime_trainer::data::{Batch, Columns};
use slime_trainer::step::{Evaluation, Scores, metrics};
use slime_trainer::{TrainConfig, advantages, passes};
use std::collections::BTreeMap;
use std::path::PathBuf;

const LIMITS: Limits = Limits {
    vocab: 1 << 20,
    max_positions: 64,
};

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/algo")
        .join(file)
}

fn expected() -> BTreeMap<String, Vec<f64>> {
    let mut all = BTreeMap::new();
    for file in ["ragged_advantages.safetensors", "ragged_losses.safetensors"] {
        let bytes = std::fs::read(path(file)).unwrap();
        for (name, view) in SafeTensors::deserialize(&bytes).unwrap().iter() {
            all.insert(name.to_owned(), bytemuck::pod_collect_to_vec(view.data()));
        }
    }
    all
}

/// A batch's records, and for each the numbers the models would give, one a response token.
struct Case {
    records: Vec<RolloutRecord>,
    numbers: Vec<BTreeMap<String, Vec<f64>>>,
}

/// Where a record's response begins: its first token names the record, so a sequence can be traced back to it.
const PROMPT: usize = 2;

fn case(batch: &Value, unit: f64) -> Case {
    let (mut records, mut numbers) = (Vec::new(), Vec::new());
    for (index, record) in batch.as_array().unwrap().iter().enumerate() {
        let list = |key: &str| -> Vec<f64> {
            let values = record[key].as_array().unwrap();
            values.iter().map(|x| x.as_f64().unwrap()).collect()
        };
        let mask: Vec<u8> = list("mask").iter().map(|m| *m as u8).collect();
        let mut own: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for key in [
            "logp",
            "old",
            "reference",
            "engine",
            "teacher",
            "value",
            "value_now",
            "entropy",
        ] {
            own.insert(key.to_owned(), list(key).iter().map(|x| x / unit).collect());
        }
        let singles =
            |key: &str| -> Vec<f32> { own[key].iter().map(|&x: &f64| x as f32).collect() };
        records.push(RolloutRecord {
            group_id: GroupId(record["group"].as_u64().unwrap()),
            rollout_id: RolloutId(record["rollout"].as_u64().unwrap()),
            tokens: vec![index as u32; PROMPT + mask.len()],
            response_length: mask.len(),
            rollout_log_probs: singles("engine"),
            teacher_log_probs: singles("teacher"),
            reward: record["reward"].as_f64(),
            outcome: if record["reward"].is_null() {
                "timeout"
            } else {
                "scored"
            }
            .into(),
            loss_mask: mask,
            ..RolloutRecord::default()
        });
        numbers.push(own);
    }
    Case { records, numbers }
}

/// One number of every token that trains, in the batch's order.
fn column(case: &Case, batch: &Batch<'_>, key: &str) -> Vec<f64> {
    let mut out = vec![f64::NAN; batch.num_trained()];
    for sequence in &batch.sequences {
        let own = &case.numbers[sequence.tokens[0] as usize][key];
        for (&row, number) in sequence.rows.iter().zip(sequence.trained.clone()) {
            out[number] = own[row as usize + 1 - PROMPT];
        }
    }
    out
}

fn close(got: &[f64], want: &[f64], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (at, (got, want)) in got.iter().zip(want).enumerate() {
        let gap = (got - want).abs();
        assert!(
            gap <= 1e-10 * want.abs().max(1.0),
            "{what}[{at}]: {got} is not {want}"
        );
    }
}

#[test]
fn every_estimator_and_loss_agrees_with_float64_pytorch_on_fifty_ragged_batches() {
    let file: Value =
        serde_json::from_str(&std::fs::read_to_string(path("ragged.json")).unwrap()).unwrap();
    let unit = file["unit"].as_f64().unwrap();
    let cases: Vec<Case> = file["batches"]
        .as_array()
        .unwrap()
        .iter()
        .map(|b| case(b, unit))
        .collect();
    assert_eq!(cases.len(), 50);
    let expected = expected();
    let variants = file["variants"].as_object().unwrap();
    assert!(variants.len() >= 32);
    for (name, config) in variants {
        let config: TrainConfig = serde_json::from_value(config.clone()).unwrap();
        assert_eq!(config.validate(), Ok(()), "{name}");
        let mut got: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        let mut put = |key, values: &[f64]| got.entry(key).or_default().extend_from_slice(values);
        for case in &cases {
            let rollouts = rollouts(&case.records, LIMITS).unwrap();
            let length = config.loss_constant_length.unwrap_or(0);
            let mut batches = [Batch::new(
                &rollouts,
                0..rollouts.len(),
                config.loss_aggregation,
                length,
            )];
            let of = |key| column(case, &batches[0], key);
            let old = if config.use_rollout_logprobs {
                of("engine")
            } else {
                of("old")
            };
            let (reference, value, value_now) = (of("reference"), of("value"), of("value_now"));
            let scores = Scores {
                logp: of("logp"),
                entropy: of("entropy"),
            };
            batches[0].columns = Columns {
                old,
                reference,
                value,
                ..batches[0].columns.clone()
            };
            advantages::fill(&config, &rollouts, &mut batches);
            let [batch] = &mut batches;
            if let Some(mismatch) = config.mismatch() {
                passes::correct(batch, &mismatch);
            }
            put("advantage", &batch.columns.advantage);
            let evaluation = Evaluation {
                objective: config.objective(),
                batch,
                old_is_engine: config.use_rollout_logprobs,
            };
            let (dlogp, dentropy) = evaluation.slopes(&scores);
            put("dlogp", &dlogp);
            put("dentropy", &dentropy);
            put("loss", &[metrics(&evaluation, &scores).loss]);
            if config.has_critic() {
                let columns = &batch.columns;
                put("returns", &columns.returns);
                let losses: Vec<_> = (0..value_now.len())
                    .map(|i| {
                        value::loss(
                            value_now[i],
                            columns.value[i],
                            columns.returns[i],
                            config.value_clip,
                        )
                    })
                    .collect();
                let weighted = |of: fn(&value::ValueLoss) -> f64| -> Vec<f64> {
                    losses
                        .iter()
                        .zip(&columns.weight)
                        .map(|(l, w)| w * of(l))
                        .collect()
                };
                put("dvalue", &weighted(|l| l.dvalue));
                put("value_loss", &[weighted(|l| l.loss).iter().sum()]);
            }
        }
        let mut compared = 0;
        for (key, got) in got {
            // What does not differ from plain GRPO's, and the slope of an entropy without weight, are not stored twice.
            let want = match (expected.get(&format!("{name}/{key}")), key) {
                (Some(want), _) => want,
                (None, "advantage") => &expected["grpo/advantage"],
                (None, "dentropy") => &vec![0.0; got.len()],
                _ => panic!("{name}/{key} is not in the golden file"),
            };
            close(&got, want, &format!("{name}/{key}"));
            compared += got.iter().filter(|x| **x != 0.0).count();
        }
        assert!(compared > 300, "{name}: only {compared} numbers are not 0");
    }
}
