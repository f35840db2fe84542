//! Every family on a GPU against the CPU in f64 with the same weights: hidden rows, gradients, and rows served through the
//! cache. How near is near: a few times as far as the CPU itself moves when every weight is wrong by a rounding to bf16. Says
//! so and passes where there is no GPU.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]
#![allow(
    clippy::print_stdout,
    reason = "says what it skipped and how near it came"
)]

use half::bf16;
use serde_json::Value;
use slime_kernels::cuda::Cuda;
use slime_kernels::{Cpu, Ops, PagedSequence, Sequences};
use slime_model::layers::{Gradients, Recompute};
use slime_model::{ModelSpec, Network, PagedRows, ParamSpec, families, init, params};
use std::sync::Arc;

const LENGTHS: [usize; 3] = [37, 1, 20];

/// A family's tiny configuration with widths that CUDA's kernels take: whole vectors. Every expert is chosen, as rounding
/// could choose another.
fn wide(config: &mut Value) {
    let Some(map) = config.as_object_mut() else {
        return;
    };
    let experts = ["num_experts", "n_routed_experts"]
        .iter()
        .find_map(|key| map.get(*key).cloned());
    let groups = map.get("n_group").cloned();
    for (key, value) in map.iter_mut() {
        match key.as_str() {
            "head_dim" => *value = 64.into(),
            "hidden_size" => *value = 192.into(),
            "intermediate_size"
            | "moe_intermediate_size"
            | "shared_expert_intermediate_size"
            | "q_lora_rank"
            | "kv_lora_rank"
            | "qk_nope_head_dim"
            | "qk_rope_head_dim"
            | "v_head_dim"
            | "linear_key_head_dim"
            | "linear_value_head_dim"
            | "index_head_dim" => {
                if let Some(width) = value.as_u64() {
                    *value = width.next_multiple_of(16).into();
                }
            }
            "linear_num_value_heads" => *value = 4.into(),
            "num_experts_per_tok" => *value = experts.clone().unwrap(),
            "topk_group" => *value = groups.clone().unwrap(),
            _ => wide(value),
        }
    }
}

fn spec(family: &families::Family) -> ModelSpec {
    let mut config = family.tiny_config();
    wide(&mut config);
    let config = families::HfConfig::new("config.json", config).unwrap();
    families::from_config(&config).unwrap()
}

/// How far weights are moved to see what a rounding to bf16 does.
const ROUNDING: f32 = 1.0 / 256.0;
/// So many times farther from the CPU than that may a GPU be, which rounds what it computes too.
const TIMES: f64 = 4.0;

/// A network whose weights are exact in bf16, or then moved by up to `noise` of each.
fn network<O: Ops>(ops: Arc<O>, spec: &Arc<ModelSpec>, noise: f32) -> Network<O> {
    let mut state = 1u64;
    let mut random = move || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let mut weight = |param: &ParamSpec| {
        // Larger than fresh ones, so that every layer has a say.
        let size = if param.kind.is_vector() { 1.0 } else { 4.0 };
        let mut values = init::fresh(spec, param, 7);
        for value in &mut values {
            *value = bf16::from_f32(*value * size).to_f32() * (1.0 + noise * random());
        }
        ops.tensor(param.rows, param.cols, &values).unwrap()
    };
    let weights = params(spec).iter().map(&mut weight).collect();
    Network::new(ops.clone(), spec.clone(), weights).unwrap()
}

fn ids(vocab: usize) -> Vec<u32> {
    let count = LENGTHS.iter().sum::<usize>() as u32;
    (0..count)
        .map(|i| (7 * i * i + 3 * i + 1) % vocab as u32)
        .collect()
}

/// Hidden rows, and the gradient of every parameter for a made-up gradient of them.
fn trained<O: Ops>(network: &Network<O>, recompute: Recompute) -> Vec<Vec<f64>> {
    let ops = network.ops();
    let ids = ids(network.spec().vocab);
    let layout = Sequences::from_lengths(LENGTHS);
    let wanted: Vec<u32> = (0..ids.len() as u32).filter(|row| row % 3 != 1).collect();
    let (hidden, kept) = network
        .forward_train(&ids, &layout, &wanted, &[recompute])
        .unwrap();
    let (rows, cols) = ops.shape(&hidden);
    let made_up: Vec<f32> = (0..rows * cols)
        .map(|i| ((i * 37 % 101) as f32 - 50.0) / 64.0)
        .collect();
    let mut grads = Gradients::zeros(&**ops, network.weights()).unwrap();
    let dhidden = ops.tensor(rows, cols, &made_up).unwrap();
    network.backward(&dhidden, kept, &mut grads).unwrap();
    let of_weights = grads.0.iter().map(|g| ops.read_float_f64(g).unwrap());
    std::iter::once(ops.read_f64(&hidden).unwrap())
        .chain(of_weights)
        .collect()
}

