//! The named flags, one a line: slime's or Megatron's name, the key it sets, what follows it.

use super::Group::{self, Algorithm, Data, Eval, Model, Rollout, Run, Train};

/// What follows a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Takes {
    /// One value.
    One(&'static str),
    /// One value or more.
    Many(&'static str),
    /// `NAME PATH` pairs.
    Pairs,
    /// Nothing: the key becomes true.
    Nothing,
}

pub(super) struct Flag {
    pub(super) name: &'static str,
    pub(super) key: &'static str,
    pub(super) group: Group,
    pub(super) takes: Takes,
    pub(super) help: &'static str,
}

const fn flag(
    group: Group,
    name: &'static str,
    key: &'static str,
    takes: Takes,
    help: &'static str,
) -> Flag {
    Flag {
        name,
        key,
        group,
        takes,
        help,
    }
}

const fn one(
    group: Group,
    name: &'static str,
    key: &'static str,
    value: &'static str,
    help: &'static str,
) -> Flag {
    flag(group, name, key, Takes::One(value), help)
}

const fn many(
    group: Group,
    name: &'static str,
    key: &'static str,
    value: &'static str,
    help: &'static str,
) -> Flag {
    flag(group, name, key, Takes::Many(value), help)
}

const fn yes(group: Group, name: &'static str, key: &'static str, help: &'static str) -> Flag {
    flag(group, name, key, Takes::Nothing, help)
}

// One flag a line reads as the table it is.
#[rustfmt::skip]
pub(super) const FLAGS: &[Flag] = &[
    one(Run, "num-rollout", "run.num_rollout", "N", "Rollout steps"),
    one(Run, "num-epoch", "run.num_epoch", "N", "Passes over the prompts, instead of --num-rollout"),
    one(Run, "save-interval", "run.save_interval", "N", "Rollout steps between checkpoints"),
    one(Run, "save", "run.dir", "DIR", "The run's directory"),
    one(Run, "rollout-seed", "seed", "N", "Everything random derives from it"),
    one(Model, "hf-checkpoint", "model.path", "DIR", "Weights, config and tokenizer, as an HF directory"),
    many(Model, "opd-teacher-addrs", "model.teacher_addrs", "HOST:PORT", "Servers that hold the teacher"),
    one(Model, "opd-teacher-load", "model.teacher_load", "DIR", "Weights of the teacher to distil from"),
    one(Model, "ref-load", "model.ref_load", "DIR", "Weights of the reference model"),
    one(Data, "prompt-data", "data.prompt_data", "FILE", "JSONL or parquet, with an optional slice: FILE@[0:100]"),
    one(Data, "input-key", "data.input_key", "KEY", "Column of the prompt"),
    one(Data, "label-key", "data.label_key", "KEY", "Column of the gold answer"),
    one(Data, "metadata-key", "data.metadata_key", "KEY", "Column of an object that verifiers see"),
    one(Data, "tool-key", "data.tool_key", "KEY", "Column of tool descriptions"),
    yes(Data, "apply-chat-template", "data.apply_chat_template", "Render text prompts as a user message"),
    one(Data, "apply-chat-template-kwargs", "data.apply_chat_template_kwargs", "TABLE", "Variables for the chat template"),
    yes(Data, "rollout-shuffle", "data.shuffle", "Another order every epoch"),
    one(Eval, "eval-interval", "eval.interval", "N", "Rollout steps between evaluations"),
    flag(Eval, "eval-prompt-data", "eval.prompt_data", Takes::Pairs, "Held-out data sets"),
    one(Eval, "eval-input-key", "eval.input_key", "KEY", "Column of the prompt in held-out data"),
    one(Eval, "eval-label-key", "eval.label_key", "KEY", "Column of the gold answer in held-out data"),
    one(Eval, "n-samples-per-eval-prompt", "eval.n_samples_per_prompt", "N", "Rollouts of one held-out prompt"),
    one(Eval, "eval-temperature", "eval.temperature", "T", "0 is greedy"),
    one(Eval, "eval-top-p", "eval.top_p", "P", "Nucleus mass in evaluations"),
    one(Eval, "eval-top-k", "eval.top_k", "K", "Tokens kept in evaluations"),
    one(Eval, "eval-max-response-len", "eval.max_response_len", "N", "Tokens one evaluation may sample"),
    yes(Eval, "skip-eval-before-train", "eval.skip_before_train", "No evaluation before the first step"),
    one(Rollout, "rollout-batch-size", "rollout.batch_size", "N", "Prompts of one rollout step"),
    one(Rollout, "n-samples-per-prompt", "rollout.n_samples_per_prompt", "N", "Rollouts of one prompt"),
    one(Rollout, "rollout-temperature", "rollout.temperature", "T", "Sampling temperature"),
    one(Rollout, "rollout-top-p", "rollout.top_p", "P", "Nucleus mass"),
    one(Rollout, "rollout-top-k", "rollout.top_k", "K", "Tokens kept; -1 keeps all"),
    one(Rollout, "rollout-max-response-len", "rollout.max_response_len", "N", "Tokens of one rollout's response, what tools answer included"),
    one(Rollout, "rollout-max-context-len", "rollout.max_context_len", "N", "Prompt and response together"),
    many(Rollout, "rollout-stop", "rollout.stop", "TEXT", "Strings that end a turn"),
    many(Rollout, "rollout-stop-token-ids", "rollout.stop_token_ids", "ID", "Token ids that end a turn"),
    one(Rollout, "max-weight-staleness", "rollout.max_lag", "N", "Versions a trained token may be behind"),
    yes(Rollout, "fully-async", "rollout.fully_async", "Never pause sampling"),
    one(Rollout, "pause-generation-mode", "rollout.pause_generation_mode", "MODE", "abort, retract or in_place"),
    one(Rollout, "over-sampling-batch-size", "rollout.over_sampling_batch_size", "N", "Prompts that a round of sampling draws at least"),
    yes(Rollout, "mask-offpolicy-in-partial-rollout", "rollout.mask_offpolicy", "Do not train tokens of older weights than their trajectory's newest"),
    one(Rollout, "sglang-server-concurrency", "rollout.concurrency", "N", "Requests in flight at once"),
    yes(Rollout, "disable-cuda-graph", "rollout.disable_cuda_graph", "The embedded engine decodes without CUDA graphs"),
    one(Rollout, "cuda-graph-max-bs", "rollout.cuda_graph_max_bs", "N", "Most requests of a decode step that runs as a CUDA graph"),
    many(Rollout, "rollout-external-engine-addrs", "rollout.external_engine_addrs", "HOST:PORT", "Running SGLang servers"),
    one(Rollout, "rollout-num-engines", "rollout.num_engines", "N", "SGLang servers to launch; --sglang-X VALUE hands them --X VALUE"),
    one(Rollout, "sglang-config", "rollout.sglang_config", "FILE", "SGLang servers to launch, as a YAML file lays them out"),
    one(Rollout, "rollout-num-gpus", "rollout.num_gpus", "N", "GPUs of all launched servers"),
    one(Rollout, "rollout-num-gpus-per-engine", "rollout.num_gpus_per_engine", "N", "GPUs of one launched server"),
    one(Rollout, "sglang-args", "rollout.sglang_args", "LIST", "All flags of launched servers, as one TOML list"),
    one(Rollout, "update-weight-disk-dir", "rollout.update_weight_disk_dir", "DIR", "Where new weights are handed to servers"),
    one(Rollout, "update-weight-transport", "rollout.update_weight_transport", "NAME", "disk, shared-memory, delta or nccl"),
    one(Algorithm, "advantage-estimator", "algorithm.advantage_estimator", "NAME", "How rewards become advantages"),
    one(Algorithm, "eps-clip", "algorithm.eps_clip", "E", "Lower clip of the ratio"),
    one(Algorithm, "eps-clip-high", "algorithm.eps_clip_high", "E", "Upper clip of the ratio"),
    one(Algorithm, "eps-clip-c", "algorithm.eps_clip_c", "C", "Dual clip"),
    one(Algorithm, "kl-coef", "algorithm.kl_coef", "K", "KL to the reference, taken from the reward"),
    yes(Algorithm, "use-kl-loss", "algorithm.use_kl_loss", "Measure the KL to the reference in the loss"),
    one(Algorithm, "kl-loss-coef", "algorithm.kl_loss_coef", "K", "Weight of the KL in the loss"),
    one(Algorithm, "kl-loss-type", "algorithm.kl_loss_type", "NAME", "k1, k2, k3 or low_var_kl"),
    one(Algorithm, "entropy-coef", "algorithm.entropy_coef", "K", "Weight of the entropy"),
    yes(Algorithm, "disable-grpo-std-normalization", "algorithm.disable_grpo_std_normalization", "Do not divide by the group's deviation"),
    yes(Algorithm, "normalize-advantages", "algorithm.normalize_advantages", "Whiten advantages"),
    one(Algorithm, "gamma", "algorithm.gamma", "G", "Discount of reinforce_plus_plus and ppo"),
    one(Algorithm, "lambd", "algorithm.lambd", "L", "GAE's discount of later errors of the critic"),
    one(Algorithm, "value-clip", "algorithm.value_clip", "E", "How far a value may move in one step"),
    one(Algorithm, "num-critic-only-steps", "algorithm.num_critic_only_steps", "N", "Rollout steps in which only the critic trains"),
    yes(Algorithm, "disable-rewards-normalization", "algorithm.disable_rewards_normalization", "Take rewards themselves as advantages"),
    yes(Algorithm, "use-opd", "algorithm.use_opd", "Distil from a teacher on the student's own tokens"),
    one(Algorithm, "opd-kl-coef", "algorithm.opd_kl_coef", "K", "Weight of the teacher's penalty"),
    yes(Algorithm, "use-opsm", "algorithm.use_opsm", "Leave bad trajectories that drifted out of the loss"),
    one(Algorithm, "opsm-delta", "algorithm.opsm_delta", "D", "How far a trajectory may drift"),
    yes(Algorithm, "use-unbiased-kl", "algorithm.use_unbiased_kl", "Weigh the KL in the loss by the ratio"),
    yes(Algorithm, "use-rollout-logprobs", "algorithm.use_rollout_logprobs", "Take the engine's log-probs as the old policy's"),
    yes(Algorithm, "use-tis", "algorithm.use_tis", "Reweigh tokens by the ratio between trainer and engine"),
    one(Algorithm, "tis-clip", "algorithm.tis_clip", "W", "Largest weight"),
    one(Algorithm, "tis-clip-low", "algorithm.tis_clip_low", "W", "Smallest weight"),
    one(Algorithm, "tis-level", "algorithm.tis_level", "NAME", "token, sequence or geometric"),
    one(Algorithm, "tis-mode", "algorithm.tis_mode", "NAME", "truncate, icepop or mask"),
    yes(Algorithm, "tis-batch-normalize", "algorithm.tis_batch_normalize", "Divide weights by their mean over the train step"),
    yes(Algorithm, "use-rs", "algorithm.use_rs", "Reject tokens by the ratio between trainer and engine"),
    one(Algorithm, "rs-level", "algorithm.rs_level", "NAME", "token, sequence or geometric"),
    one(Algorithm, "rs-clip", "algorithm.rs_clip", "R", "Largest ratio kept"),
    one(Algorithm, "rs-clip-low", "algorithm.rs_clip_low", "R", "Smallest ratio kept"),
    one(Algorithm, "rs-veto-threshold", "algorithm.rs_veto_threshold", "R", "Smallest ratio of a token before its trajectory is rejected"),
    yes(Algorithm, "use-routing-replay", "algorithm.use_routing_replay", "Train with the experts that the pass for old log-probs chose"),
    yes(Algorithm, "use-rollout-routing-replay", "algorithm.use_rollout_routing_replay", "Train with the experts that the engine chose"),
    one(Algorithm, "loss-aggregation", "algorithm.loss_aggregation", "NAME", "How token losses become one number"),
    one(Train, "global-batch-size", "train.global_batch_size", "N", "Rollouts of one train step"),
    one(Train, "num-steps-per-rollout", "train.num_steps_per_rollout", "N", "Train steps of one rollout step"),
    one(Train, "max-tokens-per-gpu", "train.max_tokens_per_gpu", "N", "Tokens packed into one micro-batch"),
    one(Train, "lr", "train.lr", "LR", "Learning rate"),
    one(Train, "critic-lr", "train.critic_lr", "LR", "Learning rate of ppo's critic"),
    one(Train, "min-lr", "train.min_lr", "LR", "Where the decay ends"),
    one(Train, "lr-decay-style", "train.lr_decay_style", "NAME", "constant, linear, cosine, inverse-square-root or WSD"),
    one(Train, "lr-warmup-iters", "train.lr_warmup_iters", "N", "Train steps of linear warm-up"),
    one(Train, "lr-decay-iters", "train.lr_decay_iters", "N", "Train steps until --min-lr"),
    one(Train, "lr-warmup-init", "train.lr_warmup_init", "LR", "Where warm-up starts"),
    one(Train, "lr-wsd-decay-iters", "train.lr_wsd_decay_iters", "N", "Train steps of WSD's last phase"),
    one(Train, "lr-wsd-decay-style", "train.lr_wsd_decay_style", "NAME", "linear, cosine, exponential or minus_sqrt"),
    one(Train, "weight-decay", "train.weight_decay", "W", "Decoupled weight decay"),
    one(Train, "adam-beta1", "train.adam_beta1", "B", "AdamW's first moment"),
    one(Train, "adam-beta2", "train.adam_beta2", "B", "AdamW's second moment"),
    one(Train, "adam-eps", "train.adam_eps", "E", "AdamW's epsilon"),
    one(Train, "clip-grad", "train.clip_grad", "N", "Largest gradient norm; 0 does not clip"),
    yes(Train, "use-precision-aware-optimizer", "train.use_precision_aware_optimizer", "Optimizer states in 16 bits a number, on GPUs"),
    one(Train, "recompute-granularity", "train.recompute_granularity", "NAME", "none, selective, mlp or full"),
    one(Train, "recompute-num-layers", "train.recompute_num_layers", "N", "Only the first layers recompute"),
    one(Train, "log-probs-chunk-size", "train.log_probs_chunk_size", "N", "Rows whose logits exist at once"),
    one(Train, "tensor-model-parallel-size", "train.tensor_model_parallel_size", "N", "Ranks that share each matrix"),
    one(Train, "pipeline-model-parallel-size", "train.pipeline_model_parallel_size", "N", "Stages that share the layers"),
    one(Train, "context-parallel-size", "train.context_parallel_size", "N", "Ranks that share each sequence"),
    yes(Train, "sequence-parallel", "train.sequence_parallel", "Split the stream's rows over the tensor-parallel ranks"),
    one(Train, "decoder-first-pipeline-num-layers", "train.decoder_first_pipeline_num_layers", "N", "Layers of the first stage"),
    one(Train, "decoder-last-pipeline-num-layers", "train.decoder_last_pipeline_num_layers", "N", "Layers of the last stage"),
    one(Train, "data-parallel-size", "train.data_parallel_size", "N", "Ranks that train on different sequences"),
    one(Train, "expert-model-parallel-size", "train.expert_model_parallel_size", "N", "Ranks of a stage that share the experts"),
    one(Train, "expert-tensor-parallel-size", "train.expert_tensor_parallel_size", "N", "Ranks that share the columns of each expert"),
];
