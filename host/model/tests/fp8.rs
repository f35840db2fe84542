//! Models in blocks of 8 bits, against PyTorch's own (tests/golden/models/make_fp8.py).
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use safetensors::SafeTensors;
use serde_json::Value;
use slime_kernels::{Cpu, Ops, Sequences};
use slime_model::hf::{DEFAULT_SHARD_BYTES, Form, Weights, save_dir, save_weights};
use slime_model::{Dtype, Error, HfDir, Network};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

fn golden() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/qwen3-fp8-tiny")
}

fn values(weights: &Weights, source: &HfDir) -> BTreeMap<String, Vec<f32>> {
    let mut all = BTreeMap::new();
    weights
        .load_params(&source.spec, |param, data| {
            all.insert(param.name.clone(), data);
            Ok::<_, Error>(())
        })
        .unwrap();
    all
}

/// Dtype, shape and bytes of every tensor, read by the safetensors crate.
fn raw(file: &Path) -> BTreeMap<String, (String, Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(file).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let of = |view: safetensors::tensor::TensorView<'_>| {
        let dtype = format!("{:?}", view.dtype());
        (dtype, view.shape().to_vec(), view.data().to_vec())
    };
    tensors
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, of(view)))
        .collect()
}

#[test]
fn logits_are_those_of_transformers_with_the_blocks_multiplied_out() {
    let dir = HfDir::open(&golden()).unwrap();
    let ops = Arc::new(Cpu::<f64>::new());
    let mut weights = Vec::new();
    dir.weights
        .load_params(&dir.spec, |param, data| {
            weights.push(ops.tensor(param.rows, param.cols, &data)?);
            Ok::<_, Error>(())
        })
        .unwrap();
    let network = Network::new(ops.clone(), Arc::new(dir.spec), weights).unwrap();
    let text = std::fs::read_to_string(golden().join("logits.json")).unwrap();
    let want: Value = serde_json::from_str(&text).unwrap();
    let tokens: Vec<u32> = serde_json::from_value(want["tokens"].clone()).unwrap();
    let logits: Vec<Vec<f64>> = serde_json::from_value(want["logits"].clone()).unwrap();
    let rows: Vec<u32> = (0..tokens.len() as u32).collect();
    let layout = Sequences::from_lengths([tokens.len()]);
    let hidden = network.forward(&tokens, &layout, &rows).unwrap();
    let got = ops
        .read_float_f64(&network.logits(&hidden).unwrap())
        .unwrap();
    for (got, want) in got.iter().zip(logits.iter().flatten()) {
        assert!((got - want).abs() < 1e-4, "{got} and {want}"); // transformers' rope is in f32
    }
}

#[test]
fn blocks_for_a_server_are_those_that_pytorch_makes() {
    let dir = HfDir::open(&golden()).unwrap();
    let blocks = dir.weights.blocks();
    assert_eq!(blocks.len(), 7);
    let source = values(&Weights::open(&golden().join("source")).unwrap(), &dir);
    let to = tempfile::tempdir().unwrap();
    let to = to.path().join("weights");
    let form = Form {
        dtype: Dtype::Bf16,
        blocks: Arc::new(blocks),
    };
    save_weights(&to, &dir.spec, form, DEFAULT_SHARD_BYTES, |p| {
        Ok::<_, Error>(source[&p.name].clone())
    })
    .unwrap();
    let (got, want) = (
        raw(&to.join("model.safetensors")),
        raw(&golden().join("model.safetensors")),
    );
    assert_eq!(
        got.keys().collect::<Vec<_>>(),
        want.keys().collect::<Vec<_>>()
    );
    for (name, want) in want {
        assert!(got[&name] == want, "{name}");
    }
}

#[test]
fn a_trained_model_is_saved_whole_and_no_longer_says_that_it_is_quantised() {
    let dir = HfDir::open(&golden()).unwrap();
    let all = values(&dir.weights, &dir);
    let to = tempfile::tempdir().unwrap();
    let to = to.path().join("model");
    save_dir(
        &to,
        &dir.spec,
        &dir.files,
        Dtype::F32,
        DEFAULT_SHARD_BYTES,
        |p| Ok::<_, Error>(all[&p.name].clone()),
    )
    .unwrap();
    let config: Value =
        serde_json::from_slice(&std::fs::read(to.join("config.json")).unwrap()).unwrap();
    assert_eq!(config["quantization_config"], Value::Null);
    assert_eq!(config["dtype"], "float32");
    let again = HfDir::open(&to).unwrap();
    assert!(again.weights.blocks().is_empty());
    assert_eq!(values(&again.weights, &again), all);
}

#[test]
fn blocks_without_fitting_scales_are_refused_by_name() {
    let to = tempfile::tempdir().unwrap();
    let file = to.path().join("model.safetensors");
    let tensors = raw(&golden().join("model.safetensors"));
    let dtype = |name: &str| match name {
        "F8_E4M3" => safetensors::Dtype::F8_E4M3,
        "BF16" => safetensors::Dtype::BF16,
        _ => safetensors::Dtype::F32,
    };
    let views = tensors
        .iter()
        .filter(|(name, _)| !name.ends_with("q_proj.weight_scale_inv"));
    let views = views.map(|(name, (kind, shape, bytes))| {
        let view = safetensors::tensor::TensorView::new(dtype(kind), shape.clone(), bytes).unwrap();
        (name.clone(), view)
    });
    std::fs::write(&file, safetensors::serialize(views, None).unwrap()).unwrap();
    std::fs::copy(golden().join("config.json"), to.path().join("config.json")).unwrap();
    let dir = HfDir::open(to.path()).unwrap();
    let error = dir
        .weights
        .load_params(&dir.spec, |_, _| Ok::<_, Error>(()))
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("layers.0.self_attn.q_proj.weight_scale_inv is missing"),
        "{error}"
    );
}
