//! Golden models, and rollouts made up from them.
#![allow(dead_code, reason = "each test file uses a part of it")]

use safetensors::SafeTensors;
use serde_json::Value;
use slime_core::{GroupId, RolloutId, RolloutRecord};
use slime_kernels::{Cpu, Ops};
use slime_model::hf::HfDir;
use slime_model::layers::{Gradients, Recompute};
use slime_model::{ModelSpec, Network, ParamSpec};
use slime_trainer::algo::clip::Clip;
use slime_trainer::algo::kl::KlKind;
use slime_trainer::algo::objective::{KlTerm, Objective, PolicyLoss};
use slime_trainer::algo::weights::Aggregation;
use slime_trainer::data::{Batch, MicroBatch};
use slime_trainer::head::Head;
use slime_trainer::step::{Evaluation, Scores, metrics, micro_step};
use slime_trainer::{TrainConfig, TrainMetrics, Trainer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MODELS: [&str; 16] = [
    "llama3-tiny",
    "llama-tiny-tied",
    "qwen2-tiny",
    "qwen3-tiny",
    "glm4-tiny",
    "qwen3-moe-tiny",
    "glm4-moe-tiny",
    "deepseek-v3-tiny",
    "moonlight-tiny",
    "qwen3-next-tiny",
    "glm4-moe-lite-tiny",
    "glm5-tiny",
    "qwen3.5-tiny",
    "qwen3.5-moe-tiny",
    "qwen3.5-published-tiny",
    "qwen3.5-moe-published-tiny",
];

/// The golden models; or only the one in the directory `SLIME_FAMILY_DIR`, which tests/golden/check_family.py sets.
pub(crate) fn models() -> Vec<String> {
    match std::env::var("SLIME_FAMILY_DIR") {
        Ok(dir) => vec![dir],
        Err(_) => MODELS.map(str::to_owned).to_vec(),
    }
}

/// What f32 may differ by: little on the golden models, more where short vectors are brought to unit length (delta
/// nets), most on a model that nobody has looked at.
pub(crate) fn tolerance(model: &str, golden: f64, unseen: f64) -> f64 {
    let delta_net = model.contains("qwen3-next") || model.contains("qwen3.5");
    match std::env::var("SLIME_FAMILY_DIR") {
        // Where rounding alone takes transformers' own logits far, it takes gradients far as well.
        Ok(_) => {
            let rounding = std::env::var("SLIME_FAMILY_FLOAT32");
            let rounding = rounding.map_or(0.0, |gap| gap.parse::<f64>().unwrap());
            unseen * f64::max(1.0, rounding / 3e-5)
        }
        Err(_) if delta_net => 20.0 * golden,
        Err(_) => golden,
    }
}

/// The precision that a comparison runs in.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Precision {
    F32,
    F64,
}

pub(crate) fn golden_dir(model: &str) -> PathBuf {
    [
        env!("CARGO_MANIFEST_DIR"),
        "..",
        "..",
        "tests",
        "golden",
        "models",
        model,
    ]
    .iter()
    .collect()
}

