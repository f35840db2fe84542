//! Launches noted once and made again at once: a CUDA graph. Where a step's launches take the host longer than the device, as
//! the decoding of small models and batches does, replays make the device the limit again.
//!
//! A graph holds the launches' arguments as they were, so its blocks stay its own ([`pool`](super::pool)), and what changes
//! from step to step lies in memory that stays where it is ([`tables`](super::tables)).

use super::pool::Recording;
use super::{Cuda, driver};
use crate::{Error, Replay, Result};
use cudarc::driver::CudaGraph;
use cudarc::driver::sys::{CUgraphInstantiate_flags, CUstreamCaptureMode};

/// The graph goes before the memory that it writes is given back.
struct Recorded {
    graph: CudaGraph,
    _memory: Recording,
}

// SAFETY: a graph may be used by any thread, one at a time; `Recorded` is not `Sync`, so it is.
unsafe impl Send for Recorded {}

impl Recorded {
    fn launch(&self) -> Result<()> {
        self.graph.launch().map_err(driver)
    }
}

impl Cuda {
    pub(super) fn recorded(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<Replay> {
        let device = &self.device;
        if device.profile().is_on() {
            return Err(Error::Device {
                library: "CUDA graph",
                detail: "launches that are timed one by one cannot be recorded".into(),
            });
        }
        let _alone = device.alone();
        // Memory may be taken meanwhile, which the other modes forbid.
        device
            .stream
            .begin_capture(CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED)
            .map_err(driver)?;
        let memory = device.pool.begin_recording();
        let done = work();
        device.pool.end_recording();
        // Ended even if the work failed, so that the stream computes again.
        let graph = device.stream.end_capture(CUgraphInstantiate_flags(0));
        done?;
        let graph = graph.map_err(driver)?.ok_or_else(|| Error::Device {
            library: "CUDA graph",
            detail: "nothing was recorded".into(),
        })?;
        let recorded = Recorded {
            graph,
            _memory: memory,
        };
        Ok(Box::new(move || recorded.launch()))
    }
}
