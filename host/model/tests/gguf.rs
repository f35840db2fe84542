//! GGUF import, against the HF directories the files were made from.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use slime_core::ports::TextCodec;
use slime_model::{
    Dtype, Error, HfDir, ParamKind, RopeScaling, gguf, gguf::Gguf, params, text::Text,
};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn golden(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/golden")
        .join(path)
}

/// A model directory without the golden data beside it.
fn model_only(model: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(
            golden("models").join(model).join(file),
            dir.path().join(file),
        )
        .unwrap();
    }
    dir
}

fn load(dir: &Path) -> BTreeMap<String, Vec<f32>> {
    let dir = HfDir::open(dir).unwrap();
    let mut all = BTreeMap::new();
    let mut keep = |name: &str, data| all.insert(name.to_owned(), data);
    dir.weights
        .load_params(&dir.spec, |p, data| {
            keep(&p.name, data);
            Ok::<_, Error>(())
        })
        .unwrap();
    all
}

/// llama.cpp's `LlamaModel.permute`: `reshape(heads, 2, dim / 2, cols).swapaxes(1, 2)`.
fn permute(data: &[f32], heads: usize, rows: usize) -> Vec<f32> {
    let (dim, cols) = (rows / heads, data.len() / rows);
    let mut out = vec![0.0; data.len()];
    for head in 0..heads {
        for half in 0..2 {
            for i in 0..dim / 2 {
                let from = (head * dim + half * dim / 2 + i) * cols;
                let to = (head * dim + 2 * i + half) * cols;
                out[to..to + cols].copy_from_slice(&data[from..from + cols]);
            }
        }
    }
    out
}

/// Write a model as llama.cpp's converter writes it; matrices as `dtype`.
fn write(dir: &Path, file: &Path, dtype: GgmlDType, pre: &str, more: Vec<(&str, Value)>) {
    let model = HfDir::open(dir).unwrap();
    let spec = &model.spec;
    let weights = load(dir);
    let mut tensors = Vec::new();
    for param in params(spec) {
        let mut rest = weights[&param.name].as_slice();
        for (i, part) in param.parts.iter().enumerate() {
            let (data, after) = rest.split_at(part.len());
            rest = after;
            use ParamKind::*;
            let qkv = ["attn_q", "attn_k", "attn_v"][i.min(2)];
            let short = match param.kind {
                Embedding => "token_embd.weight".into(),
                FinalNorm => "output_norm.weight".into(),
                Head => "output.weight".into(),
                AttnNorm => "attn_norm.weight".into(),
                Qkv => format!("{qkv}.weight"),
                QkvBias => format!("{qkv}.bias"),
                QueryNorm => "attn_q_norm.weight".into(),
                KeyNorm => "attn_k_norm.weight".into(),
                AttnOut => "attn_output.weight".into(),
                FfnNorm => "ffn_norm.weight".into(),
                GateUp => format!("{}.weight", ["ffn_gate", "ffn_up"][i]),
                Down => "ffn_down.weight".to_string(),
                other => panic!("GGUF files here are of dense models, not of {other:?}"),
            };
            let name = param
                .layer
                .map_or(short.clone(), |l| format!("blk.{l}.{short}"));
            let heads = spec.layers[0].attn.grouped().unwrap().heads;
            let data = match (spec.family.model_type, param.kind, i) {
                ("llama", Qkv, 0) => permute(data, heads.query, part.shape[0]),
                ("llama", Qkv, 1) => permute(data, heads.kv, part.shape[0]),
                _ => data.to_vec(),
            };
            let tensor = Tensor::from_vec(data, part.shape.as_slice(), &Device::Cpu).unwrap();
            let row = *part.shape.last().unwrap();
            let dtype = if part.shape.len() == 2 && row % dtype.block_size() == 0 {
                dtype
            } else {
                GgmlDType::F32
            };
            tensors.push((name, QTensor::quantize(&tensor, dtype).unwrap()));
        }
    }
    let arch = spec.family.gguf_architecture.unwrap();
    let heads = spec.layers[0].attn.grouped().unwrap().heads;
    let slime_model::Ffn::SwiGlu { hidden: ffn } = spec.layers[0].ffn else {
        panic!("GGUF files are of dense models")
    };
    let key = |name: &str| format!("{arch}.{name}");
    let number = |n: usize| Value::U32(n as u32);
    let mut metadata: Vec<(String, Value)> = vec![
        ("general.architecture".into(), Value::String(arch.into())),
        (key("block_count"), number(spec.layers.len())),
        (key("context_length"), number(spec.max_positions)),
        (key("embedding_length"), number(spec.hidden)),
        (key("feed_forward_length"), number(ffn)),
        (key("attention.head_count"), number(heads.query)),
        (key("attention.head_count_kv"), number(heads.kv)),
        (key("attention.key_length"), number(heads.dim)),
        (key("rope.freq_base"), Value::F32(spec.rope.base as f32)),
        (
            key("attention.layer_norm_rms_epsilon"),
            Value::F32(spec.norm_eps as f32),
        ),
    ];
    metadata.extend(tokenizer_metadata(pre));
    metadata.retain(|(k, _)| more.iter().all(|(m, _)| m != k));
    metadata.extend(more.into_iter().map(|(k, v)| (k.to_owned(), v)));
    let metadata: Vec<(&str, &Value)> = metadata.iter().map(|(k, v)| (k.as_str(), v)).collect();
    let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(k, t)| (k.as_str(), t)).collect();
    gguf_file::write(
        &mut std::fs::File::create(file).unwrap(),
        &metadata,
        &tensors,
    )
    .unwrap();
}

