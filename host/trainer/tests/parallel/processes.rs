//! Ranks as processes against the same layout as threads: equal to the last bit, in f32. The processes are threads of this
//! test that meet over TCP; `tests/dist` runs real ones.

use super::cases::{experts, sequence_parallel, sizes};
use super::toy::{Toy, config, mixed, ranks, records, reference_weight, weight};
use slime_core::{RolloutRecord, Step};
use slime_kernels::Cpu;
use slime_kernels::comm::Processes;
use slime_kernels::comm::tcp::{Rendezvous, Timing};
use slime_model::params;
use slime_trainer::parallel::trainer::Weights;
use slime_trainer::parallel::{Mesh, ParallelConfig, ProcessTrainer, Training, follow, member};
use slime_trainer::{Error, Result, TrainConfig, TrainMetrics};
use std::net::TcpListener;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

type F32 = Cpu<f32>;

const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn training(toy: Toy, config: &TrainConfig, parallel: &ParallelConfig) -> Training {
    Training {
        spec: toy.spec(),
        config: config.clone(),
        parallel: parallel.clone(),
        vocab: 259,
    }
}

fn join(rank: usize, size: usize, port: u16) -> Arc<Processes> {
    let (host, run) = ("127.0.0.1".to_owned(), "test".to_owned());
    let at = Rendezvous {
        rank,
        size,
        host,
        port,
        run,
    };
    Processes::join(&at, Timing::new(Duration::from_secs(5), PATIENCE)).unwrap()
}

fn free_port() -> u16 {
    let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    listener.local_addr().unwrap().port()
}

/// The trainer of rank 0.
fn lead(
    processes: Arc<Processes>,
    training: &Training,
    weights: &Weights,
) -> Result<ProcessTrainer<F32>> {
    let (ops, training) = (Arc::new(F32::new()), training.clone());
    let meet = Mesh::of_processes;
    ProcessTrainer::lead(&ops, processes, training, weights, meet, PATIENCE)
}

/// Lead `processes` processes with `work`; what it returns, and how each follower ended.
pub(crate) fn led<R>(
    training: &Training,
    processes: usize,
    work: impl FnOnce(ProcessTrainer<F32>) -> R,
) -> (Result<R>, Vec<Result<()>>) {
    let port = free_port();
    let weights: Weights = Arc::new(|param| Ok(weight(param)));
    let reference: Weights = Arc::new(|param| Ok(reference_weight(param)));
    std::thread::scope(|scope| {
        let follower = |rank| {
            let (weights, reference) = (&weights, reference.clone());
            scope.spawn(move || {
                let processes = join(rank, processes, port);
                let ops = Arc::new(F32::new());
                let mut own = member(&ops, &processes, training, weights, Mesh::of_processes)?;
                own.set_reference(&slime_trainer::parallel::stage::cut_from(
                    &*ops,
                    &*reference,
                ))?;
                follow(&mut own, &processes)
            })
        };
        let followers: Vec<_> = (1..processes).map(follower).collect();
        let leader = lead(join(0, processes, port), training, &weights);
        let done = leader
            .and_then(|leader| leader.with_reference(&reference))
            .map(work);
        (
            done,
            followers.into_iter().map(|f| f.join().unwrap()).collect(),
        )
    })
}

/// Metrics of two rollout steps, then log-probs and weights as bits, with a checkpoint left in `dir`.
type Left = (Vec<TrainMetrics>, Vec<u64>, Vec<u32>);

fn steps() -> [Vec<RolloutRecord>; 2] {
    [
        mixed(),
        records(&[(3, 7), (4, 9), (2, 5), (6, 3), (8, 8)], 77),
    ]
}

/// Trains both steps and saves: what is left of it. Trainers of processes and of threads share no type.
macro_rules! left_by {
    ($trainer:ident, $toy:ident, $dir:ident) => {{
        let metrics = steps()
            .iter()
            .flat_map(|records| $trainer.train(records).unwrap())
            .collect();
        let scores = $trainer.log_probs(&[&[1, 2, 3, 4, 5]]).unwrap();
        let scores = scores[0].logprobs.iter().map(|x| x.to_bits()).collect();
        let weights = params(&$toy.spec())
            .iter()
            .flat_map(|p| $trainer.read_param(p).unwrap())
            .map(f32::to_bits)
            .collect();
        $trainer.save($dir, Step(2)).unwrap();
        (metrics, scores, weights)
    }};
}

fn by_processes(toy: Toy, parallel: &ParallelConfig, dir: &Path) -> Left {
    let (left, ends) = led(
        &training(toy, &config(), parallel),
        parallel.world(),
        |mut trainer| left_by!(trainer, toy, dir),
    );
    for end in ends {
        end.unwrap();
    }
    left.unwrap()
}

