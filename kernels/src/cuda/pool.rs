//! Device memory, kept and handed out again.
//!
//! One stream runs everything, so a block given back may be reused at once: the next kernel that writes it is queued after
//! the last that read it. Sizes are rounded up so that a training step finds what the last one left.

use crate::{Error, Result};
use cudarc::driver::{CudaContext, CudaStream, result};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// A piece of device memory; back to its pool when dropped.
pub(super) struct Block {
    pub(super) ptr: u64,
    bytes: usize,
    pool: Arc<Pool>,
}

impl Drop for Block {
    fn drop(&mut self) {
        let mut state = self.pool.state.lock().unwrap_or_else(|e| e.into_inner());
        state.in_use -= self.bytes;
        state.free.entry(self.bytes).or_default().push(self.ptr);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if self.context.bind_to_thread().is_err() {
            return;
        }
        let state = self.state.get_mut().unwrap_or_else(|e| e.into_inner());
        for ptr in std::mem::take(&mut state.free).into_values().flatten() {
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
    free: BTreeMap<usize, Vec<u64>>,
    in_use: usize,
    peak: usize,
}

impl Pool {
    pub(super) fn new(context: Arc<CudaContext>, poison: Option<Arc<CudaStream>>) -> Arc<Self> {
        Arc::new(Self {
            context,
            poison,
            state: Mutex::default(),
        })
    }

    /// Bytes in use at the worst moment so far.
    pub(super) fn peak_bytes(&self) -> usize {
        self.state.lock().unwrap_or_else(|e| e.into_inner()).peak
    }

    pub(super) fn take(self: &Arc<Self>, bytes: usize, what: &str) -> Result<Block> {
        let bytes = rounded(bytes);
        let mut state = self.state.lock().unwrap_or_else(|e| e.into_inner());
        // A block up to an eighth larger will do; beyond that the waste is worth an allocation.
        let fit = state
            .free
            .range(bytes..=bytes + bytes / 8)
            .find(|(_, list)| !list.is_empty())
            .map(|(&size, _)| size);
        let (ptr, bytes) =
            match fit.and_then(|size| Some((state.free.get_mut(&size)?.pop()?, size))) {
                Some(reused) => reused,
                None => (self.allocate(&mut state, bytes, what)?, bytes),
            };
        state.in_use += bytes;
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
            pool: Arc::clone(self),
        })
    }

    fn allocate(&self, state: &mut State, bytes: usize, what: &str) -> Result<u64> {
        self.context.bind_to_thread().map_err(super::driver)?;
        // SAFETY: a plain allocation; the pointer is only handed out as a Block of this size.
        if let Ok(ptr) = unsafe { result::malloc_sync(bytes) } {
            return Ok(ptr);
        }
        // Give back what fits nobody, then try once more.
        for ptr in std::mem::take(&mut state.free).into_values().flatten() {
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
