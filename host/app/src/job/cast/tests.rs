use super::*;
use crate::error::Failure;
use crate::job::learner::Learner;
use crate::job::ranks::{Ranks, source};
use crate::wire::Model;
use crate::wire::caster::Gpu;
use safetensors::SafeTensors;
use slime_core::{RolloutRecord, Step};
use slime_kernels::Cpu;
use slime_kernels::cuda::broadcast::Broadcaster;
use slime_kernels::cuda::{Cuda, num_gpus};
use slime_model::families::{self, HfConfig};
use slime_rollout::Fence;
use slime_trainer::parallel::trainer::gpus;
use slime_trainer::parallel::{ParallelConfig, ParallelTrainer, Training};
use slime_trainer::{TrainConfig, TrainMetrics, Trainer};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Elements that go as one: several buckets of a tiny model.
const FEW: usize = 3000;

/// Latent attention, and routers whose biases servers hold in 32 bits.
fn spec() -> Arc<ModelSpec> {
    let mut all = families::ALL.iter().map(|family| family.tiny_config());
    let config = all.find(|config| config["model_type"] == "deepseek_v3");
    let config = HfConfig::new("test", config.unwrap()).unwrap();
    Arc::new(families::from_config(&config).unwrap())
}

/// The bits of a parameter's numbers, all of which are bf16.
fn bits(param: &ParamSpec) -> Vec<u16> {
    let seed = param.name.bytes().map(usize::from).sum::<usize>();
    (0..param.len())
        .map(|i| 0x3c00 + ((seed * 31 + i * 7) % 1021) as u16)
        .collect()
}

fn widened(bits: &[u16]) -> Vec<f32> {
    let wide = bits
        .iter()
        .map(|&half| f32::from_bits(u32::from(half) << 16));
    wide.collect()
}

/// What a directory holds by name: the type, the shape and the bytes.
fn held(dir: &Path) -> Vec<(String, String, Vec<usize>, Vec<u8>)> {
    let bytes = std::fs::read(dir.join("model.safetensors")).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let mut all: Vec<_> = file
        .iter()
        .map(|(name, view)| {
            let dtype = format!("{:?}", view.dtype());
            (
                name.to_owned(),
                dtype,
                view.shape().to_vec(),
                view.data().to_vec(),
            )
        })
        .collect();
    all.sort();
    all
}

/// The directory as it is written without a broadcast.
fn written_from(dir: &Path, spec: &ModelSpec) -> Vec<(String, String, Vec<usize>, Vec<u8>)> {
    let read = |param: &ParamSpec| Ok::<_, slime_model::Error>(widened(&bits(param)));
    save_weights(dir, spec, hf::Dtype::Bf16, DEFAULT_SHARD_BYTES, read).unwrap();
    held(dir)
}

/// A trainer of those numbers. Its group may have been left.
struct Fake {
    spec: Arc<ModelSpec>,
    group: std::result::Result<(), String>,
    num_sent: AtomicUsize,
}

impl Fake {
    fn runs(&self, seen: &Seen) -> Vec<Vec<u16>> {
        let (all, ops) = (params(&self.spec), Cpu::<f32>::new());
        let mut runs = Vec::new();
        for (bucket, run) in seen.buckets.runs.iter().enumerate() {
            let run: Vec<u16> = run.iter().flat_map(|&at| bits(&all[at])).collect();
            let tensor = ops.tensor(1, run.len(), &widened(&run)).unwrap();
            seen.look(&ops, bucket, &tensor).unwrap();
            runs.push(run);
        }
        runs
    }
}

impl Learn for Fake {
    fn train(&mut self, _: &[RolloutRecord]) -> Result<Vec<TrainMetrics>> {
        Ok(Vec::new())
    }
    fn save(&mut self, _: Step) -> Result<()> {
        Ok(())
    }
    fn write_weights(&self, _: &Path, _: &hf::Form) -> Result<Duration> {
        Err(Failure::run(
            "nothing is written before a server asks for it",
        ))
    }
    fn write_model(&self, _: &Path) -> Result<()> {
        Ok(())
    }
    fn log_probs(&self, _: &[u32]) -> Result<Vec<f64>> {
        Ok(Vec::new())
    }
    fn send(&self, seen: &Seen) -> Result<std::result::Result<(), String>> {
        self.num_sent.fetch_add(1, Ordering::SeqCst);
        self.runs(seen);
        Ok(self.group.clone())
    }
    fn keep(&self, seen: &Seen) -> Result<Kept> {
        let (buckets, bits) = (seen.buckets.clone(), self.runs(seen));
        Ok(Kept { buckets, bits })
    }
}

