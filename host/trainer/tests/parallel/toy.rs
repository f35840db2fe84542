//! The matrix's toy model, its weights and rollouts, and runs of it on one rank and on many.
#![allow(dead_code, reason = "the matrix and the tests each use a part of it")]

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::json;
use slime_core::{GroupId, RolloutId, RolloutRecord};
use slime_kernels::Ops;
use slime_model::families::{self, HfConfig};
use slime_model::{ModelSpec, ParamKind, ParamSpec, params};
use slime_trainer::parallel::trainer::{PATIENCE, Weights};
use slime_trainer::parallel::{ParallelConfig, ParallelTrainer, Training};
use slime_trainer::{TrainConfig, TrainMetrics, Trainer};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What varies of the toy: 4 layers, hidden 64, 8 query heads of 16, 96 feed-forward columns, 263 tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Toy {
    /// `qwen3` (per-head norms), `qwen2` (biases), `llama`, `glm4` (sandwich norms, half of each head rotates). With 8
    /// experts, 2 of them a token: `qwen3_moe`, `glm4_moe` (and an MLP for every token), `deepseek_v3` (that and latent
    /// attention, queries through a bottleneck), `qwen3_next` (a gated MLP for every token, gated attention and delta nets).
    pub(crate) family: &'static str,
    /// Key heads.
    pub(crate) kv: usize,
    /// The head is the embedding.
    pub(crate) tied: bool,
}

impl Toy {
    /// Qwen3 with 4 key heads and a head of its own.
    pub(crate) const PLAIN: Self = Self {
        family: "qwen3",
        kv: 4,
        tied: false,
    };

    pub(crate) fn spec(self) -> Arc<ModelSpec> {
        let mut config = json!({
            "model_type": self.family,
            "vocab_size": 263,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 4,
            "num_attention_heads": 8,
            "num_key_value_heads": self.kv,
            "max_position_embeddings": 128,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "tie_word_embeddings": self.tied,
            "hidden_act": "silu",
        });
        let own = match self.family {
            "qwen2" => json!({}),
            "glm4" => json!({
                "head_dim": 16, "attention_bias": true, "partial_rotary_factor": 0.5,
            }),
            "qwen3_moe" => json!({
                "head_dim": 16, "attention_bias": false, "num_experts": 8, "num_experts_per_tok": 2,
                "moe_intermediate_size": 24, "norm_topk_prob": true, "decoder_sparse_step": 1,
                "mlp_only_layers": [1],
            }),
            "glm4_moe" => json!({
                "head_dim": 16, "attention_bias": true, "use_qk_norm": true, "partial_rotary_factor": 0.5,
                "first_k_dense_replace": 1, "n_routed_experts": 8, "num_experts_per_tok": 2,
                "n_shared_experts": 1, "moe_intermediate_size": 24, "n_group": 1, "topk_group": 1,
                "norm_topk_prob": true, "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 0,
            }),
            "deepseek_v3" => json!({
                "num_key_value_heads": 8, "attention_bias": false, "q_lora_rank": 40, "kv_lora_rank": 24,
                "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "first_k_dense_replace": 1,
                "n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1,
                "moe_intermediate_size": 24, "n_group": 4, "topk_group": 2, "topk_method": "noaux_tc",
                "scoring_func": "sigmoid", "norm_topk_prob": true, "routed_scaling_factor": 2.446,
                "moe_layer_freq": 1, "num_nextn_predict_layers": 0,
            }),
            "qwen3_next" => json!({
                "head_dim": 16, "attention_bias": false, "partial_rotary_factor": 0.25, "num_experts": 8,
                "num_experts_per_tok": 2, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 32,
                "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
                "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8,
                "linear_value_head_dim": 8, "linear_conv_kernel_dim": 4, "full_attention_interval": 2,
            }),
            _ => json!({"head_dim": 16, "attention_bias": false}),
        };
        if let (Some(config), Some(own)) = (config.as_object_mut(), own.as_object()) {
            config.extend(own.clone());
        }
        let spec = HfConfig::new("the toy", config).and_then(|c| families::from_config(&c));
        Arc::new(spec.expect("the toy's configuration is valid"))
    }
}

/// Numbers that look random and are the same everywhere.
pub(crate) struct Numbers(pub u64);

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

    /// In (-1, 1).
    pub(crate) fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

