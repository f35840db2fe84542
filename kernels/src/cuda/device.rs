//! One GPU: its context, its one stream, its memory and its compiled kernels.

use super::nvrtc::{self, Source};
use super::pool::{Block, Pool};
use super::{driver, library};
use crate::{Error, Result};
use cudarc::driver::sys::{CUdevice_attribute, CUevent_flags, CUfunction_attribute_enum};
use cudarc::driver::{CudaContext, CudaFunction, CudaStream, LaunchConfig, PushKernelArg, result};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A kernel's argument.
#[derive(Clone, Copy)]
pub(super) enum Arg {
    Ptr(u64),
    Int(i32),
    Long(i64),
    Float(f32),
}

pub(super) struct Device {
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    pub(super) pool: Arc<Pool>,
    pub(super) num_sms: u32,
    arch: String,
    functions: Mutex<HashMap<(&'static str, &'static str, Vec<String>), CudaFunction>>,
}

impl Device {
    pub(super) fn open(ordinal: usize) -> Result<Self> {
        if let Some(missing) = library::discover().iter().find(|found| found.path.is_none()) {
            let cure = match missing.name {
                "driver" => "no NVIDIA driver on this machine; use `--device cpu`",
                _ => "install the CUDA 13 toolkit, or PyTorch in the active Python environment",
            };
            return Err(Error::Device { library: missing.name, detail: format!("not found: {cure}") });
        }
        let context = CudaContext::new(ordinal).map_err(driver)?;
        // SAFETY: all work of this device runs on its one stream, so there is nothing for events to order.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(driver)?;
        let (major, minor) = context.compute_capability().map_err(driver)?;
        let sms =
            context.attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT).map_err(driver)?;
        let suffix = if major >= 9 { "a" } else { "" };
        Ok(Self {
            pool: Pool::new(Arc::clone(&context)),
            context,
            stream,
            num_sms: sms as u32,
            arch: format!("sm_{major}{minor}{suffix}"),
            functions: Mutex::default(),
        })
    }

    pub(super) fn bind(&self) -> Result<()> {
        self.context.bind_to_thread().map_err(driver)
    }

    /// Launch `name` of a kernel file. Grids of zero blocks are not launched.
    pub(super) fn launch(
        &self,
        source: &Source,
        name: &'static str,
        grid: (u32, u32, u32),
        threads: u32,
        shared_bytes: u32,
        args: &[Arg],
    ) -> Result<()> {
        if grid.0 == 0 || grid.1 == 0 || grid.2 == 0 {
            return Ok(());
        }
        self.bind()?;
        let function = self.function(source, name, shared_bytes)?;
        let mut builder = self.stream.launch_builder(&function);
        for arg in args {
            match arg {
                Arg::Ptr(v) => builder.arg(v),
                Arg::Int(v) => builder.arg(v),
                Arg::Long(v) => builder.arg(v),
                Arg::Float(v) => builder.arg(v),
            };
        }
        let config = LaunchConfig { grid_dim: grid, block_dim: (threads, 1, 1), shared_mem_bytes: shared_bytes };
        // SAFETY: each call site lists the arguments of the kernel it names, in order and of its types; the blocks they
        // point to are held by the caller and outlive the launch because memory is reused in stream order only.
        unsafe { builder.launch(config) }.map(|_| ()).map_err(driver)
    }

    fn function(&self, source: &Source, name: &'static str, shared_bytes: u32) -> Result<CudaFunction> {
        let key = (source.name, name, source.defines.clone());
        let mut functions = self.functions.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(function) = functions.get(&key) {
            return Ok(function.clone());
        }
        let image = nvrtc::cubin(source, &self.arch)?;
        let module = self.context.load_module(cudarc::nvrtc::Ptx::from_binary(image)).map_err(driver)?;
        let function = module.load_function(name).map_err(driver)?;
        if shared_bytes > 48 << 10 {
            function
                .set_attribute(
                    CUfunction_attribute_enum::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                    shared_bytes as i32,
                )
                .map_err(driver)?;
        }
        functions.insert(key, function.clone());
        Ok(function)
    }

    pub(super) fn upload<T>(&self, data: &[T], what: &str) -> Result<Block> {
        let block = self.pool.take(size_of_val(data), what)?;
        self.write(&block, data)?;
        Ok(block)
    }

    pub(super) fn write<T>(&self, block: &Block, data: &[T]) -> Result<()> {
        self.bind()?;
        // SAFETY: the block is at least as large as `data`. The copy from pageable memory has read `data` when it returns.
        unsafe { result::memcpy_htod_async(block.ptr, data, self.stream.cu_stream()) }.map_err(driver)
    }

    pub(super) fn download<T: Default + Clone>(&self, block: &Block, len: usize) -> Result<Vec<T>> {
        let mut data = vec![T::default(); len];
        self.bind()?;
        // SAFETY: the block holds at least `len` values of T, a plain number type; the stream is waited for below.
        unsafe { result::memcpy_dtoh_async(&mut data, block.ptr, self.stream.cu_stream()) }.map_err(driver)?;
        self.stream.synchronize().map_err(driver)?;
        Ok(data)
    }

    pub(super) fn zero(&self, block: &Block, bytes: usize) -> Result<()> {
        self.bind()?;
        // SAFETY: the block is at least `bytes` long.
        unsafe { result::memset_d8_async(block.ptr, 0, bytes, self.stream.cu_stream()) }.map_err(driver)
    }

    /// Mean time of one of `runs` calls.
    pub(super) fn time_ms(&self, runs: u32, mut call: impl FnMut() -> Result<()>) -> Result<f32> {
        let mark = || self.stream.record_event(Some(CUevent_flags::CU_EVENT_DEFAULT)).map_err(driver);
        let start = mark()?;
        for _ in 0..runs {
            call()?;
        }
        let end = mark()?;
        Ok(start.elapsed_ms(&end).map_err(driver)? / runs as f32)
    }
}
