//! Exchanges between the GPUs of one process by their own kernels, which read each other's memory over NVLink.
//!
//! What NCCL does in stages and through buffers of its own, a kernel does here at once: it says where its numbers lie, reads
//! the others', and lets go when the others have read. At the sizes of tensor parallelism that is latency saved. It takes GPUs
//! that reach each other's memory, each with one rank, in one process; [`Exchange::between`] finds out, and [`super::nccl`]
//! does the rest. Members make the same calls in the same order on each stream, as ever. Read `exchange/kernel.cu` for how
//! they meet.

use super::device::Arg;
use super::pool::Block;
use super::{Cuda, Tensor, driver, sources};
use crate::comm::{Comm, Group, Meet};
use crate::{Error, Result};
use cudarc::driver::{CudaContext, CudaStream, DriverError, PinnedHostSlice, sys};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// Thread blocks of an exchange that nothing runs beside, and of one that leaves multiprocessors to other work.
const BLOCKS: [usize; 2] = [128, 64];
const THREADS: usize = 512;
/// Vectors that a thread reads at once.
const UNROLL: usize = 4;
/// Bytes of a letter, as in the kernel.
const LETTER: usize = 16;
/// More members than this want more than one step.
const MOST_MEMBERS: usize = 8;
/// A sum that every member makes for itself reads everybody's numbers: between more than two, only a short one is worth it.
const SHORT_SUM: usize = 1 << 20;

/// Which of a rank's two streams of exchanges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lane {
    /// The device's own.
    Main = 0,
    /// What runs beside it.
    Side = 1,
}

/// What the members of a group make together, of bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Collective {
    /// Everybody's sum.
    Sum,
    /// A share of the sum.
    Share,
    /// Everybody's rows.
    Gather,
}

/// The end of the work of all.
pub(super) struct Ended {
    /// What kernels look at while they wait.
    word: Mutex<PinnedHostSlice<u32>>,
    /// The same for the host.
    is_set: AtomicBool,
}

impl Ended {
    pub(super) fn set(&self) {
        self.is_set.store(true, Ordering::Release);
        let mut word = self.word.lock().unwrap_or_else(PoisonError::into_inner);
        // It was never written by the device, so there is nothing to wait for; a failure leaves the kernels to the driver.
        if let Ok(word) = word.as_mut_slice() {
            // SAFETY: a valid, aligned word of page-locked memory, which kernels only read.
            unsafe { std::ptr::write_volatile(&mut word[0], 1) };
        }
    }
}

/// A member's letterboxes for one lane.
struct Boxes {
    /// The addresses of all members' boxes.
    table: Block,
    _own: Block,
    turn: AtomicU32,
}

/// One member of a group of GPUs that read each other's memory.
pub(super) struct Exchange {
    cuda: Arc<Cuda>,
    rank: usize,
    members: usize,
    lanes: [Boxes; 2],
    ended: Arc<Ended>,
    ended_at: u64,
}

impl Exchange {
    /// All members, which are threads of one process, call it at once, with the GPU of each; `None` for all of them where one
    /// cannot.
    pub(super) fn between<M: Meet>(
        cuda: &Arc<Cuda>,
        host: &Group<Cuda, M>,
        gpus: &[usize],
    ) -> Result<Option<Self>> {
        let (rank, members) = (host.rank(), host.size());
        if !(2..=MOST_MEMBERS).contains(&members) {
            return Ok(None);
        }
        let device = &cuda.device;
        let own = device.context.ordinal();
        let others = gpus.iter().enumerate();
        let mut others = others.filter(|&(member, _)| member != rank);
        let all_reach = others.all(|(_, &other)| other != own && reaches(&device.context, other));
        let can = host.all_gather_host(&[f64::from(u8::from(all_reach))])?;
        if can.contains(&0.0) {
            return Ok(None);
        }
        device.bind()?;
        // SAFETY: written below, before anybody reads it.
        let mut word =
            unsafe { device.context.alloc_pinned_with_flags::<u32>(1, 0) }.map_err(driver)?;
        word.as_mut_slice().map_err(driver)?[0] = 0;
        let ended_at = word.as_ptr().map_err(driver)? as u64;
        let lane = |blocks: usize| -> Result<Boxes> {
            let bytes = blocks * members * LETTER;
            let boxes = device.pool.take(bytes, "letterboxes")?;
            device.zero(&boxes, bytes)?;
            device.stream.synchronize().map_err(driver)?;
            // Everybody's are empty when this returns.
            let all = host.all_gather_host(&[boxes.ptr as f64])?;
            let all: Vec<u64> = all.iter().map(|&at| at as u64).collect();
            Ok(Boxes {
                table: device.upload(&all, "addresses of letterboxes")?,
                _own: boxes,
                turn: AtomicU32::new(0),
            })
        };
        Ok(Some(Self {
            lanes: [lane(BLOCKS[0])?, lane(BLOCKS[1])?],
            ended: Arc::new(Ended {
                word: Mutex::new(word),
                is_set: AtomicBool::new(false),
            }),
            ended_at,
            cuda: cuda.clone(),
            rank,
            members,
        }))
    }