/// Have `ask` done to a version while its trainer works: how often the weights were sent, the work, what was asked, and the
/// directory, which two ask for and one write makes.
async fn published<R: Send + 'static>(
    group: std::result::Result<(), String>,
    ask: impl FnOnce(&Waiting) -> R + Send + 'static,
) -> (usize, Work, R) {
    let (spec, root) = (spec(), tempfile::tempdir().unwrap());
    let buckets = Arc::new(Buckets::within(&spec, FEW).unwrap());
    assert!(buckets.runs.len() > 3 && buckets.wide.iter().any(|wide| *wide));
    let (dir, own, num_written) = (root.path().join("v1"), spec.clone(), AtomicUsize::new(0));
    let write = move |kept: &Kept| {
        assert_eq!(num_written.fetch_add(1, Ordering::SeqCst), 0);
        kept.write(&dir, &own, &hf::Dtype::Bf16.into())
            .map(|()| dir.clone())
    };
    let (waiting, orders) = Waiting::new(buckets, write);
    let live = waiting.clone();
    let asking = std::thread::spawn(move || ask(&live));
    let fake = Fake {
        spec: spec.clone(),
        group,
        num_sent: AtomicUsize::new(0),
    };
    let work = waiting.work(&orders, &fake).unwrap();
    let (first, second) = tokio::join!(waiting.directory(), waiting.directory());
    assert_eq!(first, second);
    let wanted = written_from(&root.path().join("wanted"), &spec);
    assert!(held(&first.unwrap()) == wanted);
    // Servers are told of what the files hold, and asked for what the first norms and the embedding begin with.
    let mut listed: Vec<_> = waiting
        .buckets()
        .iter()
        .flatten()
        .map(|t| {
            let shape = t.shape.iter().map(|&n| n as usize).collect();
            (t.name.clone(), t.dtype.to_owned(), shape)
        })
        .collect();
    listed.sort();
    let files = wanted
        .iter()
        .map(|(name, dtype, shape, _)| (name.clone(), dtype.clone(), shape.clone()));
    assert!(listed.into_iter().eq(files));
    let known = waiting.known();
    assert_eq!(known.len(), 3);
    for known in known {
        let (.., bytes) = wanted.iter().find(|tensor| tensor.0 == known.name).unwrap();
        let first: Vec<u8> = known
            .values
            .iter()
            .flat_map(|x| ((x.to_bits() >> 16) as u16).to_le_bytes())
            .collect();
        assert!(
            !first.is_empty() && bytes.starts_with(&first),
            "{}",
            known.name
        );
    }
    (fake.num_sent.into_inner(), work, asking.join().unwrap())
}

#[tokio::test]
async fn a_version_is_sent_when_the_pool_says_so_and_written_once_for_whoever_asks_later() {
    let (num_sent, work, answer) = published(Ok(()), Live::send).await;
    assert_eq!((num_sent, answer), (1, Ok(())));
    assert!(work.send.is_some());
}

#[tokio::test]
async fn a_version_that_nobody_can_be_sent_is_kept_all_the_same() {
    let (num_sent, work, ()) = published(Ok(()), Live::skip).await;
    assert!(num_sent == 0 && work.send.is_none());
}

#[tokio::test]
async fn a_group_that_was_left_is_the_pools_to_know_and_no_failure_of_the_trainer() {
    let (num_sent, work, answer) = published(Err("aborted".into()), |live| {
        let answer = live.send();
        // Nobody is there for a second order.
        live.skip();
        answer
    })
    .await;
    assert_eq!((num_sent, answer), (1, Err("aborted".into())));
    assert!(work.send.is_none());
}

