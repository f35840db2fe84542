mod handed;

use super::*;
use crate::pool::{Address, PoolConfig};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use tempfile::TempDir;
use wiremock::matchers::path;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

const V1: WeightVersion = WeightVersion(1);

/// A whole safetensors file of f32 tensors.
pub(crate) fn safetensors(tensors: &[(&str, &[u64])]) -> Vec<u8> {
    let mut header = serde_json::Map::new();
    let mut end = 0;
    for (name, shape) in tensors {
        let size = shape.iter().product::<u64>() * 4;
        header.insert(
            (*name).into(),
            json!({ "dtype": "F32", "shape": shape, "data_offsets": [end, end + size] }),
        );
        end += size;
    }
    let header = Value::Object(header).to_string();
    [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        &vec![0; end as usize],
    ]
    .concat()
}

pub(crate) fn weights(tensors: &[(&str, &[u64])]) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("model.safetensors"), safetensors(tensors)).unwrap();
    dir
}

/// A server that takes weights; `refuse` of its first updates fail.
pub(crate) struct Engine {
    pub(crate) server: MockServer,
    pub(crate) label: Arc<Mutex<String>>,
}

pub(crate) async fn engine(refuse: usize, checksum: &'static str) -> Engine {
    let server = MockServer::builder().start().await;
    let label = Arc::new(Mutex::new("default".to_owned()));
    for endpoint in ["/pause_generation", "/continue_generation"] {
        Mock::given(path(endpoint))
            .respond_with(ResponseTemplate::new(200).set_body_json(json!({ "status": "ok" })))
            .mount(&server)
            .await;
    }
    let (refused, served) = (AtomicUsize::new(0), Arc::clone(&label));
    let update = move |request: &Request| {
        if refused.fetch_add(1, Ordering::SeqCst) < refuse {
            return ResponseTemplate::new(400).set_body_json(
                json!({ "success": false, "message": "Cannot find any model weights" }),
            );
        }
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        *lock(&served) = body["weight_version"].as_str().unwrap().to_owned();
        ResponseTemplate::new(200).set_body_json(
            json!({ "success": true, "message": "Succeeded", "num_paused_requests": 0 }),
        )
    };
    Mock::given(path("/update_weights_from_disk"))
        .respond_with(update)
        .mount(&server)
        .await;
    let served = Arc::clone(&label);
    let info = move |_: &Request| {
        ResponseTemplate::new(200)
            .set_body_json(json!({ "model_path": "m", "weight_version": *lock(&served) }))
    };
    Mock::given(path("/model_info"))
        .respond_with(info)
        .mount(&server)
        .await;
    let sums =
        json!({ "success": true, "ranks": [{ "checksums": {}, "per_gpu_checksum": checksum }] });
    Mock::given(path("/weights_checker"))
        .respond_with(ResponseTemplate::new(200).set_body_json(sums))
        .mount(&server)
        .await;
    Engine { server, label }
}

pub(crate) fn pool(engines: &[&Engine]) -> Arc<Pool> {
    let addresses = engines
        .iter()
        .map(|e| Address::parse(&e.server.uri()).unwrap())
        .collect();
    let config = PoolConfig {
        probe_interval: Duration::from_millis(30),
        label_prefix: "run7-".into(),
        ..PoolConfig::new(10, 10)
    };
    Arc::new(Pool::new(addresses, config).unwrap())
}

async fn control(engine: &Engine) -> Vec<(String, Value)> {
    let all = engine.server.received_requests().await.unwrap();
    let posts = all.iter().filter(|r| r.method.as_str() == "POST");
    posts
        .map(|r| {
            (
                r.url.path().to_owned(),
                serde_json::from_slice(&r.body).unwrap(),
            )
        })
        .collect()
}

