//! The trainer's GPU as rank 0 of a group that the servers join.

use super::device::Computer;
use crate::config::{Device, Problem};
use slime_kernels::cuda::broadcast::Broadcaster;
use slime_rollout::publish::Caster;
use std::sync::Arc;

/// What broadcasts from `device`.
///
/// # Errors
/// `device` is no GPU, or there is no NCCL; the problem names the cure.
pub fn open(device: Device) -> Result<Arc<dyn Caster>, Problem> {
    if device != Device::Cuda {
        return Err(Problem::new(
            "weights are broadcast from a GPU, and the trainer computes on the CPU",
        )
        .help("choose `--set model.device=cuda`, or another --update-weight-transport"));
    }
    let sender = Broadcaster::open(Computer::FIRST_GPU).map_err(|e| {
        Problem::new(e.to_string()).help("another --update-weight-transport needs no NCCL")
    })?;
    Ok(Arc::new(Gpu(sender)))
}

struct Gpu(Broadcaster);

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