/// The bytes that one more GPU receives of a trainer's buckets, and what the trainer keeps.
fn received(trainer: Ranks<Cuda>, ordinal: usize) -> (Vec<Vec<u8>>, Kept, Arc<ModelSpec>) {
    let dir = tempfile::tempdir().unwrap();
    let model = Arc::new(Model::tiny(1).unwrap());
    let spec = model.spec.clone();
    let caster = Arc::new(Gpu(Broadcaster::open(0).unwrap()));
    let learner = Learner {
        trainer,
        model,
        checkpoints: dir.path().into(),
        keep: 1,
        fence: Fence::claim(dir.path()).unwrap(),
        beside: None,
        caster: Some(caster.clone()),
    };
    assert!(learner.buckets(&hf::Dtype::F32.into()).unwrap().is_none());
    assert!(learner.buckets(&hf::Dtype::Bf16.into()).unwrap().is_some());
    let buckets = Arc::new(Buckets::within(&spec, FEW).unwrap());
    let lens: Vec<usize> = (0..buckets.runs.len())
        .map(|bucket| {
            let all = params(&spec);
            let len: usize = buckets.runs[bucket].iter().map(|&at| all[at].len()).sum();
            len * if buckets.is_wide(bucket) { 4 } else { 2 }
        })
        .collect();
    let seen = Seen {
        buckets,
        known: Arc::default(),
    };
    let id = caster.0.new_id().unwrap();
    let received = std::thread::scope(|scope| {
        let server = scope.spawn(|| {
            let server = Broadcaster::open(ordinal).unwrap();
            server.join_as(&id, 2, 1).unwrap();
            lens.iter()
                .map(|&len| server.receive(len).unwrap())
                .collect::<Vec<_>>()
        });
        caster.0.join(&id, 2).unwrap();
        learner.send(&seen).unwrap().unwrap();
        server.join().unwrap()
    });
    // Whoever leaves the group ends no trainer.
    caster.0.abort();
    assert!(learner.send(&seen).unwrap().is_err());
    // The next version lies where the one before did, which had room to tell it by.
    let mut before = learner.keep(&seen).unwrap();
    before
        .bits
        .iter_mut()
        .for_each(|bits| bits.reserve_exact(7));
    drop(before);
    let kept = learner.keep(&seen).unwrap();
    assert!(kept.bits.iter().all(|bits| bits.capacity() > bits.len()));
    (received, kept, spec)
}

#[test]
fn gpus_receive_the_trainers_numbers_as_they_lie_from_one_rank_and_from_two() {
    let found = num_gpus().unwrap_or(0);
    if found < 2 {
        println!("skipped: a trainer and a server need a GPU each");
        return;
    }
    let first = Arc::new(Cuda::open(0).unwrap());
    let spec = Model::tiny(1).unwrap().spec;
    let tensors = || -> Vec<_> {
        let tensor = |p: &ParamSpec| first.tensor(p.rows, p.cols, &widened(&bits(p)));
        params(&spec).iter().map(|p| tensor(p).unwrap()).collect()
    };
    let config = TrainConfig::default();
    let one = Trainer::new(first.clone(), spec.clone(), tensors(), config.clone()).unwrap();
    let mut all = vec![(Ranks::One(Box::new(one)), 1)];
    if found > 2 {
        let training = Training {
            spec: spec.clone(),
            config,
            parallel: ParallelConfig {
                tensor_model_parallel_size: 2,
                ..ParallelConfig::default()
            },
            vocab: spec.vocab,
        };
        let launch = gpus(&training, |rank| Ok(Arc::new(Cuda::open(rank)?)));
        let weights = source(first.clone(), &spec, tensors());
        let two = ParallelTrainer::start(training, weights, launch, Duration::from_secs(30));
        all.push((Ranks::Many(Box::new(two.unwrap())), 2));
    }
    for (trainer, ordinal) in all {
        let (received, kept, spec) = received(trainer, ordinal);
        let all = params(&spec);
        assert!(received.len() > 3);
        for (bucket, run) in kept.buckets.runs.iter().enumerate() {
            let want: Vec<u16> = run.iter().flat_map(|&at| bits(&all[at])).collect();
            assert!(kept.bits[bucket] == want, "bucket {bucket} as kept");
            let bytes: Vec<u8> = want.iter().flat_map(|half| half.to_le_bytes()).collect();
            assert!(received[bucket] == bytes, "bucket {bucket} as received");
        }
    }
}
