//! What every family has to do beside the trainer's parity tests, on the models of tests/golden: long sequences, routes
//! recorded and replayed, experts without rows, tensors kept for others.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use safetensors::SafeTensors;
use serde_json::Value;
use slime_kernels::{Cpu, Ops, Sequences};
use slime_model::layers::{Gradients, Recompute, Routes};
use slime_model::{
    Dtype, Error, Ffn, HfDir, Network, ParamKind,
    hf::{DEFAULT_SHARD_BYTES, save_dir},
};
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
const WITH_EXPERTS: [&str; 8] = [
    "qwen3-moe-tiny",
    "glm4-moe-tiny",
    "deepseek-v3-tiny",
    "moonlight-tiny",
    "qwen3-next-tiny",
    "glm4-moe-lite-tiny",
    "glm5-tiny",
    "qwen3.5-moe-tiny",
];

/// The golden models; or only the one in the directory `SLIME_FAMILY_DIR`, which tests/golden/check_family.py sets.
fn models() -> Vec<String> {
    match std::env::var("SLIME_FAMILY_DIR") {
        Ok(dir) => vec![dir],
        Err(_) => MODELS.map(str::to_owned).to_vec(),
    }
}

fn golden(model: &str) -> PathBuf {
    // A model that is an absolute path replaces what is before it.
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/models")
        .join(model)
}

fn network<O: Ops>(ops: &Arc<O>, dir: &Path, max_positions: Option<usize>) -> Network<O> {
    let mut dir = HfDir::open(dir).unwrap();
    let mut weights = Vec::new();
    dir.weights
        .load_params(&dir.spec, |param, data| {
            weights.push(ops.tensor(param.rows, param.cols, &data)?);
            Ok::<_, Error>(())
        })
        .unwrap();
    dir.spec.max_positions = max_positions.unwrap_or(dir.spec.max_positions);
    Network::new(ops.clone(), Arc::new(dir.spec), weights).unwrap()
}

fn floats(value: &Value) -> Vec<f64> {
    let numbers = value.as_array().unwrap().iter();
    numbers.map(|x| x.as_f64().unwrap()).collect()
}