/// One parameter of the toy: no norm is 1, no bias 0, and logits are far from equal. Where routers have biases, every token
/// of the last layer goes to expert 5.
pub(crate) fn weight(param: &ParamSpec) -> Vec<f32> {
    let seed = param
        .name
        .bytes()
        .fold(7, |h: u64, b| h.wrapping_mul(31) + u64::from(b));
    let mut numbers = Numbers(seed);
    let base = if param.kind.is_norm() { 1.0 } else { 0.0 };
    let width = if param.kind.is_vector() { 0.3 } else { 0.25 };
    let mut weight: Vec<f32> = (0..param.len())
        .map(|_| (base + width * numbers.unit()) as f32)
        .collect();
    if param.kind == ParamKind::RouterBias && param.layer == Some(3) {
        weight[5] = 10.0;
    }
    weight
}

/// Another model's weights, for the reference.
pub(crate) fn reference_weight(param: &ParamSpec) -> Vec<f32> {
    weight(param).iter().map(|w| w * 0.9).collect()
}

/// A teacher's weights: those of another model of another family.
pub(crate) fn teacher_weight(param: &ParamSpec) -> Vec<f32> {
    weight(param).iter().map(|w| w * 1.1).collect()
}

/// Dense, with narrower layers and as many tokens.
pub(crate) const TEACHER: Toy = Toy {
    family: "llama",
    kv: 4,
    tied: true,
};

/// Prompt and response lengths of a rollout.
pub(crate) type Lengths = (usize, usize);

/// Rollouts of these lengths, four a group. One rollout of each five is not scored, one fans out, and a long response has
/// text of the environment in it.
pub(crate) fn records(lengths: &[Lengths], seed: u64) -> Vec<RolloutRecord> {
    let mut numbers = Numbers(seed);
    let mut out = Vec::new();
    for (index, &(prompt, response)) in lengths.iter().enumerate() {
        let scored = index % 5 != 4;
        for _ in 0..if index % 7 == 3 { 2 } else { 1 } {
            let mut loss_mask = vec![1; response];
            if response > 8 {
                loss_mask[3..6].fill(0);
            }
            let rollout_log_probs = loss_mask
                .iter()
                .map(|&m| -f32::from(m) * (2.0 + numbers.unit() as f32))
                .collect();
            out.push(RolloutRecord {
                group_id: GroupId(index as u64 / 4),
                rollout_id: RolloutId(index as u64),
                index: index as u32,
                tokens: (0..prompt + response)
                    .map(|_| numbers.below(259) as u32)
                    .collect(),
                response_length: response,
                rollout_log_probs,
                loss_mask,
                reward: scored.then_some([1.0, 0.25, 0.0, 0.6][index % 4]),
                outcome: if scored { "scored" } else { "timeout" }.into(),
                ..RolloutRecord::default()
            });
        }
    }
    out
}

/// The same rollouts with experts that an engine might have told: no router's choice, and one choice in seven left to the
/// router.
pub(crate) fn routed(mut records: Vec<RolloutRecord>, toy: Toy) -> Vec<RolloutRecord> {
    let mut numbers = Numbers(23);
    let layers = toy.spec().layers.len();
    for record in &mut records {
        let mut told: Vec<u32> = Vec::new();
        for _ in 0..(record.tokens.len() - 1) * layers {
            let first = numbers.below(8) as u32;
            let second = (first + 1 + numbers.below(7) as u32) % 8;
            match numbers.below(7) {
                0 => told.extend([u32::MAX; 2]),
                _ => told.extend([first, second]),
            }
        }
        let bytes: Vec<u8> = told.iter().flat_map(|e| e.to_le_bytes()).collect();
        record.routed_experts = Some(STANDARD.encode(bytes));
    }
    records
}

/// A dozen rollouts of mixed lengths.
pub(crate) fn mixed() -> Vec<RolloutRecord> {
    let lengths = [
        (3, 9),
        (5, 4),
        (2, 14),
        (7, 1),
        (4, 6),
        (1, 3),
        (12, 2),
        (2, 11),
        (6, 6),
        (3, 5),
        (2, 2),
        (9, 13),
    ];
    records(&lengths, 5)
}

