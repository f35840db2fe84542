//! HF directories made by transformers (tests/golden/models): read, write, compare.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use safetensors::SafeTensors;
use slime_kernels::Heads;
use slime_model::{
    Dtype, Error, Ffn, HfDir, ModelFiles, ModelSpec, RopeScaling, Weights,
    hf::{DEFAULT_SHARD_BYTES, save_dir, save_weights},
    params,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

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

fn golden(model: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden/models")
        .join(model)
}

/// The directory without the golden data that lies beside the model.
fn model_only(model: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(golden(model)).unwrap() {
        let name = entry.unwrap().file_name();
        if !["golden.json", "grads.safetensors", "long.json"]
            .iter()
            .any(|n| name == *n)
        {
            std::fs::copy(golden(model).join(&name), dir.path().join(&name)).unwrap();
        }
    }
    dir
}

/// Every parameter by our name.
fn load(dir: &Path) -> BTreeMap<String, Vec<f32>> {
    let dir = HfDir::open(dir).unwrap();
    let mut all = BTreeMap::new();
    dir.weights
        .load_params(&dir.spec, |param, data| {
            all.insert(param.name.clone(), data);
            Ok::<_, Error>(())
        })
        .unwrap();
    all
}

/// Every tensor's bytes by HF's name, read by the safetensors crate.
fn raw(dir: &Path) -> BTreeMap<String, (Vec<usize>, Vec<u8>)> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "safetensors") {
            let bytes = std::fs::read(&path).unwrap();
            for (name, view) in SafeTensors::deserialize(&bytes).unwrap().tensors() {
                all.insert(name, (view.shape().to_vec(), view.data().to_vec()));
            }
        }
    }
    all
}

fn save(from: &Path, to: &Path, dtype: Dtype, shard_bytes: u64) {
    let source = HfDir::open(from).unwrap();
    let all = load(from);
    save_dir(to, &source.spec, &source.files, dtype, shard_bytes, |p| {
        Ok::<_, Error>(all[&p.name].clone())
    })
    .unwrap();
}

#[test]
fn configurations_of_every_family_are_understood() {
    let spec = |model| HfDir::open(model_only(model).path()).unwrap().spec;

    let llama = spec("llama3-tiny");
    assert_eq!(
        (llama.vocab, llama.hidden, llama.layers.len(), llama.tied),
        (263, 64, 2, false)
    );
    assert_eq!(
        llama.layers[0].attn.grouped().unwrap().heads,
        Heads {
            query: 4,
            kv: 2,
            dim: 16
        }
    );
    assert_eq!(llama.layers[1].ffn, Ffn::SwiGlu { hidden: 112 });
    assert_eq!(
        (llama.norm_eps, llama.rope.base, llama.max_positions),
        (1e-5, 500_000.0, 512)
    );
    assert_eq!(
        llama.rope.scaling,
        RopeScaling::Llama3 {
            factor: 8.0,
            low_freq_factor: 1.0,
            high_freq_factor: 4.0,
            original_max_positions: 64
        }
    );

    let tied = spec("llama-tiny-tied");
    assert_eq!(
        (
            tied.tied,
            tied.layers[0].attn.grouped().unwrap().heads.dim,
            tied.rope.scaling.clone()
        ),
        (true, 8, RopeScaling::None)
    );

    let qwen2 = spec("qwen2-tiny");
    let grouped = |spec: &ModelSpec| spec.layers[0].attn.grouped().unwrap().clone();
    assert!(grouped(&qwen2).qkv_bias && !grouped(&qwen2).qk_norm && qwen2.tied);

    let qwen3 = spec("qwen3-tiny");
    assert_eq!(
        (
            qwen3.layers[0].attn.grouped().unwrap().heads.dim,
            qwen3.rope.dims,
            qwen3.rope.base
        ),
        (24, 24, 1e6)
    );
    assert!(!grouped(&qwen3).qkv_bias && grouped(&qwen3).qk_norm);
}

#[test]
fn exported_weights_are_the_imported_bytes() {
    for model in MODELS {
        let source = model_only(model);
        let out = tempfile::tempdir().unwrap();
        let target = out.path().join("model");
        save(source.path(), &target, Dtype::F32, DEFAULT_SHARD_BYTES);
        assert_eq!(raw(&target), raw(source.path()), "{model}");
        assert_eq!(
            std::fs::read(target.join("config.json")).unwrap(),
            std::fs::read(source.path().join("config.json")).unwrap(),
            "{model}"
        );
        let left: Vec<_> = std::fs::read_dir(out.path())
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(left, ["model"], "no staging directory stays behind");
    }
}

#[test]
fn one_file_written_here_is_the_file_that_safetensors_writes() {
    let source = model_only("qwen3-tiny");
    let target = source.path().join("again");
    save(source.path(), &target, Dtype::F32, DEFAULT_SHARD_BYTES);
    let bytes = |dir: &Path| std::fs::read(dir.join("model.safetensors")).unwrap();
    assert!(bytes(&target) == bytes(source.path()));
}

