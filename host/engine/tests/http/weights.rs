//! New weights from a directory: whole, in part, and every way they can be wrong.

use crate::support::*;
use serde_json::{Value, json};
use slime_kernels::Ops;
use slime_model::hf::{DEFAULT_SHARD_BYTES, save_weights};
use slime_model::{Dtype, Error, init};
use std::fs;
use std::path::{Path, PathBuf};

/// The weights of `network(seed)` as a directory.
pub(crate) fn published(root: &Path, seed: u64) -> PathBuf {
    let dir = root.join(format!("weights-{seed}"));
    let spec = spec();
    save_weights::<Error>(&dir, &spec, Dtype::F32, DEFAULT_SHARD_BYTES, |p| {
        Ok(init::fresh(&spec, p, seed))
    })
    .unwrap();
    dir
}

fn file(dir: &Path) -> PathBuf {
    let entries = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    entries
        .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
        .min()
        .unwrap()
}

pub(crate) async fn update(server: &Server, dir: &Path, more: Value) -> Answer {
    let mut body = json!({"model_path": dir});
    for (key, value) in more.as_object().unwrap() {
        body[key] = value.clone();
    }
    server.post("/update_weights_from_disk", body).await
}

pub(crate) async fn checksum(server: &Server) -> Value {
    let a = server
        .post("/weights_checker", json!({"action": "checksum"}))
        .await
        .ok();
    assert_eq!(a["success"], true);
    a["ranks"][0].clone()
}

