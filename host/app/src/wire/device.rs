//! What computes: the CPU in f32, or one NVIDIA GPU in bf16. Whoever computes is generic over `Ops`; the choice is made once,
//! with [`on_device`].

use crate::config::{Device, Dtype, Problem};
use slime_kernels::cuda::{Cuda, num_gpus};
use slime_kernels::{Cpu, Ops};
use slime_model::hf;
use slime_trainer::parallel::Training;
use slime_trainer::parallel::trainer::{Launch, gpus, threads};
use std::sync::Arc;

/// An open device.
#[derive(Clone)]
pub enum Computer {
    /// All cores.
    Cpu(Arc<Cpu<f32>>),
    /// The first GPU that the driver shows, and of a layout of several ranks the next ones too.
    Cuda(Arc<Cuda>),
}

impl Computer {
    /// The GPU that a process computes on.
    pub const FIRST_GPU: usize = 0;

    /// Open a device. Every call gives memory and a stream of its own.
    ///
    /// # Errors
    /// There is no such device, or a library of it is missing; the problem names the cure.
    pub fn open(device: Device) -> Result<Self, Problem> {
        match device {
            Device::Cpu => Cpu::own().map(Self::Cpu),
            Device::Cuda => Cuda::own().map(Self::Cuda),
        }
    }
}

/// A device on whose machine the ranks of a layout compute.
pub trait Machine: Ops + Sized {
    /// May ranks be processes?
    const PROCESSES: bool;
    /// Bytes of one number of a tensor.
    const NUMBER_BYTES: u64;

    /// Open the first one, with memory and a stream of its own.
    ///
    /// # Errors
    /// As [`Computer::open`].
    fn own() -> Result<Arc<Self>, Problem>;

    /// What makes each rank's device and its groups, the ranks being threads of this process. The first one is given.
    ///
    /// # Errors
    /// There are fewer devices than ranks need.
    fn launch(self: &Arc<Self>, training: &Training) -> slime_trainer::Result<Launch<Self>>;
}

impl Machine for Cpu<f32> {
    const PROCESSES: bool = true;
    const NUMBER_BYTES: u64 = 4;

    fn own() -> Result<Arc<Self>, Problem> {
        Ok(Arc::new(Self::new()))
    }

    /// All ranks share the cores.
    fn launch(self: &Arc<Self>, training: &Training) -> slime_trainer::Result<Launch<Self>> {
        let ops = self.clone();
        Ok(threads(training, move |_| Ok(ops.clone())))
    }
}

impl Machine for Cuda {
    const PROCESSES: bool = false;
    const NUMBER_BYTES: u64 = 2;

    fn own() -> Result<Arc<Self>, Problem> {
        let opened = Self::open(Computer::FIRST_GPU);
        opened.map(Arc::new).map_err(|e| {
            Problem::new(format!("no GPU can be used: {e}"))
                .help("`slime-host doctor` lists what is missing; without a GPU leave `device` out")
        })
    }

    /// A GPU a rank, numbers meeting by NCCL.
    fn launch(self: &Arc<Self>, training: &Training) -> slime_trainer::Result<Launch<Self>> {
        let (needed, found) = (training.parallel.world(), num_gpus()?);
        if needed > found {
            return Err(slime_trainer::Error::Config(vec![slime_trainer::Problem {
                key: "data_parallel_size",
                detail: format!(
                    "the layout has {needed} ranks, and each takes a GPU of its own; this process sees {found}"
                ),
            }]));
        }
        let first = self.clone();
        Ok(gpus(training, move |rank| match rank {
            0 => Ok(first.clone()),
            _ => Ok(Arc::new(Self::open(rank)?)),
        }))
    }
}

/// The numbers a device computes in, where others were asked for.
///
/// # Errors
/// It has no others.
pub fn check_dtype(device: Device, dtype: Option<Dtype>) -> Result<(), Problem> {
    device.refuses(dtype).map_or(Ok(()), |reason| {
        let cure = format!(
            "leave the dtype out, or choose the device {}",
            device.other()
        );
        Err(Problem::new(reason).help(cure))
    })
}

/// What engines are sent: the numbers that the trainer's forward pass used.
pub fn published(device: Device) -> hf::Dtype {
    match device {
        Device::Cpu => hf::Dtype::F32,
        Device::Cuda => hf::Dtype::Bf16,
    }
}

/// How much an engine on a device does at once, where nobody says.
pub struct Scale {
    /// Rows of one step.
    pub step_tokens: usize,
    /// Requests that run at once.
    pub running: usize,
    /// Tokens of a server's cache.
    pub cache_tokens: usize,
    /// Bytes of the cache of an engine beside a trainer, at most.
    pub cache_bytes: usize,
}

impl Scale {
    /// Of `device`.
    pub fn of(device: Device) -> Self {
        match device {
            Device::Cpu => Self {
                step_tokens: 512,
                running: 64,
                cache_tokens: 32 << 10,
                cache_bytes: 2 << 30,
            },
            Device::Cuda => Self {
                step_tokens: 8192,
                running: 256,
                cache_tokens: 256 << 10,
                cache_bytes: 16 << 30,
            },
        }
    }
}

/// Bytes of one number of a tensor.
pub fn bytes_of_number(device: Device) -> usize {
    match device {
        Device::Cpu => 4,
        Device::Cuda => 2,
    }
}

/// Do the same on whichever device is open: `$ops` is bound to its `Arc<impl Ops>`.
macro_rules! on_device {
    ($computer:expr, $ops:ident => $body:expr) => {
        match $computer {
            $crate::wire::device::Computer::Cpu($ops) => $body,
            $crate::wire::device::Computer::Cuda($ops) => $body,
        }
    };
}
pub(crate) use on_device;
