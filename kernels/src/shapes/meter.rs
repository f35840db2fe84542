//! What a device of shapes notes: bytes held, and work done in order.

use crate::head;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes a device spends on each kind of number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Widths {
    /// A weight's or activation's element.
    pub tensor: usize,
    /// An accumulator's.
    pub float: usize,
    /// Blocks are a whole number of these.
    pub block: usize,
    /// Large blocks are rounded up to this part of the power of two above them.
    pub part: usize,
    /// Ids lie on the device.
    pub ids_on_device: bool,
    /// The gradient of logits takes their memory.
    pub gradient_overwrites_logits: bool,
    /// Products and attention lay operands out anew in memory of their own, as the CPU's do.
    pub lays_out: bool,
    /// Of logits that are made at once.
    pub logits_chunk: usize,
}

impl Widths {
    /// A GPU: bf16 and f32, with the sizes its pool hands out.
    pub const GPU: Self = Self {
        tensor: 2,
        float: 4,
        block: 512,
        part: 16,
        ids_on_device: true,
        gradient_overwrites_logits: false,
        lays_out: false,
        logits_chunk: head::GPU_CHUNK_BYTES,
    };
    /// The CPU in f32, with the sizes its pool hands out.
    pub const CPU: Self = Self {
        tensor: 4,
        float: 4,
        block: 64,
        part: 16,
        ids_on_device: false,
        gradient_overwrites_logits: true,
        lays_out: true,
        logits_chunk: head::CPU_CHUNK_BYTES,
    };

    fn rounded(&self, bytes: usize) -> usize {
        let blocks = bytes.div_ceil(self.block);
        let step = (blocks.next_power_of_two() / self.part).max(1);
        blocks.next_multiple_of(step) * self.block
    }

    /// Of a tensor.
    pub fn tensor_bytes(&self, elements: usize) -> usize {
        self.rounded(elements * self.tensor)
    }

    /// Of an accumulator.
    pub fn float_bytes(&self, elements: usize) -> usize {
        self.rounded(elements * self.float)
    }

    /// Of ids.
    pub fn id_bytes(&self, ids: usize) -> usize {
        match self.ids_on_device {
            true => self.rounded(ids * 4),
            false => 0,
        }
    }
}

/// One piece of work.
#[derive(Clone, Debug, PartialEq)]
pub enum Work {
    /// `[m, k] × [k, n]`.
    Gemm {
        /// Rows.
        m: usize,
        /// Columns.
        n: usize,
        /// Inner size.
        k: usize,
    },
    /// Attention over pairs of tokens, by each head.
    Attention {
        /// Query heads.
        heads: usize,
        /// Width of a head.
        dim: usize,
        /// Pairs that see each other.
        pairs: f64,
        /// Its gradient, which is 2.5 times the work.
        backward: bool,
    },
    /// Memory read and written by a kernel that only passes over it.
    Move {
        /// Both together.
        bytes: usize,
    },
}

impl Work {
    /// Multiplications and additions.
    pub fn flops(&self) -> f64 {
        match *self {
            Self::Gemm { m, n, k } => 2.0 * m as f64 * n as f64 * k as f64,
            Self::Attention {
                heads,
                dim,
                pairs,
                backward,
            } => {
                let each = if backward { 10.0 } else { 4.0 };
                each * pairs * heads as f64 * dim as f64
            }
            Self::Move { .. } => 0.0,
        }
    }
}

#[derive(Default)]
struct Books {
    live: usize,
    peak: usize,
    work: Vec<Work>,
}

/// One rank's books.
pub struct Meter {
    widths: Widths,
    books: Mutex<Books>,
    told: Option<Box<dyn Fn(&Work) + Send + Sync>>,
}

impl Meter {
    /// Empty books; work is kept in a list.
    pub fn new(widths: Widths) -> Arc<Self> {
        Arc::new(Self {
            widths,
            books: Mutex::default(),
            told: None,
        })
    }

    /// Empty books that hand each piece of work to `told` instead of keeping it.
    pub fn telling(widths: Widths, told: impl Fn(&Work) + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self {
            widths,
            books: Mutex::default(),
            told: Some(Box::new(told)),
        })
    }

    /// What numbers take.
    pub fn widths(&self) -> &Widths {
        &self.widths
    }

    /// Bytes held now.
    pub fn live_bytes(&self) -> usize {
        self.lock().live
    }

    /// Bytes held at the worst moment since [`Self::forget_peak`].
    pub fn peak_bytes(&self) -> usize {
        self.lock().peak
    }

    /// Look for a new peak from now on.
    pub fn forget_peak(&self) {
        let mut books = self.lock();
        books.peak = books.live;
    }

    /// Work noted so far; the list is empty afterwards.
    pub fn take_work(&self) -> Vec<Work> {
        std::mem::take(&mut self.lock().work)
    }

    fn lock(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn note(&self, work: Work) {
        match &self.told {
            Some(told) => told(&work),
            None => self.lock().work.push(work),
        }
    }

    pub(super) fn hold(self: &Arc<Self>, bytes: usize) -> Held {
        let mut books = self.lock();
        books.live += bytes;
        books.peak = books.peak.max(books.live);
        drop(books);
        Held {
            meter: self.clone(),
            bytes,
        }
    }
}

/// Bytes held, given back when dropped.
pub(super) struct Held {
    meter: Arc<Meter>,
    bytes: usize,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.meter.lock().live -= self.bytes;
    }
}