/// GRPO with everything on that a rank could get wrong: old and reference log-probs, clipping, KL, entropy, temperature.
pub(crate) fn config() -> TrainConfig {
    TrainConfig {
        lr: 1e-3,
        eps_clip: 0.1,
        eps_clip_high: Some(0.15),
        use_kl_loss: true,
        kl_loss_coef: 0.05,
        entropy_coef: 0.01,
        rollout_temperature: 0.8,
        num_steps_per_rollout: Some(3),
        max_tokens_per_gpu: 40,
        log_probs_chunk_size: Some(5),
        clip_grad: 0.5,
        ..TrainConfig::default()
    }
}

/// What a run leaves: metrics of every step, last gradients and final weights by name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) metrics: Vec<TrainMetrics>,
    pub(crate) gradients: BTreeMap<String, Vec<f64>>,
    pub(crate) weights: BTreeMap<String, Vec<f64>>,
}

/// A trainer on one rank, which is compared with transformers elsewhere.
pub(crate) fn one_rank<O: Ops>(ops: &Arc<O>, toy: Toy, config: &TrainConfig) -> Trainer<O> {
    let spec = toy.spec();
    let tensors = |of: fn(&ParamSpec) -> Vec<f32>| -> Vec<O::Tensor> {
        params(&spec)
            .iter()
            .map(|p| {
                ops.tensor(p.rows, p.cols, &of(p))
                    .expect("the device has room")
            })
            .collect()
    };
    let trainer = Trainer::new(ops.clone(), spec.clone(), tensors(weight), config.clone());
    let trainer = trainer.expect("the configuration is valid");
    let trainer = trainer.with_reference(tensors(reference_weight));
    let mut trainer = trainer.expect("the reference fits").with_vocab(259);
    if config.use_opd {
        let teacher = TEACHER.spec();
        let tensor = |p: &ParamSpec| ops.tensor(p.rows, p.cols, &teacher_weight(p));
        let weights = params(&teacher)
            .iter()
            .map(tensor)
            .collect::<Result<_, _>>();
        let weights = weights.expect("the device has room");
        let taught = trainer.with_teacher(teacher, weights);
        trainer = taught.expect("the teacher fits");
    }
    trainer
}

/// The same on one rank.
pub(crate) fn on_one<O: Ops>(
    ops: &Arc<O>,
    toy: Toy,
    config: &TrainConfig,
    records: &[RolloutRecord],
) -> Outcome {
    let mut trainer = one_rank(ops, toy, config);
    let metrics = trainer.train(records).expect("one rank trains");
    outcome_of_one(ops, &trainer, metrics)
}

/// What one rank leaves.
pub(crate) fn outcome_of_one<O: Ops>(
    ops: &Arc<O>,
    trainer: &Trainer<O>,
    metrics: Vec<TrainMetrics>,
) -> Outcome {
    let all = trainer.network().params().clone();
    let read = |i: usize| {
        ops.read_f64(&trainer.network().weights().0[i])
            .expect("it reads")
    };
    let grad = |i: usize| {
        ops.read_float_f64(&trainer.gradients().0[i])
            .expect("it reads")
    };
    let by_name = |of: &dyn Fn(usize) -> Vec<f64>| {
        all.iter()
            .enumerate()
            .map(|(i, p)| (p.name.clone(), of(i)))
            .collect()
    };
    Outcome {
        metrics,
        gradients: by_name(&grad),
        weights: by_name(&read),
    }
}

/// A trainer of the toy on several ranks.
pub(crate) fn ranks<O: Ops>(
    device: impl Fn() -> O + Send + Sync + 'static,
    toy: Toy,
    config: &TrainConfig,
    parallel: &ParallelConfig,
) -> slime_trainer::Result<ParallelTrainer<O>> {
    let training = Training {
        spec: toy.spec(),
        config: config.clone(),
        parallel: parallel.clone(),
        vocab: 259,
    };
    let weights: Weights = Arc::new(|param| Ok(weight(param)));
    let reference: Weights = Arc::new(|param| Ok(reference_weight(param)));
    let device = move |_| Ok(Arc::new(device()));
    let trainer = ParallelTrainer::of_threads(training, weights, device, PATIENCE)?;
    let trainer = match config.needs_reference() {
        Some(_) => trainer.with_reference(reference)?,
        None => trainer,
    };
    match config.use_opd {
        true => trainer.with_teacher(TEACHER.spec(), Arc::new(|param| Ok(teacher_weight(param)))),
        false => Ok(trainer),
    }
}

