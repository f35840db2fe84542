//! New weights as tensors of this process. The oracle is the same version read from a directory.

use crate::support::*;
use crate::weights::{checksum, published, update};
use serde_json::json;
use slime_engine::EngineConfig;
use slime_kernels::{Cpu, CpuTensor, Ops};

fn tensors(seed: u64) -> Vec<CpuTensor<f32>> {
    network(seed).weights().0.clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tensors_of_this_process_serve_the_same_bits_as_a_directory_of_them() {
    let root = tempfile::tempdir().unwrap();
    let by_disk = start().await;
    let (by_hand, inlet) = start_with_inlet(network(1), EngineConfig::default()).await;
    let body = ask(&ids("before and after an update of the weights"), 4, 60);
    let before = by_hand.generate(body.clone()).await;
    let how = json!({"weight_version": "step-1", "flush_cache": true});
    update(&by_disk, &published(root.path(), 2), how).await.ok();
    let version = Some("step-1".to_owned());
    inlet
        .update(tensors(2), version, true, false)
        .await
        .unwrap();
    let (read, given) = (
        by_disk.generate(body.clone()).await,
        by_hand.generate(body).await,
    );
    assert_ne!(output_ids(&given), output_ids(&before));
    assert_eq!(
        (output_ids(&given), logprobs(&given)),
        (output_ids(&read), logprobs(&read))
    );
    assert_eq!(given["meta_info"]["weight_version"], "step-1");
    assert_eq!(
        given["meta_info"]["cached_tokens"], 0,
        "the old version's prefix cache was used again"
    );
    assert_eq!(checksum(&by_hand).await, checksum(&by_disk).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_under_way_spans_a_hand_over_and_its_old_tokens_are_read_again() {
    let (server, inlet) = start_with_inlet(network(1), EngineConfig::default()).await;
    let prompt = ids("spans");
    let mut body = ask(&prompt, 6, 700);
    body["stream"] = true.into();
    let mut events = server.events("/generate", body).await;
    while output_ids(&events.next().await.unwrap()).len() < 5 {}
    let mode = json!({"mode": "retract"});
    server.post("/pause_generation", mode).await.ok();
    let held = inlet.update(tensors(2), Some("v2".into()), true, false);
    assert_eq!(held.await.unwrap(), 1, "a pause held it back");
    server.post("/continue_generation", json!({})).await.ok();
    let end = events.all().await.pop().unwrap();
    let m = &end["meta_info"];
    let cut = m["weight_versions"][0]["end"].as_u64().unwrap() as usize;
    assert_eq!(m["weight_versions"][1]["version"], "v2");
    let all: Vec<u32> = prompt.iter().copied().chain(output_ids(&end)).collect();
    let new = full_forward(&network(2), &all, prompt.len(), 1.0);
    for (i, x) in logprobs(&end).into_iter().enumerate().skip(cut) {
        assert!(
            (x - new[i]).abs() < 1e-5,
            "token {i} of {cut}: {x} {}",
            new[i]
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_with_tensors_is_said_and_the_old_weights_stay() {
    let (server, inlet) = start_with_inlet(network(1), EngineConfig::default()).await;
    let before = checksum(&server).await;
    let ops = Cpu::<f32>::new();
    let mut missing = tensors(2);
    missing.pop();
    let mut wrong = tensors(2);
    wrong[3] = ops.tensor(2, 2, &[0.0; 4]).unwrap();
    let mut torn = tensors(2);
    let (rows, cols) = ops.shape(&torn[2]);
    let mut values = ops.read(&torn[2]).unwrap();
    values[1] = f32::NAN;
    torn[2] = ops.tensor(rows, cols, &values).unwrap();
    let names = network(1).params().clone();
    for (tensors, says) in [
        (missing, "tensors for".to_owned()),
        (wrong, format!("{} is (2, 2)", names[3].name)),
        (
            torn,
            format!("{} has values that are not finite", names[2].name),
        ),
    ] {
        let refused = inlet.update(tensors, Some("bad".into()), true, false);
        let error = refused.await.unwrap_err().to_string();
        assert!(error.contains(&says), "{error}");
        assert!(error.contains("old weights are still served"), "{error}");
    }
    assert_eq!(checksum(&server).await, before);
    assert_eq!(
        server.get("/model_info").await.ok()["weight_version"],
        "default"
    );
}
