//! The host against servers that are really there: stock SGLang, or the embedded engine behind `slime-host serve`.
//!
//! ```console
//! $ SLIME_SERVERS=127.0.0.1:30001,127.0.0.1:30002 SLIME_MODEL=DIR cargo test -p slime-rollout --test real_servers -- --ignored --nocapture
//! ```
//! `SLIME_MODEL` is the HF directory that they serve. One test after the other, because all of them publish.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "these are tests")]

use serde_json::Value;
use slime_core::ports::{Policy, PolicyError, SampleRequest};
use slime_core::{FinishReason, SamplingParams, WeightVersion};
use slime_rollout::pool::endpoint::input_logprobs::input_logprobs;
use slime_rollout::pool::endpoint::weights_checker::weights_checker;
use slime_rollout::pool::{PauseMode, Standing};
use slime_rollout::publish::{Caster, Transport};
use slime_rollout::{Address, Pool, PoolConfig, Publisher};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PROMPT: [u32; 5] = [504, 3575, 282, 4649, 314];
const DEADLINE: Duration = Duration::from_secs(120);

fn model() -> PathBuf {
    std::env::var("SLIME_MODEL")
        .expect("SLIME_MODEL is the servers' HF directory")
        .into()
}

fn pool(run: &str, stream: bool) -> Arc<Pool> {
    let servers = std::env::var("SLIME_SERVERS").expect("SLIME_SERVERS names running servers");
    let addresses = servers
        .split(',')
        .map(|text| Address::parse(text).unwrap())
        .collect();
    let config = PoolConfig {
        label_prefix: format!("{run}-{}-", std::process::id()),
        stream,
        ..PoolConfig::new(49_152, 8192)
    };
    Arc::new(Pool::new(addresses, config).unwrap())
}

fn publisher(pool: &Arc<Pool>, mode: PauseMode) -> Publisher {
    Publisher::new(Arc::clone(pool), mode, DEADLINE)
        .with_model(&model())
        .unwrap()
}

fn request(rid: &str, max_new_tokens: u32) -> SampleRequest {
    SampleRequest {
        rid: format!("{rid}-{}", std::process::id()),
        session: 1,
        tokens: PROMPT.to_vec(),
        params: SamplingParams {
            max_new_tokens,
            ignore_eos: true,
            ..SamplingParams::default()
        },
    }
}

/// A safetensors file: its tensors' places and its bytes.
struct File {
    header: BTreeMap<String, Value>,
    bytes: Vec<u8>,
    data: usize,
}

impl File {
    fn read(dir: &Path) -> Self {
        let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
        let len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        let header = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
        Self {
            header,
            bytes,
            data: 8 + len,
        }
    }

    fn range(&self, name: &str) -> std::ops::Range<usize> {
        let offset = |i: usize| self.header[name]["data_offsets"][i].as_u64().unwrap() as usize;
        self.data + offset(0)..self.data + offset(1)
    }

    fn write(&self, dir: &Path) {
        std::fs::create_dir_all(dir).unwrap();
        std::fs::write(dir.join("model.safetensors"), &self.bytes).unwrap();
    }

    /// With another header of the same length class, and data of any length.
    fn with_header(&self, header: &BTreeMap<String, Value>, data: &[u8]) -> Self {
        let text = serde_json::to_vec(header).unwrap();
        let bytes = [&(text.len() as u64).to_le_bytes()[..], &text, data].concat();
        Self {
            header: header.clone(),
            data: 8 + text.len(),
            bytes,
        }
    }
}

/// The model with its final norm scaled: as large a change of every log-prob as one wants, by one small tensor.
fn scaled(file: &File, by: f32) -> File {
    let range = file.range("model.norm.weight");
    let mut bytes = file.bytes.clone();
    for pair in bytes[range].chunks_exact_mut(2) {
        let value = f32::from_bits(u32::from(u16::from_le_bytes([pair[0], pair[1]])) << 16) * by;
        pair.copy_from_slice(&((value.to_bits() >> 16) as u16).to_le_bytes());
    }
    File {
        header: file.header.clone(),
        data: file.data,
        bytes,
    }
}

async fn sums(pool: &Pool) -> Vec<Vec<String>> {
    let mut sums = Vec::new();
    for server in pool.servers() {
        sums.push(weights_checker(server, DEADLINE).await.unwrap().unwrap());
    }
    sums
}

