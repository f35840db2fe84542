//! NCCL's functions, found at run time, and its communicators.
//!
//! A small binding of our own, because pip's and the distributions' file is `libnccl.so.2`, which cudarc does not try.

use crate::cuda::library;
use crate::{Error, Result};
use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// `ncclInvalidUsage`: what another version's rank gets, among others.
const INVALID_USAGE: Status = 5;
const NAMES: [&str; 2] = ["libnccl.so.2", "libnccl.so"];

/// NCCL's numbers for what we send.
pub(super) const BF16: c_int = 9;
pub(super) const F32: c_int = 7;
pub(super) const SUM: c_int = 0;

/// What all members of a group know before they meet.
#[derive(Clone, Copy)]
#[repr(C)]
pub(in crate::cuda) struct UniqueId(pub(in crate::cuda) [u8; 128]);

impl UniqueId {
    pub(in crate::cuda) fn new(api: &Api) -> Result<Self> {
        let mut id = Self([0; 128]);
        // SAFETY: writes 128 bytes.
        api.check("ncclGetUniqueId", unsafe { (api.unique_id)(&mut id) })?;
        Ok(id)
    }
}

pub(in crate::cuda) type Handle = *mut c_void;
pub(in crate::cuda) type Status = c_int;
type Reducing = unsafe extern "C" fn(
    *const c_void,
    *mut c_void,
    usize,
    c_int,
    c_int,
    Handle,
    *mut c_void,
) -> Status;

/// The functions used, as nccl.h declares them.
pub(in crate::cuda) struct Api {
    version: unsafe extern "C" fn(*mut c_int) -> Status,
    unique_id: unsafe extern "C" fn(*mut UniqueId) -> Status,
    init_rank: unsafe extern "C" fn(*mut Handle, c_int, UniqueId, c_int) -> Status,
    destroy: unsafe extern "C" fn(Handle) -> Status,
    abort: unsafe extern "C" fn(Handle) -> Status,
    words: unsafe extern "C" fn(Status) -> *const c_char,
    pub(super) all_reduce: Reducing,
    pub(super) reduce_scatter: Reducing,
    pub(super) all_gather: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        Handle,
        *mut c_void,
    ) -> Status,
    pub(super) send:
        unsafe extern "C" fn(*const c_void, usize, c_int, c_int, Handle, *mut c_void) -> Status,
    pub(super) recv:
        unsafe extern "C" fn(*mut c_void, usize, c_int, c_int, Handle, *mut c_void) -> Status,
    pub(in crate::cuda) broadcast: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Handle,
        *mut c_void,
    ) -> Status,
    pub(super) group_start: unsafe extern "C" fn() -> Status,
    pub(super) group_end: unsafe extern "C" fn() -> Status,
}

pub(super) fn failed(detail: impl Into<String>) -> Error {
    Error::Device {
        library: "nccl",
        detail: detail.into(),
    }
}

