//! Loops over all cores (rayon's current pool). Which thread does a piece never shows in a result: pieces write to
//! disjoint places, and sums across pieces run in the pieces' order.

use std::marker::PhantomData;
use std::ops::Range;

use rayon::prelude::*;

/// Elements worth a task of their own.
const GRAIN: usize = 16 * 1024;

/// Rows per task, for rows that cost as much as `cost` simple elements.
pub(crate) fn grain_rows(cost: usize) -> usize {
    (GRAIN / cost.max(1)).max(1)
}

/// Calls `f` with ranges of at most `grain` that cover `0..n`.
pub(crate) fn ranges(n: usize, grain: usize, f: impl Fn(Range<usize>) + Sync + Send) {
    let pieces = n.div_ceil(grain);
    if pieces <= 1 {
        if n > 0 {
            f(0..n);
        }
        return;
    }
    (0..pieces)
        .into_par_iter()
        .with_max_len(1)
        .for_each(|i| f(i * grain..((i + 1) * grain).min(n)));
}

/// Calls `f` with each number below `n`, one task each.
pub(crate) fn each(n: usize, f: impl Fn(usize) + Sync + Send) {
    ranges(n, 1, |r| f(r.start));
}

/// A slice that tasks write to at disjoint places.
pub(crate) struct Disjoint<'a, T> {
    start: *mut T,
    len: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

// SAFETY: it is a `&mut [T]` whose parts go to different threads; `slice`'s contract keeps them apart.
unsafe impl<T: Send> Sync for Disjoint<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Disjoint<'_, T> {}

impl<'a, T> Disjoint<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self {
            start: slice.as_mut_ptr(),
            len: slice.len(),
            lifetime: PhantomData,
        }
    }

    /// # Safety
    /// No two ranges that overlap may be alive at once.
    #[allow(clippy::mut_from_ref, reason = "the contract above")]
    pub(crate) unsafe fn slice(&self, range: Range<usize>) -> &mut [T] {
        assert!(
            range.start <= range.end && range.end <= self.len,
            "{range:?} of {}",
            self.len
        );
        // SAFETY: inside the slice; not aliased, by the contract.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.len()) }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first element; for kernels that write tiles, whose rows are no range.
    pub(crate) fn as_mut_ptr(&self) -> *mut T {
        self.start
    }
}