/// The golden tokenizer in GGUF's terms.
fn tokenizer_metadata(pre: &str) -> Vec<(String, Value)> {
    let bytes = std::fs::read(golden("chat/tokenizer/tokenizer.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
    let mut tokens: BTreeMap<u64, (String, i32)> = json["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(token, id)| (id.as_u64().unwrap(), (token.clone(), 1)))
        .collect();
    for added in json["added_tokens"].as_array().unwrap() {
        let kind = if added["special"] == true { 3 } else { 4 };
        tokens.insert(
            added["id"].as_u64().unwrap(),
            (added["content"].as_str().unwrap().into(), kind),
        );
    }
    let merges = json["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|m| match m {
            serde_json::Value::String(s) => s.clone(),
            pair => format!(
                "{} {}",
                pair[0].as_str().unwrap(),
                pair[1].as_str().unwrap()
            ),
        });
    let texts = |items: Vec<String>| Value::Array(items.into_iter().map(Value::String).collect());
    let template = std::fs::read_to_string(golden("chat/templates/chatml.jinja")).unwrap();
    vec![
        ("tokenizer.ggml.model".into(), Value::String("gpt2".into())),
        ("tokenizer.ggml.pre".into(), Value::String(pre.into())),
        (
            "tokenizer.ggml.tokens".into(),
            texts(tokens.values().map(|t| t.0.clone()).collect()),
        ),
        (
            "tokenizer.ggml.token_type".into(),
            Value::Array(tokens.values().map(|t| Value::I32(t.1)).collect()),
        ),
        ("tokenizer.ggml.merges".into(), texts(merges.collect())),
        ("tokenizer.ggml.bos_token_id".into(), Value::U32(483)),
        ("tokenizer.ggml.eos_token_id".into(), Value::U32(482)),
        ("tokenizer.chat_template".into(), Value::String(template)),
    ]
}

#[test]
fn unquantised_imports_equal_the_hf_model_they_were_made_from() {
    for model in ["llama-tiny-tied", "qwen2-tiny", "qwen3-tiny"] {
        let source = model_only(model);
        let (file, out) = (source.path().join("m.gguf"), source.path().join("hf"));
        write(source.path(), &file, GgmlDType::F32, "qwen2", vec![]);
        gguf::to_hf_dir(&file, &out, Dtype::F32).unwrap();
        assert_eq!(load(&out), load(source.path()), "{model}");
        let (found, wanted) = (
            HfDir::open(&out).unwrap().spec,
            HfDir::open(source.path()).unwrap().spec,
        );
        assert_eq!(found.layers, wanted.layers);
        assert_eq!((found.rope, found.tied), (wanted.rope, wanted.tied));
        assert!(
            (found.norm_eps / wanted.norm_eps - 1.0).abs() < 1e-6,
            "GGUF holds it as f32"
        );
    }
}

#[test]
fn quantised_imports_stay_within_a_step_of_the_quantiser() {
    // Largest error as a share of the largest weight of a block of 32.
    let formats = [
        (GgmlDType::F16, 1e-3),
        (GgmlDType::BF16, 8e-3),
        (GgmlDType::Q8_0, 8e-3),
        (GgmlDType::Q4_0, 0.13),
        (GgmlDType::Q4_1, 0.13),
    ];
    let source = model_only("qwen2-tiny");
    let exact = load(source.path());
    for (dtype, share) in formats {
        let file = source.path().join("m.gguf");
        write(source.path(), &file, dtype, "qwen2", vec![]);
        let model = Gguf::open(&file).unwrap();
        model
            .load_params(|p, data| {
                for (got, wanted) in data.chunks(32).zip(exact[&p.name].chunks(32)) {
                    let largest = wanted.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                    for (x, y) in got.iter().zip(wanted) {
                        assert!(
                            (x - y).abs() <= share * largest,
                            "{dtype:?} {}: {x} {y}",
                            p.name
                        );
                    }
                }
                Ok::<_, Error>(())
            })
            .unwrap();
    }
}

#[test]
fn the_imported_tokenizer_gives_the_ids_of_the_original() {
    let source = model_only("llama-tiny-tied");
    let file = source.path().join("m.gguf");
    write(source.path(), &file, GgmlDType::F32, "qwen2", vec![]);
    let files = Gguf::open(&file).unwrap().files;
    let (imported, original) = (
        Text::new(&files).unwrap(),
        Text::open(&golden("chat/tokenizer")).unwrap(),
    );
    let expected: Vec<serde_json::Value> =
        serde_json::from_slice(&std::fs::read(golden("chat/expected.json")).unwrap()).unwrap();
    for text in expected.iter().filter_map(|row| row["text"].as_str()) {
        assert_eq!(
            imported.encode(text).unwrap(),
            original.encode(text).unwrap()
        );
        let ids = original.encode(text).unwrap();
        assert_eq!(imported.decode(&ids, true), original.decode(&ids, true));
    }
    assert_eq!(imported.eos_token_ids(), [482]);
    assert!(imported.has_chat_template());
}

#[test]
fn llama3_scaling_is_recognised_by_its_divisors_and_others_are_refused() {
    let source = model_only("llama-tiny-tied");
    let file = source.path().join("m.gguf");
    write(
        source.path(),
        &file,
        GgmlDType::F32,
        "llama-bpe",
        vec![("llama.rope.freq_base", Value::F32(500_000.0))],
    );
    // llama.cpp's converter, for heads of 8: pairs whose period is 6.3, 167, 4443, 118144 positions.
    let divisors = |factor: f64| -> Vec<f32> {
        (0..4)
            .map(|i| {
                let period =
                    2.0 * std::f64::consts::PI * 500_000.0_f64.powf(2.0 * f64::from(i) / 8.0);
                let (low, high) = (8192.0 / 1.0, 8192.0 / 4.0);
                if period < high {
                    1.0
                } else if period > low {
                    factor as f32
                } else {
                    let smooth = (8192.0 / period - 1.0) / (4.0 - 1.0);
                    (1.0 / ((1.0 - smooth) / factor + smooth)) as f32
                }
            })
            .collect()
    };
    let with_factors = |factors: Vec<f32>| {
        let target = source.path().join("factors.gguf");
        let mut reader = std::fs::File::open(&file).unwrap();
        let content = gguf_file::Content::read(&mut reader).unwrap();
        let mut tensors: Vec<(String, QTensor)> = content
            .tensor_infos
            .keys()
            .map(|name| {
                (
                    name.clone(),
                    content.tensor(&mut reader, name, &Device::Cpu).unwrap(),
                )
            })
            .collect();
        let factors = Tensor::from_vec(factors, 4, &Device::Cpu).unwrap();
        tensors.push((
            "rope_freqs.weight".into(),
            QTensor::quantize(&factors, GgmlDType::F32).unwrap(),
        ));
        let metadata: Vec<(&str, &Value)> = content
            .metadata
            .iter()
            .map(|(k, v)| (k.as_str(), v))
            .collect();
        let tensors: Vec<(&str, &QTensor)> = tensors.iter().map(|(k, t)| (k.as_str(), t)).collect();
        gguf_file::write(
            &mut std::fs::File::create(&target).unwrap(),
            &metadata,
            &tensors,
        )
        .unwrap();
        Gguf::open(&target)
            .map(|g| g.spec.rope.scaling)
            .map_err(|e| e.to_string())
    };
    let llama3 = |factor| RopeScaling::Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_positions: 8192,
    };
    assert_eq!(with_factors(divisors(8.0)), Ok(llama3(8.0)));
    assert_eq!(with_factors(divisors(32.0)), Ok(llama3(32.0)));
    let error = with_factors(vec![1.0, 2.0, 3.0, 4.0]).unwrap_err();
    assert!(error.ends_with(
        "rope_freqs.weight is not Llama 3.1's scaling; import the model's HF directory instead"
    ));
}

#[test]
fn what_cannot_be_imported_is_refused_by_name() {
    let source = model_only("llama-tiny-tied");
    let file = source.path().join("m.gguf");
    let error = |more: Vec<(&'static str, Value)>, pre: &str| {
        write(source.path(), &file, GgmlDType::F32, pre, more);
        Gguf::open(&file)
            .err()
            .unwrap()
            .to_string()
            .replace(&file.display().to_string(), "FILE")
    };
    let text = |s: &str| Value::String(s.into());
    assert_eq!(
        error(vec![("llama.rope.scaling.type", text("yarn"))], "qwen2"),
        "FILE: llama.rope.scaling.type = \"yarn\" is not supported for llama; supported: \"none\", and Llama 3.1's factors"
    );
    assert_eq!(
        error(vec![("general.architecture", text("gemma3"))], "qwen2"),
        "FILE: model_type \"gemma3\" is not supported; supported are: llama, qwen2, qwen3"
    );
    assert_eq!(
        error(vec![], "tekken"),
        "FILE: tokenizer.ggml.pre = \"tekken\" is not supported for tokenizers; supported: \"default\", \"gpt-2\", \
         \"smollm\", \"qwen2\", \"llama-bpe\"; import the model's HF directory instead"
    );
    assert_eq!(
        error(vec![("tokenizer.ggml.model", text("llama"))], "qwen2"),
        "FILE: tokenizer.ggml.model = \"llama\" is not supported for tokenizers; supported: \"gpt2\" (byte-level BPE); \
         import the model's HF directory instead"
    );
    assert_eq!(
        error(vec![("llama.feed_forward_length", Value::U32(56))], "qwen2")
            .lines()
            .take(2)
            .collect::<Vec<_>>(),
        [
            "FILE: the weights do not fit the model:",
            "  blk.0.ffn_gate.weight: expected [56, 32], found [40, 32]"
        ]
    );
    std::fs::write(&file, b"GGUF and then nothing of the kind").unwrap();
    let damaged = Gguf::open(&file).err().unwrap().to_string();
    assert!(
        damaged.contains("is not a GGUF file that can be read: "),
        "{damaged}"
    );
}

#[test]
fn smollm2_equals_what_transformers_imports_where_it_is_on_disk() {
    let (Some(file), Some(hf)) = (
        std::env::var_os("SLIME_SMOLLM2_GGUF"),
        std::env::var_os("SLIME_SMOLLM2"),
    ) else {
        println!(
            "skipped: SLIME_SMOLLM2_GGUF and SLIME_SMOLLM2 do not name the two forms of SmolLM2-135M-Instruct"
        );
        return;
    };
    let (file, hf) = (PathBuf::from(file), PathBuf::from(hf));
    let model = Gguf::open(&file).unwrap();
    let wanted = HfDir::open(&hf).unwrap();
    assert_eq!(model.spec, wanted.spec);
    // transformers saved the dequantised weights as bf16.
    let theirs = load(&hf);
    model
        .load_params(|p, data| {
            for (x, y) in data.iter().zip(&theirs[&p.name]) {
                let bits = x.to_bits();
                let rounded = f32::from_bits((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff_0000);
                assert_eq!(rounded, *y, "{}", p.name);
            }
            Ok::<_, Error>(())
        })
        .unwrap();

    // The model's tokenizer splits around every digit, as its GGUF file says; transformers drops that on import. So
    // texts without digits must agree as they are, and all texts once the split is put back.
    let ours = Text::new(&model.files).unwrap();
    let as_imported = Text::open(&hf).unwrap();
    let mut files = wanted.files.clone();
    let mut json = files.json("tokenizer.json").unwrap().unwrap();
    let digits = serde_json::json!({"type": "Digits", "individual_digits": true});
    json["pre_tokenizer"] =
        serde_json::json!({"type": "Sequence", "pretokenizers": [digits, json["pre_tokenizer"]]});
    files.insert_json("tokenizer.json", &json);
    let as_published = Text::new(&files).unwrap();
    let rows: Vec<serde_json::Value> =
        serde_json::from_slice(&std::fs::read(golden("chat/expected.json")).unwrap()).unwrap();
    let corpus = std::fs::read_to_string(golden("chat/corpus.txt")).unwrap();
    for text in rows
        .iter()
        .filter_map(|row| row["text"].as_str())
        .chain(corpus.lines())
    {
        let ids = ours.encode(text).unwrap();
        assert_eq!(ids, as_published.encode(text).unwrap(), "{text:?}");
        if !text.chars().any(char::is_numeric) {
            assert_eq!(ids, as_imported.encode(text).unwrap(), "{text:?}");
        }
    }
    assert_eq!(ours.eos_token_ids(), as_imported.eos_token_ids());
}