async fn until(what: impl Fn() -> bool) {
    for _ in 0..200 {
        if what() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("it did not come to that");
}

#[tokio::test]
async fn every_member_is_paused_updated_proven_and_continued_in_that_order() {
    let (a, b) = (engine(0, "same").await, engine(0, "same").await);
    let pool = pool(&[&a, &b]);
    let dir = weights(&[("w", &[2, 3])]);
    let report = Publisher::new(
        Arc::clone(&pool),
        PauseMode::Retract,
        Duration::from_secs(5),
    )
    .publish(dir.path(), V1)
    .await
    .unwrap();
    assert_eq!(
        (
            report.version,
            report.num_serving,
            report.failed.len(),
            report.compared
        ),
        (V1, 2, 0, true)
    );
    for engine in [&a, &b] {
        let calls = control(engine).await;
        let body =
            json!({ "model_path": dir.path(), "weight_version": "run7-1", "flush_cache": true });
        let expected = [
            ("/pause_generation", json!({ "mode": "retract" })),
            ("/update_weights_from_disk", body),
            ("/continue_generation", json!({})),
            ("/weights_checker", json!({ "action": "checksum" })),
        ];
        assert_eq!(calls, expected.map(|(path, body)| (path.to_owned(), body)));
    }
    assert!(
        pool.standings()
            .iter()
            .all(|(_, s)| *s == Standing::Serving(V1))
    );
}

#[tokio::test]
async fn a_member_that_missed_a_version_is_out_until_it_has_it() {
    let (good, bad) = (engine(0, "same").await, engine(3, "same").await);
    let pool = pool(&[&good, &bad]);
    let dir = weights(&[("w", &[2])]);
    let report = Publisher::new(Arc::clone(&pool), PauseMode::Abort, Duration::from_secs(5))
        .publish(dir.path(), V1)
        .await
        .unwrap();
    assert_eq!((report.num_serving, report.failed.len()), (1, 1));
    assert!(
        report.failed[0].1.contains("Cannot find any model weights"),
        "{:?}",
        report.failed
    );
    // A failed update still lets the server go on.
    assert_eq!(control(&bad).await[2].0, "/continue_generation");
    until(|| pool.standings()[1].1 == Standing::Serving(V1)).await;
    assert_eq!(*lock(&bad.label), "run7-1");
}

#[tokio::test]
async fn a_member_with_other_bytes_is_out_though_its_label_is_right() {
    let engines = [
        engine(0, "good").await,
        engine(0, "odd").await,
        engine(0, "good").await,
    ];
    let pool = pool(&engines.iter().collect::<Vec<_>>());
    let dir = weights(&[("w", &[2])]);
    let report = Publisher::new(
        Arc::clone(&pool),
        PauseMode::Retract,
        Duration::from_secs(5),
    )
    .publish(dir.path(), V1)
    .await
    .unwrap();
    assert_eq!(report.num_serving, 2);
    assert!(
        report.failed[0].1.contains("checksum differs"),
        "{:?}",
        report.failed
    );
    // It is given the weights again, and again they are not the same.
    let server = &engines[1];
    for _ in 0..100 {
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_ne!(pool.standings()[1].1, Standing::Serving(V1));
        if control(server)
            .await
            .iter()
            .filter(|(path, _)| path == "/update_weights_from_disk")
            .count()
            > 2
        {
            return;
        }
    }
    panic!("the member was not given the weights again");
}

#[tokio::test]
async fn a_version_that_reaches_nobody_is_an_error_that_names_every_member() {
    let engine = engine(usize::MAX, "x").await;
    let pool = pool(&[&engine]);
    let dir = weights(&[("w", &[2])]);
    let publisher = Publisher::new(pool, PauseMode::Retract, Duration::from_secs(5));
    let error = publisher
        .publish(dir.path(), V1)
        .await
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("version 1 reached no server") && error.contains(&engine.server.uri()),
        "{error}"
    );
}

#[tokio::test]
async fn h07_a_label_of_another_run_proves_nothing() {
    let (a, b) = (engine(0, "x").await, engine(usize::MAX, "x").await);
    *lock(&b.label) = "run6-1".into();
    let pool = pool(&[&a, &b]);
    let dir = weights(&[("w", &[2])]);
    let publisher = Publisher::new(
        Arc::clone(&pool),
        PauseMode::Retract,
        Duration::from_secs(5),
    );
    assert_eq!(
        publisher.publish(dir.path(), V1).await.unwrap().num_serving,
        1
    );
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_ne!(pool.standings()[1].1, Standing::Serving(V1));
}

