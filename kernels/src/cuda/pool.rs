//! Device memory, kept and handed out again.
//!
//! One stream runs everything, so a block given back may be reused at once: the next kernel that writes it is queued after
//! the last that read it. Sizes are rounded up so that a training step finds what the last one left. What recorded work
//! writes ([`record`](super::record)) it writes again at every replay, so such blocks go round among recordings alone until
//! the last of these is gone.

use crate::{Error, Result};
use cudarc::driver::{CudaContext, CudaStream, result};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

thread_local! {
    /// The pool on whose memory this thread makes a recording, by its address.
    static RECORDS_ON: Cell<usize> = const { Cell::new(0) };
}

/// A piece of device memory; back to its pool when dropped.
pub(super) struct Block {
    pub(super) ptr: u64,
    bytes: usize,
    /// Recorded work writes it.
    is_recorded: bool,
    pool: Arc<Pool>,
    /// What this is a part of, whose memory it is.
    whole: Option<Arc<Block>>,
}

impl Block {
    /// `bytes` of `whole` from `offset` on, which keep it alive.
    pub(super) fn part(whole: &Arc<Self>, offset: usize, bytes: usize) -> Self {
        assert!(offset + bytes <= whole.bytes, "a part lies inside");
        Self {
            ptr: whole.ptr + offset as u64,
            bytes,
            is_recorded: whole.is_recorded,
            pool: Arc::clone(&whole.pool),
            whole: Some(Arc::clone(whole)),
        }
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if self.whole.is_some() {
            return;
        }
        let mut state = self.pool.state();
        if self.is_recorded && state.recordings > 0 {
            state.recorded.give(self.bytes, self.ptr);
        } else {
            state.in_use -= self.bytes;
            state.free.give(self.bytes, self.ptr);
        }
    }
}

/// A recording, made or being made: memory of recordings is kept for them while there is one.
pub(super) struct Recording(Arc<Pool>);

impl Drop for Recording {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.recordings -= 1;
        if state.recordings == 0 {
            for (bytes, list) in std::mem::take(&mut state.recorded.0) {
                state.in_use -= bytes * list.len();
                state.free.0.entry(bytes).or_default().extend(list);
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_err() {
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(|e| e.into_inner());
        for ptr in std::mem::take(&mut state.free.0).into_values().flatten() {
            // SAFETY: the pointer came from malloc_sync, and no Block holds it: each keeps the pool alive. A failure
            // leaves the memory to the driver, which takes it back with the context.
            let _ = unsafe { result::free_sync(ptr) };
        }
    }
}

pub(super) struct Pool {
    context: Arc<CudaContext>,
    /// Where fresh blocks are filled with NaN, if they are.
    poison: Option<Arc<CudaStream>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    free: Free,
    in_use: usize,
    peak: usize,
    /// Nobody's, but counted as in use.
    recorded: Free,
    recordings: usize,
}

/// Pieces of memory by their size.
#[derive(Default)]
struct Free(BTreeMap<usize, Vec<u64>>);

impl Free {
    fn give(&mut self, bytes: usize, ptr: u64) {
        self.0.entry(bytes).or_default().push(ptr);
    }

    /// A block up to an eighth larger will do; beyond that the waste is worth an allocation.
    fn take(&mut self, bytes: usize) -> Option<(u64, usize)> {
        let fits = self.0.range_mut(bytes..=bytes + bytes / 8);
        fits.into_iter()
            .find_map(|(&size, list)| list.pop().map(|ptr| (ptr, size)))
    }
}

impl Pool {
    pub(super) fn new(context: Arc<CudaContext>, poison: Option<Arc<CudaStream>>) -> Arc<Self> {
        Arc::new(Self {
            context,
            poison,
            state: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Bytes in use at the worst moment so far.
    pub(super) fn peak_bytes(&self) -> usize {
        self.state().peak
    }

    /// What this thread takes until [`Self::end_recording`] is a recording's.
    pub(super) fn begin_recording(self: &Arc<Self>) -> Recording {
        RECORDS_ON.set(self.address());
        self.state().recordings += 1;
        Recording(Arc::clone(self))
    }

    pub(super) fn end_recording(&self) {
        RECORDS_ON.set(0);
    }

    /// Is it this thread that records?
    pub(super) fn is_recorded_here(&self) -> bool {
        RECORDS_ON.get() == self.address()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(super) fn take(self: &Arc<Self>, bytes: usize, what: &str) -> Result<Block> {
        let bytes = rounded(bytes);
        let is_recorded = self.is_recorded_here();
        let mut state = self.state();
        let again = is_recorded.then(|| state.recorded.take(bytes)).flatten();
        let (ptr, bytes) = match again {
            Some(again) => again,
            None => {
                let (ptr, bytes) = match state.free.take(bytes) {
                    Some(reused) => reused,
                    None => (self.allocate(&mut state, bytes, what)?, bytes),
                };
                state.in_use += bytes;
                (ptr, bytes)
            }
        };
        state.peak = state.peak.max(state.in_use);
        drop(state);
        if let Some(stream) = &self.poison {
            self.context.bind_to_thread().map_err(super::driver)?;
            // SAFETY: nobody else holds these bytes, and later work on the one stream comes after.
            unsafe { result::memset_d8_async(ptr, 0xff, bytes, stream.cu_stream()) }
                .map_err(super::driver)?;
        }
        Ok(Block {
            ptr,
            bytes,
            is_recorded,
            pool: Arc::clone(self),
            whole: None,
        })
    }

    fn allocate(&self, state: &mut State, bytes: usize, what: &str) -> Result<u64> {
        self.context.bind_to_thread().map_err(super::driver)?;
        // SAFETY: a plain allocation; the pointer is only handed out as a Block of this size.
        if let Ok(ptr) = unsafe { result::malloc_sync(bytes) } {
            return Ok(ptr);
        }
        // Give back what fits nobody, then try once more. A recording cannot wait for the device, as giving back does.
        let unfit = match self.is_recorded_here() {
            false => std::mem::take(&mut state.free.0),
            true => BTreeMap::new(),
        };
        for ptr in unfit.into_values().flatten() {
            // SAFETY: the pointer came from malloc_sync and no Block holds it. Freeing waits for the device.
            unsafe { result::free_sync(ptr) }.map_err(super::driver)?;
        }
        // SAFETY: as above.
        unsafe { result::malloc_sync(bytes) }.map_err(|_| Error::OutOfMemory {
            what: what.into(),
            wanted_bytes: bytes as u64,
            free_bytes: result::mem_get_info().map_or(0, |(free, _)| free as u64),
        })
    }
}

/// 512 bytes for small blocks, 1/16 of the size's power of two for large ones.
fn rounded(bytes: usize) -> usize {
    let step = (bytes.max(1).next_power_of_two() / 16).max(512);
    bytes.max(1).div_ceil(step) * step
}