/// A safetensors file with one f32 tensor.
fn write_tensor(path: &Path, name: &str, shape: &[usize], values: &[f32]) {
    let header =
        json!({name: {"dtype": "F32", "shape": shape, "data_offsets": [0, values.len() * 4]}})
            .to_string();
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend(values.iter().flat_map(|v| v.to_le_bytes()));
    fs::write(path, bytes).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_an_update_the_server_is_a_server_of_the_new_weights() {
    let root = tempfile::tempdir().unwrap();
    let server = start().await;
    let other = start_with(network(2), Default::default()).await;
    let body = ask(&ids("before and after an update of the weights"), 4, 30);
    let before = server.generate(body.clone()).await;
    let a = update(
        &server,
        &published(root.path(), 2),
        json!({"weight_version": "step-1", "flush_cache": true}),
    )
    .await
    .ok();
    assert_eq!(
        a,
        json!({"success": true, "message": "Succeeded to update model weights. Weight version updated to step-1.", "num_paused_requests": 0})
    );
    let after = server.generate(body.clone()).await;
    assert_eq!(
        after["meta_info"]["cached_tokens"], 0,
        "the old version's prefix cache was used again"
    );
    assert_eq!(after["meta_info"]["weight_version"], "step-1");
    assert_ne!(after["output_ids"], before["output_ids"]);
    let fresh = other.generate(body).await;
    assert_eq!(
        (output_ids(&after), logprobs(&after)),
        (output_ids(&fresh), logprobs(&fresh))
    );
    assert_eq!(checksum(&server).await, checksum(&other).await);
    assert_eq!(
        server.get("/model_info").await.ok()["weight_version"],
        "step-1"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_under_way_spans_the_update_and_each_token_is_of_one_version() {
    let root = tempfile::tempdir().unwrap();
    let server = start().await;
    let prompt = ids("spans");
    let mut body = ask(&prompt, 6, 700);
    body["stream"] = true.into();
    let mut events = server.events("/generate", body).await;
    while output_ids(&events.next().await.unwrap()).len() < 5 {}
    server
        .post("/pause_generation", json!({"mode": "retract"}))
        .await
        .ok();
    let a = update(
        &server,
        &published(root.path(), 2),
        json!({"weight_version": "v2"}),
    )
    .await
    .ok();
    assert_eq!(a["num_paused_requests"], 1);
    server.post("/continue_generation", json!({})).await.ok();
    let end = events.all().await.pop().unwrap();
    let m = &end["meta_info"];
    let cut = m["weight_versions"][0]["end"].as_u64().unwrap() as usize;
    assert_eq!(
        m["weight_versions"],
        json!([{"version": "default", "start": 0, "end": cut}, {"version": "v2", "start": cut, "end": 700}])
    );
    assert!((5..700).contains(&cut));
    let all: Vec<u32> = prompt.iter().copied().chain(output_ids(&end)).collect();
    let (old, new) = (
        full_forward(&network(1), &all, prompt.len(), 1.0),
        full_forward(&network(2), &all, prompt.len(), 1.0),
    );
    for (i, x) in logprobs(&end).into_iter().enumerate() {
        let want = if i < cut { old[i] } else { new[i] };
        assert!((x - want).abs() < 1e-5, "token {i} of {cut}: {x} {want}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn part_of_the_tensors_changes_only_those() {
    let root = tempfile::tempdir().unwrap();
    let server = start().await;
    let before = checksum(&server).await["checksums"].clone();
    let name = "model.layers.1.self_attn.k_proj.weight";
    let values: Vec<f32> = (0..64 * 192).map(|i| i as f32 * 1e-5).collect();
    write_tensor(
        &root.path().join("delta.safetensors"),
        name,
        &[64, 192],
        &values,
    );
    update(&server, root.path(), json!({})).await.ok();
    let after = checksum(&server).await["checksums"].clone();
    let changed: Vec<&String> = before
        .as_object()
        .unwrap()
        .keys()
        .filter(|k| before[*k] != after[*k])
        .collect();
    assert_eq!(changed, [name]);
    // Put back, everything is as it was.
    let old = published(root.path(), 1);
    update(&server, &old, json!({})).await.ok();
    assert_eq!(checksum(&server).await["checksums"], before);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_that_are_wrong_never_reach_the_weights() {
    let root = tempfile::tempdir().unwrap();
    let server = start().await;
    let body = ask(&ids("unharmed"), 8, 12);
    let (before, sums) = (server.generate(body.clone()).await, checksum(&server).await);
    let dir = |name: &str| {
        let dir = root.path().join(name);
        fs::create_dir(&dir).unwrap();
        dir
    };
    let norm = "model.norm.weight";
    let mut cases: Vec<(PathBuf, &str)> = vec![
        (root.path().join("missing"), "Cannot find any model weights"),
        (dir("empty"), "Cannot find any model weights"),
    ];
    let torn = published(root.path(), 2);
    let bytes = fs::read(file(&torn)).unwrap();
    fs::write(file(&torn), &bytes[..bytes.len() / 2]).unwrap();
    cases.push((torn, "cut short"));
    let header = dir("header");
    fs::write(header.join("a.safetensors"), [255; 7]).unwrap();
    cases.push((header, "damaged"));
    let shape = dir("shape");
    write_tensor(&shape.join("a.safetensors"), norm, &[191], &[1.0; 191]);
    cases.push((shape, "model.norm.weight is [191], this model's is [192]"));
    let name = dir("name");
    write_tensor(
        &name.join("a.safetensors"),
        "model.layers.99.mlp.up_proj.weight",
        &[2],
        &[1.0; 2],
    );
    cases.push((
        name,
        "model.layers.99.mlp.up_proj.weight is no tensor of this model",
    ));
    let nan = dir("nan");
    let mut values = [1.0; 192];
    values[7] = f32::NAN;
    write_tensor(&nan.join("a.safetensors"), norm, &[192], &values);
    cases.push((nan, "1 values that are not finite"));
    let twice = dir("twice");
    write_tensor(&twice.join("a.safetensors"), norm, &[192], &[1.0; 192]);
    write_tensor(&twice.join("b.safetensors"), norm, &[192], &[2.0; 192]);
    cases.push((twice, "is there twice"));
    let index = dir("index");
    write_tensor(&index.join("a.safetensors"), norm, &[192], &[1.0; 192]);
    fs::write(
        index.join("model.safetensors.index.json"),
        json!({"weight_map": {norm: "a.safetensors", "x": "b.safetensors"}}).to_string(),
    )
    .unwrap();
    cases.push((
        index,
        "b.safetensors is in the index and not in the directory",
    ));
    for (dir, words) in cases {
        let a = update(
            &server,
            &dir,
            json!({"weight_version": "never", "abort_all_requests": true}),
        )
        .await;
        assert_eq!(
            (a.status, &a.json()["success"]),
            (400, &json!(false)),
            "{a:?}"
        );
        assert!(
            a.json()["message"].as_str().unwrap().contains(words),
            "{words}: {a:?}"
        );
    }
    let format = update(&server, root.path(), json!({"load_format": "pickle"})).await;
    assert_eq!(
        (format.status, &format.json()["success"]),
        (400, &json!(false))
    );
    let after = server.generate(body).await;
    assert_eq!(
        (output_ids(&after), logprobs(&after)),
        (output_ids(&before), logprobs(&before))
    );
    assert_eq!(after["meta_info"]["weight_version"], "default");
    assert_eq!(checksum(&server).await, sums);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_label_can_change_without_ending_what_runs() {
    let server = start().await;
    let mut body = ask(&ids("label"), 6, 900);
    body["stream"] = true.into();
    let mut events = server.events("/generate", body).await;
    events.next().await.unwrap();
    let a = server
        .post(
            "/update_weight_version",
            json!({"new_version": "v100", "abort_all_requests": false}),
        )
        .await
        .ok();
    assert_eq!(
        a,
        json!({"success": true, "message": "Weight version updated to v100", "new_version": "v100"})
    );
    let end = events.all().await.pop().unwrap();
    assert_eq!(end["meta_info"]["finish_reason"]["type"], "length");
    assert_eq!(end["meta_info"]["weight_versions"][1]["version"], "v100");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logits_that_are_not_finite_are_a_servers_error_and_not_a_token() {
    let broken = {
        let mut net = network(1);
        let (rows, cols) = net.ops().shape(&net.weights().0[0]);
        let tensor = net
            .ops()
            .tensor(rows, cols, &vec![f32::NAN; rows * cols])
            .unwrap();
        net.weights_mut().0[0] = tensor;
        net
    };
    let server = start_with(broken, Default::default()).await;
    let a = server.post("/generate", ask(&ids("x"), 0, 3)).await;
    assert_eq!(a.status, 500);
    assert!(
        a.json()["error"]["message"]
            .as_str()
            .unwrap()
            .contains("not finite"),
        "{a:?}"
    );
    assert_eq!(server.get("/health").await.status, 200);
}
