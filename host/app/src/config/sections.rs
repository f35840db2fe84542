//! What a user may say: every key of a recipe, each optional.
//!
//! It decides nothing and holds no default value: what follows from a missing key is `plan`'s to say.
//! Read `layer` for where values come from, then `plan`.

use super::eval_set::{EvalSet, SourceSet};
use serde::{Deserialize, Serialize};
use slime_model::layers::Recompute;
use slime_rollout::pool::PauseMode;
use slime_rollout::publish::Transport;
use slime_trainer::algo::Estimator;
use slime_trainer::algo::grpo::Std;
use slime_trainer::algo::kl::KlKind;
use slime_trainer::algo::mismatch::{Level, Mode};
use slime_trainer::algo::weights::Aggregation;
use slime_trainer::optim::schedule::{DecayStyle, WsdStyle};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A recipe, as said.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunConfig {
    /// Everything random derives from it. Default 42.
    pub seed: Option<u64>,
    /// The run as a whole.
    pub run: RunSection,
    /// The policy.
    pub model: ModelSection,
    /// Where prompts come from.
    pub data: DataSection,
    /// Held-out prompts.
    pub eval: EvalSection,
    /// How groups are sampled.
    pub rollout: RolloutSection,
    /// What is learned from them.
    pub algorithm: AlgorithmSection,
    /// How it is learned.
    pub train: TrainSection,
    /// Supervised fine-tuning: the verb `sft`, or a warm-up before the first rollout of `run`.
    pub sft: SftSection,
    /// Budgets of every plugin call.
    pub limits: LimitsSection,
    /// Capabilities by the plugin's name: `code_exec`, `kv`, `http`, `models`, `clock`, `random`, `env`, `files`.
    pub grants: toml::Table,
}

/// `[run]`: length, place and checkpoints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RunSection {
    /// Part of the default directory's name. Default: the first plugin's name.
    pub name: Option<String>,
    /// Where everything is written. Default `runs/<name>-<seed>`, with a number added if that is taken.
    pub dir: Option<PathBuf>,
    /// Component files or plugin folders, beside those on the command line.
    pub plugins: Option<Vec<PathBuf>>,
    /// A second verifier that scores whatever the first does. Its verdicts become metrics, `shadow/NAME/differs` and
    /// `shadow/NAME/reward`, and train nothing. Default: none.
    pub shadow: Option<PathBuf>,
    /// Keep verdicts for rollouts that say the same: for verifiers that draw no random numbers. Default false.
    pub memoise: Option<bool>,
    /// Let agents outside the sandbox drive the rollouts, over OpenAI's chat API at this address of this machine:
    /// `127.0.0.1:8900`. Default: a generator plugin does.
    pub gateway: Option<String>,
    /// Let those agents give the rewards too, instead of a verifier. Default false.
    pub gateway_rewards: Option<bool>,
    /// Keys of which one must have signed every plugin, as `plugin keygen` prints them. Default: none is asked for.
    pub trusted_keys: Option<Vec<String>>,
    /// Rollout steps.
    pub num_rollout: Option<u64>,
    /// Passes over the prompts, instead of `num_rollout`.
    pub num_epoch: Option<u64>,
    /// Rollout steps between checkpoints. The last step is always saved. Default 20.
    pub save_interval: Option<u64>,
    /// Newest checkpoints that are kept. Default 2.
    pub keep_checkpoints: Option<u64>,
}

/// `[model]`: which weights, on which device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ModelSection {
    /// An HF directory. slime's `--hf-checkpoint`.
    pub path: Option<PathBuf>,
    /// A model that is part of the program, instead of `path`: `tiny`.
    pub builtin: Option<Builtin>,
    /// Weights of the reference model. Default: those the run starts from.
    pub ref_load: Option<PathBuf>,
    /// An HF directory of the teacher to distil from, over the same tokenizer.
    pub teacher_load: Option<PathBuf>,
    /// Servers that hold the teacher instead, `host:port`.
    pub teacher_addrs: Option<Vec<String>>,
    /// Servers of the models that judges may ask, by the model's name: `judge = ["host:port"]`. What a judge asks needs a
    /// grant, `[grants.PLUGIN] models = ["judge"]`.
    pub judge_addrs: BTreeMap<String, Vec<String>>,
    /// Where trainer and embedded engine compute. Default `cpu`.
    pub device: Option<Device>,
    /// Numbers of weights and activations: `f32` on a CPU, `bf16` with CUDA.
    pub dtype: Option<Dtype>,
}