/// The largest difference from transformers' logits in float64, at positions up to 4095.
fn long_gap<O: Ops>(ops: &Arc<O>, model: &str) -> f64 {
    let dir = golden(model);
    let text = std::fs::read_to_string(dir.join("long.json")).unwrap();
    let long: Value = serde_json::from_str(&text).unwrap();
    let length = long["length"].as_u64().unwrap();
    let network = network(ops, &dir, Some(length as usize));
    let vocab = network.spec().vocab as u64;
    let ids: Vec<u32> = (0..length)
        .map(|i| ((31 * i * i + 17 * i + 7) % vocab) as u32)
        .collect();
    let rows: Vec<u32> = floats(&long["positions"])
        .iter()
        .map(|p| *p as u32)
        .collect();
    let layout = Sequences::from_lengths([ids.len()]);
    let hidden = network.forward(&ids, &layout, &rows).unwrap();
    let got = ops
        .read_float_f64(&network.logits(&hidden).unwrap())
        .unwrap();
    let want: Vec<f64> = long["logits"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(floats)
        .collect();
    assert_eq!(got.len(), want.len());
    got.iter()
        .zip(&want)
        .fold(0.0, |gap, (a, b)| gap.max((a - b).abs()))
}

#[test]
fn logits_equal_transformers_up_to_position_4095_past_what_rope_was_scaled_from() {
    for model in &models() {
        // Twice the time, so only for a model that nobody has seen. The numbers are stored in f32.
        if std::env::var_os("SLIME_FAMILY_DIR").is_some() {
            let gap = long_gap(&Arc::new(Cpu::<f64>::new()), model);
            assert!(gap < 4e-6, "{model} in f64: {gap:e}");
        }
        let gap = long_gap(&Arc::new(Cpu::<f32>::new()), model);
        // What rounding takes from transformers' own float32 over all positions, where check_family.py measured it.
        let rounding =
            std::env::var("SLIME_FAMILY_FLOAT32").map_or(0.0, |gap| gap.parse().unwrap());
        let bound = f64::max(1e-4, 2.0 * rounding);
        assert!(gap < bound, "{model} in f32: {gap:e} of {bound:e}");
    }
}

fn ids(len: u32, vocab: usize) -> Vec<u32> {
    (0..len)
        .map(|i| (7 * i * i + 3 * i + 1) % vocab as u32)
        .collect()
}

/// Gradients of every parameter for a made-up gradient of the hidden rows, as bits.
fn gradients<O: Ops>(
    network: &Network<O>,
    ids: &[u32],
    wanted: &[u32],
    recompute: Recompute,
    routes: Option<&Routes>,
) -> (Vec<u64>, Vec<u64>) {
    let ops = network.ops();
    let layout = Sequences::from_lengths([5, ids.len() - 5]);
    let (hidden, kept) = network
        .forward_replaying(ids, &layout, wanted, &[recompute], routes)
        .unwrap();
    let (rows, cols) = ops.shape(&hidden);
    let made_up: Vec<f64> = (0..rows * cols)
        .map(|i| ((i * 37 % 101) as f64 - 50.0) / 50.0)
        .collect();
    let mut grads = Gradients::zeros(&**ops, network.weights()).unwrap();
    let dhidden = ops.tensor_f64(rows, cols, &made_up).unwrap();
    network.backward(&dhidden, kept, &mut grads).unwrap();
    let bits = |x: Vec<f64>| x.into_iter().map(f64::to_bits).collect::<Vec<_>>();
    let all = grads.0.iter().flat_map(|g| ops.read_float_f64(g).unwrap());
    (bits(ops.read_f64(&hidden).unwrap()), bits(all.collect()))
}

#[test]
fn replayed_routes_of_another_pass_give_its_bits_however_much_is_recomputed() {
    let ops = Arc::new(Cpu::<f32>::new());
    for model in WITH_EXPERTS {
        let network = network(&ops, &golden(model), None);
        let ids = ids(17, network.spec().vocab);
        let wanted = [3, 9, 16];
        let layout = Sequences::from_lengths([5, 12]);
        let (_, routes) = network.forward_recording(&ids, &layout, &wanted).unwrap();
        for (layer, routes) in network.spec().layers.iter().zip(&routes.layers) {
            match &layer.ffn {
                Ffn::Moe(moe) => assert_eq!(routes.len(), 17 * moe.routing.top_k),
                Ffn::SwiGlu { .. } => assert!(routes.is_empty()),
            }
        }
        let free = gradients(&network, &ids, &wanted, Recompute::None, None);
        for recompute in [
            Recompute::None,
            Recompute::Selective,
            Recompute::Mlp,
            Recompute::Full,
        ] {
            let replayed = gradients(&network, &ids, &wanted, recompute, Some(&routes));
            assert!(free == replayed, "{model} {recompute:?}");
        }
        // Other experts are other numbers: the routes are really used, in every layer that has some.
        for layer in 0..routes.layers.len() {
            let mut other = routes.clone();
            let Ffn::Moe(moe) = &network.spec().layers[layer].ffn else {
                continue;
            };
            for expert in &mut other.layers[layer] {
                if *expert != Routes::FREE {
                    *expert = (*expert + 1) % moe.routing.experts as u32;
                }
            }
            let moved = gradients(&network, &ids, &wanted, Recompute::Full, Some(&other));
            assert!(free.0 != moved.0, "{model} layer {layer}");
        }
    }
}

#[test]
fn routes_of_another_model_are_refused() {
    let ops = Arc::new(Cpu::<f32>::new());
    let network = network(&ops, &golden("moonlight-tiny"), None);
    let ids = ids(6, network.spec().vocab);
    let layout = Sequences::from_lengths([6]);
    let routes = Routes {
        layers: vec![Vec::new(), vec![9; 12]],
    };
    let wanted = [0, 1, 2, 3, 4, 5];
    let result =
        network.forward_replaying(&ids, &layout, &wanted, &[Recompute::None], Some(&routes));
    let error = result.err().unwrap().to_string();
    assert_eq!(error, "routing: expert 9 was recorded, the model has 5");
}

#[test]
fn an_expert_without_rows_keeps_the_bits_of_its_gradient() {
    let ops = Arc::new(Cpu::<f32>::poisoning());
    for model in WITH_EXPERTS {
        let network = network(&ops, &golden(model), None);
        let layout = Sequences::from_lengths([1]);
        let (_, routes) = network.forward_recording(&[5], &layout, &[0]).unwrap();
        let (hidden, kept) = network
            .forward_train(&[5], &layout, &[0], &[Recompute::Selective])
            .unwrap();
        let mut grads = Gradients::zeros(&*ops, network.weights()).unwrap();
        for (param, grad) in network.params().iter().zip(&mut grads.0) {
            *grad = ops
                .float(param.rows, param.cols, &vec![7.5; param.len()])
                .unwrap();
        }
        network.backward(&hidden, kept, &mut grads).unwrap();
        for (param, grad) in network.params().iter().zip(&grads.0) {
            if !matches!(param.kind, ParamKind::ExpertGateUp | ParamKind::ExpertDown) {
                continue;
            }
            let layer = param.layer.unwrap();
            let Ffn::Moe(moe) = &network.spec().layers[layer].ffn else {
                panic!("{model}: experts of a dense layer");
            };
            let values = ops.read_float(grad).unwrap();
            for (expert, own) in values
                .chunks_exact(values.len() / moe.routing.experts)
                .enumerate()
            {
                let used = routes.layers[layer].contains(&(expert as u32));
                let touched = own.iter().any(|x| *x != 7.5);
                assert!(
                    used == touched && own.iter().all(|x| x.is_finite()),
                    "{model} {} {expert}",
                    param.name
                );
            }
        }
    }
}

#[test]
fn the_routers_bias_has_no_gradient() {
    let ops = Arc::new(Cpu::<f64>::new());
    let network = network(&ops, &golden("deepseek-v3-tiny"), None);
    let ids = ids(17, network.spec().vocab);
    let layout = Sequences::from_lengths([17]);
    let wanted: Vec<u32> = (0..17).collect();
    let (hidden, kept) = network
        .forward_train(&ids, &layout, &wanted, &[Recompute::None])
        .unwrap();
    let mut grads = Gradients::zeros(&*ops, network.weights()).unwrap();
    network.backward(&hidden, kept, &mut grads).unwrap();
    let mut biases = 0;
    for (param, grad) in network.params().iter().zip(&grads.0) {
        if param.kind == ParamKind::RouterBias {
            assert!(ops.read_float(grad).unwrap().iter().all(|x| *x == 0.0));
            biases += 1;
        }
    }
    assert_eq!(biases, 2);
}

// ---- files ----

/// A golden model's directory without the golden data.
fn model_only(model: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(golden(model).join(name), dir.path().join(name)).unwrap();
    }
    dir
}

