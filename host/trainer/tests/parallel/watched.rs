//! Ranks whose calls are noted, and which dawdle before each of them.

use super::toy::{Numbers, Toy, config, reference_weight, weight};
use slime_kernels::comm::{Begun, Threads, World};
use slime_kernels::{Comm, Cpu, Ops, Reduce};
use slime_model::ParamSpec;
use slime_trainer::TrainConfig;
use slime_trainer::parallel::mesh::Group;
use slime_trainer::parallel::trainer::{Launch, PATIENCE, key_heads};
use slime_trainer::parallel::{Mesh, ParallelConfig, ParallelTrainer, Place, Training};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

type F64 = Cpu<f64>;

/// A group whose calls are noted, and which dawdles before each of them.
pub(crate) struct Watched {
    inner: Threads<F64>,
    rank: usize,
    group: String,
    seed: Mutex<Numbers>,
    slowest: u64,
    log: Arc<Mutex<BTreeMap<usize, Vec<String>>>>,
}

impl Watched {
    fn note(&self, op: &str) {
        let pause = self.seed.lock().unwrap().below(self.slowest as usize + 1);
        std::thread::sleep(Duration::from_micros(pause as u64));
        let said = format!("{} {op}", self.group);
        self.log
            .lock()
            .unwrap()
            .entry(self.rank)
            .or_default()
            .push(said);
    }
}

type Tensor = <F64 as Ops>::Tensor;
type Float = <F64 as Ops>::Float;
type Done<T> = slime_kernels::Result<T>;

impl Comm<F64> for Watched {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn rank(&self) -> usize {
        self.inner.rank()
    }
    fn size(&self) -> usize {
        self.inner.size()
    }
    fn all_reduce(&self, x: &Tensor) -> Done<Tensor> {
        self.note("all_reduce");
        self.inner.all_reduce(x)
    }
    fn all_gather(&self, x: &Tensor) -> Done<Tensor> {
        self.note("all_gather");
        self.inner.all_gather(x)
    }
    fn reduce_scatter(&self, x: &Tensor) -> Done<Tensor> {
        self.note("reduce_scatter");
        self.inner.reduce_scatter(x)
    }
    fn all_to_all(&self, x: &Tensor, send: &[usize], recv: &[usize]) -> Done<Tensor> {
        self.note("all_to_all");
        self.inner.all_to_all(x, send, recv)
    }
    fn begin_swap(&self, x: Tensor, rows: usize) -> Done<Begun<Tensor>> {
        self.note("reduce_scatter");
        self.inner.begin_swap(x, rows)
    }
    fn rotate(&self, x: &Tensor) -> Done<Tensor> {
        self.note("rotate");
        self.inner.rotate(x)
    }
    fn send(&self, to: usize, tag: u64, x: &Tensor) -> Done<()> {
        self.note(&format!("> {} {to} {tag}", self.inner.rank()));
        self.inner.send(to, tag, x)
    }
    fn recv(&self, from: usize, tag: u64, rows: usize, cols: usize) -> Done<Tensor> {
        self.note(&format!("< {from} {} {tag}", self.inner.rank()));
        self.inner.recv(from, tag, rows, cols)
    }
    fn all_reduce_float(&self, x: &mut Float) -> Done<()> {
        self.note("all_reduce_float");
        self.inner.all_reduce_float(x)
    }
    fn reduce_scatter_float(&self, x: &Float) -> Done<Float> {
        self.note("reduce_scatter_float");
        self.inner.reduce_scatter_float(x)
    }
    fn all_gather_float(&self, x: &Float) -> Done<Float> {
        self.note("all_gather_float");
        self.inner.all_gather_float(x)
    }
    fn all_reduce_host(&self, x: &mut [f64], how: Reduce) -> Done<()> {
        self.note("all_reduce_host");
        self.inner.all_reduce_host(x, how)
    }
    fn all_to_all_host(&self, x: &[f64], send: &[usize], recv: &[usize]) -> Done<Vec<f64>> {
        self.note("all_to_all_host");
        self.inner.all_to_all_host(x, send, recv)
    }
    fn all_gather_host(&self, x: &[f64]) -> Done<Vec<f64>> {
        self.note("all_gather_host");
        self.inner.all_gather_host(x)
    }
}

pub(crate) type Log = Arc<Mutex<BTreeMap<usize, Vec<String>>>>;

/// A trainer whose ranks dawdle by up to `slowest` µs before every call, and every rank's calls.
pub(crate) fn watched(
    parallel: &ParallelConfig,
    slowest: u64,
    seed: u64,
) -> (ParallelTrainer<F64>, Log) {
    watched_as(Toy::PLAIN, &config(), parallel, slowest, seed)
}

pub(crate) fn watched_as(
    toy: Toy,
    config: &TrainConfig,
    parallel: &ParallelConfig,
    slowest: u64,
    seed: u64,
) -> (ParallelTrainer<F64>, Log) {
    let (spec, log) = (toy.spec(), Log::default());
    let training = Training {
        spec: spec.clone(),
        config: config.clone(),
        parallel: parallel.clone(),
        vocab: 259,
    };
    let (parallel, kv, noted) = (parallel.clone(), key_heads(&spec), log.clone());
    let launch: Launch<F64> = Arc::new(move |rank, world: &Arc<World>| {
        let ops = Arc::new(F64::new());
        let mesh = Mesh::new(Place::new(&parallel, rank), kv, |name, members| {
            let group = format!("{name}{members:?}");
            let inner = Threads::new(ops.clone(), world.clone(), name, members, rank)?;
            let watched = Watched {
                inner,
                rank,
                group,
                seed: Mutex::new(Numbers(seed + 100 * rank as u64)),
                slowest,
                log: noted.clone(),
            };
            Ok(Arc::new(watched) as Group<F64>)
        })?;
        Ok((ops, mesh))
    });
    let weights = Arc::new(|param: &ParamSpec| Ok(weight(param)));
    let reference = Arc::new(|param: &ParamSpec| Ok(reference_weight(param)));
    let trainer = ParallelTrainer::start(training, weights, launch, PATIENCE).unwrap();
    (trainer.with_reference(reference).unwrap(), log)
}