/// A model that is part of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Builtin {
    /// About 1.4 M parameters over bytes, fresh weights from the run's seed.
    Tiny,
}

/// A place to compute.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// All cores.
    #[default]
    Cpu,
    /// An NVIDIA GPU.
    Cuda,
}

impl Device {
    /// Why it cannot compute in `dtype`, if it cannot.
    pub fn refuses(self, dtype: Option<Dtype>) -> Option<&'static str> {
        match (self, dtype?) {
            (Self::Cpu, Dtype::Bf16) => Some("the CPU computes in f32"),
            (Self::Cuda, Dtype::F32) => {
                Some("CUDA computes in bf16, with fp32 gradients and master weights")
            }
            _ => None,
        }
    }

    /// The name of the other one.
    pub fn other(self) -> &'static str {
        match self {
            Self::Cpu => "cuda",
            Self::Cuda => "cpu",
        }
    }
}

/// A number format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
pub enum Dtype {
    /// 32 bits.
    #[default]
    F32,
    /// 16 bits, with the exponent of 32.
    Bf16,
}

/// `[data]`: prompts from a file. Without it a plugin must be a source.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataSection {
    /// JSONL or parquet, with an optional slice: `train.jsonl@[0:1000]`.
    pub prompt_data: Option<String>,
    /// Several data sets by name, mixed by their weights, instead of `prompt_data`.
    pub sources: BTreeMap<String, SourceSet>,
    /// Column of the prompt: text or a list of messages. Default `input`.
    pub input_key: Option<String>,
    /// Column of the gold answer. Default: none.
    pub label_key: Option<String>,
    /// Column of an object that verifiers see. Default `metadata`.
    pub metadata_key: Option<String>,
    /// Column of tool descriptions. Default `tools`.
    pub tool_key: Option<String>,
    /// Wrap a text prompt as one user message and render it by the model's template. Default false.
    pub apply_chat_template: Option<bool>,
    /// Variables handed to the chat template.
    pub apply_chat_template_kwargs: toml::Table,
    /// A system message put before every conversation that has none.
    pub system_prompt: Option<String>,
    /// Another order every epoch. Default false.
    pub shuffle: Option<bool>,
    /// How hard a source plugin's prompts are, from 0 (easiest) to 1 (hardest). Default 0.
    pub difficulty: Option<f64>,
    /// The mean reward at which source plugins' prompts are held: above it they get harder, below it easier. Default: their
    /// difficulty stays.
    pub curriculum_target: Option<f64>,
    /// How far a reward that is off by 1 moves the difficulty in one step. Default 0.05.
    pub curriculum_rate: Option<f64>,
    /// The plugin that scores rollouts where a source names none. Default: the only verifier, or the source itself.
    pub verifier: Option<String>,
}

/// `[eval]`: held-out prompts, scored by the same plugins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EvalSection {
    /// Rollout steps between evaluations. Default: none.
    pub interval: Option<u64>,
    /// Data sets by name: a path, or a table with `path` and settings of its own. Without it a source plugin draws
    /// prompts that training never sees.
    pub prompt_data: BTreeMap<String, EvalSet>,
    /// Prompts drawn from a source plugin. Default 64.
    pub num_prompts: Option<u64>,
    /// Default 1.
    pub n_samples_per_prompt: Option<u32>,
    /// 0 is greedy. Default: that of `[rollout]`.
    pub temperature: Option<f64>,
    /// Default: as in `rollout`.
    pub top_p: Option<f64>,
    /// Default: as in `rollout`.
    pub top_k: Option<i64>,
    /// Default: as in `rollout`.
    pub max_response_len: Option<u32>,
    /// Default: as in `data`.
    pub input_key: Option<String>,
    /// Default: as in `data`.
    pub label_key: Option<String>,
    /// No evaluation before the first step. Default false.
    pub skip_before_train: Option<bool>,
}