fn edit_config(dir: &Path, edit: impl Fn(&mut Value)) {
    let path = dir.join("config.json");
    let mut config: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    edit(&mut config);
    std::fs::write(path, config.to_string()).unwrap();
}

type Tensors = BTreeMap<String, (String, Vec<usize>, Vec<u8>)>;

fn tensors(dir: &Path) -> Tensors {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let bytes = std::fs::read(&path).unwrap();
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                let value = (
                    format!("{:?}", view.dtype()),
                    view.shape().to_vec(),
                    view.data().to_vec(),
                );
                all.insert(name, value);
            }
        }
    }
    all
}

fn write(path: &Path, tensors: &Tensors) {
    let views = tensors.iter().map(|(name, (dtype, shape, data))| {
        let dtype = if dtype == "BF16" {
            safetensors::Dtype::BF16
        } else {
            safetensors::Dtype::F32
        };
        let view = safetensors::tensor::TensorView::new(dtype, shape.clone(), data).unwrap();
        (name.clone(), view)
    });
    let bytes = safetensors::serialize(views, None).unwrap();
    std::fs::write(path, bytes).unwrap();
}

/// Load and save again, nothing trained.
fn round_trip(from: &Path, to: &Path, dtype: Dtype, shard_bytes: u64) {
    let source = HfDir::open(from).unwrap();
    let mut all = BTreeMap::new();
    source
        .weights
        .load_params(&source.spec, |param, data| {
            all.insert(param.name.clone(), data);
            Ok::<_, Error>(())
        })
        .unwrap();
    save_dir(to, &source.spec, &source.files, dtype, shard_bytes, |p| {
        Ok::<_, Error>(all[&p.name].clone())
    })
    .unwrap();
}

#[test]
fn heads_that_predict_several_tokens_are_kept_byte_for_byte() {
    for (model, layer) in [("deepseek-v3-tiny", 3), ("glm4-moe-tiny", 3)] {
        let dir = model_only(model);
        edit_config(dir.path(), |c| c["num_nextn_predict_layers"] = 1.into());
        let mut all = tensors(dir.path());
        let own = all.len();
        for (name, dtype, width) in [("eh_proj.weight", "BF16", 2), ("enorm.weight", "F32", 4)] {
            let name = format!("model.layers.{layer}.{name}");
            let data = (0..10 * width).map(|i| (i * 11 % 120) as u8).collect();
            all.insert(name, (dtype.into(), vec![5, 2], data));
        }
        write(&dir.path().join("model.safetensors"), &all);
        let out = dir.path().join("out");
        for shard_bytes in [DEFAULT_SHARD_BYTES, 20_000] {
            round_trip(dir.path(), &out, Dtype::F32, shard_bytes);
            assert_eq!(tensors(&out).len(), own + 2);
            assert!(tensors(&out) == all, "{model}");
        }
        let index = std::fs::read_to_string(out.join("model.safetensors.index.json")).unwrap();
        assert!(index.contains("eh_proj.weight"));
    }
}