/// A golden model's numbers.
pub(crate) fn golden(model: &str) -> Value {
    let text = std::fs::read_to_string(golden_dir(model).join("golden.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Gradients by HF name, those under `prefix/`.
pub(crate) fn golden_grads(model: &str, prefix: &str) -> BTreeMap<String, Vec<f32>> {
    let bytes = std::fs::read(golden_dir(model).join("grads.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    file.iter()
        .filter_map(|(name, view)| {
            let name = name.strip_prefix(prefix)?.strip_prefix('/')?;
            Some((name.to_owned(), bytemuck::pod_collect_to_vec(view.data())))
        })
        .collect()
}

/// An array of numbers.
pub(crate) fn floats(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

/// An array of token ids.
pub(crate) fn ids(value: &Value) -> Vec<u32> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_u64().unwrap() as u32)
        .collect()
}

/// Gradients and metrics of the golden file's GRPO loss.
pub(crate) fn run_grpo<O: Ops>(
    network: &Network<O>,
    grpo: &Value,
    recompute: Recompute,
    max_tokens: usize,
) -> (Gradients<O>, TrainMetrics) {
    let number = |key: &str| grpo["config"][key].as_f64().unwrap();
    let kind: KlKind = serde_json::from_value(grpo["config"]["kl_loss_type"].clone()).unwrap();
    let (low, high) = (number("eps_clip"), number("eps_clip_high"));
    let objective = Objective {
        loss: PolicyLoss::Clipped,
        clip: Clip {
            low,
            high,
            dual: Some(number("eps_clip_c")),
        },
        kl: Some(KlTerm {
            kind,
            coef: number("kl_loss_coef"),
            unbiased: false,
        }),
        entropy_coef: number("entropy_coef"),
        tis: None,
        opsm_delta: None,
    };
    let rollouts = grpo["rollouts"].as_array().unwrap();
    let tokens: Vec<Vec<u32>> = rollouts.iter().map(|r| ids(&r["tokens"])).collect();
    let mask_of = |r: &Value| {
        std::iter::once(0)
            .chain(floats(&r["loss_mask"]).iter().map(|&m| m as u8))
            .collect()
    };
    let masks: Vec<Vec<u8>> = rollouts.iter().map(mask_of).collect();
    let pairs: Vec<(&[u32], &[u8])> = tokens
        .iter()
        .zip(&masks)
        .map(|(t, m)| (&t[..], &m[..]))
        .collect();
    let mut batch = Batch::from_masked(&pairs, Aggregation::RolloutMean, 0);
    for sequence in batch.sequences.clone() {
        let rollout = &rollouts[sequence.rollout];
        let (old, reference) = (
            floats(&rollout["old_logprobs"]),
            floats(&rollout["ref_logprobs"]),
        );
        for (&row, number) in sequence.rows.iter().zip(sequence.trained.clone()) {
            batch.columns.old[number] = old[row as usize];
            batch.columns.reference[number] = reference[row as usize];
            batch.columns.advantage[number] = rollout["advantage"].as_f64().unwrap();
        }
    }
    let ops = network.ops();
    let head = Head {
        ops: &**ops,
        weight: network.weights().get(network.head()),
        temperature: number("temperature"),
        vocab: network.spec().vocab,
        chunk_rows: Some(7),
    };
    let mut grads = Gradients::zeros(&**ops, network.weights()).unwrap();
    let mut scores = Scores::unknown(batch.num_trained());
    let evaluation = Evaluation {
        objective,
        batch: &batch,
        old_is_engine: false,
    };
    for micro in MicroBatch::pack(&batch, max_tokens) {
        micro_step(
            network,
            &head,
            &evaluation,
            &micro,
            &[recompute],
            &mut grads,
            &mut scores,
        )
        .unwrap();
    }
    (grads, metrics(&evaluation, &scores))
}

pub(crate) fn weights<O: Ops>(ops: &O, model: &str) -> (Arc<ModelSpec>, Vec<O::Tensor>) {
    weights_at(ops, &golden_dir(model))
}

pub(crate) fn weights_at<O: Ops>(ops: &O, dir: &Path) -> (Arc<ModelSpec>, Vec<O::Tensor>) {
    let dir = HfDir::open(dir).unwrap();
    let mut weights = Vec::new();
    dir.weights
        .load_params(&dir.spec, |param, data| {
            weights.push(ops.tensor(param.rows, param.cols, &data)?);
            Ok::<_, slime_model::Error>(())
        })
        .unwrap();
    (Arc::new(dir.spec), weights)
}

pub(crate) fn network<O: Ops>(ops: &Arc<O>, model: &str) -> Network<O> {
    let (spec, weights) = weights(&**ops, model);
    Network::new(ops.clone(), spec, weights).unwrap()
}

pub(crate) fn trainer<O: Ops>(ops: &Arc<O>, model: &str, config: TrainConfig) -> Trainer<O> {
    let (spec, weights) = weights(&**ops, model);
    Trainer::new(ops.clone(), spec, weights, config).unwrap()
}

pub(crate) fn f64_cpu() -> Arc<Cpu<f64>> {
    Arc::new(Cpu::new())
}

pub(crate) fn f32_cpu() -> Arc<Cpu<f32>> {
    Arc::new(Cpu::new())
}

/// Gradients by HF name.
pub(crate) fn by_name<O: Ops>(
    ops: &O,
    params: &[ParamSpec],
    grads: &Gradients<O>,
) -> BTreeMap<String, Vec<f64>> {
    let mut out = BTreeMap::new();
    for (param, grad) in params.iter().zip(&grads.0) {
        let data = ops.read_float_f64(grad).unwrap();
        let mut rest = &data[..];
        for part in &param.parts {
            let (own, after) = rest.split_at(part.len());
            out.insert(part.name.clone(), own.to_vec());
            rest = after;
        }
    }
    out
}

/// Every weight, as bits.
pub(crate) fn bits<O: Ops>(trainer: &Trainer<O>) -> Vec<u64> {
    let ops = trainer.network().ops().clone();
    let all = trainer.network().weights().0.iter();
    all.flat_map(|w| ops.read_f64(w).unwrap())
        .map(f64::to_bits)
        .collect()
}

/// `|a - b| / |b|` in L2.
pub(crate) fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
    difference / norm(&mut b.iter().copied()).max(1e-300)
}

/// Small numbers that look random and are the same everywhere.
pub(crate) struct Numbers(pub(crate) u64);

impl Numbers {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    pub(crate) fn tokens(&mut self, len: usize, vocab: usize) -> Vec<u32> {
        (0..len).map(|_| self.below(vocab) as u32).collect()
    }
}

/// `groups × 4` rollouts: one fans out into two trajectories, one was not scored, rewards differ, and text of the
/// environment lies inside a response.
pub(crate) fn records(groups: u64, vocab: usize, seed: u64) -> Vec<RolloutRecord> {
    let mut numbers = Numbers(seed);
    let mut out = Vec::new();
    for group in 0..groups {
        for index in 0..4 {
            let scored = !(group == 0 && index == 3);
            for _ in 0..if index == 1 { 2 } else { 1 } {
                let (prompt, response) = (2 + numbers.below(5), 3 + numbers.below(14));
                let mut loss_mask = vec![1; response];
                if response > 8 {
                    loss_mask[3..6].fill(0);
                }
                let mut logprob =
                    |&m: &u8| -f32::from(m) * (1.0 + numbers.below(300) as f32 / 100.0);
                let rollout_log_probs = loss_mask.iter().map(&mut logprob).collect();
                out.push(RolloutRecord {
                    group_id: GroupId(group),
                    rollout_id: RolloutId(group * 4 + index),
                    index: index as u32,
                    tokens: numbers.tokens(prompt + response, vocab),
                    response_length: response,
                    rollout_log_probs,
                    loss_mask,
                    reward: scored.then_some([1.0, 0.25, 0.0, 1.0][index as usize]),
                    outcome: if scored { "scored" } else { "timeout" }.into(),
                    ..RolloutRecord::default()
                });
            }
        }
    }
    out
}
