//! The parity matrix: layouts, and what about each could go wrong.

use super::toy::{Toy, config, mixed, records, routed};
use slime_core::RolloutRecord;
use slime_model::layers::Recompute;
use slime_trainer::TrainConfig;
use slime_trainer::algo::Estimator;
use slime_trainer::parallel::ParallelConfig;

/// One row.
#[derive(Clone)]
pub(crate) struct Case {
    /// Which row of the matrix.
    pub(crate) group: &'static str,
    /// What is particular about it.
    pub(crate) name: String,
    pub(crate) toy: Toy,
    pub(crate) config: TrainConfig,
    pub(crate) parallel: ParallelConfig,
    pub(crate) records: Vec<RolloutRecord>,
    /// Also in the default tests.
    pub(crate) quick: bool,
}

fn case(group: &'static str, name: &str, parallel: ParallelConfig) -> Case {
    let name = match name {
        "" => parallel.short(),
        name => format!("{}, {name}", parallel.short()),
    };
    Case {
        group,
        name,
        toy: Toy::PLAIN,
        config: config(),
        parallel,
        records: mixed(),
        quick: false,
    }
}

impl Case {
    fn quick(mut self) -> Self {
        self.quick = true;
        self
    }

    fn toy(mut self, family: &'static str, kv: usize, tied: bool) -> Self {
        self.toy = Toy { family, kv, tied };
        self
    }

    fn with(mut self, change: impl FnOnce(&mut TrainConfig)) -> Self {
        change(&mut self.config);
        self
    }
}

/// tp, pp, cp, dp.
pub(crate) fn sizes(tp: usize, pp: usize, cp: usize, dp: usize) -> ParallelConfig {
    ParallelConfig {
        tensor_model_parallel_size: tp,
        pipeline_model_parallel_size: pp,
        context_parallel_size: cp,
        data_parallel_size: dp,
        ..ParallelConfig::default()
    }
}

pub(crate) fn sequence_parallel(config: ParallelConfig) -> ParallelConfig {
    ParallelConfig {
        sequence_parallel: true,
        ..config
    }
}

fn tensor(all: &mut Vec<Case>) {
    for tp in [2, 4] {
        let quick = |case: Case| if tp == 2 { case.quick() } else { case };
        all.push(quick(case("tp", "", sizes(tp, 1, 1, 1))));
        all.push(quick(case("tp", "", sequence_parallel(sizes(tp, 1, 1, 1)))));
    }
    let tp4 = || sequence_parallel(sizes(4, 1, 1, 1));
    all.push(
        case("tp", "2 key heads", tp4())
            .toy("qwen3", 2, false)
            .quick(),
    );
    all.push(case("tp", "1 key head", tp4()).toy("qwen3", 1, true));
    all.push(case("tp", "8 ranks, 2 key heads", sizes(8, 1, 1, 1)).toy("llama", 2, false));
    let tp2 = || sequence_parallel(sizes(2, 1, 1, 1));
    all.push(case("tp", "biases", tp2()).toy("qwen2", 4, false));
    all.push(case("tp", "biases, 2 key heads", tp4()).toy("qwen2", 2, true));
    all.push(case("tp", "tied", tp2()).toy("llama", 4, true).quick());
}

fn pipeline(all: &mut Vec<Case>) {
    all.push(case("pp", "", sizes(1, 2, 1, 1)).quick());
    all.push(case("pp", "", sizes(1, 4, 1, 1)));
    all.push(
        case("pp", "tied", sizes(1, 2, 1, 1))
            .toy("llama", 4, true)
            .quick(),
    );
    let uneven = ParallelConfig {
        decoder_first_pipeline_num_layers: Some(1),
        decoder_last_pipeline_num_layers: Some(1),
        ..sizes(1, 3, 1, 1)
    };
    all.push(case("pp", "layers 1/2/1", uneven).quick());
    for (pp, vpp) in [(2, 2), (4, 1)] {
        let interleaved = ParallelConfig {
            virtual_pipeline_model_parallel_size: vpp,
            ..sizes(1, pp, 1, 1)
        };
        // One sequence a micro-batch: one of them, PP - 1, PP, 3 PP + 1.
        let mut counts = vec![1, pp - 1, pp, 3 * pp + 1];
        counts.dedup();
        for micros in counts {
            let lengths: Vec<_> = (0..micros).map(|i| (2 + i % 3, 5 + i % 4)).collect();
            let mut row = case(
                "pp",
                &format!("{micros} micro-batches"),
                interleaved.clone(),
            );
            row.records = records(&lengths, 11);
            for record in &mut row.records {
                record.outcome = "scored".into();
                record.reward.get_or_insert(0.5);
            }
            row.config.max_tokens_per_gpu = 1;
            row.config.num_steps_per_rollout = Some(1);
            row.quick = vpp > 1 && micros == pp;
            all.push(row);
        }
    }
    let interleaved = ParallelConfig {
        virtual_pipeline_model_parallel_size: 2,
        ..sizes(1, 2, 1, 1)
    };
    all.push(case("pp", "tied", interleaved).toy("qwen2", 4, true));
}

