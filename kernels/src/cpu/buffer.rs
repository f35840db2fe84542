//! Memory for tensors: 64-byte aligned, recycled.
//!
//! A training step asks for the same sizes again and again; fresh memory for each would page-fault on every one
//! of them. The pool keeps what was freed, never so much that live and idle together exceed the live peak by more
//! than a quarter. It knows no shapes. Read [`super::tensor`] next.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use bytemuck::{Pod, Zeroable};

/// One cache line, the unit of allocation.
#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C, align(64))]
struct Line([u64; 8]);

const LINE_BYTES: usize = size_of::<Line>();

#[derive(Default)]
struct State {
    /// Freed blocks by their number of lines.
    idle: BTreeMap<usize, Vec<Vec<Line>>>,
    idle_lines: usize,
    live_lines: usize,
    peak_lines: usize,
}

/// Where buffers come from and return to.
#[derive(Default)]
pub(crate) struct Pool {
    state: Mutex<State>,
    /// Fill memory with NaN before it is handed out.
    poison: bool,
}

impl Pool {
    pub(crate) fn poisoning() -> Self {
        Self {
            poison: true,
            ..Self::default()
        }
    }

    /// `len` elements of unspecified (but initialised) content: whoever asks must write all of it.
    pub(crate) fn take<T: Pod>(self: &Arc<Self>, len: usize) -> Buffer<T> {
        let lines = size_class((len * size_of::<T>()).div_ceil(LINE_BYTES));
        let recycled = {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            let fit = state
                .idle
                .range(lines..=lines + lines / 4)
                .find(|(_, blocks)| !blocks.is_empty())
                .map(|(n, _)| *n);
            let block = fit.and_then(|n| state.idle.get_mut(&n)).and_then(Vec::pop);
            if let Some(block) = &block {
                state.idle_lines -= block.len();
            }
            state.live_lines += block.as_ref().map_or(lines, Vec::len);
            state.peak_lines = state.peak_lines.max(state.live_lines);
            block
        };
        let mut block = recycled.unwrap_or_else(|| bytemuck::zeroed_vec(lines));
        if self.poison {
            block.fill(Line([u64::MAX; 8]));
        }
        Buffer {
            block,
            len,
            pool: self.clone(),
            element: std::marker::PhantomData,
        }
    }

    /// `len` zeros.
    pub(crate) fn zeros<T: Pod>(self: &Arc<Self>, len: usize) -> Buffer<T> {
        let mut buffer = self.take(len);
        buffer.fill(T::zeroed());
        buffer
    }

    /// A copy of `data`.
    pub(crate) fn copy<T: Pod>(self: &Arc<Self>, data: &[T]) -> Buffer<T> {
        let mut buffer = self.take(data.len());
        buffer.copy_from_slice(data);
        buffer
    }

    fn give_back(&self, block: Vec<Line>) {
        let mut evicted = Vec::new();
        {
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.live_lines -= block.len();
            state.idle_lines += block.len();
            state.idle.entry(block.len()).or_default().push(block);
            let most = state.peak_lines + state.peak_lines / 4;
            while state.live_lines + state.idle_lines > most {
                let Some(mut largest) = state.idle.last_entry() else {
                    break;
                };
                match largest.get_mut().pop() {
                    Some(block) => {
                        state.idle_lines -= block.len();
                        evicted.push(block);
                    }
                    None => {
                        largest.remove();
                    }
                }
            }
        }
        drop(evicted); // unmapping is slow; not under the lock
    }

    /// Bytes handed out at the worst moment so far.
    pub(crate) fn peak_bytes(&self) -> u64 {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (state.peak_lines * LINE_BYTES) as u64
    }

    /// Bytes handed out and not returned, and bytes kept for reuse.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        (
            (state.live_lines * LINE_BYTES) as u64,
            (state.idle_lines * LINE_BYTES) as u64,
        )
    }
}

/// Rounds up to eighths of a power of two, so that slightly different batches reuse each other's memory.
fn size_class(lines: usize) -> usize {
    let step = (lines.next_power_of_two() / 16).max(1);
    lines.next_multiple_of(step)
}

/// Elements from a [`Pool`], returned to it when dropped.
pub(crate) struct Buffer<T: Pod> {
    block: Vec<Line>,
    len: usize,
    pool: Arc<Pool>,
    element: std::marker::PhantomData<T>,
}

impl<T: Pod> Buffer<T> {
    /// Another buffer of the same pool with the same content.
    pub(crate) fn duplicate(&self) -> Self {
        self.pool.copy(self)
    }
}

impl<T: Pod> std::ops::Deref for Buffer<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &bytemuck::cast_slice(&self.block)[..self.len]
    }
}

impl<T: Pod> std::ops::DerefMut for Buffer<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut bytemuck::cast_slice_mut(&mut self.block)[..self.len]
    }
}

impl<T: Pod> Drop for Buffer<T> {
    fn drop(&mut self) {
        self.pool.give_back(std::mem::take(&mut self.block));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_freed_buffer_is_used_again() {
        let pool = Arc::new(Pool::default());
        let first = pool.take::<f32>(100_000);
        let address = first.as_ptr();
        drop(first);
        let second = pool.take::<f32>(99_000);
        assert_eq!(second.as_ptr(), address);
        assert_eq!(second.as_ptr() as usize % 64, 0);
    }

    #[test]
    fn idle_memory_never_exceeds_a_quarter_above_the_live_peak() {
        let pool = Arc::new(Pool::default());
        for size in (1..200).map(|i| i * 1000) {
            drop(pool.take::<f64>(size));
        }
        let (live, idle) = pool.bytes();
        assert_eq!(live, 0);
        assert!(idle <= 199_000 * 8 * 5 / 4 + 8192 * 8, "{idle}");
    }

    #[test]
    fn an_empty_buffer_is_an_empty_slice() {
        let pool = Arc::new(Pool::default());
        assert!(pool.take::<f32>(0).is_empty());
    }
}