impl Api {
    fn open() -> std::result::Result<Self, String> {
        let mut found = None;
        let folders = library::folders();
        let paths = folders
            .iter()
            .flat_map(|folder| NAMES.iter().map(move |name| folder.join(name)))
            .filter(|path| path.exists())
            .chain(NAMES.iter().map(std::path::PathBuf::from));
        for path in paths {
            // SAFETY: NCCL's initialisers depend on nothing of ours. Local, because a second copy in the process (PyTorch's)
            // must not lend it symbols.
            if let Ok(library) = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) } {
                found = Some(library);
                break;
            }
        }
        let library = found.ok_or(
            "libnccl.so.2 was not found: install NCCL 2, or PyTorch in the active Python environment",
        )?;
        macro_rules! symbol {
            ($name:literal) => {
                // SAFETY: the field it is assigned to has the type nccl.h declares for it.
                *unsafe { library.get(concat!($name, "\0").as_bytes()) }
                    .map_err(|e| format!("{} is missing: {e}", $name))?
            };
        }
        let api = Self {
            version: symbol!("ncclGetVersion"),
            unique_id: symbol!("ncclGetUniqueId"),
            init_rank: symbol!("ncclCommInitRank"),
            destroy: symbol!("ncclCommDestroy"),
            abort: symbol!("ncclCommAbort"),
            words: symbol!("ncclGetErrorString"),
            all_reduce: symbol!("ncclAllReduce"),
            reduce_scatter: symbol!("ncclReduceScatter"),
            all_gather: symbol!("ncclAllGather"),
            send: symbol!("ncclSend"),
            recv: symbol!("ncclRecv"),
            broadcast: symbol!("ncclBroadcast"),
            group_start: symbol!("ncclGroupStart"),
            group_end: symbol!("ncclGroupEnd"),
        };
        // Its threads outlive every communicator, so it is never unloaded.
        std::mem::forget(library);
        Ok(api)
    }

    pub(in crate::cuda) fn get() -> Result<&'static Self> {
        static API: OnceLock<std::result::Result<Api, String>> = OnceLock::new();
        match API.get_or_init(Self::open) {
            Ok(api) => Ok(api),
            Err(detail) => Err(failed(detail.clone())),
        }
    }

    pub(in crate::cuda) fn check(&self, op: &str, status: Status) -> Result<()> {
        if status == 0 {
            return Ok(());
        }
        // SAFETY: NCCL gives a constant, NUL-terminated string for any status.
        let words = unsafe { CStr::from_ptr((self.words)(status)) };
        Err(failed(format!("{op}: {}", words.to_string_lossy())))
    }
}

/// NCCL's version, as it writes it: 22903 is 2.29.3.
///
/// # Errors
/// There is no NCCL on this machine; the message says what to install.
pub fn version() -> Result<i32> {
    let api = Api::get()?;
    let mut version = 0;
    // SAFETY: writes one int.
    api.check("ncclGetVersion", unsafe { (api.version)(&mut version) })?;
    Ok(version)
}

/// One communicator. Its handle is kept as an address; calls on it are made one at a time.
pub(in crate::cuda) struct Line {
    address: usize,
    one_at_a_time: Mutex<()>,
    aborted: AtomicBool,
}

impl Line {
    /// All members call it at once; `id` is the same on all.
    pub(in crate::cuda) fn new(
        api: &Api,
        size: usize,
        rank: usize,
        id: UniqueId,
    ) -> Result<Arc<Self>> {
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: writes one handle; the current device is this rank's, bound by the caller.
        let status = unsafe { (api.init_rank)(&mut handle, size as c_int, id, rank as c_int) };
        if status == INVALID_USAGE {
            let version = version().unwrap_or_default();
            return Err(failed(format!(
                "no group of {size} ranks was formed. All of them need one version of NCCL, and this one has {version}; NCCL_DEBUG=WARN says more"
            )));
        }
        api.check("ncclCommInitRank", status)?;
        Ok(Arc::new(Self {
            address: handle as usize,
            one_at_a_time: Mutex::default(),
            aborted: AtomicBool::new(false),
        }))
    }

    pub(in crate::cuda) fn with(&self, call: impl FnOnce(Handle) -> Status) -> Result<Status> {
        let lock = self.one_at_a_time.lock();
        let _held = lock.unwrap_or_else(PoisonError::into_inner);
        if self.aborted.load(Ordering::Acquire) {
            return Err(Error::Comm("the communicator was aborted".into()));
        }
        Ok(call(self.address as Handle))
    }

    /// Free whoever waits in it. Not under the lock: a thread that waits inside a call holds it.
    pub(in crate::cuda) fn abort(&self, api: &Api) {
        if !self.aborted.swap(true, Ordering::AcqRel) {
            // SAFETY: the handle came from ncclCommInitRank, is not destroyed once `aborted` is set, and may be aborted
            // while others wait in it.
            let _ = unsafe { (api.abort)(self.address as Handle) };
        }
    }

    pub(in crate::cuda) fn destroy(&self, api: &Api) {
        if !self.aborted.swap(true, Ordering::AcqRel) {
            // SAFETY: the handle is live and nothing uses it from now on.
            let _ = unsafe { (api.destroy)(self.address as Handle) };
        }
    }
}
