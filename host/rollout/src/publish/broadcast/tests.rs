use super::*;
use crate::pool::{PauseMode, Standing};
use crate::publish::tests::{Engine, engine, pool, weights};
use crate::publish::{Known, Listed, Live, Publisher, Transport, to_look_at};
use serde_json::{Value, json};
use slime_core::WeightVersion;
use slime_core::ports::BoxFuture;
use std::path::PathBuf;
use std::sync::Condvar;
use wiremock::matchers::path;
use wiremock::{Mock, Request, ResponseTemplate};

/// Remembers what it was asked; can wait in `send` as if a rank were missing.
#[derive(Default)]
struct Fake {
    joins: Mutex<Vec<(Vec<u8>, usize)>>,
    sent: Mutex<Vec<usize>>,
    stuck: bool,
    aborted: Mutex<bool>,
    freed: Condvar,
}

impl Caster for Fake {
    fn new_id(&self) -> Result<Vec<u8>, String> {
        Ok(vec![9; 128])
    }

    fn join(&self, id: &[u8], world_size: usize) -> Result<(), String> {
        lock(&self.joins).push((id.to_vec(), world_size));
        Ok(())
    }

    fn send(&self, bytes: &[u8]) -> Result<(), String> {
        lock(&self.sent).push(bytes.len());
        if self.stuck {
            let freed = self
                .freed
                .wait_while(lock(&self.aborted), |aborted| !*aborted);
            drop(freed);
            return Err("aborted".into());
        }
        Ok(())
    }

    fn abort(&self) {
        *lock(&self.aborted) = true;
        self.freed.notify_all();
    }
}

/// A server that joins groups and receives, or answers one of the two with 400.
async fn member(refuses: Option<&'static str>) -> Engine {
    let engine = engine(0, "same").await;
    let info = ResponseTemplate::new(200).set_body_json(json!({ "tp_size": 1, "dp_size": 1 }));
    Mock::given(path("/server_info"))
        .respond_with(info)
        .mount(&engine.server)
        .await;
    for endpoint in [
        "/init_weights_update_group",
        "/update_weights_from_distributed",
    ] {
        let served = Arc::clone(&engine.label);
        let answer = move |request: &Request| {
            if refuses == Some(endpoint) {
                let no = json!({ "success": false, "message": "no GPUs found!" });
                return ResponseTemplate::new(400).set_body_json(no);
            }
            let body: Value = serde_json::from_slice(&request.body).unwrap();
            if let Some(label) = body["weight_version"].as_str() {
                *lock(&served) = label.to_owned();
            }
            ResponseTemplate::new(200).set_body_json(json!({ "success": true, "message": "" }))
        };
        Mock::given(path(endpoint))
            .respond_with(answer)
            .mount(&engine.server)
            .await;
    }
    engine
}

async fn asked(engine: &Engine, endpoint: &str) -> Vec<Value> {
    let all = engine.server.received_requests().await.unwrap();
    let these = all.iter().filter(|r| r.url.path() == endpoint);
    these
        .map(|r| serde_json::from_slice(&r.body).unwrap())
        .collect()
}

fn publisher(engines: &[&Engine], caster: &Arc<Fake>) -> Publisher {
    let caster: Arc<dyn Caster> = caster.clone();
    Publisher::new(pool(engines), PauseMode::Retract, Duration::from_secs(5))
        .by(Transport::Nccl)
        .with_caster(caster)
}