/// `[rollout]`: how many groups a step samples, and how.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RolloutSection {
    /// Prompts of one rollout step.
    pub batch_size: Option<u64>,
    /// Rollouts of one prompt. Default 8.
    pub n_samples_per_prompt: Option<u32>,
    /// Default 1. Training needs more than 0.
    pub temperature: Option<f64>,
    /// Default 1.
    pub top_p: Option<f64>,
    /// -1 keeps all. Default -1.
    pub top_k: Option<i64>,
    /// Tokens of one rollout's response, what tools answer included. Default 256.
    pub max_response_len: Option<u32>,
    /// Prompt and response together. Default: the model's.
    pub max_context_len: Option<u32>,
    /// Strings that end a turn.
    pub stop: Option<Vec<String>>,
    /// Token ids that end a turn, beside the model's own.
    pub stop_token_ids: Option<Vec<u32>>,
    /// Versions a trained token may be behind. 0 samples and trains in turn; 1 samples the next
    /// step's groups while this step trains. Default 0.
    pub max_lag: Option<u64>,
    /// Never pause sampling: groups are in flight while steps train and weights are published. Needs `max_lag`
    /// of 1 or more. Default false.
    pub fully_async: Option<bool>,
    /// What becomes of running requests while weights change: `abort`, `retract` or, with the embedded
    /// engine, `in_place`. Default `retract`.
    pub pause_generation_mode: Option<PauseMode>,
    /// Prompts that a round of sampling draws at least. What a step does not need waits for the next, where `max_lag` is 1
    /// or more, and is sampled anew where it is 0. Default: as many as are missing.
    pub over_sampling_batch_size: Option<u64>,
    /// Do not train tokens that older weights sampled than the rest of their trajectory. Default false.
    pub mask_offpolicy: Option<bool>,
    /// Do not train rollouts that ran out of tokens; their rewards still count in baselines. Default false.
    pub mask_truncated: Option<bool>,
    /// The last tokens of `max_response_len` in which a response is penalised for its length. Default: none.
    pub overlong_buffer_len: Option<u32>,
    /// The penalty at the end of that buffer. Default 1.
    pub overlong_penalty_factor: Option<f64>,
    /// Which groups are trained on. Default `all`.
    pub filter: Option<Filter>,
    /// How often a step draws more prompts because groups were left out. Default 20.
    pub max_refills: Option<u32>,
    /// Requests in flight at once. Default 64.
    pub concurrency: Option<usize>,
    /// On a GPU, the embedded engine launches every kernel of a decode step by itself. Default false: a step runs as a CUDA
    /// graph where the model allows it.
    pub disable_cuda_graph: Option<bool>,
    /// Decode steps of more requests run without a graph. Default 256.
    pub cuda_graph_max_bs: Option<usize>,
    /// Running SGLang servers, `host:port`, instead of the embedded engine.
    pub external_engine_addrs: Option<Vec<String>>,
    /// A running `sglang_router` that picks the server, `host:port`. Default: requests are routed here.
    pub router_addr: Option<String>,
    /// SGLang servers that this program launches and looks after, instead of the embedded engine.
    pub num_engines: Option<u32>,
    /// A YAML file that lays launched servers out, instead of `num_engines`: models, groups of servers, their flags.
    pub sglang_config: Option<PathBuf>,
    /// GPUs of all launched servers. Default: as many as they need.
    pub num_gpus: Option<u32>,
    /// Flags of launched servers, verbatim; `--sglang-X` on the command line puts `--X` here.
    pub sglang_args: Option<Vec<String>>,
    /// What launches a server, before its flags. Default `["python3", "-m", "sglang.launch_server"]`.
    pub engine_command: Option<Vec<String>>,
    /// GPUs of one launched server. Default: left to the server; 1 with `num_gpus` or `sglang_config`.
    pub num_gpus_per_engine: Option<u32>,
    /// The first launched server's first GPU. Default 0.
    pub base_gpu_id: Option<u32>,
    /// From a launched server's start to its first answer. Default `"15m"`.
    pub engine_start_timeout: Option<String>,
    /// Receive tokens as they are sampled, so that no death costs any of them. Default: with launched servers.
    pub stream: Option<bool>,
    /// Directory that the servers can read; new weights are handed over there. Default: in the run's. The embedded engine is
    /// given tensors and no directory, unless one is named here or `update_weight_transport` is `disk`.
    pub update_weight_disk_dir: Option<PathBuf>,
    /// How weights reach servers: `disk`, to servers of this host `shared-memory` or `delta`, from GPU to GPUs `nccl`. Default `disk`.
    pub update_weight_transport: Option<Transport>,
    /// Where `delta` keeps this host's copy. Default: in `/dev/shm`.
    pub update_weight_local_dir: Option<PathBuf>,
    /// Type in which weights are handed to servers. Default: the servers' own, where they say it; of an FP8 edition, its
    /// blocks.
    pub update_weight_dtype: Option<Dtype>,
}