fn context(all: &mut Vec<Case>) {
    for cp in [2, 4] {
        let quick = |case: Case| if cp == 2 { case.quick() } else { case };
        all.push(quick(case("cp", "", sizes(1, 1, cp, 1))));
        let mut edges = case(
            "cp",
            "lengths 2, 2cp-1, 2cp, 5cp+3, and prompts only",
            sizes(1, 1, cp, 1),
        );
        // The last rollout's response is one token, so most ranks hold nothing of it that trains.
        let lengths = [
            (1, 1),
            (1, 2 * cp - 2),
            (1, 2 * cp - 1),
            (3, 5 * cp),
            (30, 1),
            (1, 1),
            (2, 2),
            (40, 1),
        ];
        edges.records = records(&lengths, 3);
        edges.config.num_steps_per_rollout = Some(2);
        all.push(quick(edges));
    }
    let gspo = |c: &mut TrainConfig| c.advantage_estimator = Estimator::Gspo;
    all.push(case("cp", "gspo", sizes(1, 1, 2, 1)).with(gspo).quick());
    all.push(case("cp", "gspo", sizes(2, 1, 4, 1)).with(gspo));
    let whiten = |c: &mut TrainConfig| {
        c.advantage_estimator = Estimator::ReinforcePlusPlus;
        c.normalize_advantages = true;
        c.use_kl_loss = false;
        c.kl_loss_coef = 0.0;
        c.kl_coef = 0.1;
    };
    all.push(
        case("cp", "whitened advantages", sizes(1, 1, 2, 2))
            .with(whiten)
            .quick(),
    );
}

fn data(all: &mut Vec<Case>) {
    for dp in [2, 3, 4] {
        let quick = |case: Case| if dp == 3 { case.quick() } else { case };
        all.push(quick(case("dp", "", sizes(1, 1, 1, dp))));
    }
    for (name, size) in [
        ("a bucket a parameter", 1),
        ("buckets of 37 KB", 37 * 1024 / 4),
    ] {
        let config = ParallelConfig {
            ddp_bucket_size: Some(size),
            ..sizes(1, 1, 1, 3)
        };
        all.push(case("dp", name, config));
    }
    let mut few = case("dp", "fewer sequences than ranks", sizes(1, 1, 1, 4));
    few.records = records(&[(3, 5), (2, 6)], 9);
    few.config.num_steps_per_rollout = Some(1);
    all.push(few.quick());
}

/// Experts over `ep` ranks of a stage, each of them in `etp` parts.
pub(crate) fn experts(ep: usize, etp: usize, config: ParallelConfig) -> ParallelConfig {
    ParallelConfig {
        expert_model_parallel_size: ep,
        expert_tensor_parallel_size: Some(etp),
        ..config
    }
}

