//! What [`super::Cpu`] calls a tensor, an accumulator and a list of ids: shapes on [`super::buffer`]s.

use std::sync::{Arc, OnceLock};

use super::buffer::Buffer;
use super::element::Element;

/// A matrix, `[rows, cols]`, row-major. Clones share its storage; changing one that is shared copies it first.
#[derive(Clone)]
pub struct CpuTensor<T: Element> {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    storage: Arc<Storage<T>>,
}

struct Storage<T: Element> {
    data: Buffer<T>,
    /// The same numbers in the order in which [`super::gemm`] reads a weight for few rows; made on first use.
    packed: OnceLock<Buffer<T>>,
}

impl<T: Element> CpuTensor<T> {
    pub(crate) fn new(rows: usize, cols: usize, data: Buffer<T>) -> Self {
        debug_assert_eq!(rows * cols, data.len());
        Self {
            rows,
            cols,
            storage: Arc::new(Storage {
                data,
                packed: OnceLock::new(),
            }),
        }
    }

    pub(crate) fn data(&self) -> &[T] {
        &self.storage.data
    }

    pub(crate) fn row(&self, i: usize) -> &[T] {
        &self.storage.data[i * self.cols..(i + 1) * self.cols]
    }

    /// The same numbers in rows of another length. A copy: the packed form is of one shape.
    pub(crate) fn reshaped(&self, rows: usize, cols: usize) -> Self {
        Self::new(rows, cols, self.storage.data.duplicate())
    }

    /// To write to; forgets the packed form.
    pub(crate) fn data_mut(&mut self) -> &mut [T] {
        if Arc::get_mut(&mut self.storage).is_none() {
            let copy = self.storage.data.duplicate();
            self.storage = Arc::new(Storage {
                data: copy,
                packed: OnceLock::new(),
            });
        }
        let storage =
            Arc::get_mut(&mut self.storage).expect("just made or found to be the only owner");
        storage.packed.take();
        &mut storage.data
    }

    pub(crate) fn packed(&self, pack: impl FnOnce() -> Buffer<T>) -> &[T] {
        self.storage.packed.get_or_init(pack)
    }

    pub(crate) fn packed_if_made(&self) -> Option<&[T]> {
        self.storage.packed.get().map(|b| &b[..])
    }
}

impl<T: Element> std::fmt::Debug for CpuTensor<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CpuTensor[{}, {}]", self.rows, self.cols)
    }
}

/// An accumulator, `[rows, cols]`, row-major.
pub struct CpuFloat<T: Element> {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) data: Buffer<T>,
}

impl<T: Element> CpuFloat<T> {
    pub(crate) fn new(rows: usize, cols: usize, data: Buffer<T>) -> Self {
        debug_assert_eq!(rows * cols, data.len());
        Self { rows, cols, data }
    }
}

impl<T: Element> std::fmt::Debug for CpuFloat<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CpuFloat[{}, {}]", self.rows, self.cols)
    }
}

/// Token ids, row numbers or positions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuIds(pub(crate) Vec<u32>);
