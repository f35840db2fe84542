//! A rank that panics, hangs or is asked for nonsense.

use super::cases::sizes;
use super::toy::{Toy, config, mixed, ranks, weight};
use slime_kernels::{Cpu, Reduce};
use slime_model::ParamSpec;
use slime_trainer::parallel::trainer::PATIENCE;
use slime_trainer::parallel::{ParallelTrainer, Training};
use slime_trainer::{Error, TrainConfig};
use std::sync::Arc;
use std::time::{Duration, Instant};

type F64 = Cpu<f64>;

#[test]
fn a_rank_that_panics_ends_the_step_everywhere_with_one_message_that_names_it() {
    let began = Instant::now();
    let trainer = ranks(F64::new, Toy::PLAIN, &config(), &sizes(2, 2, 1, 1)).unwrap();
    let error = trainer
        .on_all(|rank| {
            assert!(rank.mesh.place.rank != 2, "made to fail");
            let mut x = [1.0];
            rank.mesh.world.all_reduce_host(&mut x, Reduce::Sum)?;
            Ok(())
        })
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("rank 2") && error.contains("made to fail"),
        "{error}"
    );
    assert!(
        began.elapsed() < PATIENCE,
        "nobody waits for a rank that is known to have failed"
    );
    // What is broken stays broken, with the same words.
    assert_eq!(trainer.num_updates().unwrap_err().to_string(), error);
}

#[test]
fn a_rank_that_hangs_ends_the_step_everywhere_in_bounded_time_and_is_named() {
    let training = Training {
        spec: Toy::PLAIN.spec(),
        config: TrainConfig::default(),
        parallel: sizes(1, 1, 1, 3),
        vocab: 259,
    };
    let weights = Arc::new(|param: &ParamSpec| Ok(weight(param)));
    let patience = Duration::from_millis(400);
    let device = |_| Ok(Arc::new(F64::new()));
    let trainer = ParallelTrainer::of_threads(training, weights, device, patience).unwrap();
    let began = Instant::now();
    let error = trainer.on_all(|rank| {
        if rank.mesh.place.rank == 1 {
            std::thread::sleep(Duration::from_secs(20));
        }
        let mut x = [1.0];
        rank.mesh.world.all_reduce_host(&mut x, Reduce::Sum)?;
        Ok(())
    });
    let error = error.unwrap_err().to_string();
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "{:?}",
        began.elapsed()
    );
    for part in ["absent: rank 1", "world", "rank 1 does not answer"] {
        assert!(error.contains(part), "{error}");
    }
    drop(trainer);
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "dropping it does not wait either"
    );
}

#[test]
fn a_record_that_cannot_be_trained_on_is_refused_by_all_ranks_and_they_live_on() {
    let mut trainer = ranks(F64::new, Toy::PLAIN, &config(), &sizes(2, 1, 1, 1)).unwrap();
    let mut bad = mixed();
    bad[3].tokens[0] = 260;
    let error = trainer.train(&bad).unwrap_err();
    assert!(matches!(error, Error::Record { index: 3, .. }), "{error}");
    assert_eq!(trainer.train(&mixed()).unwrap().len(), 3);
}