#[tokio::test]
async fn h10_what_would_kill_a_server_is_not_published() {
    let engine = engine(0, "x").await;
    let publisher = Publisher::new(pool(&[&engine]), PauseMode::Retract, Duration::from_secs(5));
    let good = weights(&[("a", &[2, 3]), ("b", &[4])]);
    publisher.publish(good.path(), V1).await.unwrap();
    let before = control(&engine).await.len();

    let mut torn = safetensors(&[("a", &[2, 3]), ("b", &[4])]);
    torn.truncate(torn.len() - 5);
    let file = |bytes: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
        dir
    };
    for (dir, says) in [
        (file(&torn), "is torn"),
        (file(b"short"), "is torn"),
        (
            weights(&[("a", &[3, 2]), ("b", &[4])]),
            "tensor `a` is F32 [3, 2]; the servers were given F32 [2, 3]",
        ),
        (weights(&[("a", &[2, 3])]), "tensor `b` is missing"),
        (
            weights(&[("a", &[2, 3]), ("b", &[4]), ("c", &[1])]),
            "tensor `c` is new",
        ),
        (tempfile::tempdir().unwrap(), "no *.safetensors"),
    ] {
        let error = publisher
            .publish(dir.path(), WeightVersion(2))
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{error}");
    }
    assert_eq!(control(&engine).await.len(), before, "no server was asked");
}

#[test]
fn the_last_two_versions_stay_and_what_is_being_read() {
    let root = tempfile::tempdir().unwrap();
    let dirs = WeightDirs::open(root.path()).unwrap();
    let write = |version| {
        let fill = |dir: &Path| {
            std::fs::write(dir.join("model.safetensors"), "x").map_err(|e| RolloutError::File {
                path: PathBuf::new(),
                reason: e.to_string(),
            })
        };
        dirs.write(WeightVersion(version), fill).unwrap()
    };
    (1..=5).for_each(|v| drop(write(v)));
    assert_eq!(
        dirs.prune(&[WeightVersion(2)]).unwrap(),
        [WeightVersion(1), WeightVersion(3)]
    );
    let mut left: Vec<_> = std::fs::read_dir(root.path())
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect();
    left.sort();
    assert_eq!(left, ["v2", "v4", "v5"]);
}

#[test]
fn h13_a_version_appears_whole_or_not_at_all() {
    let root = tempfile::tempdir().unwrap();
    let dirs = WeightDirs::open(root.path()).unwrap();
    let fail = |dir: &Path| {
        std::fs::write(dir.join("model.safetensors"), "half").unwrap();
        Err(RolloutError::File {
            path: PathBuf::new(),
            reason: "disk full".into(),
        })
    };
    assert!(
        dirs.write(V1, fail)
            .unwrap_err()
            .to_string()
            .contains("disk full")
    );
    assert!(!dirs.path(V1).exists());
    // The next start removes what was left.
    let dirs = WeightDirs::open(root.path()).unwrap();
    assert_eq!(std::fs::read_dir(root.path()).unwrap().count(), 0);
    let path = dirs
        .write(V1, |dir| {
            std::fs::write(dir.join("a"), "1").map_err(|e| RolloutError::File {
                path: PathBuf::new(),
                reason: e.to_string(),
            })
        })
        .unwrap();
    dirs.write(V1, |dir| {
        std::fs::write(dir.join("b"), "2").map_err(|e| RolloutError::File {
            path: PathBuf::new(),
            reason: e.to_string(),
        })
    })
    .unwrap();
    assert!(
        !path.join("a").exists() && path.join("b").exists(),
        "a version written again replaces the first"
    );
}

