//! Optimizer states in 16 bits on several ranks. A CPU keeps everything whole; the rest needs GPUs, which may be emulated ones
//! (`kernels/tests/emulator`). A rank has one of its own where there are enough, and they meet in NCCL; else all share the first.

use super::cases::{experts, sequence_parallel, sizes};
use super::processes::training;
use super::toy::{Toy, config, gaps, mixed, on_many, on_one, one_rank, outcome_of_one, weight};
use super::{DOUBLE, holds_within};
use slime_core::Step;
use slime_kernels::Cpu;
use slime_kernels::cuda::{Cuda, num_gpus};
use slime_model::{ParamSpec, params};
use slime_trainer::parallel::trainer::{PATIENCE, gpus, threads};
use slime_trainer::parallel::{ParallelConfig, ParallelTrainer};
use slime_trainer::{SftSequence, TrainConfig};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

const TOY: Toy = Toy {
    family: "qwen3_moe",
    kv: 2,
    tied: false,
};

/// Without clipping: the norm's last bits follow the order of its sum.
fn compact() -> TrainConfig {
    TrainConfig {
        use_precision_aware_optimizer: true,
        use_kl_loss: false,
        kl_loss_coef: 0.0,
        clip_grad: 0.0,
        weight_decay: 0.1,
        ..config()
    }
}

#[test]
fn ranks_on_a_cpu_keep_states_whole_as_one_rank_does() {
    let ops = Arc::new(Cpu::<f64>::new());
    let one = on_one(&ops, TOY, &compact(), &mixed());
    let layout = experts(2, 1, sequence_parallel(sizes(2, 2, 1, 2)));
    let many = on_many(Cpu::<f64>::new, TOY, &compact(), &layout, &mixed());
    holds_within(&layout.short(), &gaps(&many.unwrap(), &one), DOUBLE);
}

fn on_gpus(layout: &ParallelConfig) -> ParallelTrainer<Cuda> {
    let training = training(TOY, &compact(), layout);
    let launch = match num_gpus().unwrap() >= layout.world() {
        true => gpus(&training, |rank| Ok(Arc::new(Cuda::open(rank)?))),
        false => threads(&training, |_| Ok(Arc::new(Cuda::open(0)?))),
    };
    let weights = Arc::new(|param: &ParamSpec| Ok(weight(param)));
    ParallelTrainer::start(training, weights, launch, PATIENCE).unwrap()
}

/// Weights, and states as a checkpoint has them, as bits.
type Bits = BTreeMap<String, Vec<u32>>;

fn states(dir: &Path) -> Bits {
    let mut all = Bits::new();
    for file in ["optimizer", "rank_0_optimizer"] {
        let Ok(bytes) = std::fs::read(dir.join(format!("{file}.safetensors"))) else {
            continue;
        };
        let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        for (name, view) in file.tensors() {
            let name = name.split('[').next().unwrap().to_owned();
            let (numbers, _) = view.data().as_chunks::<4>();
            let bits = numbers.iter().map(|b| u32::from_le_bytes(*b));
            all.entry(name).or_default().extend(bits);
        }
    }
    assert!(!all.is_empty());
    all
}

/// One sequence, so that one data-parallel rank has every gradient and the others zeros: sums are exact.
fn lone(step: u32) -> (Vec<u32>, Vec<u8>) {
    let tokens = (0..24).map(|at| (at * 37 + step * 11 + 5) % 259).collect();
    (tokens, (0..24).map(|at| u8::from(at > 4)).collect())
}

#[test]
fn pieces_of_16_bits_are_rounded_as_the_whole_is_and_move_between_layouts() {
    if num_gpus().unwrap_or(0) == 0 {
        println!("skipped: there is no GPU, and only a GPU keeps states in 16 bits");
        return;
    }
    let (root, whole) = (tempfile::tempdir().unwrap(), ParallelConfig::default());
    let dir = |name: &str| root.path().join(name);
    let one_ops = Arc::new(Cuda::open(0).unwrap());
    let mut one = one_rank(&one_ops, TOY, &compact());
    let shares = [sizes(1, 1, 1, 2), sizes(1, 1, 1, 3)];
    let mut many: Vec<_> = shares.iter().map(on_gpus).collect();
    for step in 0..3 {
        let (tokens, loss_mask) = lone(step);
        let sequence = SftSequence {
            tokens: &tokens,
            loss_mask: &loss_mask,
        };
        let wanted = one.sft_step(&[sequence]).unwrap();
        for many in &mut many {
            let got = many.sft_step(&[sequence]).unwrap();
            assert_eq!((got.loss, got.lr), (wanted.loss, wanted.lr));
        }
    }
    one.save(&dir("one"), Step(3)).unwrap();
    let wanted = outcome_of_one(&one_ops, &one, Vec::new()).weights;
    let bits = states(&dir("one"));
    // Moments are rounded, masters are not.
    let rounded = |master: bool| {
        let mut of = bits
            .iter()
            .filter(|(name, _)| name.contains("master") == master);
        of.all(|(_, bits)| bits.iter().all(|b| b & 0xffff == 0))
    };
    assert!(rounded(false) && !rounded(true), "{:?}", bits.keys());
    for (many, layout) in many.iter().zip(&shares) {
        let name = layout.short();
        for param in many.params().iter() {
            let got = many.read_param_f64(param).unwrap();
            assert!(got == wanted[&param.name], "{name}: {}", param.name);
        }
        many.save(&dir(&name), Step(3)).unwrap();
        // Through ranks that share otherwise, and back to one.
        let folded = experts(2, 1, sequence_parallel(sizes(2, 1, 1, 2)));
        let mut between = on_gpus(&folded);
        between.load(&dir(&name)).unwrap();
        between.save(&dir("between"), Step(3)).unwrap();
        let mut last = on_gpus(&whole);
        last.load(&dir("between")).unwrap();
        last.save(&dir("last"), Step(3)).unwrap();
        assert!(states(&dir("last")) == bits, "{name}");
        for param in params(&TOY.spec()) {
            let got = last.read_param_f64(&param).unwrap();
            assert!(got == wanted[&param.name], "{name}: {}", param.name);
        }
        std::fs::remove_dir_all(dir("between")).unwrap();
        std::fs::remove_dir_all(dir("last")).unwrap();
    }
    // And a step from there is the step that one rank would have made.
    let (tokens, loss_mask) = lone(9);
    let sequence = SftSequence {
        tokens: &tokens,
        loss_mask: &loss_mask,
    };
    one.sft_step(&[sequence]).unwrap();
    let wanted = outcome_of_one(&one_ops, &one, Vec::new()).weights;
    let mut resumed = on_gpus(&shares[1]);
    resumed.load(&dir("one")).unwrap();
    resumed.sft_step(&[sequence]).unwrap();
    for param in resumed.params().iter() {
        let got = resumed.read_param_f64(param).unwrap();
        assert!(got == wanted[&param.name], "{}", param.name);
    }
}