    /// Set it, and whoever waits in a kernel lets go.
    pub(super) fn ended(&self) -> &Arc<Ended> {
        &self.ended
    }

    /// Is it quicker than NCCL at what makes `y` of `x`?
    pub(super) fn takes(&self, call: Collective, x: &Tensor, y: &Tensor) -> bool {
        let (given, got) = (x.rows * x.cols, y.rows * y.cols);
        let is_long = call == Collective::Sum && self.members > 2 && 2 * given > SHORT_SUM;
        given.min(got).is_multiple_of(8) && !is_long
    }

    /// Make `y` of everybody's `x`.
    pub(super) fn run(
        &self,
        lane: Lane,
        stream: &Arc<CudaStream>,
        call: Collective,
        x: &Tensor,
        y: &Tensor,
    ) -> Result<()> {
        let count = x.rows.min(y.rows) * x.cols / 8;
        let (name, more) = match call {
            Collective::Sum => ("exchange_sum", Arg::Long(0)),
            Collective::Share => ("exchange_sum", Arg::Long((self.rank * count) as i64)),
            Collective::Gather => ("exchange_gather", Arg::Int(-1)),
        };
        self.launch(lane, stream, name, x, y, count, more)
    }

    /// `y` becomes the `x` of member `from`.
    pub(super) fn fetch(
        &self,
        stream: &Arc<CudaStream>,
        x: &Tensor,
        y: &Tensor,
        from: usize,
    ) -> Result<()> {
        let (count, from) = (x.rows * x.cols / 8, Arg::Int(from as i32));
        self.launch(Lane::Main, stream, "exchange_gather", x, y, count, from)
    }

    #[allow(clippy::too_many_arguments, reason = "what both kernels are told")]
    fn launch(
        &self,
        lane: Lane,
        stream: &Arc<CudaStream>,
        name: &'static str,
        x: &Tensor,
        y: &Tensor,
        count: usize,
        more: Arg,
    ) -> Result<()> {
        if self.ended.is_set.load(Ordering::Acquire) {
            return Err(Error::Comm("the exchange was ended".into()));
        }
        if count == 0 {
            return Ok(());
        }
        let boxes = &self.lanes[lane as usize];
        let turn = boxes.turn.fetch_add(1, Ordering::Relaxed).wrapping_add(1);
        let blocks = count.div_ceil(THREADS * UNROLL).min(BLOCKS[lane as usize]);
        let args = [
            Arg::Ptr(boxes.table.ptr),
            Arg::Int(self.rank as i32),
            Arg::Ptr(x.block.ptr),
            Arg::Ptr(y.block.ptr),
            Arg::Long(count as i64),
            more,
            Arg::Int(turn as i32),
            Arg::Ptr(self.ended_at),
        ];
        let (source, grid) = (sources::exchange(self.members), (blocks as u32, 1, 1));
        let device = &self.cuda.device;
        device.launch_on(stream, &source, name, grid, THREADS as u32, 0, &args)
    }
}

/// Make GPU `other`'s memory readable from `context`'s; false where it cannot be, or is not wanted.
fn reaches(context: &Arc<CudaContext>, other: usize) -> bool {
    // The switch that NCCL's users know, and one of our own, with which NCCL goes on reading it.
    let is = |name: &str, value: &str| std::env::var_os(name).is_some_and(|set| set == value);
    if is("NCCL_P2P_DISABLE", "1") || is("SLIME_EXCHANGE", "nccl") {
        return false;
    }
    let reached = || -> std::result::Result<bool, DriverError> {
        let theirs = CudaContext::new(other)?;
        let mut can = 0;
        // SAFETY: writes one int.
        unsafe {
            sys::cuDeviceCanAccessPeer(&mut can, context.cu_device(), theirs.cu_device())
                .result()?;
        }
        if can == 0 {
            return Ok(false);
        }
        context.bind_to_thread()?;
        // SAFETY: both contexts are the devices' own, which live as long as the process uses them.
        let done = unsafe { sys::cuCtxEnablePeerAccess(theirs.cu_ctx(), 0) };
        match done {
            sys::CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED => Ok(true),
            done => done.result().map(|()| true),
        }
    };
    reached().unwrap_or(false)
}
