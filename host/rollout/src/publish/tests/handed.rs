//! Weights that are handed over inside the process: everything but the way of the bytes is as with a directory.

use super::*;
use slime_core::ports::BoxFuture;

const NORM: &str = "model.norm.weight";

/// Weights that a fake engine takes by name; the first `refuse` attempts fail.
struct Hand {
    label: Arc<Mutex<String>>,
    refuse: AtomicUsize,
    attempts: AtomicUsize,
    known: Vec<Known>,
}

impl Handed for Hand {
    fn install<'a>(&'a self, label: &'a str) -> BoxFuture<'a, Result<(), String>> {
        self.attempts.fetch_add(1, Ordering::SeqCst);
        let left = |n: usize| n.checked_sub(1);
        let refused = self
            .refuse
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, left);
        let outcome = match refused {
            Ok(_) => Err("it has values that are not finite".to_owned()),
            Err(_) => {
                label.clone_into(&mut lock(&self.label));
                Ok(())
            }
        };
        Box::pin(std::future::ready(outcome))
    }

    fn num_bytes(&self) -> u64 {
        24
    }

    fn known(&self) -> &[Known] {
        &self.known
    }
}

fn hand(engine: &Engine, refuse: usize) -> Arc<Hand> {
    Arc::new(Hand {
        label: Arc::clone(&engine.label),
        refuse: AtomicUsize::new(refuse),
        attempts: AtomicUsize::new(0),
        known: vec![Known {
            name: NORM.into(),
            rows: 2,
            values: vec![0.5, -1.0],
        }],
    })
}

/// What the engine answers when it is asked for the values.
async fn holds(engine: &Engine, values: [f32; 2]) {
    Mock::given(path("/get_weights_by_name"))
        .respond_with(ResponseTemplate::new(200).set_body_json(json!(values)))
        .mount(&engine.server)
        .await;
}

fn publisher(pool: &Arc<Pool>) -> Publisher {
    Publisher::new(Arc::clone(pool), PauseMode::Retract, Duration::from_secs(5))
}

#[tokio::test]
async fn the_engine_is_paused_given_the_tensors_asked_for_values_and_continued() {
    let engine = engine(0, "same").await;
    holds(&engine, [0.5, -1.0]).await;
    let pool = pool(&[&engine]);
    let report = publisher(&pool).publish_handed(hand(&engine, 0), V1).await;
    let report = report.unwrap();
    assert_eq!((report.num_serving, report.failed.len()), (1, 0));
    assert_eq!((report.num_bytes, report.moved_bytes), (24, 24));
    let asked = json!({ "name": NORM, "truncate_size": 2 });
    let expected = [
        ("/pause_generation", json!({ "mode": "retract" })),
        ("/get_weights_by_name", asked),
        ("/continue_generation", json!({})),
    ];
    assert_eq!(
        control(&engine).await,
        expected.map(|(path, body)| (path.to_owned(), body))
    );
    assert_eq!(*lock(&engine.label), "run7-1");
    assert_eq!(pool.standings()[0].1, Standing::Serving(V1));
}

#[tokio::test]
async fn an_engine_that_holds_other_values_than_were_handed_serves_nobody() {
    let engine = engine(0, "same").await;
    holds(&engine, [0.5, -1.5]).await;
    let pool = pool(&[&engine]);
    let error = publisher(&pool).publish_handed(hand(&engine, 0), V1).await;
    let error = error.unwrap_err().to_string();
    assert!(
        error.contains("value 1 of `model.norm.weight` is -1.5 there and was published as -1"),
        "{error}"
    );
    assert_ne!(pool.standings()[0].1, Standing::Serving(V1));
}

#[tokio::test]
async fn tensors_that_are_refused_leave_the_engine_going_and_are_tried_again() {
    let engine = engine(0, "same").await;
    holds(&engine, [0.5, -1.0]).await;
    let pool = pool(&[&engine]);
    let handed = hand(&engine, 1);
    let error = publisher(&pool).publish_handed(handed.clone(), V1).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("not finite"), "{error}");
    assert_eq!(control(&engine).await[1].0, "/continue_generation");
    until(|| pool.standings()[0].1 == Standing::Serving(V1)).await;
    assert_eq!(handed.attempts.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn an_engine_that_lost_the_version_is_handed_it_again() {
    let engine = engine(0, "same").await;
    holds(&engine, [0.5, -1.0]).await;
    let pool = pool(&[&engine]);
    let handed = hand(&engine, 0);
    let report = publisher(&pool).publish_handed(handed.clone(), V1).await;
    report.unwrap();
    "default".clone_into(&mut lock(&engine.label));
    until(|| *lock(&engine.label) == "run7-1").await;
    assert_eq!(handed.attempts.load(Ordering::SeqCst), 2);
}

#[tokio::test]
async fn servers_of_other_processes_cannot_be_handed_tensors() {
    let (a, b) = (engine(0, "same").await, engine(0, "same").await);
    let pool = pool(&[&a, &b]);
    let error = publisher(&pool).publish_handed(hand(&a, 0), V1).await;
    let error = error.unwrap_err().to_string();
    assert!(error.contains("write a directory"), "{error}");
    assert!(control(&a).await.is_empty());
}