/// Which groups are trained on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Filter {
    /// Every group.
    #[default]
    All,
    /// Groups whose rewards differ; the others are replaced by fresh ones.
    NonzeroStd,
}

/// `[algorithm]`: advantages and loss. Defaults are the trainer's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AlgorithmSection {
    /// Default `grpo`.
    pub advantage_estimator: Option<Estimator>,
    /// Dr. GRPO: do not divide by the group's standard deviation. Default false.
    pub disable_grpo_std_normalization: Option<bool>,
    /// The deviation that GRPO divides by: `sample` (with n - 1) or `population`. Default `sample`.
    pub grpo_std: Option<Std>,
    /// Take rewards themselves as advantages. Default false.
    pub disable_rewards_normalization: Option<bool>,
    /// Whiten advantages over the step's tokens. Default false.
    pub normalize_advantages: Option<bool>,
    /// Discount of `reinforce_plus_plus` and `ppo`. Default 1.
    pub gamma: Option<f64>,
    /// Discount of later errors of `ppo`'s critic. Default 1.
    pub lambd: Option<f64>,
    /// How far a value of the critic may move in one step. Default 0.2.
    pub value_clip: Option<f64>,
    /// Rollout steps at the beginning in which only the critic trains. Default 0.
    pub num_critic_only_steps: Option<u64>,
    /// Take a teacher's penalty off every token's advantage. Default false.
    pub use_opd: Option<bool>,
    /// Its weight. Default 1.
    pub opd_kl_coef: Option<f64>,
    /// Default 0.2.
    pub eps_clip: Option<f64>,
    /// Default: `eps_clip`.
    pub eps_clip_high: Option<f64>,
    /// Dual clip; more than 1. Default: none.
    pub eps_clip_c: Option<f64>,
    /// KL to the reference, taken from the reward. Default 0.
    pub kl_coef: Option<f64>,
    /// Measure the KL to the reference in the loss. Default false.
    pub use_kl_loss: Option<bool>,
    /// Its weight. Default 0.
    pub kl_loss_coef: Option<f64>,
    /// `k1`, `k2`, `k3` or `low_var_kl`. Default `k3` in the loss, `k1` in the reward.
    pub kl_loss_type: Option<KlKind>,
    /// Weigh the KL in the loss by the ratio. Default false.
    pub use_unbiased_kl: Option<bool>,
    /// Default 0.
    pub entropy_coef: Option<f64>,
    /// Take the engine's log-probs as the old policy's. Default false.
    pub use_rollout_logprobs: Option<bool>,
    /// Reweigh tokens by the ratio between trainer and engine. Default false.
    pub use_tis: Option<bool>,
    /// Over what that ratio is taken: `token`, `sequence` or `geometric`. Default `token`.
    pub tis_level: Option<Level>,
    /// What becomes of a ratio outside the bounds: `truncate`, `icepop` or `mask`. Default `truncate`.
    pub tis_mode: Option<Mode>,
    /// Largest weight. Default 2.
    pub tis_clip: Option<f64>,
    /// Smallest weight. Default 0.
    pub tis_clip_low: Option<f64>,
    /// Divide weights by their mean over the train step. Default false.
    pub tis_batch_normalize: Option<bool>,
    /// Reject tokens by the ratio between trainer and engine. Default false.
    pub use_rs: Option<bool>,
    /// Over what that ratio is taken. Default `token`.
    pub rs_level: Option<Level>,
    /// The largest ratio that is kept. Default 2.
    pub rs_clip: Option<f64>,
    /// The smallest. Default: one over the largest.
    pub rs_clip_low: Option<f64>,
    /// Reject a trajectory with a token whose ratio is below this. Default: none.
    pub rs_veto_threshold: Option<f64>,
    /// Leave bad trajectories that the policy drifted away from out of the loss. Default false.
    pub use_opsm: Option<bool>,
    /// How far that is. Default 1e-4.
    pub opsm_delta: Option<f64>,
    /// Train on tokens of older weights without a correction: `max_lag` above 0 asks for one of `use_tis`, `use_rs`
    /// and `use_rollout_logprobs`, or for this. Default false.
    pub allow_uncorrected_lag: Option<bool>,
    /// Of a mixture of experts: train with the experts that the pass for the old log-probs chose. Default false.
    pub use_routing_replay: Option<bool>,
    /// Of a mixture of experts: train with the experts that the engine chose. The records bring them. Default false.
    pub use_rollout_routing_replay: Option<bool>,
    /// `rollout-mean`, `token-mean`, `sequence-mean` or `constant-length`. Default `rollout-mean`.
    pub loss_aggregation: Option<Aggregation>,
    /// The divisor of `constant-length`.
    pub loss_constant_length: Option<usize>,
}