/// All rows of all sequences, served in three calls that cut them in the middle of blocks.
fn served<O: Ops>(network: &Network<O>) -> Vec<f64> {
    let ops = network.ops();
    let all = ids(network.spec().vocab);
    let size = ops.kv_block_tokens();
    let mut next = 0;
    let tables: Vec<Vec<u32>> = LENGTHS
        .iter()
        .map(|len| {
            let first = next;
            next += len.div_ceil(size) as u32;
            (first..next).rev().collect()
        })
        .collect();
    let mut cache = network.cache(next as usize).unwrap();
    let starts = [0, LENGTHS[0], LENGTHS[0] + LENGTHS[1]];
    let width = network.spec().hidden;
    let mut hidden = vec![0.0; all.len() * width];
    for (from, to) in [(0, 13), (13, 14), (14, 64)] {
        let (mut ids, mut positions, mut slots, mut rows) = (vec![], vec![], vec![], vec![]);
        let mut sequences = Vec::new();
        for ((len, start), blocks) in LENGTHS.iter().zip(starts).zip(&tables) {
            let (from, to) = (from.min(*len), to.min(*len));
            let first = ids.len();
            for position in from..to {
                ids.push(all[start + position]);
                positions.push(position as u32);
                slots.push(blocks[position / size] as usize * size + position % size);
                rows.push(start + position);
            }
            if from < to {
                sequences.push(PagedSequence {
                    rows: first..ids.len(),
                    context: to,
                    blocks,
                });
            }
        }
        let wanted: Vec<u32> = (0..ids.len() as u32).collect();
        let paged = PagedRows {
            ids: &ids,
            positions: &positions,
            slots: &slots,
            sequences: &sequences,
            wanted: &wanted,
        };
        let out = network.forward_paged(&paged, &mut cache).unwrap();
        let out = ops.read_f64(&out).unwrap();
        for (row, values) in rows.iter().zip(out.chunks_exact(width)) {
            hidden[row * width..(row + 1) * width].copy_from_slice(values);
        }
    }
    hidden
}

/// ‖a − b‖ / ‖b‖.
fn distance(a: &[f64], b: &[f64]) -> f64 {
    let apart: f64 = a.iter().zip(b).map(|(a, b)| (a - b) * (a - b)).sum();
    let size: f64 = b.iter().map(|b| b * b).sum();
    (apart / size.max(1e-12)).sqrt()
}

/// The largest of `got`'s distances from `want`, each in terms of how far `moved` is, and whose it is.
fn farthest<'a>(
    got: &[Vec<f64>],
    want: &[Vec<f64>],
    moved: &[Vec<f64>],
    names: &'a [String],
) -> (f64, &'a str) {
    let mut worst = (0.0, "");
    for (i, name) in names.iter().enumerate() {
        let ratio = distance(&got[i], &want[i]) / distance(&moved[i], &want[i]).max(1e-3);
        if ratio.is_nan() || ratio > worst.0 {
            worst = (ratio, name);
        }
    }
    worst
}

#[test]
fn every_family_trains_and_serves_on_a_gpu_as_on_the_cpu() {
    let cuda = match Cuda::open_poisoning(0) {
        Ok(cuda) => Arc::new(cuda),
        Err(why) => return println!("skipped: {why}"),
    };
    let cpu = Arc::new(Cpu::<f64>::new());
    for family in families::ALL {
        let spec = Arc::new(spec(family));
        let there = network(cuda.clone(), &spec, 0.0);
        let here = network(cpu.clone(), &spec, 0.0);
        let near = network(cpu.clone(), &spec, ROUNDING);
        let mut names = vec!["hidden rows".to_owned()];
        names.extend(params(&spec).into_iter().map(|param| param.name));
        let [want, moved] = [&here, &near].map(|n| trained(n, Recompute::None));
        let mut found = Vec::new();
        for recompute in [
            Recompute::None,
            Recompute::Selective,
            Recompute::Mlp,
            Recompute::Full,
        ] {
            let got = trained(&there, recompute);
            found.push(farthest(&got, &want, &moved, &names));
        }
        let [want, moved] = [&here, &near].map(|n| vec![served(n)]);
        let got = vec![served(&there)];
        let rows = ["rows served".to_owned()];
        found.push(farthest(&got, &want, &moved, &rows));
        println!("{:<22} {found:.2?}", family.model_type);
        for (times, what) in found {
            assert!(times < TIMES, "{}: {what} {times:.1}", family.model_type);
        }
    }
}