#[tokio::test]
async fn g09_a_publish_that_fails_leaves_no_lock_behind() {
    let engine = engine(0, "x").await;
    let publisher = Publisher::new(pool(&[&engine]), PauseMode::Retract, Duration::from_secs(5));
    let empty = tempfile::tempdir().unwrap();
    assert!(publisher.publish(empty.path(), V1).await.is_err());
    let good = weights(&[("w", &[2])]);
    let second = tokio::time::timeout(Duration::from_secs(2), publisher.publish(good.path(), V1));
    assert_eq!(second.await.unwrap().unwrap().num_serving, 1);
}

#[tokio::test]
async fn g02_h06_a_publish_aborts_nothing_and_every_member_is_read_back() {
    let (good, bad) = (engine(0, "same").await, engine(0, "same").await);
    for (engine, value) in [(&good, 0.0), (&bad, 0.5)] {
        Mock::given(path("/get_weights_by_name"))
            .respond_with(ResponseTemplate::new(200).set_body_json(json!([value, value])))
            .mount(&engine.server)
            .await;
    }
    let pool = pool(&[&good, &bad]);
    let dir = weights(&[("model.norm.weight", &[2]), ("w", &[3])]);
    let publisher = Publisher::new(pool, PauseMode::Retract, Duration::from_secs(5));
    let report = publisher.publish(dir.path(), V1).await.unwrap();
    assert_eq!(report.num_serving, 1);
    let reason = &report.failed[0].1;
    assert!(
        reason.contains("value 0 of `model.norm.weight` is 0.5 there and was published as 0"),
        "{reason}"
    );
    // Servers end requests under way for either of these.
    for (to, body) in control(&good).await {
        assert!(to != "/abort_request" && to != "/update_weight_version");
        assert_ne!(body["mode"], "abort");
    }
}

#[test]
fn h08_h09_a_bucket_holds_each_tensors_bytes_whatever_their_order_and_size() {
    let dir = tempfile::tempdir().unwrap();
    // By name a, b, c; by place c, a, b, and b is empty.
    let header = r#"{"a":{"dtype":"BF16","shape":[2],"data_offsets":[4,8]},"b":{"dtype":"F32","shape":[0],"data_offsets":[8,8]},"c":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let bytes = [
        &(header.len() as u64).to_le_bytes()[..],
        header.as_bytes(),
        b"ccccaaaa",
    ]
    .concat();
    std::fs::write(dir.path().join("model.safetensors"), bytes).unwrap();
    std::fs::write(
        dir.path().join("more.safetensors"),
        safetensors(&[("d", &[2, 1])]),
    )
    .unwrap();
    let manifest = Manifest::read(dir.path()).unwrap();
    let shm = tempfile::tempdir().unwrap();
    let buckets = Bucket::fill(shm.path(), "x", &manifest, 9).unwrap();
    let contents = |name: &str| std::fs::read(shm.path().join(name)).unwrap()[64..].to_vec();
    assert_eq!(buckets.len(), 2, "bounded in size");
    assert_eq!(contents("x-0"), b"ccccaaaa");
    assert_eq!(contents("x-1"), [0; 8]);
    // A name of its own for each reader; all are gone with the bucket.
    let payloads = [buckets[0].payload().unwrap(), buckets[0].payload().unwrap()];
    assert_ne!(payloads[0], payloads[1]);
    assert_eq!(
        (contents("x-0.0"), contents("x-0.1")),
        (b"ccccaaaa".to_vec(), b"ccccaaaa".to_vec())
    );
    std::fs::remove_file(shm.path().join("x-0.0")).unwrap();
    drop(buckets);
    assert_eq!(std::fs::read_dir(shm.path()).unwrap().count(), 0);
}