/// `[train]`: the optimizer and its batches. Defaults are the trainer's.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TrainSection {
    /// Rollouts of one train step. Default: all of a rollout step.
    pub global_batch_size: Option<usize>,
    /// Train steps of one rollout step, instead of `global_batch_size`.
    pub num_steps_per_rollout: Option<usize>,
    /// Tokens packed into one micro-batch. Default 4096.
    pub max_tokens_per_gpu: Option<usize>,
    /// What is computed again in the backward pass: `none`, `selective` or `full`. Default `selective`.
    pub recompute_granularity: Option<Recompute>,
    /// Only the first layers recompute so; of `full` the rest recompute selectively, of `selective` nothing. Default: all.
    pub recompute_num_layers: Option<usize>,
    /// Rows whose logits exist at once. Default: by the vocabulary's size.
    pub log_probs_chunk_size: Option<usize>,
    /// Default 1e-6.
    pub lr: Option<f64>,
    /// Of `ppo`'s critic. Default: `lr`.
    pub critic_lr: Option<f64>,
    /// Train steps of the critic's linear warm-up. Default: `lr_warmup_iters`.
    pub critic_lr_warmup_iters: Option<u64>,
    /// Where the decay ends. Default 0.
    pub min_lr: Option<f64>,
    /// `constant`, `linear`, `cosine`, `inverse-square-root` or `WSD`. Default `constant`.
    pub lr_decay_style: Option<DecayStyle>,
    /// Train steps until `min_lr`. Default: the run's.
    pub lr_decay_iters: Option<u64>,
    /// Train steps of linear warm-up. Default 0.
    pub lr_warmup_iters: Option<u64>,
    /// Where warm-up starts. Default 0.
    pub lr_warmup_init: Option<f64>,
    /// Train steps of WSD's last phase.
    pub lr_wsd_decay_iters: Option<u64>,
    /// Shape of WSD's last phase: `linear`, `cosine`, `exponential` or `minus_sqrt`.
    pub lr_wsd_decay_style: Option<WsdStyle>,
    /// Of matrices; norms and biases never decay. Default 0.1.
    pub weight_decay: Option<f64>,
    /// Default 0.9.
    pub adam_beta1: Option<f64>,
    /// Default 0.98.
    pub adam_beta2: Option<f64>,
    /// Default 1e-8.
    pub adam_eps: Option<f64>,
    /// Largest gradient norm; 0 does not clip. Default 1.
    pub clip_grad: Option<f64>,
    /// On GPUs, moments in bf16 and of each master only what its weight lacks: 12 bytes a parameter in place of 18.
    /// Default false.
    pub use_precision_aware_optimizer: Option<bool>,
    /// Ranks that share each matrix. Default 1.
    pub tensor_model_parallel_size: Option<usize>,
    /// Split the stream's rows over these ranks too.
    pub sequence_parallel: Option<bool>,
    /// Stages that share the layers. Default 1.
    pub pipeline_model_parallel_size: Option<usize>,
    /// Chunks of layers a stage holds; more than one interleaves them. Default 1.
    pub virtual_pipeline_model_parallel_size: Option<usize>,
    /// Layers of the first stage, if not as many as the others.
    pub decoder_first_pipeline_num_layers: Option<usize>,
    /// Layers of the last stage, if not as many as the others.
    pub decoder_last_pipeline_num_layers: Option<usize>,
    /// Ranks that share each sequence. Default 1.
    pub context_parallel_size: Option<usize>,
    /// Ranks of a stage that share the experts. Default 1.
    pub expert_model_parallel_size: Option<usize>,
    /// Ranks that share the columns of each expert. Default: tensor_model_parallel_size.
    pub expert_tensor_parallel_size: Option<usize>,
    /// Ranks that train on different sequences. Default 1.
    pub data_parallel_size: Option<usize>,
    /// Elements of one gradient bucket, which leaves while the backward goes on. Default: 40 million, or a million a rank.
    pub ddp_bucket_size: Option<usize>,
    /// How long ranks wait for each other, like `30s`. Default `10m`.
    pub distributed_timeout: Option<String>,
}

