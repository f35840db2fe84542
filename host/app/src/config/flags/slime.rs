//! What became of every flag of slime's, and of the Megatron flags that its launch scripts use.
//!
//! A flag that is not in this list and not among this program's own is unknown and an error. docs/slime-flags.md is this
//! table, printed by `slime-host config flags`; a test holds them equal.

use std::fmt::Write;

/// What became of a flag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// A flag of this program, with the same meaning.
    Same,
    /// Another flag of this program; values are handed on.
    Renamed(&'static str),
    /// A key of the recipe set to a value.
    Sets(&'static str, &'static str),
    /// Nothing to say: it is always so, for this reason.
    Always(&'static str),
    /// Nothing to say at 0; another value is not possible here, for this reason.
    Zero(&'static str),
    /// Done by a person: a plugin takes its place.
    Plugin(&'static str),
    /// Not possible here, for this reason.
    Refused(&'static str),
}

use Fate::{Always, Plugin, Refused, Renamed, Same, Sets, Zero};

const ONE_RANK: &str = "the sizes of the parallel groups say how many ranks there are, and the launcher where they run";
const SHARED: &str =
    "trainer and embedded engine share the machine already; servers given by address never do";
const NO_CODE: &str =
    "no code of the user's runs in the host: what varies is a plugin or an option";
const TRACKED: &str = "metrics are in metrics.jsonl and tensorboard/, which W&B imports";
const CONFIG: &str =
    "config.json of --hf-checkpoint says what the model is, and one path computes it";
const NO_MEGATRON: &str = "there is no Megatron behind this trainer";
const ONE_BINARY: &str = "there is no Ray and no second process to configure";

/// Headings, each with its flags.
// One flag a line reads as the table it is.
#[rustfmt::skip]
pub const SLIME: &[(&str, &[(&str, Fate)])] = &[
    ("Cluster", &[
        ("actor-num-nodes", Always(ONE_RANK)),
        ("actor-num-gpus-per-node", Always(ONE_RANK)),
        ("rollout-num-gpus", Same),
        ("rollout-num-gpus-per-engine", Same),
        ("num-gpus-per-node", Always(ONE_RANK)),
        ("colocate", Always(SHARED)),
        ("offload", Always(SHARED)),
        ("offload-train", Always(SHARED)),
        ("offload-rollout", Always(SHARED)),
        ("no-offload-train", Always(SHARED)),
        ("no-offload-rollout", Always(SHARED)),
    ]),
    ("Training backend", &[
        ("train-backend", Always("there is one trainer")),
        ("qwen-gdn-backend", Refused("gated delta nets run in one way")),
        ("train-env-vars", Always(ONE_BINARY)),
        ("update-weight-mode", Renamed("update-weight-transport")),
        ("update-weight-transport", Same),
        ("release-train", Refused("the trainer keeps its memory")),
        ("update-weight-disk-dir", Same),
        ("update-weight-disk-keep-files", Always("the two newest versions are kept, and what a server still reads")),
        ("update-weight-delta-encoding", Always("there is one encoding of deltas")),
        ("update-weight-delta-checksum", Always("what a delta makes is always checked")),
        ("update-weight-local-checkpoint-dir", Refused("use --set rollout.update_weight_local_dir=DIR")),
        ("custom-update-weight-post-write-path", Refused(NO_CODE)),
        ("update-weight-buffer-size", Always("its size is fixed")),
        ("custom-model-provider-path", Refused("a model family is one file of host/model/src/families")),
        ("recompute-loss-function", Always("the head is fused: logits of one chunk exist at a time")),
        ("log-probs-chunk-size", Same),
        ("only-train-params-name-list", Refused("every parameter trains")),
        ("freeze-params-name-list", Refused("every parameter trains")),
        ("freeze-indexer", Refused("a sparse-attention indexer is kept as it is and never trained")),
        ("allgather-cp", Refused("sparse attention is not computed: sequences are at most as long as what the indexer selects")),
    ]),
    ("Rollout", &[
        ("hf-checkpoint", Same),
        ("model-name", Always("config.json says it")),
        ("rollout-function-path", Plugin("a generator plugin drives a rollout")),
        ("rollout-temperature", Same),
        ("rollout-top-p", Same),
        ("rollout-top-k", Same),
        ("rollout-max-context-len", Same),
        ("rollout-max-prompt-len", Always("a prompt that leaves no room in --rollout-max-context-len is left out, counted and named")),
        ("rollout-max-response-len", Same),
        ("rollout-skip-special-tokens", Always("verifiers read text without special tokens; tokens are kept as they came")),
        ("rollout-stop", Same),
        ("rollout-stop-token-ids", Same),
        ("rollout-shuffle", Same),
        ("rollout-seed", Same),
        ("over-sampling-batch-size", Same),
        ("dynamic-sampling-filter-path", Sets("rollout.filter", "nonzero-std")),
        ("partial-rollout", Sets("rollout.fully_async", "true")),
        ("mask-offpolicy-in-partial-rollout", Same),
        ("custom-generate-function-path", Plugin("a generator plugin drives a rollout")),
        ("rollout-sample-hook-path", Plugin("a verifier or filter plugin sees every rollout")),
        ("custom-rollout-log-function-path", Refused(NO_CODE)),
        ("custom-eval-rollout-log-function-path", Refused(NO_CODE)),
        ("buffer-filter-path", Refused("the buffer gives groups by id, never older than --max-weight-staleness")),
        ("update-weights-interval", Refused("weights are published after every rollout step")),
        ("keep-old-actor", Always("the old policy's log-probs are computed before the first update of a rollout step")),
        ("rollout-data-postprocess-path", Refused(NO_CODE)),
        ("rollout-data-transport", Always(ONE_BINARY)),
        ("rollout-external-engine-addrs", Same),
    ]),
    ("Fault tolerance", &[
        ("use-fault-tolerance", Always("a server that fails is out of routing, probed, and comes back with the present weights")),
        ("rollout-health-check-interval", Always("probes adapt to how a server answers")),
        ("rollout-health-check-timeout", Always("probes adapt to how a server answers")),
        ("rollout-health-check-first-wait", Always("probes adapt to how a server answers")),
    ]),
    ("Data and batch", &[
        ("num-rollout", Same),
        ("num-epoch", Same),
        ("disable-rollout-global-dataset", Plugin("a source plugin makes prompts")),
        ("data-source-path", Plugin("a source plugin makes prompts")),
        ("prompt-data", Same),
        ("apply-chat-template", Same),
        ("apply-chat-template-kwargs", Same),
        ("input-key", Same),
        ("label-key", Same),
        ("metadata-key", Same),
        ("tool-key", Same),
        ("multimodal-keys", Refused("models read text only")),
        ("start-rollout-id", Always("a run is continued where its checkpoint stands: --resume")),
        ("rollout-batch-size", Same),
        ("n-samples-per-prompt", Same),
        ("global-batch-size", Same),
        ("num-steps-per-rollout", Same),
        ("micro-batch-size", Always("batches are packed by --max-tokens-per-gpu")),
        ("balance-data", Always("batches are packed by tokens")),
        ("balance-by-flops", Always("batches are packed by tokens")),
        ("use-dynamic-batch-size", Always("batches are packed by --max-tokens-per-gpu")),
        ("max-tokens-per-gpu", Same),
        ("log-probs-max-tokens-per-gpu", Always("one packing serves both passes")),
        ("data-pad-size-multiplier", Always("nothing is padded")),
    ]),
    ("Evaluation", &[
        ("eval-function-path", Plugin("a generator plugin drives evaluations too")),
        ("eval-interval", Same),
        ("eval-prompt-data", Same),
        ("eval-config", Refused("its data sets are tables of [eval.prompt_data], each with its own sampling")),
        ("skip-eval-before-train", Same),
        ("eval-input-key", Same),
        ("eval-label-key", Same),
        ("eval-tool-key", Renamed("tool-key")),
        ("n-samples-per-eval-prompt", Same),
        ("eval-temperature", Same),
        ("eval-top-p", Same),
        ("eval-top-k", Same),
        ("eval-max-response-len", Same),
        ("eval-max-prompt-len", Always("a prompt that leaves no room in the context is an outcome of its own")),
        ("eval-min-new-tokens", Refused("an end token is never suppressed")),
        ("eval-max-context-len", Always("--rollout-max-context-len holds for evaluations too")),
        ("eval-reward-key", Plugin("a verifier returns one reward; its parts are metrics")),
    ]),
    ("Algorithm", &[
        ("ref-load", Same),
        ("ref-ckpt-step", Always("an HF directory is one checkpoint")),
        ("load", Always("weights come from --hf-checkpoint; a run is continued with --resume")),
        ("save", Same),
        ("save-interval", Same),
        ("async-save", Always("a checkpoint is written and renamed while nothing trains")),
        ("no-save-optim", Refused("a checkpoint always continues exactly")),
        ("save-hf", Always("the end of a run writes model/, and slime-host convert any checkpoint")),
        ("calculate-per-token-loss", Sets("algorithm.loss_aggregation", "token-mean")),
        ("num-critic-only-steps", Same),
        ("megatron-config-path", Refused("the critic's options are --critic-lr and critic_lr_warmup_iters")),
        ("eps-clip", Same),
        ("eps-clip-high", Same),
        ("eps-clip-c", Same),
        ("value-clip", Same),
        ("kl-coef", Same),
        ("loss-type", Always("the verb says it: run, or sft")),
        ("custom-loss-function-path", Refused("a loss is one file of host/trainer/src/algo")),
        ("kl-loss-type", Same),
        ("advantage-estimator", Same),
        ("disable-compute-advantages-and-returns", Always("the verb sft computes none")),
        ("custom-advantage-function-path", Refused("an estimator is one file of host/trainer/src/algo")),
        ("use-kl-loss", Same),
        ("kl-loss-coef", Same),
        ("use-unbiased-kl", Same),
        ("ref-update-interval", Refused("the reference stays what it was; start a run from the new weights")),
        ("entropy-coef", Same),
        ("gamma", Same),
        ("lambd", Same),
        ("normalize-advantages", Same),
        ("disable-grpo-std-normalization", Same),
        ("disable-rewards-normalization", Same),
        ("use-rollout-entropy", Always("entropy is always measured, in the training pass")),
        ("get-mismatch-metrics", Always("train/mismatch_kl, train/mismatch_k3 and the log-prob gap are always measured")),
        ("reset-optimizer-states", Refused("the optimizer's state lives as long as the run")),
        ("use-stateless-adam", Refused("there is one AdamW")),
        ("use-rollout-logprobs", Same),
        ("use-tis", Same),
        ("tis-clip", Same),
        ("tis-clip-low", Same),
        ("custom-tis-function-path", Always("corrections are built in: --use-tis, --tis-level, --tis-mode, --use-rs, --rs-veto-threshold")),
        ("custom-pg-loss-reducer-function-path", Renamed("loss-aggregation")),
        ("use-routing-replay", Same),
        ("use-rollout-routing-replay", Same),
        ("use-opsm", Same),
        ("opsm-delta", Same),
        ("use-opd", Same),
        ("opd-type", Always("--opd-teacher-load puts the teacher into the trainer, --opd-teacher-addrs names servers that hold it")),
        ("opd-kl-coef", Same),
        ("opd-teacher-load", Same),
        ("opd-teacher-ckpt-step", Always("an HF directory is one checkpoint")),
    ]),
    ("Rewards", &[
        ("rm-type", Plugin("a verifier plugin scores: plugins/math, plugins/exact-match, …")),
        ("reward-key", Plugin("a verifier returns one reward; its parts are metrics")),
        ("group-rm", Plugin("a group-verifier plugin scores a group as a whole")),
        ("rm-url", Plugin("a verifier plugin with the capability to reach that address")),
        ("custom-rm-path", Plugin("a verifier plugin scores")),
        ("custom-reward-post-process-path", Plugin("a shaper plugin, or --overlong-buffer-len")),
        ("custom-convert-samples-to-train-data-path", Refused(NO_CODE)),
    ]),
    ("Tracking", &[
        ("use-wandb", Always(TRACKED)),
        ("wandb-mode", Always(TRACKED)),
        ("wandb-dir", Always(TRACKED)),
        ("wandb-key", Always(TRACKED)),
        ("wandb-host", Always(TRACKED)),
        ("wandb-team", Always(TRACKED)),
        ("wandb-group", Always(TRACKED)),
        ("wandb-project", Always(TRACKED)),
        ("wandb-run-id", Always(TRACKED)),
        ("disable-wandb-random-suffix", Always(TRACKED)),
        ("wandb-always-use-train-step", Always(TRACKED)),
        ("use-tensorboard", Always("TensorBoard files are always written")),
        ("tb-project-name", Always("TensorBoard files lie in the run's directory")),
        ("tb-experiment-name", Always("TensorBoard files lie in the run's directory")),
        ("log-multi-turn", Always("lengths are always measured")),
        ("log-passrate", Always("passrate/pass@k is always measured")),
        ("log-reward-category", Always("a verdict's parts are metrics")),
        ("log-correct-samples", Always("every rollout is in run.db and rollouts/")),
    ]),
    ("Debug", &[
        ("save-debug-rollout-data", Always("every rollout is in run.db and rollouts/")),
        ("load-debug-rollout-data", Refused("use the verb: slime-host train --rollouts FILE")),
        ("load-debug-rollout-data-subsample", Refused("use the verb: slime-host train --rollouts FILE")),
        ("debug-rollout-only", Refused("use the verb: slime-host rollout")),
        ("debug-train-only", Refused("use the verb: slime-host train")),
        ("load-forge-rollout-data", Refused("use the verb: slime-host train --rollouts FILE")),
        ("save-debug-train-data", Refused("slime-host train repeats any step")),
        ("dump-details", Always("every rollout is in run.db and rollouts/")),
        ("memory-snapshot-dir", Always("trace.json shows where time goes")),
        ("memory-snapshot-num-steps", Always("trace.json shows where time goes")),
        ("profile-target", Always("trace.json shows where time goes")),
        ("memory-recorder", Always("trace.json shows where time goes")),
        ("record-memory-history", Always("trace.json shows where time goes")),
        ("check-weight-update-equal", Always("checksums are compared after every publish")),
    ]),
    ("Network", &[
        ("http-proxy", Always("internal traffic never goes through a proxy")),
        ("use-distributed-post", Always(ONE_BINARY)),
    ]),
    ("Rollout buffer and data", &[
        ("rollout-buffer-url", Refused("the Data Buffer is this run's own database")),
        ("fetch-trajectory-retry-times", Refused("the Data Buffer is this run's own database")),
        ("min-batch-collection-ratio", Refused("a step trains on whole batches")),
        ("rollout-task-type", Plugin("a source plugin makes prompts")),
        ("loss-mask-type", Always("the mask follows from who wrote a token, with any template")),
        ("rollout-sample-filter-path", Plugin("a filter plugin, or --set rollout.mask_truncated=true")),
        ("rollout-all-samples-process-path", Refused(NO_CODE)),
    ]),
    ("Megatron plugins", &[
        ("custom-megatron-init-path", Refused(NO_MEGATRON)),
        ("custom-megatron-before-log-prob-hook-path", Refused(NO_MEGATRON)),
        ("custom-megatron-before-train-step-hook-path", Refused(NO_MEGATRON)),
        ("megatron-deepgemm-forward-layers", Refused(NO_MEGATRON)),
        ("megatron-deepgemm-forward-modules", Refused(NO_MEGATRON)),
        ("megatron-deepgemm-moe-forward-layers", Refused(NO_MEGATRON)),
        ("megatron-deepgemm-moe-forward-modules", Refused(NO_MEGATRON)),
        ("mtp-num-layers", Refused("multi-token prediction is not trained")),
        ("mtp-loss-scaling-factor", Refused("multi-token prediction is not trained")),
        ("enable-mtp-training", Refused("multi-token prediction is not trained")),
    ]),
    ("Continuous integration", &[
        ("ci-test", Always("checks are always on and say their likely cause")),
        ("ci-disable-kl-checker", Always("checks never stop a run")),
        ("ci-train-rollout-logprob-abs-diff-threshold", Always("the gap is always measured, and told from 0.02 on")),
        ("ci-save-grad-norm", Always("train/grad_norm is in metrics.jsonl")),
        ("ci-load-grad-norm", Always("slime-host inspect compares two runs")),
    ]),
    ("Other", &[
        ("custom-config-path", Refused("options of built-in parts are keys of the recipe")),
        ("padded-vocab-size", Always("rows beyond the tokenizer's are never sampled")),
        ("spec", Refused(NO_MEGATRON)),
    ]),
    ("SGLang extras", &[
        ("sglang-router-ip", Refused("requests are routed by the host; to let a running sglang_router pick the server: --set rollout.router_addr=HOST:PORT")),
        ("sglang-router-port", Refused("requests are routed by the host; to let a running sglang_router pick the server: --set rollout.router_addr=HOST:PORT")),
        ("sglang-router-request-timeout-secs", Always("every request has a deadline")),
        ("router-policy", Always("a session stays on one server while that is well")),
        ("sglang-server-concurrency", Same),
        ("prefill-num-servers", Refused("give the servers their worker_type in a --sglang-config file")),
        ("sglang-config", Same),
    ]),
    ("Megatron: optimizer and batches", &[
        ("lr", Same),
        ("min-lr", Same),
        ("lr-decay-style", Same),
        ("lr-decay-iters", Same),
        ("lr-warmup-iters", Same),
        ("lr-warmup-init", Same),
        ("lr-warmup-fraction", Refused("say it in train steps: --lr-warmup-iters")),
        ("lr-wsd-decay-iters", Same),
        ("lr-wsd-decay-style", Same),
        ("weight-decay", Same),
        ("adam-beta1", Same),
        ("adam-beta2", Same),
        ("adam-eps", Same),
        ("clip-grad", Same),
        ("optimizer", Always("there is one AdamW")),
        ("seed", Always("everything random derives from --rollout-seed")),
        ("optimizer-cpu-offload", Refused("the optimizer lives with its weights")),
        ("overlap-cpu-optimizer-d2h-h2d", Refused("the optimizer lives with its weights")),
        ("use-precision-aware-optimizer", Same),
        ("use-distributed-optimizer", Always("moments are sharded over the ranks that share the batch")),
    ]),
    ("Megatron: model", &[
        ("swiglu", Always(CONFIG)),
        ("num-layers", Always(CONFIG)),
        ("hidden-size", Always(CONFIG)),
        ("ffn-hidden-size", Always(CONFIG)),
        ("num-attention-heads", Always(CONFIG)),
        ("group-query-attention", Always(CONFIG)),
        ("num-query-groups", Always(CONFIG)),
        ("kv-channels", Always(CONFIG)),
        ("qk-layernorm", Always(CONFIG)),
        ("use-rotary-position-embeddings", Always(CONFIG)),
        ("rotary-base", Always(CONFIG)),
        ("rotary-percent", Always(CONFIG)),
        ("rotary-interleaved", Always(CONFIG)),
        ("use-rope-scaling", Always(CONFIG)),
        ("rope-scaling-factor", Always(CONFIG)),
        ("rope-type", Always(CONFIG)),
        ("no-rope-fusion", Always(CONFIG)),
        ("disable-bias-linear", Always(CONFIG)),
        ("add-qkv-bias", Always(CONFIG)),
        ("normalization", Always(CONFIG)),
        ("norm-epsilon", Always(CONFIG)),
        ("apply-layernorm-1p", Always(CONFIG)),
        ("post-self-attn-layernorm", Always(CONFIG)),
        ("post-mlp-layernorm", Always(CONFIG)),
        ("vocab-size", Always(CONFIG)),
        ("make-vocab-size-divisible-by", Always(CONFIG)),
        ("untie-embeddings-and-output-weights", Always(CONFIG)),
        ("max-position-embeddings", Always(CONFIG)),
        ("position-embedding-type", Always(CONFIG)),
        ("attention-output-gate", Always(CONFIG)),
        ("multi-latent-attention", Always(CONFIG)),
        ("q-lora-rank", Always(CONFIG)),
        ("kv-lora-rank", Always(CONFIG)),
        ("qk-head-dim", Always(CONFIG)),
        ("qk-pos-emb-head-dim", Always(CONFIG)),
        ("v-head-dim", Always(CONFIG)),
        ("num-experts", Always(CONFIG)),
        ("moe-layer-freq", Always(CONFIG)),
        ("moe-ffn-hidden-size", Always(CONFIG)),
        ("moe-shared-expert-intermediate-size", Always(CONFIG)),
        ("moe-router-topk", Always(CONFIG)),
        ("moe-router-score-function", Always(CONFIG)),
        ("moe-router-pre-softmax", Always(CONFIG)),
        ("moe-router-enable-expert-bias", Always(CONFIG)),
        ("moe-router-topk-scaling-factor", Always(CONFIG)),
        ("moe-router-num-groups", Always(CONFIG)),
        ("moe-router-group-topk", Always(CONFIG)),
        ("moe-router-load-balancing-type", Always(CONFIG)),
        ("moe-router-bias-update-rate", Zero("biases of routers are as the model has them, and stay so")),
        ("moe-router-dtype", Always(CONFIG)),
        ("moe-aux-loss-coeff", Zero("no loss balances experts")),
        ("moe-token-dispatcher-type", Always(CONFIG)),
        ("moe-grouped-gemm", Always(CONFIG)),
        ("moe-permute-fusion", Always(CONFIG)),
        ("moe-token-drop-policy", Always(CONFIG)),
        ("moe-enable-deepep", Always(CONFIG)),
    ]),
    ("Megatron: layout and memory", &[
        ("tensor-model-parallel-size", Same),
        ("pipeline-model-parallel-size", Same),
        ("context-parallel-size", Same),
        ("expert-model-parallel-size", Same),
        ("expert-tensor-parallel-size", Same),
        ("decoder-first-pipeline-num-layers", Same),
        ("decoder-last-pipeline-num-layers", Same),
        ("sequence-parallel", Same),
        ("recompute-granularity", Same),
        ("recompute-method", Always("--recompute-num-layers of the first layers")),
        ("recompute-num-layers", Same),
        ("attention-dropout", Always("there is no dropout")),
        ("hidden-dropout", Always("there is no dropout")),
        ("accumulate-allreduce-grads-in-fp32", Always("gradients are fp32")),
        ("attention-softmax-in-fp32", Always("softmax is fp32")),
        ("attention-backend", Always("there is one attention")),
        ("no-check-for-nan-in-loss-and-grad", Always("a step whose gradient is not finite is skipped and counted")),
        ("bf16", Always("the device's dtype: model.dtype")),
        ("fp16", Refused("weights are bf16 or f32: model.dtype")),
    ]),
];

/// What became of a flag, without its dashes.
pub fn fate(name: &str) -> Option<Fate> {
    let all = SLIME.iter().flat_map(|(_, flags)| *flags);
    all.copied()
        .find(|(flag, _)| *flag == name)
        .map(|(_, fate)| fate)
}

/// The table, as a page of the docs.
pub fn page() -> String {
    let mut text = String::from(PREFACE);
    for (heading, flags) in SLIME {
        let _ = write!(text, "\n## {heading}\n\n| flag | here |\n|---|---|\n");
        for (name, fate) in *flags {
            let here = match fate {
                Same => "the same".to_owned(),
                Renamed(flag) => format!("`--{flag}`"),
                Sets(key, value) => format!("`--set {key}={value}`"),
                Always(why) => format!("leave it out: {why}"),
                Zero(why) => format!("leave it out at 0; else no: {why}"),
                Plugin(what) => format!("a plugin: {what}"),
                Refused(why) => format!("no: {why}"),
            };
            let _ = writeln!(text, "| `--{name}` | {here} |");
        }
    }
    text
}

const PREFACE: &str = "# slime's flags

What became of each flag of slime's, and of the Megatron flags that its launch scripts use. Printed by `slime-host config flags`.
On the command line, a flag that is not `the same` is an error that says what to do; `slime-host import SCRIPT` does it.
Any other `--sglang-X VALUE` reaches every server that the run launches as `--X VALUE`.
";

#[cfg(test)]
mod tests {
    use super::super::super::schema::is_key;
    use super::super::exists;
    use super::*;

    #[test]
    fn every_flag_has_one_fate_and_every_fate_is_true() {
        let mut seen = std::collections::BTreeSet::new();
        for (name, fate) in SLIME.iter().flat_map(|(_, flags)| *flags) {
            assert!(seen.insert(*name), "--{name} is listed twice");
            let own = exists(name);
            assert_eq!(
                own,
                *fate == Same,
                "--{name} is a flag of this program: {own}"
            );
            match fate {
                Renamed(other) => assert!(exists(other), "--{other}"),
                Sets(key, _) => assert!(is_key(key), "{key}"),
                Always(why) | Zero(why) | Plugin(why) | Refused(why) => {
                    assert!(!why.is_empty() && !why.ends_with('.'))
                }
                Same => {}
            }
        }
        assert!(seen.len() > 200, "{}", seen.len());
    }

    #[test]
    fn the_page_in_docs_is_this_table() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/slime-flags.md");
        let page = std::fs::read_to_string(path).unwrap_or_default();
        assert!(
            page == super::page(),
            "run: slime-host config flags > docs/slime-flags.md"
        );
    }
}
