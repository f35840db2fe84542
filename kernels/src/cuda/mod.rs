//! The CUDA backend: bf16 tensors, fp32 accumulators, one stream.
//!
//! Nothing of CUDA is needed to build it; libraries are found at run time ([`library`]), kernels are text compiled by NVRTC
//! ([`nvrtc`]). It is not row-invariant across matrix products yet: cublasLt may choose another summation order for
//! another number of rows. Read [`ops`](self) as the list of launches, the operation folders for what each kernel does.

mod attention;
pub mod broadcast;
mod choices;
mod copies;
mod delta;
mod delta_chunks;
mod device;
mod exchange;
mod experts;
mod float;
mod gemm;
mod head;
mod heads;
mod keys;
pub mod library;
pub mod nccl;
mod norms;
pub mod nvrtc;
mod ops;
mod optimizer;
mod paged;
mod pieces;
mod pool;
mod profile;
mod record;
mod rotation;
mod routing;
mod sources;
mod tables;

pub use float::Float;
pub use profile::{Lap, Span};
pub use sources::all as sources;
pub use tables::Tables;

use crate::{Error, Result};
use device::Device;
use gemm::Gemm;
use pool::Block;
use std::sync::Arc;

/// bf16, row-major.
#[derive(Clone)]
pub struct Tensor {
    block: Arc<Block>,
    rows: usize,
    cols: usize,
}

/// Ids on the device, and on the host for what is sorted there.
pub struct Ids {
    block: Block,
    host: Vec<u32>,
}

/// Keys and values: `[layers, blocks, block tokens, kv heads × dim]` each.
pub struct KvCache {
    keys: Block,
    values: Block,
    layer_elements: usize,
}

/// One NVIDIA GPU.
pub struct Cuda {
    device: Device,
    gemm: Gemm,
    tiles: attention::Cache,
    rectangles: keys::Cache,
    groups: experts::Cache,
}

/// GPUs that this process sees.
///
/// # Errors
/// There is no driver, or it fails.
pub fn num_gpus() -> Result<usize> {
    let driver_is_there = library::discover()
        .iter()
        .any(|found| found.name == "driver" && found.path.is_some());
    if !driver_is_there {
        return Ok(0);
    }
    let count = cudarc::driver::CudaContext::device_count().map_err(driver)?;
    Ok(usize::try_from(count).unwrap_or(0))
}

impl Cuda {
    /// Open GPU `ordinal`.
    ///
    /// # Errors
    /// A library is missing (named, with the cure), or the driver fails.
    pub fn open(ordinal: usize) -> Result<Self> {
        Self::with(ordinal, false)
    }

    /// The same, with every block of memory full of NaN when it is handed out, so that a kernel that forgets to write a
    /// number shows; for tests.
    ///
    /// # Errors
    /// As [`Self::open`].
    pub fn open_poisoning(ordinal: usize) -> Result<Self> {
        Self::with(ordinal, true)
    }

    fn with(ordinal: usize, poison: bool) -> Result<Self> {
        let device = Device::open(ordinal, poison)?;
        let gemm = Gemm::new(&device)?;
        Ok(Self {
            device,
            gemm,
            tiles: attention::Cache::default(),
            rectangles: keys::Cache::default(),
            groups: experts::Cache::default(),
        })
    }

    /// The GPU's name.
    ///
    /// # Errors
    /// The driver fails.
    pub fn name(&self) -> Result<String> {
        self.device.context.name().map_err(driver)
    }

    /// Bytes of device memory in use at the worst moment so far.
    pub fn peak_bytes(&self) -> usize {
        self.device.pool.peak_bytes()
    }

    /// Wait for everything launched so far.
    ///
    /// # Errors
    /// An earlier kernel failed.
    pub fn synchronize(&self) -> Result<()> {
        self.device.needs_host("waiting")?;
        let _order = self.device.bind()?;
        self.device.stream.synchronize().map_err(driver)
    }

    /// Note each launch's time from now on, or no longer.
    pub fn profile(&self, on: bool) {
        self.device.profile().set(on);
    }

    /// What was noted since [`Self::profile`], the longest first; stops noting.
    ///
    /// # Errors
    /// An earlier kernel failed.
    pub fn profile_spans(&self) -> Result<Vec<Span>> {
        self.synchronize()?;
        self.device.profile().take()
    }

    /// The same, launch by launch.
    ///
    /// # Errors
    /// An earlier kernel failed.
    pub fn profile_laps(&self) -> Result<Vec<Lap>> {
        self.synchronize()?;
        self.device.profile().laps()
    }

    /// The same numbers in other memory.
    ///
    /// # Errors
    /// Out of memory, or the driver fails.
    pub fn copy(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.new_tensor(x.rows, x.cols, "a copy")?;
        self.device.copy(&x.block, &y.block, x.rows * x.cols * 2)?;
        Ok(y)
    }

    /// The bits of a tensor's numbers, which are bf16, in the memory of `into` where that is of their length: new memory costs as
    /// much as the copy does.
    ///
    /// # Errors
    /// The driver fails.
    pub fn read_bits(&self, x: &Tensor, into: Vec<u16>) -> Result<Vec<u16>> {
        self.device.download_bits(&x.block, x.rows * x.cols, into)
    }

    /// Mean milliseconds of one of `runs` calls, by device events.
    ///
    /// # Errors
    /// What `call` returns.
    pub fn time_ms(&self, runs: u32, call: impl FnMut() -> Result<()>) -> Result<f32> {
        self.device.time_ms(runs, call)
    }
}

fn driver(error: cudarc::driver::DriverError) -> Error {
    Error::Device {
        library: "driver",
        detail: error.to_string(),
    }
}
