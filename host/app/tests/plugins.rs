//! Plugins in a run of the real binary: pinned in a registry, watched by a second verifier, memoised, and replayed.
//!
//! The registry is written from the specification of OCI and of the CNCF's artefact for WebAssembly, not from this
//! program's own push.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Arc, Mutex};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn host(dir: &Path, args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_slime-host"))
        .args(args)
        .current_dir(dir)
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .env_remove("RUST_LOG")
        .output()
        .unwrap()
}

fn done(output: &Output) -> String {
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The component of a plugin of this checkout.
fn component(name: &str) -> Vec<u8> {
    let file = slime_runtime::build_plugin(&root().join("plugins").join(name)).unwrap();
    std::fs::read(file).unwrap()
}

fn sha256(bytes: &[u8]) -> String {
    let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
    format!("sha256:{}", hex(&Sha256::digest(bytes)))
}

/// A registry with one artefact, which it serves by digest. Answers with the reference that pins it, and counts.
fn registry(name: &str, component: Vec<u8>) -> (String, Arc<Mutex<Vec<String>>>) {
    let config = json!({"architecture": "wasm", "os": "wasip2"}).to_string();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {
            "mediaType": "application/vnd.wasm.config.v0+json",
            "digest": sha256(config.as_bytes()),
            "size": config.len(),
        },
        "layers": [{
            "mediaType": "application/wasm",
            "digest": sha256(&component),
            "size": component.len(),
        }],
    })
    .to_string();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let at = listener.local_addr().unwrap();
    let pinned = format!("{at}/{name}@{}", sha256(manifest.as_bytes()));
    let served = HashMap::from([
        (
            format!("/v2/{name}/manifests/{}", sha256(manifest.as_bytes())),
            manifest.into_bytes(),
        ),
        (
            format!("/v2/{name}/blobs/{}", sha256(&component)),
            component,
        ),
    ]);
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&asked);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            let first = lines.next().unwrap().unwrap();
            while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
            let path = first.split(' ').nth(1).unwrap().to_owned();
            let (status, body) = match served.get(&path) {
                Some(body) => ("200 OK", body.as_slice()),
                None => ("404 Not Found", &b"{}"[..]),
            };
            log.lock().unwrap().push(path);
            let length = body.len();
            let head = format!(
                "HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
            );
            let _ = stream
                .write_all(head.as_bytes())
                .and_then(|()| stream.write_all(body));
        }
    });
    (pinned, asked)
}

const RECIPE: &str = "\
[model]
builtin = \"tiny\"
[run]
num_rollout = 2
[rollout]
batch_size = 2
n_samples_per_prompt = 8
max_response_len = 128
# Few tokens to choose from, so that rollouts repeat each other.
top_k = 2
[train]
global_batch_size = 16
[sft]
num_steps = 30
batch_size = 32
lr = 2e-3
";

fn metrics(run: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(run.join("metrics.jsonl")).unwrap();
    let rows = text.lines().map(|line| serde_json::from_str(line).unwrap());
    rows.collect()
}

/// Reward, and whether scoring it took any time, of every rollout in order.
fn scored(run: &Path) -> Vec<(f64, bool)> {
    let db = rusqlite::Connection::open(run.join("run.db")).unwrap();
    let mut rows = db
        .prepare("SELECT data FROM rollouts WHERE state = 'trained' ORDER BY group_id, idx")
        .unwrap();
    let rows = rows.query_map([], |row| row.get::<_, String>(0)).unwrap();
    rows.map(|data| {
        let data: Value = serde_json::from_str(&data.unwrap()).unwrap();
        let (reward, wall) = (
            &data["outcome"]["detail"]["reward"],
            &data["scoring"]["wall"],
        );
        (
            reward.as_f64().unwrap(),
            wall["secs"] != 0 || wall["nanos"] != 0,
        )
    })
    .collect()
}