#[test]
fn a_buckets_pickle_is_the_one_the_real_server_took() {
    let golden = include_str!("../../../../tests/client/bucket.json");
    let golden: Value = serde_json::from_str(golden).unwrap();
    let tensors: Vec<check::Tensor> = golden["tensors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|t| {
            let number = |v: &Value| v.as_u64().unwrap();
            check::Tensor {
                name: t["name"].as_str().unwrap().into(),
                dtype: t["dtype"].as_str().unwrap().into(),
                shape: t["shape"].as_array().unwrap().iter().map(number).collect(),
                file: PathBuf::new(),
                start: number(&t["start"]),
                end: number(&t["end"]),
            }
        })
        .collect();
    let name = golden["name"].as_str().unwrap();
    let got = bucket::describe(name, golden["num_bytes"].as_u64().unwrap(), &tensors);
    let hex: String = got.iter().map(|b| format!("{b:02x}")).collect();
    assert_eq!(hex, golden["pickle"].as_str().unwrap());
}

#[tokio::test]
async fn shared_memory_travels_in_a_session_with_a_payload_for_each_rank() {
    let engine = engine(0, "x").await;
    let served = Arc::clone(&engine.label);
    let update = move |request: &Request| {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        *lock(&served) = body["weight_version"].as_str().unwrap().to_owned();
        ResponseTemplate::new(200).set_body_json(json!({ "success": true, "message": "Success" }))
    };
    let info = ResponseTemplate::new(200).set_body_json(json!({ "tp_size": 2, "dp_size": 1 }));
    for endpoint in ["/begin_weight_update", "/end_weight_update"] {
        Mock::given(path(endpoint))
            .respond_with(ResponseTemplate::new(200))
            .mount(&engine.server)
            .await;
    }
    Mock::given(path("/server_info"))
        .respond_with(info)
        .mount(&engine.server)
        .await;
    Mock::given(path("/update_weights_from_tensor"))
        .respond_with(update)
        .mount(&engine.server)
        .await;
    let publisher = Publisher::new(pool(&[&engine]), PauseMode::Retract, Duration::from_secs(5))
        .by(Transport::SharedMemory);
    let dir = weights(&[("w", &[2])]);
    assert_eq!(
        publisher.publish(dir.path(), V1).await.unwrap().num_serving,
        1
    );
    let calls = control(&engine).await;
    let paths: Vec<&str> = calls.iter().map(|(path, _)| path.as_str()).collect();
    assert_eq!(
        paths,
        [
            "/pause_generation",
            "/begin_weight_update",
            "/update_weights_from_tensor",
            "/end_weight_update",
            "/continue_generation"
        ]
    );
    let body = &calls[2].1;
    assert_eq!(
        body["serialized_named_tensors"].as_array().unwrap().len(),
        2
    );
    assert_eq!(
        (&body["load_format"], &body["flush_cache"]),
        (&json!("flattened_bucket"), &json!(true))
    );
    let left = std::fs::read_dir(bucket::SHARED_MEMORY).unwrap();
    let ours = format!("slime-{}-", std::process::id());
    assert!(
        !left
            .flatten()
            .any(|e| e.file_name().to_string_lossy().starts_with(&ours))
    );
}

#[tokio::test]
async fn a_delta_moves_what_changed_and_servers_read_the_whole_version() {
    let engine = engine(0, "x").await;
    let local = tempfile::tempdir().unwrap();
    let root = local.path().join("copy");
    let publisher = Publisher::new(pool(&[&engine]), PauseMode::Retract, Duration::from_secs(5))
        .by(Transport::Delta)
        .with_local(&root)
        .unwrap();
    let trained = tempfile::tempdir().unwrap();
    let write = |version: u64, value: u8| {
        let dir = trained.path().join(version.to_string());
        std::fs::create_dir(&dir).unwrap();
        let mut bytes = safetensors(&[("w", &[1000])]);
        let last = bytes.len() - 1;
        bytes[last] = value;
        std::fs::write(dir.join("model.safetensors"), &bytes).unwrap();
        (dir, bytes)
    };
    let mut moved = Vec::new();
    for version in 1..4 {
        let (dir, bytes) = write(version, version as u8);
        let report = publisher
            .publish(&dir, WeightVersion(version))
            .await
            .unwrap();
        moved.push((report.moved_bytes, report.num_bytes));
        let read = root.join(format!("v{version}"));
        assert_eq!(
            std::fs::read(read.join("model.safetensors")).unwrap(),
            bytes
        );
        let calls = control(&engine).await;
        let told = calls
            .iter()
            .rev()
            .find(|(path, _)| path == "/update_weights_from_disk");
        assert_eq!(told.unwrap().1["model_path"], json!(read));
    }
    assert_eq!(moved[0], (4000, 4000), "the first comes whole");
    assert!(moved[1].0 < 400 && moved[2].0 < 400, "{moved:?}");
    assert!(!root.join("v1").exists());
    // A copy that somebody changed is found out and replaced.
    std::fs::write(
        root.join("v3/model.safetensors"),
        safetensors(&[("w", &[1000])]),
    )
    .unwrap();
    let (dir, bytes) = write(4, 9);
    let report = publisher.publish(&dir, WeightVersion(4)).await.unwrap();
    assert_eq!(
        std::fs::read(root.join("v4/model.safetensors")).unwrap(),
        bytes
    );
    assert!(report.moved_bytes < 400 || report.moved_bytes == 4000);
    drop(publisher);
    assert!(!root.exists());
}

