//! What computes: the CPU in f32, or one NVIDIA GPU in bf16. Whoever computes is generic over `Ops`; the choice is made once,
//! with [`on_device`].

use crate::config::{Device, Dtype, Problem};
use slime_kernels::comm::Processes;
use slime_kernels::cuda::broadcast::Broadcaster;
use slime_kernels::cuda::{Cuda, num_gpus};
use slime_kernels::{Cpu, Ops};
use slime_model::hf;
use slime_trainer::parallel::mesh::Meeting;
use slime_trainer::parallel::trainer::{Launch, gpus, threads};
use slime_trainer::parallel::{Mesh, Training};
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
    /// How ranks that are processes meet.
    const MEETING: Meeting<Self, Processes>;
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

    /// Send a tensor from where it lies to the group that `by` has joined.
    ///
    /// # Errors
    /// Tensors do not lie on a GPU, or NCCL's words.
    fn send(&self, x: &Self::Tensor, by: &Broadcaster) -> slime_kernels::Result<()>;

    /// The numbers of a tensor in 16 bits, in the memory of `into` where that is of their length.
    ///
    /// # Errors
    /// They have more, or the device failed.
    fn bits(&self, x: &Self::Tensor, into: Vec<u16>) -> slime_kernels::Result<Vec<u16>>;
}

/// What a device without tensors of 16 bits on a GPU says.
fn not_on_a_gpu<T>() -> slime_kernels::Result<T> {
    let reason = "weights are broadcast from a GPU, and the trainer computes on the CPU";
    Err(slime_kernels::Error::Comm(reason.into()))
}

/// Whoever starts several processes on a machine tells each its place there by this name.
const LOCAL_RANK: &str = "LOCAL_RANK";

fn unusable(why: slime_kernels::Error) -> Problem {
    Problem::new(format!("no GPU can be used: {why}"))
        .help("`slime-host doctor` lists what is missing; without a GPU leave `device` out")
}

/// The GPU that this process computes on first: of those it sees the one of its place on this machine, or the only one.
///
/// # Errors
/// It has none of its own; the problem names the cure.
pub fn own_gpu() -> Result<usize, Problem> {
    let found = num_gpus().map_err(unusable)?;
    gpu_of_place(std::env::var(LOCAL_RANK).ok().as_deref(), found)
}

fn gpu_of_place(place: Option<&str>, found: usize) -> Result<usize, Problem> {
    let place = place.map_or(Ok(0), str::parse::<usize>);
    let place = place.map_err(|_| {
        Problem::new(format!("{LOCAL_RANK} is no number"))
            .help("it is this process's place on its machine, from 0")
    })?;
    if found <= 1 {
        return Ok(0);
    }
    if place < found {
        return Ok(place);
    }
    Err(Problem::new(format!(
        "this is process {place} of its machine, counted from 0, and there are {found} GPUs"
    ))
    .help("each rank takes a GPU of its own: start fewer processes a machine"))
}

impl Machine for Cpu<f32> {
    const MEETING: Meeting<Self, Processes> = Mesh::of_processes;
    const NUMBER_BYTES: u64 = 4;

    fn own() -> Result<Arc<Self>, Problem> {
        Ok(Arc::new(Self::new()))
    }

    /// All ranks share the cores.
    fn launch(self: &Arc<Self>, training: &Training) -> slime_trainer::Result<Launch<Self>> {
        let ops = self.clone();
        Ok(threads(training, move |_| Ok(ops.clone())))
    }

    fn send(&self, _: &Self::Tensor, _: &Broadcaster) -> slime_kernels::Result<()> {
        not_on_a_gpu()
    }

    fn bits(&self, _: &Self::Tensor, _: Vec<u16>) -> slime_kernels::Result<Vec<u16>> {
        not_on_a_gpu()
    }
}

impl Machine for Cuda {
    const MEETING: Meeting<Self, Processes> = Mesh::of_gpus;
    const NUMBER_BYTES: u64 = 2;

    fn own() -> Result<Arc<Self>, Problem> {
        Self::open(own_gpu()?).map(Arc::new).map_err(unusable)
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

    fn send(&self, x: &Self::Tensor, by: &Broadcaster) -> slime_kernels::Result<()> {
        by.send_tensor(self, x)
    }

    fn bits(&self, x: &Self::Tensor, into: Vec<u16>) -> slime_kernels::Result<Vec<u16>> {
        self.read_bits(x, into)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_computes_on_the_gpu_of_its_place_or_on_the_only_one_it_sees() {
        assert_eq!(gpu_of_place(None, 4).unwrap(), 0);
        assert_eq!(gpu_of_place(Some("3"), 4).unwrap(), 3);
        assert_eq!(gpu_of_place(Some("3"), 1).unwrap(), 0);
        let error = |place| gpu_of_place(Some(place), 2).unwrap_err().message;
        assert_eq!(
            error("2"),
            "this is process 2 of its machine, counted from 0, and there are 2 GPUs"
        );
        assert_eq!(error("two"), "LOCAL_RANK is no number");
    }
}
