//! One GPU: its context, its one stream, its memory and its compiled kernels.

use super::nvrtc::{self, Source};
use super::pool::{Block, Pool};
use super::profile::Profile;
use super::{driver, library};
use crate::{Error, Result};
use cudarc::driver::sys::{self, CUdevice_attribute, CUevent_flags, CUfunction_attribute_enum};
use cudarc::driver::{
    CudaContext, CudaEvent, CudaFunction, CudaStream, DeviceRepr, LaunchConfig, PinnedHostSlice,
    PushKernelArg, result,
};
use half::bf16;
use rayon::prelude::*;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A kernel's argument.
#[derive(Clone, Copy)]
pub(super) enum Arg {
    Ptr(u64),
    Int(i32),
    Long(i64),
    Float(f32),
    Map(TensorMap),
}

/// How the bulk copy engine finds boxes of 64 x 64 in a bf16 matrix, written swizzled by 128 bytes.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct TensorMap(sys::CUtensorMap);

// SAFETY: 128 bytes that the driver wrote and kernels read as they are.
unsafe impl DeviceRepr for TensorMap {}

impl TensorMap {
    pub(super) fn new(ptr: u64, rows: usize, cols: usize) -> Result<Self> {
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let (sizes, strides) = ([cols as u64, rows as u64], [cols as u64 * 2]);
        let (tile, steps) = ([64u32, 64], [1u32, 1]);
        // SAFETY: every pointer is to a live local of the length that a matrix of rank 2 needs; `ptr` is only recorded.
        unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                sys::CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
                2,
                ptr as *mut std::ffi::c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        }
        .result()
        .map_err(driver)?;
        Ok(Self(map))
    }
}

pub(super) struct Device {
    pub(super) context: Arc<CudaContext>,
    pub(super) stream: Arc<CudaStream>,
    pub(super) pool: Arc<Pool>,
    pub(super) num_sms: u32,
    arch: String,
    functions: Mutex<HashMap<(&'static str, &'static str, Vec<String>), CudaFunction>>,
    profile: Profile,
    /// Page-locked memory, kept for the next time.
    pinned: Mutex<Vec<PinnedHostSlice<f32>>>,
    /// Held by whoever uses the stream, and alone by who records it.
    order: RwLock<()>,
}

/// Numbers on their way to the host.
pub(super) struct Pinned {
    memory: PinnedHostSlice<f32>,
    len: usize,
    done: CudaEvent,
}