/// Wait a while for the first version everywhere.
async fn until_all_serve(publisher: &Publisher) {
    for _ in 0..200 {
        let standings = publisher.pool.standings();
        if standings
            .iter()
            .all(|(_, s)| *s == Standing::Serving(WeightVersion(1)))
        {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn all_members_receive_in_one_group_which_is_kept() {
    let (a, b) = (member(None).await, member(None).await);
    let caster = Arc::new(Fake::default());
    let publisher = publisher(&[&a, &b], &caster);
    let dir = weights(&[("w", &[2, 3]), ("b", &[5])]);
    for version in [1, 2] {
        let report = publisher
            .publish(dir.path(), WeightVersion(version))
            .await
            .unwrap();
        assert_eq!((report.num_serving, report.failed.len()), (2, 0));
    }
    assert_eq!(
        *lock(&caster.joins),
        [(vec![9; 128], 3)],
        "rank 0 and one of each server"
    );
    assert_eq!(
        *lock(&caster.sent),
        [44, 44],
        "11 numbers of 4 bytes, once for all"
    );
    for (engine, rank) in [(&a, 1), (&b, 2)] {
        let joined = asked(engine, "/init_weights_update_group").await;
        assert_eq!(joined.len(), 1);
        assert_eq!(
            (
                &joined[0]["rank_offset"],
                &joined[0]["world_size"],
                &joined[0]["backend"]
            ),
            (&json!(rank), &json!(3), &json!("nccl"))
        );
        let received = asked(engine, "/update_weights_from_distributed").await;
        assert_eq!(received.len(), 2);
        assert_eq!(received[0]["names"], json!(["w", "b"]));
        assert_eq!(received[0]["shapes"], json!([[2, 3], [5]]));
        assert_eq!(received[0]["dtypes"], json!(["float32", "float32"]));
        assert_eq!(received[0]["group_name"], joined[0]["group_name"]);
        assert_eq!(received[1]["weight_version"], "run7-2");
        assert!(asked(engine, "/update_weights_from_disk").await.is_empty());
    }
}

#[tokio::test]
async fn where_one_cannot_join_all_read_the_directory() {
    let (a, b) = (
        member(None).await,
        member(Some("/init_weights_update_group")).await,
    );
    let caster = Arc::new(Fake::default());
    let dir = weights(&[("w", &[2, 3])]);
    let report = publisher(&[&a, &b], &caster)
        .publish(dir.path(), WeightVersion(1))
        .await
        .unwrap();
    assert_eq!((report.num_serving, report.failed.len()), (2, 0));
    assert!(lock(&caster.joins).is_empty());
    for engine in [&a, &b] {
        assert_eq!(asked(engine, "/update_weights_from_disk").await.len(), 1);
        assert_eq!(
            asked(engine, "/destroy_weights_update_group").await.len(),
            1
        );
    }
}

#[tokio::test]
async fn a_member_that_refuses_the_bytes_frees_the_sender_and_ends_the_group() {
    let (a, b) = (
        member(None).await,
        member(Some("/update_weights_from_distributed")).await,
    );
    let caster = Arc::new(Fake {
        stuck: true,
        ..Fake::default()
    });
    let publisher = publisher(&[&a, &b], &caster);
    let dir = weights(&[("w", &[2, 3])]);
    let report = publisher
        .publish(dir.path(), WeightVersion(1))
        .await
        .unwrap();
    assert!(*lock(&caster.aborted));
    assert_eq!((report.num_serving, report.failed.len()), (1, 1));
    // What missed it reads the directory in the background.
    until_all_serve(&publisher).await;
    assert_eq!(asked(&b, "/update_weights_from_disk").await.len(), 1);
    let _ = publisher.publish(dir.path(), WeightVersion(2)).await;
    assert_eq!(
        lock(&caster.joins).len(),
        2,
        "the next version forms a new group"
    );
}

/// A trainer's weights: noted are what it was asked for, and values that no server of these tests holds otherwise.
struct Kept {
    caster: Arc<Fake>,
    buckets: Vec<Vec<Listed>>,
    dir: PathBuf,
    asked: Mutex<Vec<&'static str>>,
    known: Mutex<Vec<Known>>,
}

impl Live for Kept {
    fn buckets(&self) -> &[Vec<Listed>] {
        &self.buckets
    }

    fn send(&self) -> Result<(), String> {
        lock(&self.asked).push("send");
        self.caster.send(&[0; 24])?;
        self.caster.send(&[0; 20])
    }

    fn skip(&self) {
        lock(&self.asked).push("skip");
    }

    fn known(&self) -> Vec<Known> {
        lock(&self.known).clone()
    }

    fn directory(&self) -> BoxFuture<'_, Result<PathBuf, String>> {
        lock(&self.asked).push("directory");
        Box::pin(async { Ok(self.dir.clone()) })
    }
}

fn kept(caster: &Arc<Fake>) -> (Arc<Kept>, tempfile::TempDir) {
    let listed = |name: &str, shape: &[u64]| Listed {
        name: name.into(),
        dtype: "F32",
        shape: shape.to_vec(),
    };
    let dir = weights(&[("w", &[2, 3]), ("b", &[5])]);
    let kept = Kept {
        caster: caster.clone(),
        buckets: vec![vec![listed("w", &[2, 3])], vec![listed("b", &[5])]],
        dir: dir.path().into(),
        asked: Mutex::default(),
        known: Mutex::default(),
    };
    (Arc::new(kept), dir)
}

#[tokio::test]
async fn weights_that_the_trainer_keeps_are_sent_from_there_and_no_directory_is_asked_for() {
    let (a, b) = (member(None).await, member(None).await);
    let caster = Arc::new(Fake::default());
    let publisher = publisher(&[&a, &b], &caster);
    let (live, _dir) = kept(&caster);
    let report = publisher
        .publish_live(live.clone(), WeightVersion(1))
        .await
        .unwrap();
    assert_eq!((report.num_serving, report.num_bytes), (2, 44));
    assert_eq!(*lock(&live.asked), ["send"]);
    assert_eq!(*lock(&caster.sent), [24, 20]);
    for engine in [&a, &b] {
        let received = asked(engine, "/update_weights_from_distributed").await;
        let names: Vec<&Value> = received.iter().map(|body| &body["names"]).collect();
        assert_eq!(names, [&json!(["w"]), &json!(["b"])]);
        assert_eq!(received[1]["weight_version"], "run7-1");
        assert!(asked(engine, "/update_weights_from_disk").await.is_empty());
    }
    // A version of other tensors is refused before anybody is told.
    let mut other = kept(&caster).0;
    Arc::get_mut(&mut other).unwrap().buckets.pop();
    let refused = publisher
        .publish_live(other.clone(), WeightVersion(2))
        .await;
    let refused = refused.unwrap_err().to_string();
    assert!(refused.contains("`b` is missing"), "{refused}");
    assert!(lock(&other.asked).is_empty());
}

#[tokio::test]
async fn a_member_that_cannot_join_has_the_trainers_weights_written_for_all() {
    let (a, b) = (
        member(None).await,
        member(Some("/init_weights_update_group")).await,
    );
    let caster = Arc::new(Fake::default());
    let publisher = publisher(&[&a, &b], &caster);
    let (live, _dir) = kept(&caster);
    let report = publisher
        .publish_live(live.clone(), WeightVersion(1))
        .await
        .unwrap();
    assert_eq!(report.num_serving, 2);
    assert_eq!(*lock(&live.asked), ["skip", "directory", "directory"]);
    assert!(lock(&caster.sent).is_empty());
    for engine in [&a, &b] {
        assert_eq!(asked(engine, "/update_weights_from_disk").await.len(), 1);
    }
}

#[tokio::test]
async fn a_member_that_missed_a_broadcast_finds_the_version_in_a_directory() {
    let refuses = "/update_weights_from_distributed";
    let (a, b) = (member(None).await, member(Some(refuses)).await);
    let caster = Arc::new(Fake {
        stuck: true,
        ..Fake::default()
    });
    let publisher = publisher(&[&a, &b], &caster);
    let (live, dir) = kept(&caster);
    let report = publisher
        .publish_live(live.clone(), WeightVersion(1))
        .await
        .unwrap();
    assert_eq!((report.num_serving, report.failed.len()), (1, 1));
    until_all_serve(&publisher).await;
    let read = asked(&b, "/update_weights_from_disk").await;
    assert_eq!(read.len(), 1);
    assert_eq!(read[0]["model_path"], json!(dir.path()));
}

#[tokio::test]
async fn a_member_that_holds_other_values_than_were_sent_does_not_serve() {
    let a = member(None).await;
    let caster = Arc::new(Fake::default());
    let publisher = publisher(&[&a], &caster);
    let (live, _dir) = kept(&caster);
    let held = ResponseTemplate::new(200).set_body_json(json!([1.0, 2.0]));
    Mock::given(path("/get_weights_by_name"))
        .respond_with(held)
        .with_priority(1)
        .mount(&a.server)
        .await;
    *lock(&live.known) = vec![Known {
        name: "b".into(),
        rows: 2,
        values: vec![1.0, 3.0],
    }];
    let error = publisher.publish_live(live, WeightVersion(1)).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("value 1 of `b` is 2"), "{error}");
}

#[test]
fn what_is_looked_at_is_named_before_the_weights_are_read() {
    let listed = |name: &str, shape: &[u64]| Listed {
        name: name.into(),
        dtype: "BF16",
        shape: shape.to_vec(),
    };
    let buckets = [
        vec![listed("model.embed_tokens.weight", &[300, 16])],
        vec![listed("model.layers.0.input_layernorm.weight", &[16])],
    ];
    let looks = to_look_at(&buckets).unwrap();
    let looks: Vec<_> = looks
        .iter()
        .map(|look| (look.name.as_str(), look.rows, look.len))
        .collect();
    assert_eq!(
        looks,
        [
            ("model.embed_tokens.weight", 1, 16),
            ("model.layers.0.input_layernorm.weight", 16, 16)
        ]
    );
    let twice = [buckets[0].clone(), buckets[0].clone()];
    assert!(
        to_look_at(&twice)
            .unwrap_err()
            .to_string()
            .contains("twice")
    );
}
