//! How fast a group of GPUs exchanges: bytes that cross a link, as nccl-tests count them.

use super::Failure;
use serde_json::json;
use slime_kernels::comm::World;
use slime_kernels::cuda::Cuda;
use slime_kernels::cuda::nccl::Nccl;
use slime_kernels::{Comm, Ops};
use std::sync::Arc;
use std::time::{Duration, Instant};

const GPUS: usize = 2;
const MIB: [usize; 4] = [1, 16, 256, 1024];
const REPEATS: u32 = 20;

/// A line a call and size, told by rank 0.
pub(crate) fn measure() -> Result<(), Failure> {
    let world = World::new(GPUS, Duration::from_secs(60));
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..GPUS)
            .map(|rank| {
                let world = world.clone();
                scope.spawn(move || one_rank(rank, &world).map_err(|e| e.to_string()))
            })
            .collect();
        for rank in ranks {
            rank.join().map_err(|_| "a rank panicked")??;
        }
        Ok(())
    })
}

fn one_rank(rank: usize, world: &Arc<World>) -> Result<(), Failure> {
    let cuda = Arc::new(Cuda::open(rank)?);
    let members = (0..GPUS).collect();
    let group = Nccl::new(cuda.clone(), world.clone(), "all", members, rank, false)?;
    let share = (GPUS - 1) as f64 / GPUS as f64;
    for mib in MIB {
        let floats = mib << 18;
        let zeros = |rows: usize, cols| cuda.tensor(rows, cols, &vec![0.0; rows * cols]);
        let numbers = zeros(GPUS * 512, (mib << 19) / (GPUS * 512))?;
        let part_of_numbers = zeros(512, (mib << 19) / (GPUS * 512))?;
        let mut whole = cuda.float_zeros(1, floats)?;
        let part = cuda.float_zeros(1, floats / GPUS)?;
        let call = |kind: &str, factor: f64, call: &mut dyn FnMut() -> Result<(), Failure>| {
            for _ in 0..5 {
                call()?;
            }
            cuda.synchronize()?;
            group.all_gather_host(&[0.0])?;
            let began = Instant::now();
            for _ in 0..REPEATS {
                call()?;
            }
            cuda.synchronize()?;
            let seconds = began.elapsed().as_secs_f64() / f64::from(REPEATS);
            let rate = factor * (mib << 20) as f64 / seconds / 1e9;
            if rank == 0 {
                let us = (seconds * 1e6).round();
                println!(
                    "{}",
                    json!({"call": kind, "mib": mib, "us": us, "bus_gb_s": rate})
                );
            }
            Ok::<(), Failure>(())
        };
        call("all_reduce bf16", 2.0 * share, &mut || {
            Ok(group.all_reduce(&numbers).map(drop)?)
        })?;
        call("all_gather bf16", share, &mut || {
            Ok(group.all_gather(&part_of_numbers).map(drop)?)
        })?;
        call("reduce_scatter bf16", share, &mut || {
            Ok(group.reduce_scatter(&numbers).map(drop)?)
        })?;
        call("all_reduce", 2.0 * share, &mut || {
            Ok(group.all_reduce_float(&mut whole)?)
        })?;
        call("all_gather", share, &mut || {
            Ok(group.all_gather_float(&part).map(drop)?)
        })?;
        call("reduce_scatter", share, &mut || {
            Ok(group.reduce_scatter_float(&whole).map(drop)?)
        })?;
    }
    Ok(())
}