impl Device {
    pub(super) fn open(ordinal: usize, poison: bool) -> Result<Self> {
        if let Some(missing) = library::discover()
            .iter()
            .find(|found| found.path.is_none())
        {
            let cure = match missing.name {
                "driver" => "no NVIDIA driver on this machine",
                _ => "install the CUDA 13 toolkit, or PyTorch in the active Python environment",
            };
            return Err(Error::Device {
                library: missing.name,
                detail: format!("not found: {cure}"),
            });
        }
        let context = CudaContext::new(ordinal).map_err(driver)?;
        // SAFETY: all work of this device runs on its one stream, so there is nothing for events to order.
        unsafe { context.disable_event_tracking() };
        let stream = context.new_stream().map_err(driver)?;
        let (major, minor) = context.compute_capability().map_err(driver)?;
        let sms = context
            .attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)
            .map_err(driver)?;
        let suffix = if major >= 9 { "a" } else { "" };
        Ok(Self {
            pool: Pool::new(Arc::clone(&context), poison.then(|| Arc::clone(&stream))),
            context,
            stream,
            num_sms: sms as u32,
            arch: format!("sm_{major}{minor}{suffix}"),
            functions: Mutex::default(),
            profile: Profile::default(),
            pinned: Mutex::default(),
            order: RwLock::default(),
        })
    }

    /// Can it run wgmma and bulk copies?
    pub(super) fn is_hopper(&self) -> bool {
        self.arch == "sm_90a"
    }

    /// Use the device from this thread. While the answer is held no other thread begins a recording, which would take what is
    /// asked for as its own; who holds one does not ask again.
    pub(super) fn bind(&self) -> Result<Option<RwLockReadGuard<'_, ()>>> {
        self.context.bind_to_thread().map_err(driver)?;
        if self.pool.is_recorded_here() {
            return Ok(None);
        }
        Ok(Some(self.order.read().unwrap_or_else(|e| e.into_inner())))
    }

    /// Everybody else waits until this is dropped.
    pub(super) fn alone(&self) -> RwLockWriteGuard<'_, ()> {
        self.order.write().unwrap_or_else(|e| e.into_inner())
    }

    /// An error in a recording, of which the host is no part.
    pub(super) fn needs_host(&self, what: &str) -> Result<()> {
        if !self.pool.is_recorded_here() {
            return Ok(());
        }
        Err(Error::Device {
            library: "CUDA graph",
            detail: format!("{what} needs the host, which takes no part in recorded work"),
        })
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
        self.launch_on(
            &self.stream,
            source,
            name,
            grid,
            threads,
            shared_bytes,
            args,
        )
    }

    /// The same on another stream than the device's.
    #[allow(clippy::too_many_arguments, reason = "a launch has so many")]
    pub(super) fn launch_on(
        &self,
        stream: &Arc<CudaStream>,
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
        let _order = self.bind()?;
        let function = self.function(source, name, shared_bytes)?;
        let mut builder = stream.launch_builder(&function);
        for arg in args {
            match arg {
                Arg::Ptr(v) => builder.arg(v),
                Arg::Int(v) => builder.arg(v),
                Arg::Long(v) => builder.arg(v),
                Arg::Float(v) => builder.arg(v),
                Arg::Map(v) => builder.arg(v),
            };
        }
        let config = LaunchConfig {
            grid_dim: grid,
            block_dim: (threads, 1, 1),
            shared_mem_bytes: shared_bytes,
        };
        let span = self.profile.begin(stream)?;
        // SAFETY: each call site lists the arguments of the kernel it names, in order and of its types; the blocks they
        // point to are held by the caller and outlive the launch because memory is reused in stream order only.
        unsafe { builder.launch(config) }.map_err(driver)?;
        self.profile.end(stream, span, || name.into())
    }

    /// Where each launch's time is noted, when asked for.
    pub(super) fn profile(&self) -> &Profile {
        &self.profile
    }

    fn function(
        &self,
        source: &Source,
        name: &'static str,
        shared_bytes: u32,
    ) -> Result<CudaFunction> {
        let key = (source.name, name, source.defines.clone());
        let mut functions = self.functions.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(function) = functions.get(&key) {
            return Ok(function.clone());
        }
        let image = nvrtc::cubin(source, &self.arch)?;
        let module = self
            .context
            .load_module(cudarc::nvrtc::Ptx::from_binary(image))
            .map_err(driver)?;
        let function = module.load_function(name).map_err(driver)?;
        // More than 48 KiB, a kernel's own static memory included, needs asking for.
        if shared_bytes > 32 << 10 {
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
        self.needs_host("an upload")?;
        let _order = self.bind()?;
        // SAFETY: the block is at least as large as `data`. The copy from pageable memory has read `data` when it returns.
        unsafe { result::memcpy_htod_async(block.ptr, data, self.stream.cu_stream()) }
            .map_err(driver)
    }

    pub(super) fn download<T: Default + Clone>(&self, block: &Block, len: usize) -> Result<Vec<T>> {
        self.needs_host("a download")?;
        let mut data = vec![T::default(); len];
        let _order = self.bind()?;
        // Before the copy: to ordinary memory the driver makes it at once, under a lock that another rank of this GPU may need
        // to begin what the stream waits for.
        self.stream.synchronize().map_err(driver)?;
        // SAFETY: the block holds at least `len` values of T, a plain number type; the stream is waited for below.
        unsafe { result::memcpy_dtoh_async(&mut data, block.ptr, self.stream.cu_stream()) }
            .map_err(driver)?;
        self.stream.synchronize().map_err(driver)?;
        Ok(data)
    }

    /// `len` f32.
    pub(super) fn download_singles(&self, block: &Block, len: usize) -> Result<Vec<f32>> {
        self.download_all(block, len, Vec::new(), f32::from_bits)
    }

    /// `len` bf16 as f32.
    pub(super) fn download_halves(&self, block: &Block, len: usize) -> Result<Vec<f32>> {
        let of = |half| bf16::from_bits(half).to_f32();
        self.download_all(block, len, Vec::new(), of)
    }

    /// The bits of `len` bf16.
    pub(super) fn download_bits(
        &self,
        block: &Block,
        len: usize,
        into: Vec<u16>,
    ) -> Result<Vec<u16>> {
        self.download_all(block, len, into, |half| half)
    }

    /// What `of` makes of the bits of `len` numbers, on all cores while the next ones are on their way; `into` memory that has room
    /// for just so many, or else into new one.
    fn download_all<B: bytemuck::AnyBitPattern + Sync, T: Default + Clone + Send>(
        &self,
        block: &Block,
        len: usize,
        into: Vec<T>,
        of: impl Fn(B) -> T + Sync,
    ) -> Result<Vec<T>> {
        const CHUNK: usize = 8 << 20;
        let mut values = match into.len() == len {
            true => into,
            false => vec![T::default(); len],
        };
        // A block is longer than its numbers, so that a part of a word more may be read.
        let fetch = |at: usize| {
            let words = (CHUNK.min(len - at) * size_of::<B>()).div_ceil(4);
            self.fetch(block.ptr + (at * size_of::<B>()) as u64, words)
        };
        let mut coming = (len > 0).then(|| fetch(0)).transpose()?;
        for at in (0..len).step_by(CHUNK) {
            let here = coming.take();
            if at + CHUNK < len {
                coming = Some(fetch(at + CHUNK)?);
            }
            let Some(here) = here else { break };
            let end = len.min(at + CHUNK);
            self.once_arrived(here, |words| {
                let bits: &[B] = bytemuck::cast_slice(words);
                let parts = values[at..end].par_chunks_mut(1 << 16);
                parts.zip(bits.par_chunks(1 << 16)).for_each(|(to, from)| {
                    for (to, bits) in to.iter_mut().zip(from) {
                        *to = of(*bits);
                    }
                });
            })?;
        }
        Ok(values)
    }

    /// Queue a copy to the host, which is there when [`Self::arrived`] returns; what is queued later does not delay it.
    pub(super) fn fetch(&self, from: u64, len: usize) -> Result<Pinned> {
        self.needs_host("a download")?;
        let _order = self.bind()?;
        let mut memory = match self.pinned_of(len) {
            Some(memory) => memory,
            // SAFETY: every number that is read was copied there before, and any bits are an f32.
            None => unsafe {
                self.context
                    .alloc_pinned_with_flags(len.next_power_of_two(), 0)
            }
            .map_err(driver)?,
        };
        let to = &mut memory.as_mut_slice().map_err(driver)?[..len];
        // SAFETY: the source holds `len` numbers, and the destination lives until `arrived` has waited.
        unsafe { result::memcpy_dtoh_async(to, from, self.stream.cu_stream()) }.map_err(driver)?;
        let done = self.stream.record_event(None).map_err(driver)?;
        Ok(Pinned { memory, len, done })
    }

    pub(super) fn arrived(&self, pinned: Pinned) -> Result<Vec<f32>> {
        self.once_arrived(pinned, <[f32]>::to_vec)
    }

    fn once_arrived<R>(&self, pinned: Pinned, take: impl FnOnce(&[f32]) -> R) -> Result<R> {
        let Pinned { memory, len, done } = pinned;
        done.synchronize().map_err(driver)?;
        let values = take(&memory.as_slice().map_err(driver)?[..len]);
        self.pinned().push(memory);
        Ok(values)
    }

    /// The smallest that is kept and holds `len` numbers: to make page-locked memory takes milliseconds.
    fn pinned_of(&self, len: usize) -> Option<PinnedHostSlice<f32>> {
        let mut kept = self.pinned();
        let fit = (0..kept.len()).filter(|&i| kept[i].len() >= len);
        let best = fit.min_by_key(|&i| kept[i].len())?;
        Some(kept.swap_remove(best))
    }

    fn pinned(&self) -> MutexGuard<'_, Vec<PinnedHostSlice<f32>>> {
        self.pinned.lock().unwrap_or_else(|e| e.into_inner())
    }

    pub(super) fn zero(&self, block: &Block, bytes: usize) -> Result<()> {
        let _order = self.bind()?;
        // SAFETY: the block is at least `bytes` long.
        unsafe { result::memset_d8_async(block.ptr, 0, bytes, self.stream.cu_stream()) }
            .map_err(driver)
    }

    pub(super) fn copy(&self, from: &Block, to: &Block, bytes: usize) -> Result<()> {
        let _order = self.bind()?;
        // SAFETY: both blocks are at least `bytes` long.
        unsafe { result::memcpy_dtod_async(to.ptr, from.ptr, bytes, self.stream.cu_stream()) }
            .map_err(driver)
    }

    /// Mean time of one of `runs` calls.
    pub(super) fn time_ms(&self, runs: u32, mut call: impl FnMut() -> Result<()>) -> Result<f32> {
        self.needs_host("timing")?;
        let mark = || {
            self.stream
                .record_event(Some(CUevent_flags::CU_EVENT_DEFAULT))
                .map_err(driver)
        };
        let start = mark()?;
        for _ in 0..runs {
            call()?;
        }
        let end = mark()?;
        Ok(start.elapsed_ms(&end).map_err(driver)? / runs as f32)
    }
}
