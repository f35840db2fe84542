//! Bytes from this process's GPU to those of other processes, over NCCL: rank 0 of a group whose other ranks are elsewhere.
//!
//! It has a stream of its own, so that a broadcast orders nothing with what is computed; a tensor leaves from where it lies.
//! Read [`super::nccl`] for groups that compute together.

use super::nccl::{Api, Line, UniqueId};
use super::{Cuda, Tensor, driver};
use crate::{Error, Result};
use cudarc::driver::{CudaContext, CudaStream, DevicePtrMut};
use std::ffi::c_int;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// NCCL's number for bytes.
const UINT8: c_int = 1;

/// Rank 0.
pub struct Broadcaster {
    api: &'static Api,
    stream: Arc<CudaStream>,
    line: Mutex<Option<Arc<Line>>>,
}

impl Broadcaster {
    /// Send from GPU `ordinal`.
    ///
    /// # Errors
    /// There is no NCCL (the message says what to install), or no such GPU.
    pub fn open(ordinal: usize) -> Result<Self> {
        let context = CudaContext::new(ordinal).map_err(driver)?;
        Ok(Self {
            api: Api::get()?,
            stream: context.new_stream().map_err(driver)?,
            line: Mutex::default(),
        })
    }

    fn line(&self) -> MutexGuard<'_, Option<Arc<Line>>> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// An id for a new group: the 128 bytes of an `ncclUniqueId`.
    ///
    /// # Errors
    /// NCCL's words.
    pub fn new_id(&self) -> Result<Vec<u8>> {
        Ok(UniqueId::new(self.api)?.0.to_vec())
    }

    /// Join group `id` as rank 0 of `world_size`; returns when all have joined. The group before is left.
    ///
    /// # Errors
    /// `id` is not of 128 bytes, or NCCL's words.
    pub fn join(&self, id: &[u8], world_size: usize) -> Result<()> {
        self.join_as(id, world_size, 0)
    }

    /// Join it as one of those that are sent to, as a server does.
    ///
    /// # Errors
    /// As [`Self::join`].
    pub fn join_as(&self, id: &[u8], world_size: usize, rank: usize) -> Result<()> {
        self.abort();
        let id = id
            .try_into()
            .map_err(|_| Error::Comm(format!("a group's id has 128 bytes, not {}", id.len())))?;
        self.stream.context().bind_to_thread().map_err(driver)?;
        *self.line() = Some(Line::new(self.api, world_size, rank, UniqueId(id))?);
        Ok(())
    }

    /// Send `bytes` to every rank of the group; returns when they have left.
    ///
    /// # Errors
    /// No group was joined, the group was left meanwhile, or NCCL's words.
    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        self.stream.context().bind_to_thread().map_err(driver)?;
        let mut on_device = self.stream.clone_htod(bytes).map_err(driver)?;
        let (at, _guard) = on_device.device_ptr_mut(&self.stream);
        // SAFETY: as many bytes lie there until the stream has been waited for.
        unsafe { self.broadcast(at, bytes.len()) }
    }

    /// Send the numbers of `x`, which lies on `cuda`, as they lie there.
    ///
    /// # Errors
    /// As [`Self::send`]; also where `cuda` is another GPU.
    pub fn send_tensor(&self, cuda: &Cuda, x: &Tensor) -> Result<()> {
        let (own, theirs) = (
            self.stream.context().ordinal(),
            cuda.device.context.ordinal(),
        );
        if own != theirs {
            let reason = format!("a tensor of GPU {theirs} cannot be sent from GPU {own}");
            return Err(Error::Comm(reason));
        }
        // What writes it is on another stream.
        cuda.synchronize()?;
        // SAFETY: 2 bytes a number lie there, and the caller holds them until the stream has been waited for.
        unsafe { self.broadcast(x.block.ptr, 2 * x.rows * x.cols) }
    }

    /// As many bytes as rank 0 sends now.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn receive(&self, len: usize) -> Result<Vec<u8>> {
        self.stream.context().bind_to_thread().map_err(driver)?;
        let mut on_device = self.stream.alloc_zeros::<u8>(len).map_err(driver)?;
        let (at, guard) = on_device.device_ptr_mut(&self.stream);
        // SAFETY: as many bytes lie there until the stream has been waited for.
        unsafe { self.broadcast(at, len)? };
        drop(guard);
        self.stream.clone_dtoh(&on_device).map_err(driver)
    }

    /// Take part in one broadcast, from or to the `len` bytes at `at`, and wait for its end.
    ///
    /// # Safety
    /// They are there until this returns.
    unsafe fn broadcast(&self, at: u64, len: usize) -> Result<()> {
        let line = self.line().clone();
        let line = line.ok_or_else(|| Error::Comm("no group was joined".into()))?;
        self.stream.context().bind_to_thread().map_err(driver)?;
        let (at, stream) = (at as *mut std::ffi::c_void, self.stream.cu_stream().cast());
        // SAFETY: the caller's.
        let status = line.with(|handle| unsafe {
            (self.api.broadcast)(at, at, len, UINT8, 0, handle, stream)
        })?;
        self.api.check("ncclBroadcast", status)?;
        self.stream.synchronize().map_err(driver)
    }

    /// Leave the group at once, and free whoever waits in [`Self::send`].
    pub fn abort(&self) {
        if let Some(line) = self.line().take() {
            line.abort(self.api);
        }
    }
}

impl Drop for Broadcaster {
    fn drop(&mut self) {
        if let Some(line) = self.line().take() {
            line.destroy(self.api);
        }
    }
}