/// `[sft]`: supervised fine-tuning.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SftSection {
    /// JSONL or parquet of conversations or of prompt and label. Without it a source plugin's
    /// prompts with their labels are the answers to learn.
    pub data: Option<String>,
    /// Column of the conversation or prompt. Default `messages`.
    pub input_key: Option<String>,
    /// Column of the answer, where `input_key` is only the prompt. Default: none.
    pub label_key: Option<String>,
    /// Train steps. Default: one pass over the data.
    pub num_steps: Option<u64>,
    /// Share of the rows, 0 to 1, that learn another row's answer: the form without the knowledge, for a
    /// warm-up that leaves the rest to the reward. Default 0.
    pub shuffled_label_frac: Option<f64>,
    /// Sequences of one train step. Default 32.
    pub batch_size: Option<u64>,
    /// Default: `train.lr`.
    pub lr: Option<f64>,
    /// Where the decay ends. Default 0.
    pub min_lr: Option<f64>,
    /// Train steps of linear warm-up. Default 0.
    pub lr_warmup_iters: Option<u64>,
    /// Shape of the decay over `num_steps`. Default `constant`.
    pub lr_decay_style: Option<DecayStyle>,
}

/// `[limits]`: budgets of one plugin call.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsSection {
    /// Time in which the guest runs, `"250ms"`. Default 2 s.
    pub cpu: Option<String>,
    /// Time from call to answer, `"10s"`. Default 10 s.
    pub wall: Option<String>,
    /// Linear memory, `"256MiB"`. Default 256 MiB.
    pub memory: Option<String>,
}