async fn scores(pool: &Pool) -> Vec<Vec<f64>> {
    let mut all = Vec::new();
    for server in pool.servers() {
        all.push(input_logprobs(server, &PROMPT, DEADLINE).await.unwrap());
    }
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs running servers: SLIME_SERVERS and SLIME_MODEL"]
async fn every_transport_ends_in_the_same_weights_on_every_server() {
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = File::read(&model());
    let pool = pool("transports", false);
    let (a, b) = (shm.path().join("a"), shm.path().join("b"));
    file.write(&a);
    scaled(&file, 1.25).write(&b);
    let mut version = 0;
    let mut expected: Vec<(Vec<Vec<String>>, Vec<Vec<f64>>)> = Vec::new();
    for transport in [Transport::Disk, Transport::SharedMemory, Transport::Delta] {
        let local = shm.path().join("local");
        let publisher = publisher(&pool, PauseMode::Retract)
            .by(transport)
            .with_local(&local)
            .unwrap();
        for (round, dir) in [&a, &b, &a].into_iter().enumerate() {
            version += 1;
            let begin = Instant::now();
            let report = match publisher.publish(dir, WeightVersion(version)).await {
                Err(error)
                    if transport == Transport::SharedMemory
                        && error.to_string().contains("404") =>
                {
                    println!("{transport:?}: not offered by this server");
                    break;
                }
                other => other.unwrap(),
            };
            assert!(report.failed.is_empty(), "{:?}", report.failed);
            println!(
                "{transport:?}: {:.1} MB of {:.1} moved, staged in {:.3} s, loaded in {:.3} s, {:.3} s in all",
                report.moved_bytes as f64 / 1e6,
                report.num_bytes as f64 / 1e6,
                report.staged.as_secs_f64(),
                (report.wall - report.staged).as_secs_f64(),
                begin.elapsed().as_secs_f64()
            );
            let got = (sums(&pool).await, scores(&pool).await);
            assert!(got.0.iter().all(|s| *s == got.0[0]), "servers differ");
            match expected.get(round) {
                None => expected.push(got),
                Some(first) => assert_eq!(got, *first, "{transport:?}"),
            }
            let one = pool
                .sample(request(&format!("t{version}"), 4))
                .await
                .unwrap();
            assert_eq!(one.versions, [(WeightVersion(version), 4)]);
        }
    }
    assert_ne!(expected[0], expected[1], "the versions are different");
    assert_eq!(expected[0], expected[2]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs running servers: SLIME_SERVERS and SLIME_MODEL"]
async fn what_kills_a_server_never_reaches_it() {
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = File::read(&model());
    let pool = pool("killers", false);
    let good = shm.path().join("good");
    file.write(&good);

    let mut wrong_shape = file.header.clone();
    wrong_shape.get_mut("model.norm.weight").unwrap()["shape"] = serde_json::json!([288, 2]);
    let mut renamed = file.header.clone();
    let norm = renamed.remove("model.norm.weight").unwrap();
    renamed.insert("model.norm.wait".into(), norm);
    let data = &file.bytes[file.data..];
    let mut torn = File {
        header: file.header.clone(),
        data: file.data,
        bytes: file.bytes.clone(),
    };
    torn.bytes.truncate(file.bytes.len() - 1000);
    let mut other_type = file.header.clone();
    other_type.get_mut("model.norm.weight").unwrap()["dtype"] = "I16".into();
    let bad = [
        ("wrong shape", file.with_header(&wrong_shape, data)),
        ("unknown name", file.with_header(&renamed, data)),
        ("cut short", torn),
        (
            "no safetensors",
            File {
                header: file.header.clone(),
                data: 0,
                bytes: b"{}".to_vec(),
            },
        ),
        ("not floating point", file.with_header(&other_type, data)),
    ];
    // Before anything was published, and after: the model's own files say what fits.
    for published in [false, true] {
        for transport in [Transport::Disk, Transport::SharedMemory] {
            let publisher = publisher(&pool, PauseMode::Retract).by(transport);
            if published {
                let publisher = &publisher;
                match publisher.publish(&good, WeightVersion(1)).await {
                    Err(error) if error.to_string().contains("404") => continue,
                    other => _ = other.unwrap(),
                }
            }
            for (index, (what, file)) in bad.iter().enumerate() {
                let dir = shm.path().join(format!("bad-{index}"));
                file.write(&dir);
                let error = publisher.publish(&dir, WeightVersion(2)).await.unwrap_err();
                println!("{what}: {error}");
            }
            for dir in ["/no/such/directory", shm.path().to_str().unwrap()] {
                println!(
                    "{}",
                    publisher
                        .publish(Path::new(dir), WeightVersion(2))
                        .await
                        .unwrap_err()
                );
            }
        }
    }
    publisher(&pool, PauseMode::Retract)
        .publish(&good, WeightVersion(3))
        .await
        .unwrap();
    for (tokens, max_new) in [
        (vec![1, 999_999], 1),
        (vec![1, 49_152], 1),
        (vec![], 1),
        (vec![1; 9000], 1),
        (vec![1; 8000], 9000),
    ] {
        let mut request = request("bad", max_new);
        request.tokens = tokens;
        let error = pool.sample(request).await.unwrap_err();
        assert!(matches!(error, PolicyError::Refused(_)), "{error}");
        println!("{error}");
    }
    let got = pool.sample(request("alive", 4)).await.unwrap();
    assert_eq!(got.tokens.len(), 4);
    assert!(
        pool.standings()
            .iter()
            .all(|(_, s)| *s == Standing::Serving(WeightVersion(3)))
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs running servers: SLIME_SERVERS and SLIME_MODEL"]
async fn g02_requests_in_flight_survive_a_publish_and_say_which_tokens_are_whose() {
    let shm = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = File::read(&model());
    let (a, b) = (shm.path().join("a"), shm.path().join("b"));
    file.write(&a);
    scaled(&file, 1.25).write(&b);
    for (mode, stream) in [
        (PauseMode::Retract, false),
        (PauseMode::Abort, false),
        (PauseMode::Abort, true),
    ] {
        let pool = pool(&format!("flight-{mode:?}-{stream}"), stream);
        let publisher = publisher(&pool, mode);
        publisher.publish(&a, WeightVersion(1)).await.unwrap();
        let rids: Vec<String> = (0..4).map(|i| format!("{mode:?}-{stream}-{i}")).collect();
        let asking =
            futures::future::join_all(rids.iter().map(|rid| pool.sample(request(rid, 60))));
        let publishing = async {
            tokio::time::sleep(Duration::from_secs(2)).await;
            publisher.publish(&b, WeightVersion(2)).await.unwrap()
        };
        let (answers, report) = futures::future::join(asking, publishing).await;
        assert!(report.failed.is_empty());
        for answer in answers {
            let answer = answer.unwrap();
            assert_eq!(
                (answer.tokens.len(), answer.finish),
                (60, Some(FinishReason::Length))
            );
            assert_eq!(answer.logprobs.len(), 60);
            let versions: Vec<u64> = answer.versions.iter().map(|(v, _)| v.0).collect();
            assert_eq!(
                versions,
                [1, 2],
                "{mode:?}: begun before and ended after: {:?}",
                answer.versions
            );
        }
        println!(
            "{mode:?}, stream {stream}: 4 of 4 requests went on, {:?}",
            pool.stats()
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs running servers: SLIME_SERVERS and SLIME_MODEL"]
async fn a_stop_brings_back_what_was_sampled_and_a_continuation_goes_on_from_it() {
    let pool_a = pool("stop", false);
    publisher(&pool_a, PauseMode::Retract)
        .publish(&model(), WeightVersion(1))
        .await
        .unwrap();
    let stopping = async {
        tokio::time::sleep(Duration::from_secs(3)).await;
        pool_a.halt().await;
    };
    let (cut, ()) = futures::future::join(pool_a.sample(request("cut", 2000)), stopping).await;
    let cut = cut.unwrap();
    assert_eq!(cut.finish, Some(FinishReason::Abort));
    assert!(!cut.tokens.is_empty() && cut.tokens.len() < 2000);
    assert!(matches!(
        pool_a.sample(request("late", 4)).await,
        Err(PolicyError::Cancelled)
    ));

    struct Nobody;
    impl slime_core::ports::Keep for Nobody {
        fn keep(&self, _: &slime_core::ports::Sampled) {}
    }
    // Another process would know the label; this one publishes again under its own.
    let pool_b = pool("stop-again", false);
    publisher(&pool_b, PauseMode::Retract)
        .publish(&model(), WeightVersion(1))
        .await
        .unwrap();
    let had = cut.tokens.len();
    let whole = pool_b
        .go_on(
            request("on", had as u32 + 10),
            cut.clone(),
            Arc::new(Nobody),
        )
        .await
        .unwrap();
    assert_eq!(whole.tokens[..had], cut.tokens);
    assert_eq!(
        (whole.tokens.len(), whole.finish),
        (had + 10, Some(FinishReason::Length))
    );
    println!("{had} tokens came back from a stop, and 10 more were sampled after them");
}

/// Rank 0 of a group that never sends.
struct NoGpu;

impl Caster for NoGpu {
    fn new_id(&self) -> Result<Vec<u8>, String> {
        Ok(vec![0; 128])
    }

    fn join(&self, _: &[u8], _: usize) -> Result<(), String> {
        Err("there is no GPU here".into())
    }

    fn send(&self, _: &[u8]) -> Result<(), String> {
        Err("there is no GPU here".into())
    }

    fn abort(&self) {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs running servers without a GPU: SLIME_SERVERS and SLIME_MODEL"]
async fn servers_without_a_gpu_meet_at_the_store_and_read_the_directory_instead() {
    let pool = pool("nccl", false);
    let publisher = publisher(&pool, PauseMode::Retract)
        .by(Transport::Nccl)
        .with_caster(Arc::new(NoGpu));
    for version in [1, 2] {
        let report = publisher
            .publish(&model(), WeightVersion(version))
            .await
            .unwrap();
        assert!(report.failed.is_empty(), "{:?}", report.failed);
        let one = pool
            .sample(request(&format!("n{version}"), 4))
            .await
            .unwrap();
        assert_eq!(one.versions, [(WeightVersion(version), 4)]);
    }
}