#[tokio::test]
async fn the_first_version_is_checked_against_the_model() {
    let engine = engine(0, "x").await;
    let model = weights(&[("a", &[2, 3]), ("b", &[4]), ("lm_head.weight", &[2, 3])]);
    let publisher = Publisher::new(pool(&[&engine]), PauseMode::Retract, Duration::from_secs(5))
        .with_model(model.path())
        .unwrap();
    for (tensors, says) in [
        (
            &[("a", &[3, 2][..]), ("b", &[4])][..],
            "tensor `a` is [3, 2]; the model's is [2, 3]",
        ),
        (&[("a", &[2, 3])], "tensor `b` of the model is missing"),
        (
            &[("a", &[2, 3]), ("b", &[4]), ("c", &[1])],
            "tensor `c` is new",
        ),
    ] {
        let dir = weights(tensors);
        let error = publisher
            .publish(dir.path(), V1)
            .await
            .unwrap_err()
            .to_string();
        assert!(error.contains(says), "{error}");
    }
    assert!(control(&engine).await.is_empty(), "no server was asked");
    // A tied head need not be written out.
    let good = weights(&[("a", &[2, 3]), ("b", &[4])]);
    assert_eq!(
        publisher
            .publish(good.path(), V1)
            .await
            .unwrap()
            .num_serving,
        1
    );
}

#[tokio::test]
async fn a_process_whose_epoch_is_over_sends_a_stock_server_nothing() {
    let run = tempfile::tempdir().unwrap();
    let (engine, dir) = (engine(0, "s").await, weights(&[("w", &[2])]));
    let fenced = |fence: &Fence| {
        let config = PoolConfig {
            fence: Some(fence.clone()),
            ..PoolConfig::new(10, 10)
        };
        let address = Address::parse(&engine.server.uri()).unwrap();
        let pool = Arc::new(Pool::new(vec![address], config).unwrap());
        Publisher::new(pool, PauseMode::default(), Duration::from_secs(5))
    };
    let old_fence = Fence::claim(run.path()).unwrap();
    let old = fenced(&old_fence);
    old.publish(dir.path(), V1).await.unwrap();
    let all = engine.server.received_requests().await.unwrap();
    let told = all.iter().filter(|r| r.method.as_str() == "POST");
    for request in told {
        assert_eq!(
            request.headers[crate::fence::HEADER],
            old_fence.header().as_str()
        );
    }
    let new = fenced(&Fence::claim(run.path()).unwrap());
    let before = control(&engine).await.len();
    let error = old.publish(dir.path(), WeightVersion(9)).await.unwrap_err();
    assert!(
        matches!(
            error,
            RolloutError::TakenOver {
                epoch: 1,
                by: 2,
                ..
            }
        ),
        "{error}"
    );
    assert_eq!(control(&engine).await.len(), before);
    assert_eq!(*lock(&engine.label), "1");
    new.publish(dir.path(), WeightVersion(2)).await.unwrap();
    assert_eq!(*lock(&engine.label), "2");
}
