//! Parameters that meet on rank 0's device: the bits of one rank's, from every layout. On GPUs too, where there are some, which
//! may be emulated ones (`kernels/tests/emulator`).

use super::cases::{self, experts, sequence_parallel, sizes};
use super::processes::training;
use super::toy::{self, Toy, config, mixed, weight};
use half::bf16;
use slime_kernels::cuda::{Cuda, num_gpus};
use slime_kernels::{Cpu, Ops};
use slime_model::ParamSpec;
use slime_trainer::TrainConfig;
use slime_trainer::parallel::trainer::{PATIENCE, Take, Weights, gpus, threads};
use slime_trainer::parallel::whole::runs;
use slime_trainer::parallel::{ParallelConfig, ParallelTrainer};
use std::sync::{Arc, Mutex};

/// Elements that meet at once: a parameter or a few of the toy's.
const FEW: usize = 10_000;

fn plain() -> TrainConfig {
    TrainConfig {
        use_kl_loss: false,
        kl_loss_coef: 0.0,
        ..config()
    }
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// Every parameter has the bits that `of` says, in its own shape.
fn expect<O: Ops>(
    trainer: &ParallelTrainer<O>,
    ops: &Arc<O>,
    at_once: usize,
    of: impl Fn(&ParamSpec) -> Vec<f32>,
) {
    let (params, layout) = (trainer.params(), trainer.parallel().short());
    let copies = trainer.copy_to(ops, at_once).unwrap();
    assert_eq!(copies.len(), params.len(), "{layout}");
    for (copy, param) in copies.iter().zip(params.iter()) {
        let name = &param.name;
        assert_eq!(
            ops.shape(copy),
            (param.rows, param.cols),
            "{layout}: {name}"
        );
        let want = bits(&of(param));
        assert!(bits(&ops.read(copy).unwrap()) == want, "{layout}: {name}");
        let read = trainer.read_param(param).unwrap();
        assert!(bits(&read) == want, "{layout}: {name}, read");
    }
    // Matrices, then vectors, each end to end.
    let wanted = |vector: bool| runs(params, at_once, |p| p.kind.is_vector() == vector);
    let all: Arc<[Vec<usize>]> = [wanted(false), wanted(true)].concat().into();
    let taken: Arc<Mutex<Vec<(usize, Vec<f32>)>>> = Arc::default();
    let into = taken.clone();
    let take: Take<O> = Arc::new(move |ops, number, run| {
        into.lock().unwrap().push((number, ops.read(&run)?));
        Ok(())
    });
    trainer.each_run(all.clone(), take).unwrap();
    let taken = taken.lock().unwrap();
    assert_eq!(taken.len(), all.len());
    for ((number, run), (at, wanted)) in taken.iter().zip(all.iter().enumerate()) {
        let want: Vec<f32> = wanted
            .iter()
            .flat_map(|&param| of(&params[param]))
            .collect();
        assert!(
            *number == at && bits(run) == bits(&want),
            "{layout}: run {at}"
        );
    }
}

#[test]
fn ranks_of_every_layout_hand_over_the_bits_that_one_rank_does() {
    let mut seen: Vec<(Toy, ParallelConfig)> = Vec::new();
    for case in cases::all() {
        if seen.contains(&(case.toy, case.parallel.clone())) {
            continue;
        }
        let ops = Arc::new(Cpu::<f32>::new());
        let trainer = toy::ranks(Cpu::<f32>::new, case.toy, &plain(), &case.parallel).unwrap();
        let at_once = if seen.len().is_multiple_of(2) {
            FEW
        } else {
            usize::MAX
        };
        expect(&trainer, &ops, at_once, weight);
        seen.push((case.toy, case.parallel));
    }
    assert!(seen.len() > 50, "{}", seen.len());
}

#[test]
fn what_ranks_hand_over_is_what_they_have_trained() {
    let layout = experts(2, 1, sequence_parallel(sizes(2, 2, 1, 2)));
    let toy = Toy {
        family: "qwen3_moe",
        ..Toy::PLAIN
    };
    let mut trainer = toy::ranks(Cpu::<f32>::new, toy, &plain(), &layout).unwrap();
    trainer.train(&mixed()).unwrap();
    let all: Vec<_> = trainer.params().to_vec();
    let trained = all.iter().map(|p| trainer.read_param_f64(p).unwrap());
    let trained: Vec<Vec<f32>> = trained
        .map(|values| values.iter().map(|x| *x as f32).collect())
        .collect();
    assert!(trained.iter().zip(&all).all(|(now, p)| *now != weight(p)));
    let at = |param: &ParamSpec| all.iter().position(|p| p.name == param.name).unwrap();
    expect(&trainer, &Arc::new(Cpu::<f32>::new()), FEW, |p| {
        trained[at(p)].clone()
    });
}

#[test]
fn ranks_on_gpus_hand_over_the_bits_that_one_rank_does() {
    let found = num_gpus().unwrap_or(0);
    if found == 0 {
        println!("skipped: there is no GPU");
        return;
    }
    let moe = Toy {
        family: "qwen3_moe",
        kv: 2,
        tied: false,
    };
    let tied = Toy {
        family: "llama",
        kv: 2,
        tied: true,
    };
    for (toy, layout) in [
        (Toy::PLAIN, sizes(1, 1, 1, 2)),
        (Toy::PLAIN, sequence_parallel(sizes(2, 1, 1, 1))),
        (tied, sizes(2, 2, 1, 1)),
        (tied, sizes(4, 1, 1, 1)),
        (moe, experts(2, 2, sizes(1, 1, 2, 2))),
        (moe, experts(2, 1, sequence_parallel(sizes(2, 2, 1, 1)))),
    ] {
        let training = training(toy, &plain(), &layout);
        let launch = match found >= layout.world() {
            true => gpus(&training, |rank| Ok(Arc::new(Cuda::open_poisoning(rank)?))),
            false => threads(&training, |_| Ok(Arc::new(Cuda::open_poisoning(0)?))),
        };
        let weights: Weights = Arc::new(|param| Ok(weight(param)));
        let trainer = ParallelTrainer::start(training, weights, launch, PATIENCE).unwrap();
        let engine = Arc::new(Cuda::open_poisoning(0).unwrap());
        expect(&trainer, &engine, FEW, |param| {
            let rounded = weight(param).into_iter().map(bf16::from_f32);
            rounded.map(bf16::to_f32).collect()
        });
    }
}