fn expert(all: &mut Vec<Case>) {
    let of = |family: &'static str, name: &str, parallel: ParallelConfig| {
        case("ep", name, parallel).toy(family, if family == "deepseek_v3" { 8 } else { 4 }, false)
    };
    let moe = |name: &str, parallel| of("qwen3_moe", name, parallel);
    all.push(moe("", experts(2, 1, sizes(1, 1, 1, 2))).quick());
    all.push(moe("", experts(4, 1, sizes(1, 1, 1, 4))));
    // Gradients of experts are then summed over two ranks, those of the rest over four.
    all.push(moe("", experts(2, 1, sizes(1, 1, 1, 4))).quick());
    all.push(moe("", experts(1, 1, sizes(1, 2, 2, 1))));
    all.push(moe("", experts(1, 2, sizes(1, 1, 1, 2))));
    all.push(moe("", experts(2, 2, sizes(1, 1, 1, 4))).quick());
    all.push(moe("", experts(4, 2, sizes(1, 1, 2, 4))));
    // As Megatron: without a size of its own, tp divides experts too.
    let default = ParallelConfig {
        expert_tensor_parallel_size: None,
        ..experts(2, 1, sequence_parallel(sizes(2, 1, 1, 2)))
    };
    all.push(moe("experts divided over tp", default));
    // One sequence a micro-batch: most experts get no row.
    let few = |c: &mut TrainConfig| c.max_tokens_per_gpu = 1;
    let row = moe("experts without rows", experts(4, 1, sizes(1, 1, 1, 4)));
    all.push(row.with(few).quick());
    let hot = experts(4, 2, sizes(1, 1, 2, 4));
    all.push(of("glm4_moe", "one hot expert", hot));
    let folded = experts(4, 1, sequence_parallel(sizes(2, 1, 2, 1)));
    all.push(moe("folded over tp and cp", folded).quick());
    let tp2 = || experts(4, 1, sequence_parallel(sizes(2, 1, 1, 2)));
    all.push(of("glm4_moe", "an MLP for every token", tp2()).quick());
    let tp4 = experts(8, 1, sequence_parallel(sizes(4, 1, 1, 2)));
    all.push(case("ep", "2 key heads, tied", tp4).toy("glm4_moe", 2, true));
    all.push(of(
        "glm4_moe",
        "",
        experts(2, 2, sequence_parallel(sizes(2, 1, 2, 1))),
    ));
    for (name, parallel) in [
        ("latent attention", experts(2, 1, sizes(1, 2, 1, 2))),
        (
            "latent attention",
            experts(4, 1, sequence_parallel(sizes(2, 1, 1, 2))),
        ),
        ("latent attention", experts(2, 1, sizes(1, 1, 2, 1))),
        (
            "latent attention",
            experts(2, 2, sequence_parallel(sizes(4, 1, 2, 1))),
        ),
    ] {
        all.push(of("deepseek_v3", name, parallel));
    }
    let delta = of("qwen3_next", "delta nets", experts(2, 1, sizes(1, 2, 1, 2)));
    all.push(delta.quick());
    let heads = experts(4, 1, sequence_parallel(sizes(2, 2, 1, 2)));
    all.push(of("qwen3_next", "delta nets' heads", heads));
    let full = |c: &mut TrainConfig| c.recompute_granularity = Recompute::Full;
    let again = moe("everything again", experts(2, 1, sizes(1, 1, 1, 2)));
    all.push(again.with(full));
    all.push(moe("", experts(2, 1, sizes(1, 2, 1, 2))));
    let interleaved = ParallelConfig {
        virtual_pipeline_model_parallel_size: 2,
        ..experts(2, 1, sizes(1, 2, 1, 2))
    };
    all.push(moe("", interleaved));
    all.push(moe(
        "16 ranks",
        experts(4, 1, sequence_parallel(sizes(2, 2, 2, 2))),
    ));
    all.push(of(
        "glm4_moe",
        "16 ranks",
        experts(4, 2, sequence_parallel(sizes(2, 2, 2, 2))),
    ));
    let named = experts(2, 1, sizes(1, 2, 1, 2));
    all.push(of("glm4_moe", "", named));
    let deepseek = experts(8, 1, sequence_parallel(sizes(2, 2, 2, 2)));
    all.push(of("deepseek_v3", "16 ranks", deepseek));
}

/// Experts that are replayed: an engine's, which no router would choose; and those of the pass for the old log-probs, with
/// steps so large that routers change their minds.
fn replay(all: &mut Vec<Case>) {
    let of = |family: &'static str, parallel: ParallelConfig| {
        let kv = if family == "deepseek_v3" { 8 } else { 4 };
        [true, false].map(|engines| {
            let name = format!("{family}, {}", if engines { "engine's" } else { "own" });
            let mut row = case("replay", &name, parallel.clone()).toy(family, kv, false);
            row.config.num_steps_per_rollout = Some(2);
            match engines {
                true => {
                    row.config.use_rollout_routing_replay = true;
                    row.records = routed(row.records, row.toy);
                }
                false => {
                    row.config.use_routing_replay = true;
                    row.config.lr = 0.02;
                }
            }
            row
        })
    };
    let mut add = |rows: [Case; 2], quick: bool| {
        all.extend(rows.map(|row| if quick { row.quick() } else { row }));
    };
    add(of("qwen3_moe", sizes(1, 2, 1, 1)), false);
    add(of("qwen3_moe", sizes(1, 1, 2, 1)), true);
    add(of("qwen3_moe", experts(4, 1, sizes(1, 1, 4, 1))), false);
    add(of("qwen3_moe", experts(2, 2, sizes(1, 1, 1, 4))), false);
    add(of("qwen3_moe", experts(1, 1, sizes(1, 1, 1, 3))), false);
    add(
        of(
            "qwen3_moe",
            experts(2, 1, sequence_parallel(sizes(2, 1, 1, 1))),
        ),
        true,
    );
    let interleaved = ParallelConfig {
        virtual_pipeline_model_parallel_size: 2,
        ..experts(2, 1, sizes(1, 2, 1, 2))
    };
    add(of("qwen3_moe", interleaved), true);
    let folded = experts(4, 1, sequence_parallel(sizes(2, 1, 2, 1)));
    add(of("glm4_moe", folded), false);
    add(of("deepseek_v3", experts(2, 1, sizes(1, 2, 2, 1))), false);
    add(of("qwen3_next", experts(2, 1, sizes(1, 2, 1, 2))), false);
    // What slime's users of a large mixture run: every axis but context, and all of them.
    add(
        of(
            "qwen3_moe",
            experts(4, 1, sequence_parallel(sizes(2, 2, 1, 2))),
        ),
        true,
    );
    add(
        of(
            "glm4_moe",
            experts(4, 2, sequence_parallel(sizes(2, 2, 2, 2))),
        ),
        false,
    );
    let full = |c: &mut TrainConfig| c.recompute_granularity = Recompute::Full;
    let again = of(
        "qwen3_moe",
        experts(2, 1, sequence_parallel(sizes(2, 2, 1, 1))),
    );
    add(again.map(|row| row.with(full)), false);
}