#[test]
fn shards_hold_every_tensor_once_and_the_index_names_them() {
    let source = model_only("qwen2-tiny");
    let target = source.path().join("sharded");
    save(source.path(), &target, Dtype::F32, 20_000);
    let files: Vec<String> = std::fs::read_dir(&target)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter(|n| n.ends_with(".safetensors"))
        .collect();
    assert!(files.len() > 2, "{files:?}");
    let index: serde_json::Value = serde_json::from_slice(
        &std::fs::read(target.join("model.safetensors.index.json")).unwrap(),
    )
    .unwrap();
    let tensors = raw(&target);
    assert_eq!(
        index["weight_map"].as_object().unwrap().len(),
        tensors.len()
    );
    let total: usize = tensors.values().map(|(_, bytes)| bytes.len()).sum();
    assert_eq!(index["metadata"]["total_size"], total);
    assert_eq!(tensors, raw(source.path()));
    assert_eq!(load(&target), load(source.path()));
}

#[test]
fn bf16_export_rounds_once_and_says_so_in_the_configuration() {
    let source = model_only("llama3-tiny");
    let (first, second) = (source.path().join("a"), source.path().join("b"));
    save(source.path(), &first, Dtype::Bf16, DEFAULT_SHARD_BYTES);
    save(&first, &second, Dtype::Bf16, DEFAULT_SHARD_BYTES);
    assert_eq!(raw(&first), raw(&second));
    assert_eq!(Weights::open(&first).unwrap().dtype(), Some(Dtype::Bf16));
    for (name, exact) in load(source.path()) {
        let rounded = &load(&first)[&name];
        assert!(
            exact
                .iter()
                .zip(rounded)
                .all(|(x, y)| (x - y).abs() <= x.abs() / 256.0),
            "{name}"
        );
    }
    let config = ModelFiles::read(&first)
        .unwrap()
        .json("config.json")
        .unwrap()
        .unwrap();
    assert_eq!(
        (&config["dtype"], &config["torch_dtype"]),
        (&"bfloat16".into(), &"bfloat16".into())
    );
}

#[test]
fn a_publish_directory_holds_weights_only_and_replaces_the_last() {
    let source = model_only("llama-tiny-tied");
    let spec = HfDir::open(source.path()).unwrap().spec;
    let all = load(source.path());
    let target = source.path().join("publish");
    for factor in [1.0, 2.0] {
        save_weights(&target, &spec, Dtype::F32, DEFAULT_SHARD_BYTES, |p| {
            Ok::<_, Error>(all[&p.name].iter().map(|x| x * factor).collect())
        })
        .unwrap();
        let names: Vec<_> = std::fs::read_dir(&target)
            .unwrap()
            .map(|e| e.unwrap().file_name())
            .collect();
        assert_eq!(names, ["model.safetensors"]);
        let weights = Weights::open(&target).unwrap();
        weights
            .load_params(&spec, |p, data| {
                assert!(
                    data.iter()
                        .zip(&all[&p.name])
                        .all(|(y, x)| *y == x * factor)
                );
                Ok::<_, Error>(())
            })
            .unwrap();
    }
}

#[test]
fn an_export_that_fails_leaves_the_old_model() {
    let source = model_only("llama-tiny-tied");
    let target = source.path().join("model");
    save(source.path(), &target, Dtype::F32, DEFAULT_SHARD_BYTES);
    let spec = HfDir::open(&target).unwrap().spec;
    let before = raw(&target);
    let error = save_weights(&target, &spec, Dtype::F32, DEFAULT_SHARD_BYTES, |p| {
        if p.layer == Some(1) {
            Err(Error::Input("the trainer stopped".into()))
        } else {
            Ok(vec![0.0; p.len()])
        }
    })
    .unwrap_err();
    assert_eq!(error.to_string(), "the trainer stopped");
    assert_eq!(raw(&target), before);
    assert!(!source.path().join(".model.partial").exists());
}

#[test]
fn parameters_cover_every_tensor_and_only_matrices_decay() {
    for model in MODELS {
        let dir = model_only(model);
        let spec = HfDir::open(dir.path()).unwrap().spec;
        let tensors = raw(dir.path());
        let all = params(&spec);
        let parts: BTreeMap<_, _> = all
            .iter()
            .flat_map(|p| &p.parts)
            .map(|p| (p.name.clone(), p.shape.clone()))
            .collect();
        let stored: BTreeMap<_, _> = tensors
            .into_iter()
            .filter(|(name, _)| !spec.carries(name))
            .map(|(name, (shape, _))| (name, shape))
            .collect();
        assert_eq!(parts, stored, "{model}");
        for param in &all {
            assert_eq!(
                param.len(),
                param.parts.iter().map(|p| p.len()).sum::<usize>(),
                "{}",
                param.name
            );
            assert_eq!(
                param.decay,
                param.parts[0].shape.len() > 1,
                "{}",
                param.name
            );
        }
        let stored: u64 = stored
            .values()
            .map(|s| s.iter().product::<usize>() as u64)
            .sum();
        assert_eq!(spec.num_params(), stored);
    }
}

#[test]
fn qkv_stacks_queries_then_keys_then_values() {
    let dir = model_only("qwen3-tiny");
    let tensors = raw(dir.path());
    let all = load(dir.path());
    let mut bytes: Vec<u8> = Vec::new();
    for name in ["q", "k", "v"] {
        bytes.extend(&tensors[&format!("model.layers.1.self_attn.{name}_proj.weight")].1);
    }
    let ours: Vec<u8> = all["layers.1.attn.qkv"]
        .iter()
        .flat_map(|x| x.to_le_bytes())
        .collect();
    assert_eq!(ours, bytes);
}
