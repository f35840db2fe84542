//! The trainer's GPU as rank 0 of a group that the servers join.

use crate::config::{Device, Problem};
use slime_kernels::cuda::broadcast::Broadcaster;
use slime_rollout::publish::Caster;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

/// Whether NCCL's memory is shared through cuMem handles. SGLang's servers turn it off unless they find it set.
const CUMEM: &str = "NCCL_CUMEM_ENABLE";

/// Give this process the memory handles that servers expect: two sides that differ get "invalid argument" of each other's.
/// NCCL asks its environment once, and a process cannot change its own safely while others may read it, so the program
/// starts anew with it, as the same process. Returns where nothing had to change; servers started later inherit it.
///
/// # Errors
/// The program could not be started again.
pub fn same_memory_as_servers() -> Result<(), Problem> {
    if std::env::var_os(CUMEM).is_some() {
        return Ok(());
    }
    let failed = |e: std::io::Error| {
        Problem::new(format!(
            "the program could not start anew with {CUMEM}=0: {e}"
        ))
        .help(format!("set {CUMEM}=0 yourself, as SGLang does"))
    };
    let mut words = std::env::args_os();
    let mut again = Command::new(std::env::current_exe().map_err(failed)?);
    if let Some(name) = words.next() {
        again.arg0(name);
    }
    Err(failed(again.args(words).env(CUMEM, "0").exec()))
}

/// What broadcasts from `device`.
///
/// # Errors
/// `device` is no GPU, or there is no NCCL; the problem names the cure.
pub fn open(device: Device) -> Result<Arc<Gpu>, Problem> {
    if device != Device::Cuda {
        return Err(Problem::new(
            "weights are broadcast from a GPU, and the trainer computes on the CPU",
        )
        .help("choose `--set model.device=cuda`, or another --update-weight-transport"));
    }
    let sender = Broadcaster::open(super::device::own_gpu()?).map_err(|e| {
        Problem::new(e.to_string()).help("another --update-weight-transport needs no NCCL")
    })?;
    Ok(Arc::new(Gpu(sender)))
}

/// The GPU that sends.
pub struct Gpu(pub Broadcaster);

impl Caster for Gpu {
    fn new_id(&self) -> Result<Vec<u8>, String> {
        self.0.new_id().map_err(|e| e.to_string())
    }

    fn join(&self, id: &[u8], world_size: usize) -> Result<(), String> {
        self.0.join(id, world_size).map_err(|e| e.to_string())
    }

    fn send(&self, bytes: &[u8]) -> Result<(), String> {
        self.0.send(bytes).map_err(|e| e.to_string())
    }

    fn abort(&self) {
        self.0.abort();
    }
}