#[test]
fn a_routers_bias_stays_f32_in_a_model_of_bf16() {
    let dir = model_only("glm4-moe-tiny");
    let out = dir.path().join("out");
    round_trip(dir.path(), &out, Dtype::Bf16, DEFAULT_SHARD_BYTES);
    let (before, after) = (tensors(dir.path()), tensors(&out));
    for (name, (dtype, _, data)) in &after {
        let bias = name.ends_with("e_score_correction_bias");
        assert_eq!(dtype, if bias { "F32" } else { "BF16" }, "{name}");
        assert!(!bias || *data == before[name].2);
    }
    // And it loads again.
    network(&Arc::new(Cpu::<f32>::new()), &out, None);
}

#[test]
fn missing_extra_and_misshaped_experts_are_one_error_that_names_them() {
    let dir = model_only("qwen3-moe-tiny");
    let mut all = tensors(dir.path());
    let expert = |e: usize, name: &str| format!("model.layers.0.mlp.experts.{e}.{name}.weight");
    all.remove(&expert(5, "up_proj")).unwrap();
    let moved = all.remove(&expert(2, "down_proj")).unwrap();
    all.insert(expert(6, "down_proj"), moved.clone());
    let flat = (moved.0, vec![moved.1[0] * moved.1[1]], moved.2);
    all.insert(expert(2, "down_proj"), flat);
    write(&dir.path().join("model.safetensors"), &all);
    let opened = HfDir::open(dir.path()).unwrap();
    let error = opened
        .weights
        .load_params(&opened.spec, |_, _| Ok::<_, Error>(()))
        .unwrap_err()
        .to_string();
    for line in [
        "model.layers.0.mlp.experts.5.up_proj.weight is missing; expected [12, 32]",
        "model.layers.0.mlp.experts.2.down_proj.weight: expected [32, 12], found [384] in model.safetensors",
        "model.layers.0.mlp.experts.6.down_proj.weight [32, 12] in model.safetensors is not part of the model",
    ] {
        assert!(error.contains(line), "{line} in {error}");
    }
}

#[test]
fn contradictory_experts_and_heads_are_refused_by_key() {
    let error = |model: &str, key: &str, value: Value| {
        let dir = model_only(model);
        edit_config(dir.path(), |c| c[key] = value.clone());
        let error = HfDir::open(dir.path()).unwrap_err().to_string();
        error.rsplit("config.json: ").next().unwrap().to_owned()
    };
    assert_eq!(
        error("deepseek-v3-tiny", "n_group", 3.into()),
        "n_group 3 with topk_group 2 does not divide 8 experts into groups from which 3 can be chosen"
    );
    assert_eq!(
        error("qwen3-moe-tiny", "num_experts_per_tok", 7.into()),
        "num_experts_per_tok 7 of 6 experts"
    );
    assert_eq!(
        error("glm4-tiny", "partial_rotary_factor", 0.3.into()),
        "3 of 12 dimensions rotate, which is no number of pairs; see partial_rotary_factor"
    );
    assert_eq!(
        error("deepseek-v3-tiny", "qk_rope_head_dim", 5.into()),
        "qk_rope_head_dim 5 is not even, so its dimensions cannot rotate in pairs"
    );
    assert_eq!(
        error("deepseek-v3-tiny", "scoring_func", "softmax".into()),
        "scoring_func = \"softmax\" is not supported for deepseek_v3; supported: \"sigmoid\""
    );
}

#[test]
fn tensors_come_out_byte_for_byte_when_nothing_was_trained() {
    for model in &models() {
        let scratch = tempfile::tempdir().unwrap();
        let out = match std::env::var("SLIME_FAMILY_OUT") {
            Ok(out) => PathBuf::from(out),
            Err(_) => scratch.path().join("out"),
        };
        let files = golden(model);
        round_trip(&files, &out, Dtype::F32, DEFAULT_SHARD_BYTES);
        let only_weights: Tensors = tensors(&files)
            .into_iter()
            .filter(|(name, _)| !name.contains('/')) // golden gradients lie beside the weights
            .collect();
        assert!(tensors(&out) == only_weights, "{model}");
    }
}