fn by_threads(toy: Toy, parallel: &ParallelConfig, dir: &Path) -> Left {
    let mut trainer = ranks(F32::new, toy, &config(), parallel).unwrap();
    left_by!(trainer, toy, dir)
}

fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<_> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            (name, std::fs::read(&path).unwrap())
        })
        .collect();
    files.sort();
    files
}

#[test]
fn processes_train_to_the_bits_and_checkpoints_of_threads() {
    let moe = Toy {
        family: "qwen3_moe",
        ..Toy::PLAIN
    };
    let cases = [
        (Toy::PLAIN, sizes(1, 1, 1, 2)),
        (Toy::PLAIN, sequence_parallel(sizes(2, 1, 1, 2))),
        (Toy::PLAIN, sizes(1, 2, 2, 1)),
        (moe, experts(2, 1, sizes(1, 1, 1, 2))),
    ];
    for (toy, parallel) in cases {
        let root = tempfile::tempdir().unwrap();
        let dirs = ["threads", "processes"].map(|name| root.path().join(name));
        let threads = by_threads(toy, &parallel, &dirs[0]);
        let processes = by_processes(toy, &parallel, &dirs[1]);
        assert_eq!(threads.0, processes.0, "{}", parallel.short());
        assert!(threads.1 == processes.1, "{}: scores", parallel.short());
        assert!(threads.2 == processes.2, "{}: weights", parallel.short());
        assert!(
            files(&dirs[0]) == files(&dirs[1]),
            "{}: checkpoints",
            parallel.short()
        );
    }
}

#[test]
fn processes_continue_from_a_checkpoint_of_threads() {
    let (parallel, root) = (sizes(2, 1, 1, 1), tempfile::tempdir().unwrap());
    let dir = root.path().join("step_2");
    let mut threads = ranks(F32::new, Toy::PLAIN, &config(), &sizes(1, 1, 1, 2)).unwrap();
    threads.train(&mixed()).unwrap();
    threads.save(&dir, Step(2)).unwrap();
    let mut again = ranks(F32::new, Toy::PLAIN, &config(), &parallel).unwrap();
    again.load(&dir).unwrap();
    let wanted = again.train(&steps()[1]).unwrap();
    let (got, _) = led(
        &training(Toy::PLAIN, &config(), &parallel),
        2,
        |mut trainer| {
            assert_eq!(trainer.load(&dir).unwrap(), Step(2));
            trainer.train(&steps()[1]).unwrap()
        },
    );
    assert_eq!(got.unwrap(), wanted);
}

#[test]
fn what_all_processes_refuse_leaves_them_alive() {
    let layout = sizes(1, 1, 1, 2);
    let (refused, ends) = led(
        &training(Toy::PLAIN, &config(), &layout),
        2,
        |mut trainer| {
            let mut bad = mixed();
            bad[3].tokens[0] = 9999;
            let refused = trainer.train(&bad).unwrap_err();
            trainer.train(&mixed()).unwrap();
            refused
        },
    );
    assert!(matches!(refused.unwrap(), Error::Record { index: 3, .. }));
    ends.into_iter().for_each(|end| end.unwrap());
}

#[test]
fn a_process_that_is_lost_is_named_within_seconds() {
    let (port, parallel) = (free_port(), sizes(1, 1, 1, 2));
    let training = training(Toy::PLAIN, &config(), &parallel);
    let weights: Weights = Arc::new(|param| Ok(weight(param)));
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            let processes = join(1, 2, port);
            let ops = Arc::new(F32::new());
            let own = member(&ops, &processes, &training, &weights, Mesh::of_processes).unwrap();
            // It goes in the middle of a step, without a word that it would.
            let order = processes.hear(0, None).unwrap();
            assert!(!order.is_empty());
            drop(own);
        });
        let leader = lead(join(0, 2, port), &training, &weights);
        let reference: Weights = Arc::new(|param| Ok(reference_weight(param)));
        let mut leader = leader.unwrap().with_reference(&reference).unwrap();
        let began = Instant::now();
        let error = leader.train(&mixed()).unwrap_err().to_string();
        assert!(error.contains("rank 1"), "{error}");
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "{:?}",
            began.elapsed()
        );
        other.join().unwrap();
    });
}

#[test]
fn a_layout_of_another_number_of_ranks_is_refused_on_every_process() {
    let layout = sizes(2, 2, 1, 1);
    let (led, ends) = led(&training(Toy::PLAIN, &config(), &layout), 2, |_| ());
    let errors = ends.into_iter().map(|end| end.unwrap_err());
    for error in errors.chain([led.unwrap_err()]) {
        let error = error.to_string();
        assert!(
            error.contains("the layout has 4 ranks and 2 processes were started"),
            "{error}"
        );
    }
}
