//! The CPU backend: f32 for work, f64 for gradient checks, on all cores.
//!
//! It owns memory ([`buffer`]), vectors ([`simd`]), loops over cores ([`parallel`]) and the matrix product
//! ([`gemm`]); what an operation computes is in that operation's folder. Read `rmsnorm/cpu.rs` next for how one
//! looks.

pub(crate) mod buffer;
pub(crate) mod element;
pub(crate) mod gemm;
mod ops;
pub(crate) mod parallel;
pub(crate) mod simd;
pub(crate) mod tensor;

use std::sync::Arc;

pub use element::Element;
pub use tensor::{CpuFloat, CpuIds, CpuTensor};

use buffer::{Buffer, Pool};

/// The CPU, computing in `T`. Work runs on rayon's current pool. Clones share recycled memory.
#[derive(Clone, Default)]
pub struct Cpu<T: Element> {
    pool: Arc<Pool>,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> Cpu<T> {
    /// With no memory recycled yet.
    pub fn new() -> Self {
        Self {
            pool: Arc::default(),
            element: std::marker::PhantomData,
        }
    }

    /// Hands out memory full of NaN, so that an operation that forgets to write a number shows; for tests.
    pub fn poisoning() -> Self {
        Self {
            pool: Arc::new(Pool::poisoning()),
            element: std::marker::PhantomData,
        }
    }

    /// Bytes in tensors, and bytes kept for reuse.
    pub fn memory_bytes(&self) -> (u64, u64) {
        self.pool.bytes()
    }

    /// Bytes in tensors at the worst moment so far.
    pub fn peak_bytes(&self) -> u64 {
        self.pool.peak_bytes()
    }

    pub(crate) fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Unspecified content.
    pub(crate) fn take(&self, len: usize) -> Buffer<T> {
        self.pool.take(len)
    }

    pub(crate) fn zeros(&self, len: usize) -> Buffer<T> {
        self.pool.zeros(len)
    }
}
