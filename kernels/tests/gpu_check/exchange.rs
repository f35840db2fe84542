//! What GPUs of one process make together, against sums and rows written down; and whoever waits for a rank that never comes is
//! let go. Ranks are threads here; NCCL is needed, and a second GPU or `NCCL_MULTI_RANK_GPU_ENABLE=1`.

use slime_kernels::comm::World;
use slime_kernels::cuda::Cuda;
use slime_kernels::cuda::nccl::Nccl;
use slime_kernels::{Comm, Error, Ops, Result};
use std::sync::Arc;
use std::time::Duration;

const RANKS: usize = 2;
/// A vector, a row more than a block's share, many rows, and more than every block has under way at once.
const SHAPES: [(usize, usize); 4] = [(2, 8), (258, 72), (4096, 136), (8194, 520)];
/// 64 MiB, which nothing else here takes.
const LENT: (usize, usize) = (32768, 1024);

/// Prints three lines and returns how many are wrong.
pub(crate) fn check(_: &Cuda) -> usize {
    let what = "sums, shares, rows of all, a neighbour's";
    crate::with_two_gpus("exchange", what, || {
        crate::say("exchange", what, everything())
            + crate::say("exchange", "what is lent is kept", keeps())
            + crate::say("exchange", "an ended world lets go", lets_go())
    })
}

/// Each rank's answer, as threads with a GPU each.
fn on_ranks<R: Send>(
    world: &Arc<World>,
    work: impl Fn(usize, &Arc<Cuda>, &Nccl) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let work = &work;
    std::thread::scope(|scope| {
        let ranks: Vec<_> = (0..RANKS)
            .map(|rank| {
                scope.spawn(move || {
                    let cuda = Arc::new(Cuda::open_poisoning(crate::gpu_of(rank))?);
                    let members = (0..RANKS).collect();
                    let group =
                        Nccl::new(cuda.clone(), world.clone(), "all", members, rank, false)?;
                    work(rank, &cuda, &group)
                })
            })
            .collect();
        let died = |_| Error::Comm("a rank panicked".into());
        ranks
            .into_iter()
            .map(|rank| rank.join().map_err(died)?)
            .collect()
    })
}

/// Small whole numbers, so that every sum is exact in bf16.
fn numbers(rank: usize, len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| ((i * 7 + rank * 3) % 61) as f32 - 30.0)
        .collect()
}

fn everything() -> Result<bool> {
    let world = World::new(RANKS, Duration::from_secs(60));
    let right = on_ranks(&world, |rank, cuda, group| {
        let mut right = true;
        for (rows, cols) in SHAPES {
            let len = rows * cols;
            let all: Vec<Vec<f32>> = (0..RANKS).map(|of| numbers(of, len)).collect();
            let sum: Vec<f32> = (0..len).map(|i| all.iter().map(|x| x[i]).sum()).collect();
            let share = rank * len / RANKS..(rank + 1) * len / RANKS;
            let x = cuda.tensor(rows, cols, &all[rank])?;
            let half = rows / RANKS * cols;
            let others = &all[rank][(1 - rank) * half..][..half];
            let swapping = cuda.tensor(rows / RANKS, cols, others)?;
            let swapping = group.begin_swap(swapping, rows / RANKS)?;
            let turning = group.begin_rotate(x.clone())?;
            let coming = group.begin_all_gather(x.clone())?;
            right &= cuda.read(&group.all_reduce(&x)?)? == sum;
            right &= cuda.read(&group.reduce_scatter(&x)?)? == sum[share.clone()];
            right &= cuda.read(&group.all_gather(&x)?)? == all.concat();
            right &= cuda.read(&group.rotate(&x)?)? == all[(rank + RANKS - 1) % RANKS];
            right &= cuda.read(&swapping.wait()?)? == all[1 - rank][share];
            right &= cuda.read(&turning.wait()?)? == all[1 - rank];
            right &= cuda.read(&coming.wait()?)? == all.concat();
        }
        Ok(right)
    })?;
    Ok(right.into_iter().all(|right| right))
}

/// What members fetch from is handed out to nobody before all have fetched, and to whoever asks once they have settled.
fn keeps() -> Result<bool> {
    let world = World::new(RANKS, Duration::from_secs(60));
    let right = on_ranks(&world, |rank, cuda, group| {
        let (rows, cols) = LENT;
        let all: Vec<Vec<f32>> = (0..RANKS).map(|of| numbers(of, rows * cols)).collect();
        let x = cuda.tensor(rows, cols, &all[rank])?;
        let few = cuda.tensor(2, 8, &[1.0; 16])?;
        let coming = group.begin_all_gather(x)?;
        let turning = group.begin_rotate(few)?;
        let had = cuda.peak_bytes();
        let other = cuda.room(rows, cols)?;
        let kept = cuda.peak_bytes() > had;
        let (came, _) = (coming.wait()?, turning.wait()?);
        let right = cuda.read(&came)? == all.concat();
        group.settle()?;
        let had = cuda.peak_bytes();
        let again = cuda.room(rows, cols)?;
        let given_back = cuda.peak_bytes() == had;
        drop((other, again));
        Ok(right && kept && given_back)
    })?;
    Ok(right.into_iter().all(|right| right))
}

/// Rank 1 never makes the call that rank 0 waits in.
fn lets_go() -> Result<bool> {
    let world = World::new(RANKS, Duration::from_secs(60));
    let freed = on_ranks(&world, |rank, cuda, group| {
        if rank == 1 {
            std::thread::sleep(Duration::from_millis(300));
            world.end("rank 1 has had enough");
            return Ok(true);
        }
        let x = cuda.tensor(4, 8, &numbers(0, 32))?;
        let waited = group.all_gather(&x).and_then(|_| cuda.synchronize());
        Ok(waited.is_err() || group.all_gather(&x).is_err())
    })?;
    Ok(freed.into_iter().all(|freed| freed))
}