#[test]
fn a_pinned_plugin_watched_memoised_and_replayed_trains_as_the_plain_one_does() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("run.toml"), RECIPE).unwrap();
    let folder = |name: &str| root().join("plugins").join(name).display().to_string();
    let (arith, agents) = (folder("arith"), folder("multi-agent"));
    let run = |name: &str, first: &str, more: &[&str]| {
        let dir_of = format!("run.dir={name}");
        let mut args = vec!["run", first, &agents, "-c", "run.toml", "--set", &dir_of];
        args.extend(more);
        done(&host(dir, &args));
        dir.join(name)
    };
    let plain = run("plain", &arith, &[]);

    let (pinned, asked) = registry("plugins/arith", component("arith"));
    let shadow = format!("run.shadow={}", folder("exact-match"));
    let more = ["--set", shadow.as_str(), "--set", "run.memoise=true"];
    let watched = run("watched", &pinned, &more);

    // What trains is the same to the bit, whatever is put around the verifier and wherever it came from.
    let rewards = |run: &Path| scored(run).iter().map(|(r, _)| *r).collect::<Vec<_>>();
    assert_eq!(rewards(&plain), rewards(&watched));
    assert_eq!(rewards(&plain).len(), 32);
    for (plain, watched) in metrics(&plain).iter().zip(&metrics(&watched)) {
        for key in ["train/loss", "train/grad_norm", "rollout/reward"] {
            assert_eq!(plain[key], watched[key], "{key}");
        }
        let of = |key: &str| watched[format!("rollout/verdict/shadow/exact-match/{key}")].as_f64();
        assert!(of("reward").is_some_and(|reward| (0.0..=1.0).contains(&reward)));
        assert!(of("differs").is_some_and(|share| (0.0..=1.0).contains(&share)));
    }

    // Some rollouts said the same, and those alone were not scored again.
    let called = |run: &Path| scored(run).iter().filter(|(_, called)| *called).count();
    assert_eq!(called(&plain), 32);
    assert!((1..32).contains(&called(&watched)), "{}", called(&watched));

    // Asked for once: by its digest the second process finds it in the cache.
    let twice = asked.lock().unwrap().len();
    assert_eq!(
        twice,
        2,
        "a manifest and a blob: {:?}",
        asked.lock().unwrap()
    );
    let arith = sha256(&component("arith"));
    let of_run = |run: &Path| -> String {
        let db = rusqlite::Connection::open(run.join("run.db")).unwrap();
        let sql = "SELECT value FROM meta WHERE key = 'summary'";
        db.query_row(sql, [], |row| row.get(0)).unwrap()
    };
    for run in [&plain, &watched] {
        let summary = of_run(run);
        assert!(
            summary.contains(&format!("plugin arith {}", &arith[..19])),
            "{summary}"
        );
    }

    // Three trajectories of a rollout sample at once after the same text, and replay tells them apart by their order.
    for run in ["plain", "watched"] {
        let said = done(&host(dir, &["replay", run]));
        assert_eq!(said, "32 rollouts replayed, 0 differences\n", "{run}");
    }
    assert_eq!(asked.lock().unwrap().len(), twice);
}

#[test]
fn a_plugin_is_loaded_anew_between_two_steps_and_the_run_goes_on_as_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let recipe = RECIPE.split("[sft]").next().unwrap();
    std::fs::write(dir.join("run.toml"), recipe).unwrap();
    let rows = (0..8).map(|n| format!("{{\"prompt\": \"{n}+1=\", \"label\": \"{}\"}}\n", n + 1));
    std::fs::write(dir.join("rows.jsonl"), rows.collect::<String>()).unwrap();
    // Written beside it and renamed, as linkers do: the run may read it at any time.
    let put = |bytes: Vec<u8>| {
        std::fs::write(dir.join("v.part"), bytes).unwrap();
        std::fs::rename(dir.join("v.part"), dir.join("v.wasm")).unwrap();
    };
    put(component("exact-match"));
    let args = |steps: u64| {
        let text = format!(
            "run v.wasm -c run.toml --set run.dir=hot --set run.num_rollout={steps} --set data.prompt_data=rows.jsonl --set data.input_key=prompt --set data.label_key=label"
        );
        text.split(' ').map(str::to_owned).collect::<Vec<_>>()
    };
    let run = dir.join("hot");
    let mut child = Command::new(env!("CARGO_BIN_EXE_slime-host"))
        .args(args(10))
        .current_dir(dir)
        .env("XDG_CACHE_HOME", dir.join("cache"))
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let steps =
        || std::fs::read_to_string(run.join("metrics.jsonl")).map_or(0, |t| t.lines().count());
    while steps() < 2 {
        assert!(child.try_wait().unwrap().is_none(), "it ended early");
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    put(component("arith"));
    let pid = child.id().to_string();
    assert!(
        Command::new("kill")
            .args(["-USR1", &pid])
            .status()
            .unwrap()
            .success()
    );
    done(&child.wait_with_output().unwrap());

    let db = rusqlite::Connection::open(run.join("run.db")).unwrap();
    let event = |sql| {
        db.query_row(sql, [], |row| {
            Ok((row.get::<_, i64>(0)? as u64, row.get::<_, String>(1)?))
        })
    };
    let (step, summary) = event("SELECT step, detail FROM events WHERE kind = 'plugins'").unwrap();
    let arith = sha256(&component("arith"));
    assert!(
        summary.contains(&format!("plugin v {}", &arith[..19])),
        "{summary}"
    );
    // arith's verdicts have parts that exact-match's have not.
    let rows = metrics(&run);
    assert!((2..10).contains(&step), "{step}");
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(
            row.get("rollout/verdict/digits").is_some(),
            at as u64 >= step,
            "step {at} of {step}"
        );
    }
    drop(db);
    let mut again = args(11);
    again.push("--resume".into());
    done(&host(
        dir,
        &again.iter().map(String::as_str).collect::<Vec<_>>(),
    ));
    assert_eq!(metrics(&run).len(), 11);
}