/// PPO's critic. Its value head begins at 0, so that gradients reach its layers from the second step on; its rate is such that
/// values move beyond the clip.
fn critic(all: &mut Vec<Case>) {
    let ppo = |c: &mut TrainConfig| {
        c.advantage_estimator = Estimator::Ppo;
        c.lambd = 0.9;
        c.gamma = 0.98;
        c.critic_lr = Some(5e-3);
        c.value_clip = 0.05;
        c.num_steps_per_rollout = Some(4);
    };
    let of = |name: &str, parallel| case("critic", name, parallel).with(ppo);
    all.push(of("", sequence_parallel(sizes(2, 1, 1, 1))).quick());
    all.push(of("", sizes(2, 1, 1, 1)));
    all.push(of("", sizes(1, 2, 1, 1)).quick());
    all.push(of("tied", sizes(1, 2, 1, 1)).toy("llama", 4, true));
    all.push(of("", sizes(1, 1, 2, 1)).quick());
    all.push(of("", sizes(1, 1, 4, 1)));
    all.push(of("", sizes(1, 1, 1, 3)).quick());
    let interleaved = ParallelConfig {
        virtual_pipeline_model_parallel_size: 2,
        ..sizes(1, 2, 1, 2)
    };
    all.push(of("", interleaved));
    let few = |c: &mut TrainConfig| c.max_tokens_per_gpu = 1;
    all.push(of("a sequence a micro-batch", sizes(1, 2, 2, 1)).with(few));
    let token_kl = |c: &mut TrainConfig| {
        c.use_kl_loss = false;
        c.kl_loss_coef = 0.0;
        c.kl_coef = 0.1;
        c.normalize_advantages = true;
    };
    let kl = of(
        "KL in the reward, whitened",
        sequence_parallel(sizes(2, 2, 1, 2)),
    );
    all.push(kl.with(token_kl).quick());
    let full = |c: &mut TrainConfig| c.recompute_granularity = Recompute::Full;
    all.push(of("everything again", sequence_parallel(sizes(2, 1, 2, 1))).with(full));
    let moe = experts(4, 1, sequence_parallel(sizes(2, 2, 1, 2)));
    let mut told = of("the engine's experts", moe).toy("qwen3_moe", 4, false);
    told.config.use_rollout_routing_replay = true;
    told.records = routed(told.records, told.toy);
    all.push(told.quick());
    let warm_up = |c: &mut TrainConfig| c.num_critic_only_steps = 1;
    all.push(of("only the critic", sequence_parallel(sizes(2, 1, 1, 2))).with(warm_up));
    all.push(of("16 ranks", sequence_parallel(sizes(2, 2, 2, 2))));
}

/// A teacher of another family, also of a mixture, whose experts it has not.
fn teacher(all: &mut Vec<Case>) {
    let taught = |c: &mut TrainConfig| {
        c.use_opd = true;
        c.opd_kl_coef = 0.7;
    };
    let of = |parallel| case("teacher", "", parallel).with(taught);
    all.push(of(sequence_parallel(sizes(2, 2, 1, 1))).quick());
    all.push(of(sizes(1, 1, 2, 2)).quick());
    all.push(of(sizes(1, 4, 1, 1)));
    let moe = experts(4, 1, sequence_parallel(sizes(2, 2, 1, 2)));
    let mut told = of(moe).toy("qwen3_moe", 4, false);
    told.config.use_rollout_routing_replay = true;
    told.records = routed(told.records, told.toy);
    all.push(told.quick());
}

