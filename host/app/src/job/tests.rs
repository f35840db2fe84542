//! The loop's order, with fakes that write down what was asked of them.

use super::*;
use slime_core::{
    GroupId, Outcome, Prompt, PromptBody, PromptId, Rollout, RolloutId, Trajectory, Verdict,
};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    fn say(&self, what: impl Into<String>) {
        self.0.lock().unwrap().push(what.into());
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

pub(super) fn group(step: Step) -> Group {
    let id = PromptId {
        source: "t".into(),
        row: step.0,
    };
    let prompt = Prompt {
        id,
        body: PromptBody::Text("x".into()),
        label: None,
        tools: Vec::new(),
        metadata: Default::default(),
    };
    let rollout = Rollout {
        id: RolloutId(step.0),
        index: 0,
        seed: 0,
        trajectories: vec![Trajectory::from_prompt(vec![1])],
        outcome: Outcome::Scored(Verdict {
            reward: 1.0,
            metrics: Vec::new(),
        }),
        scoring: Default::default(),
        shaped: None,
    };
    Group {
        id: GroupId(step.0),
        step,
        prompt,
        rollouts: vec![rollout],
    }
}

struct Sampler {
    log: Log,
    /// The buffer it fills.
    queued: Arc<AtomicU64>,
    fails_at: Option<u64>,
}

impl Sample for Sampler {
    fn groups(&self, step: Step, n: usize) -> BoxFuture<'_, Result<Collected>> {
        Box::pin(async move {
            self.log.say(format!("sample {step}"));
            tokio::task::yield_now().await;
            if self.fails_at == Some(step.0) {
                return Err(Failure::run("no engine could answer"));
            }
            self.queued.fetch_add(n as u64, Ordering::SeqCst);
            self.log.say(format!("sampled {step}"));
            Ok(Collected {
                groups: vec![group(step)],
                num_sampled: n,
                is_filtered: false,
                metrics: Default::default(),
                dropped: BTreeMap::new(),
                warnings: Vec::new(),
            })
        })
    }

    fn serve(&self, version: WeightVersion) {
        self.log.say(format!("serve {version}"));
    }
}

struct Buffer {
    log: Log,
    queued: Arc<AtomicU64>,
}

impl Queue for Buffer {
    fn missing(&self, _step: Step, n: usize, _served: WeightVersion) -> Result<usize> {
        Ok(n.saturating_sub(self.queued.load(Ordering::SeqCst) as usize))
    }

    fn take(&self, step: Step, n: usize, served: WeightVersion) -> Result<Taken> {
        self.queued.fetch_sub(n as u64, Ordering::SeqCst);
        self.log.say(format!("take {step} at {served}"));
        Ok(Taken {
            groups: vec![group(step)],
            lag_mean: Some(0.0),
            lag_max: Some(0),
            lags: BTreeMap::new(),
            stale: 0,
        })
    }

    fn trained(&self, step: Step) -> Result<()> {
        self.log.say(format!("trained {step}"));
        Ok(())
    }

    fn rewards(&self, steps: Range<u64>) -> Result<Vec<(Step, String, f64)>> {
        let all = steps.map(|step| (Step(step), "s".to_owned(), 1.0));
        Ok(all.collect())
    }

    fn conservation(&self) -> Result<Conservation> {
        Ok(Conservation::default())
    }
}

struct Learner(Log);

impl Learn for Learner {
    fn train(&mut self, records: &[RolloutRecord]) -> Result<Vec<TrainMetrics>> {
        self.0.say(format!("train {}", records[0].step));
        Ok(vec![TrainMetrics::default()])
    }

    fn save(&mut self, finished: Step) -> Result<()> {
        self.0.say(format!("save {finished}"));
        Ok(())
    }

    fn write_weights(&self, _dir: &Path, _form: &hf::Form) -> Result<Duration> {
        Ok(Duration::ZERO)
    }

    fn write_model(&self, _dir: &Path) -> Result<()> {
        Ok(())
    }

    fn log_probs(&self, _tokens: &[u32]) -> Result<Vec<f64>> {
        Ok(Vec::new())
    }
}

struct Publisher {
    log: Log,
    fails_at: Option<u64>,
}

impl Publish for Publisher {
    fn publish<'a>(
        &'a mut self,
        _learner: &'a dyn Learn,
        version: WeightVersion,
    ) -> BoxFuture<'a, Result<Row>> {
        Box::pin(async move {
            self.log.say(format!("publish {version}"));
            if self.fails_at == Some(version.0) {
                Err(Failure::run("the server is gone"))
            } else {
                Ok(Row::default())
            }
        })
    }
}