/// What ranks leave.
pub(crate) fn outcome<O: Ops>(
    trainer: &ParallelTrainer<O>,
    metrics: Vec<TrainMetrics>,
) -> slime_trainer::Result<Outcome> {
    let (mut gradients, mut weights) = (BTreeMap::new(), BTreeMap::new());
    for param in trainer.params().iter() {
        gradients.insert(param.name.clone(), trainer.read_gradient(param)?);
        weights.insert(param.name.clone(), trainer.read_param_f64(param)?);
    }
    Ok(Outcome {
        metrics,
        gradients,
        weights,
    })
}

/// The run on several ranks.
pub(crate) fn on_many<O: Ops>(
    device: impl Fn() -> O + Send + Sync + 'static,
    toy: Toy,
    config: &TrainConfig,
    parallel: &ParallelConfig,
    records: &[RolloutRecord],
) -> slime_trainer::Result<Outcome> {
    let mut trainer = ranks(device, toy, config, parallel)?;
    let metrics = trainer.train(records)?;
    outcome(&trainer, metrics)
}

/// `|a - b| / |b|` in L2, or `|a - b|` where b is 0.
pub(crate) fn distance(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let norm = |x: &mut dyn Iterator<Item = f64>| x.map(|v| v * v).sum::<f64>().sqrt();
    let difference = norm(&mut a.iter().zip(b).map(|(a, b)| a - b));
    let size = norm(&mut b.iter().copied());
    if size > 0.0 {
        difference / size
    } else {
        difference
    }
}

/// The largest gaps between two outcomes: of losses and norms, of any parameter's gradient, of any parameter.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Gaps {
    pub(crate) loss: f64,
    pub(crate) gradient: f64,
    pub(crate) weight: f64,
    /// Which parameter's gradient is the furthest off.
    pub(crate) worst: String,
}

pub(crate) fn gaps(got: &Outcome, want: &Outcome) -> Gaps {
    let mut gaps = Gaps::default();
    assert_eq!(got.metrics.len(), want.metrics.len());
    for (a, b) in got.metrics.iter().zip(&want.metrics) {
        let numbers = |m: &TrainMetrics| {
            // A step in which only the critic trains has no loss.
            let (loss, norm) = match (m.value_loss, m.grad_norm) {
                (Some(_), None) => (0.0, 0.0),
                (_, norm) => (m.loss, norm.unwrap_or(f64::NAN)),
            };
            [
                loss,
                m.pg_loss.unwrap_or(0.0),
                m.kl_loss.unwrap_or(0.0),
                if m.entropy.is_nan() { 0.0 } else { m.entropy },
                norm,
                m.lr,
                m.opd_reverse_kl.unwrap_or(0.0),
                m.value_loss.unwrap_or(0.0),
                m.value_clipfrac.unwrap_or(0.0),
                m.value_explained.unwrap_or(0.0),
                m.critic_grad_norm.unwrap_or(0.0),
                m.critic_lr.unwrap_or(0.0),
            ]
        };
        for (a, b) in numbers(a).iter().zip(numbers(b)) {
            // NaN on one side only must not pass.
            let gap = (a - b).abs() / b.abs().max(1.0);
            gaps.loss = if gap.is_nan() {
                f64::INFINITY
            } else {
                gaps.loss.max(gap)
            };
        }
        assert_eq!(
            (a.trained_tokens, a.masked_tokens, a.num_updates, a.rollouts),
            (b.trained_tokens, b.masked_tokens, b.num_updates, b.rollouts)
        );
    }
    for (name, want) in &want.gradients {
        let gap = distance(&got.gradients[name], want);
        if gap.is_nan() || gap > gaps.gradient {
            gaps.gradient = if gap.is_nan() { f64::INFINITY } else { gap };
            gaps.worst = name.clone();
        }
    }
    for (name, want) in &want.weights {
        let gap = distance(&got.weights[name], want);
        gaps.weight = if gap.is_nan() {
            f64::INFINITY
        } else {
            gaps.weight.max(gap)
        };
    }
    gaps
}