/// Layer kinds that the toy does not have.
fn families(all: &mut Vec<Case>) {
    let of = |family, name: &str, parallel| case("families", name, parallel).toy(family, 4, false);
    let sandwich = "norms behind layers";
    let tp2 = sequence_parallel(sizes(2, 1, 1, 1));
    all.push(of("glm4", sandwich, tp2.clone()).quick());
    all.push(of("glm4", sandwich, sizes(1, 2, 2, 1)).quick());
    all.push(of("qwen3_moe", "whole experts", sizes(1, 1, 1, 2)).quick());
    all.push(of("qwen3_moe", "experts' columns", tp2.clone()));
    let latent =
        |parallel| case("families", "latent attention", parallel).toy("deepseek_v3", 8, false);
    all.push(latent(tp2).quick());
    all.push(latent(sizes(1, 2, 1, 1)));
    all.push(latent(sizes(1, 1, 2, 1)).quick());
    all.push(of("qwen3_next", "delta nets", sizes(1, 2, 1, 2)));
    let heads = sequence_parallel(sizes(2, 1, 1, 1));
    all.push(of("qwen3_next", "delta nets' heads", heads).quick());
}

fn packing(all: &mut Vec<Case>) {
    for tokens in [1, 60, 10_000] {
        let mut row = case("packing", &format!("{tokens} tokens"), sizes(2, 1, 1, 2));
        row.config.max_tokens_per_gpu = tokens;
        all.push(row);
    }
    let mut permuted = case("packing", "permuted", sizes(1, 2, 2, 1));
    // Whole groups change places, so no statistic changes.
    permuted.records.sort_by_key(|r| (r.group_id.0 + 1) % 3);
    all.push(permuted);
}

fn recompute(all: &mut Vec<Case>) {
    for (name, granularity, layers) in [
        ("nothing again", Recompute::None, None),
        ("everything again", Recompute::Full, None),
        ("3 layers again", Recompute::Full, Some(3)),
        ("MLPs again", Recompute::Mlp, None),
    ] {
        let row = case("recompute", name, sequence_parallel(sizes(2, 2, 1, 1)));
        all.push(row.with(|c| {
            c.recompute_granularity = granularity;
            c.recompute_num_layers = layers;
        }));
    }
    all.push(
        case("recompute", "everything again", sizes(1, 1, 2, 1))
            .with(|c| c.recompute_granularity = Recompute::Full),
    );
}

fn combinations(all: &mut Vec<Case>) {
    all.push(case("combinations", "", sequence_parallel(sizes(2, 2, 2, 1))).quick());
    all.push(case("combinations", "", sizes(2, 2, 2, 1)));
    all.push(case("combinations", "", sequence_parallel(sizes(2, 2, 1, 2))).toy("llama", 4, true));
    all.push(case(
        "combinations",
        "",
        sequence_parallel(sizes(2, 2, 2, 2)),
    ));
    let wide = ParallelConfig {
        virtual_pipeline_model_parallel_size: 2,
        ..sequence_parallel(sizes(4, 2, 2, 1))
    };
    all.push(case("combinations", "2 key heads, tied", wide).toy("qwen3", 2, true));
    all.push(case("combinations", "", sizes(1, 4, 2, 2)));
    all.push(case("combinations", "", sequence_parallel(sizes(2, 1, 2, 4))).toy("qwen2", 4, false));
}

/// One step of everything that RL asks of a trainer.
fn rl_step(all: &mut Vec<Case>) {
    let moe = experts(4, 1, sequence_parallel(sizes(2, 1, 1, 2)));
    let deep = experts(4, 1, sequence_parallel(sizes(2, 2, 1, 2)));
    let mut told = case("rl step", "the engine's experts", deep).toy("qwen3_moe", 4, false);
    told.records = routed(told.records, told.toy);
    told.config.use_rollout_routing_replay = true;
    for row in [
        case("rl step", "", sizes(2, 2, 2, 1)),
        case("rl step", "", moe).toy("qwen3_moe", 4, false),
        told,
        case("rl step", "", sizes(1, 1, 1, 3)),
    ] {
        all.push(row.with(|c| c.num_steps_per_rollout = Some(1)).quick());
    }
}

/// Every row.
pub(crate) fn all() -> Vec<Case> {
    let mut all = Vec::new();
    tensor(&mut all);
    pipeline(&mut all);
    context(&mut all);
    data(&mut all);
    expert(&mut all);
    replay(&mut all);
    critic(&mut all);
    teacher(&mut all);
    families(&mut all);
    packing(&mut all);
    recompute(&mut all);
    combinations(&mut all);
    rl_step(&mut all);
    all
}