struct Evaluator(Log);

impl Evaluate for Evaluator {
    fn evaluate(&self, finished: Step, served: WeightVersion) -> BoxFuture<'_, Result<Row>> {
        Box::pin(async move {
            self.0.say(format!("evaluate {served}"));
            Ok(Row::at("eval/step", finished.0))
        })
    }
}

struct Rows {
    log: Log,
    /// Stops the run once this step is recorded.
    stop_after: Option<(u64, tokio::sync::watch::Sender<bool>)>,
}

impl Journal for Rows {
    fn record(&mut self, row: &Row, _groups: &[Group]) -> Result<()> {
        let step = row.get("rollout/step").unwrap();
        let eval = row
            .get("eval/step")
            .map_or_else(String::new, |at| format!(" with evaluation after {at}"));
        self.log.say(format!("record {step}{eval}"));
        if let Some((at, sender)) = &self.stop_after
            && *at as f64 == step
        {
            sender.send(true).unwrap();
        }
        Ok(())
    }
}

fn job(log: &Log, steps: Range<u64>) -> Job {
    let (_, stop) = Stop::by_hand();
    let queued = Arc::new(AtomicU64::new(0));
    Job {
        steps,
        groups_per_step: 1,
        max_lag: 0,
        curriculum: None,
        shaping: Shaping::default(),
        train: TrainConfig::default(),
        save_interval: 100,
        eval_interval: None,
        sampler: Arc::new(Sampler {
            log: log.clone(),
            queued: queued.clone(),
            fails_at: None,
        }),
        queue: Arc::new(Buffer {
            log: log.clone(),
            queued,
        }),
        learner: Box::new(Learner(log.clone())),
        publisher: Box::new(Publisher {
            log: log.clone(),
            fails_at: None,
        }),
        teacher: None,
        evaluator: Some(Arc::new(Evaluator(log.clone()))),
        reload: None,
        journal: Box::new(Rows {
            log: log.clone(),
            stop_after: None,
        }),
        stop,
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn weights_are_published_before_the_first_sample_and_after_every_update() {
    let log = Log::default();
    assert_eq!(run(&mut job(&log, 0..2)).await.unwrap(), End::Finished);
    assert_eq!(
        log.all(),
        [
            "publish 1",
            "serve 1",
            "sample 0",
            "sampled 0",
            "take 0 at 1",
            "train 0",
            "trained 0",
            "publish 2",
            "serve 2",
            "record 0",
            "sample 1",
            "sampled 1",
            "take 1 at 2",
            "train 1",
            "trained 1",
            "publish 3",
            "serve 3",
            "record 1",
            "save 2",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn i06_h05_a_resumed_run_serves_the_version_of_its_checkpoint_and_saves_at_its_interval() {
    let log = Log::default();
    let mut job = job(&log, 3..7);
    job.save_interval = 2;
    run(&mut job).await.unwrap();
    let all = log.all();
    assert_eq!(all[..2], ["publish 4", "serve 4"]);
    let saves: Vec<_> = all.iter().filter(|line| line.starts_with("save")).collect();
    assert_eq!(
        saves,
        ["save 4", "save 6", "save 7"],
        "the last step is always saved"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_step_ahead_samples_while_training_and_never_under_a_publish() {
    let log = Log::default();
    let mut job = job(&log, 0..3);
    job.max_lag = 1;
    run(&mut job).await.unwrap();
    let all = log.all();
    let at = |what: &str| {
        all.iter()
            .position(|line| line == what)
            .unwrap_or_else(|| panic!("{what} in {all:?}"))
    };
    assert!(
        at("sampled 1") < at("publish 2"),
        "the groups of step 1 are sampled by version 1 as a whole"
    );
    assert!(at("take 1 at 2") > at("sampled 1"));
    assert_eq!(
        all.iter()
            .filter(|line| line.starts_with("sampled"))
            .count(),
        3,
        "nothing is sampled beyond the last step"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn evaluations_are_of_the_weights_after_a_step_and_the_first_is_of_those_before() {
    let log = Log::default();
    let mut job = job(&log, 0..5);
    job.eval_interval = Some((2, true));
    run(&mut job).await.unwrap();
    let records: Vec<_> = log
        .all()
        .into_iter()
        .filter(|line| line.starts_with("record"))
        .collect();
    assert_eq!(
        records,
        [
            "record 0 with evaluation after 0",
            "record 1 with evaluation after 2",
            "record 2",
            "record 3 with evaluation after 4",
            "record 4 with evaluation after 5",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn being_asked_to_stop_saves_what_is_finished_and_trains_no_more() {
    let log = Log::default();
    let mut job = job(&log, 0..9);
    let (sender, stop) = Stop::by_hand();
    job.stop = stop;
    job.journal = Box::new(Rows {
        log: log.clone(),
        stop_after: Some((1, sender)),
    });
    assert_eq!(run(&mut job).await.unwrap(), End::Stopped(2));
    assert_eq!(log.all().last().unwrap(), "save 2");
    assert!(!log.all().contains(&"train 2".to_owned()));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_is_gone_stops_the_run_after_a_checkpoint() {
    let log = Log::default();
    let mut job = job(&log, 0..9);
    let queued = Arc::new(AtomicU64::new(0));
    job.sampler = Arc::new(Sampler {
        log: log.clone(),
        queued: queued.clone(),
        fails_at: Some(2),
    });
    job.queue = Arc::new(Buffer {
        log: log.clone(),
        queued,
    });
    let error = run(&mut job).await.unwrap_err();
    assert_eq!(log.all().last().unwrap(), "save 2");
    let Failure::Run { message, help, .. } = error else {
        panic!("a run's error")
    };
    assert_eq!(message, "no engine could answer");
    assert_eq!(
        help.as_deref(),
        Some("2 steps are saved: continue with --resume")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_trained_is_recorded_and_saved_even_if_its_publish_fails() {
    let log = Log::default();
    let mut job = job(&log, 0..9);
    job.publisher = Box::new(Publisher {
        log: log.clone(),
        fails_at: Some(2),
    });
    assert!(run(&mut job).await.is_err());
    let all = log.all();
    assert_eq!(all[all.len() - 2..], ["record 0", "save 1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn i09_the_last_step_is_saved_though_its_interval_does_not_fall_there() {
    let log = Log::default();
    let mut job = job(&log, 0..10);
    job.save_interval = 4;
    run(&mut job).await.unwrap();
    let all = log.all();
    let saves: Vec<_> = all.iter().filter(|line| line.starts_with("save")).collect();
    assert_eq!(saves, ["save 4", "save 8", "save 10"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn i14_a_resumed_run_evaluates_at_its_interval_and_not_before_its_first_step() {
    let log = Log::default();
    let mut job = job(&log, 4..7);
    job.eval_interval = Some((2, true));
    run(&mut job).await.unwrap();
    let records: Vec<_> = log
        .all()
        .into_iter()
        .filter(|line| line.starts_with("record"))
        .collect();
    assert_eq!(
        records,
        [
            "record 4",
            "record 5 with evaluation after 6",
            "record 6 with evaluation after 7",
        ]
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn rollouts_that_do_not_add_up_stop_the_run() {
    let mut row = Row::default();
    let wrong = Conservation {
        sampled: 9,
        trained: 8,
        ..Conservation::default()
    };
    let error = row::conserve(&mut row, Step(3), wrong).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("9 sampled = 8 trained + 0 filtered + 0 masked + 0 pending"),
        "{text}"
    );
    let right = Conservation { masked: 1, ..wrong };
    row::conserve(&mut row, Step(3), right).unwrap();
    assert_eq!(row.get("rollout/total/masked"), Some(1.0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_difficulty_follows_from_all_steps_but_the_last_and_a_resumed_run_stands_at_the_same() {
    use super::curriculum::{Curriculum, Dial, Dials};
    /// Keeps every row.
    struct Keeps(Arc<std::sync::Mutex<Vec<Option<f64>>>>);
    impl Journal for Keeps {
        fn record(&mut self, row: &Row, _: &[Group]) -> Result<()> {
            self.0.lock().unwrap().push(row.get("rollout/difficulty/s"));
            Ok(())
        }
    }
    let difficulties = async |steps: Range<u64>| {
        let mut job = job(&Log::default(), steps);
        let kept = Arc::default();
        job.journal = Box::new(Keeps(Arc::clone(&kept)));
        job.curriculum = Some(Dials {
            rule: Curriculum {
                target: 0.5,
                rate: 0.25,
            },
            sources: BTreeMap::from([("s".to_owned(), Dial::at(0.0))]),
        });
        run(&mut job).await.unwrap();
        let kept = kept.lock().unwrap();
        kept.clone()
    };
    let whole = difficulties(0..5).await;
    let expected = [0.0, 0.0, 0.125, 0.25, 0.375].map(Some);
    assert_eq!(whole, expected);
    for start in 1..5 {
        assert_eq!(difficulties(start..5).await, expected[start as usize..]);
    }
}
