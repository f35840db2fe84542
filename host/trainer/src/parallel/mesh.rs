//! A layout's groups as communicators, one set a rank, made in one order on every rank.
//!
//! Read [`super::place`] for which ranks they are.

use super::layout::ParallelConfig;
use super::place::{Axis, Place};
use slime_kernels::comm::{Meet, Processes, Tcp, Threads, World};
use slime_kernels::cuda::Cuda;
use slime_kernels::cuda::nccl::Nccl;
use slime_kernels::{Comm, Ops, Result};
use slime_model::layers::{Experts, Peers};
use std::sync::Arc;

/// A group of ranks, as one of them sees it.
pub type Group<O> = Arc<dyn Comm<O>>;

/// How a rank's groups are made: its device, where the ranks meet, the layout, the model's key heads, the rank.
pub type Meeting<O, M> = fn(&Arc<O>, &Arc<M>, &ParallelConfig, usize, usize) -> Result<Mesh<O>>;

/// One rank's groups.
pub struct Mesh<O: Ops> {
    /// Where this rank is.
    pub place: Place,
    /// Parts of matrices.
    pub tp: Group<O>,
    /// Parts of sequences.
    pub cp: Group<O>,
    /// Everything that holds the same parameters: what gradients are summed over.
    pub dp_cp: Group<O>,
    /// Ranks that hold all experts together.
    pub ep: Group<O>,
    /// Ranks that hold the same parts of the same experts: what their gradients are summed over.
    pub expert_replicas: Group<O>,
    /// Stages, first to last.
    pub pp: Group<O>,
    /// Every rank.
    pub world: Group<O>,
    /// The first and the last stage, which both hold a tied embedding; `None` on the others and with one stage.
    pub embedding: Option<Group<O>>,
    /// Ranks of the tp group that hold the same key heads; `None` where nobody else does.
    pub key_replicas: Option<Group<O>>,
}

impl Mesh<Cuda> {
    /// Between GPUs, over NCCL; the ranks, threads or processes, meet at `meeting`.
    ///
    /// # Errors
    /// There is no NCCL, or a rank failed.
    pub fn of_gpus<M: Meet + 'static>(
        ops: &Arc<Cuda>,
        meeting: &Arc<M>,
        config: &ParallelConfig,
        kv_heads: usize,
        rank: usize,
    ) -> Result<Self> {
        Self::new(Place::new(config, rank), kv_heads, |name, members| {
            let (ops, meeting) = (ops.clone(), meeting.clone());
            let sends = name == "pp";
            let comm = Nccl::new(ops, meeting, name, members, rank, sends)?;
            Ok(Arc::new(comm))
        })
    }
}

impl<O: Ops> Mesh<O> {
    /// The groups of `place`, each made by `make(name, members)`. `kv_heads` is the model's number of key heads.
    ///
    /// # Errors
    /// What `make` returns.
    pub fn new(
        place: Place,
        kv_heads: usize,
        make: impl Fn(&str, Vec<usize>) -> Result<Group<O>>,
    ) -> Result<Self> {
        let group = |name: &str, axes: &[Axis]| make(name, place.group(axes));
        let stages = place.group(&[Axis::Pp]);
        let at_an_end = place.rank == stages[0] || place.rank == stages[stages.len() - 1];
        let embedding = (stages.len() > 1 && at_an_end)
            .then(|| make("embedding", vec![stages[0], stages[stages.len() - 1]]));
        let tp = place.group(&[Axis::Tp]);
        let copies = tp.len() / kv_heads.clamp(1, tp.len());
        let first = place.along(Axis::Tp) / copies * copies;
        let key_replicas =
            (copies > 1).then(|| make("key_replicas", tp[first..first + copies].to_vec()));
        Ok(Self {
            tp: group("tp", &[Axis::Tp])?,
            cp: group("cp", &[Axis::Cp])?,
            dp_cp: group("dp_cp", &[Axis::Cp, Axis::Dp])?,
            ep: make("ep", place.expert_group())?,
            expert_replicas: make("expert_replicas", place.expert_replicas())?,
            pp: group("pp", &[Axis::Pp])?,
            world: make(
                "world",
                place.group(&[Axis::Tp, Axis::Cp, Axis::Dp, Axis::Pp]),
            )?,
            embedding: embedding.transpose()?,
            key_replicas: key_replicas.transpose()?,
            place,
        })
    }

    /// Between threads of one process.
    ///
    /// # Errors
    /// The rank lies outside the layout.
    pub fn of_threads(
        ops: &Arc<O>,
        world: &Arc<World>,
        config: &ParallelConfig,
        kv_heads: usize,
        rank: usize,
    ) -> Result<Self> {
        Self::new(Place::new(config, rank), kv_heads, |name, members| {
            let comm = Threads::new(ops.clone(), world.clone(), name, members, rank)?;
            Ok(Arc::new(comm))
        })
    }

    /// Between processes.
    ///
    /// # Errors
    /// The rank lies outside the layout.
    pub fn of_processes(
        ops: &Arc<O>,
        processes: &Arc<Processes>,
        config: &ParallelConfig,
        kv_heads: usize,
        rank: usize,
    ) -> Result<Self> {
        Self::new(Place::new(config, rank), kv_heads, |name, members| {
            let comm = Tcp::new(ops.clone(), processes.clone(), name, members, rank)?;
            Ok(Arc::new(comm))
        })
    }

    /// Who computes a pass together with this rank.
    pub fn peers(&self, sequence_parallel: bool) -> Peers<O> {
        let several = |group: &Group<O>| (group.size() > 1).then(|| group.clone());
        Peers {
            tp: several(&self.tp),
            sequence_parallel,
            cp: several(&self.cp),
            experts: several(&self.ep).map(|group| Experts {
                group,
                parts: self.place.expert_parts(),
            }),
        }
    }

    /// Ranks over which the gradients of a parameter are summed: those that hold the same part of it.
    pub fn replicas(&self, is_expert: bool) -> &Group<O> {
        match is_expert {
            true => &self.expert_replicas,
            false => &self.dp_cp,
        }
    }

    /// This rank holds the first stage.
    pub fn is_first_stage(&self) -> bool {
        self.pp.rank() == 0
    }

    /// This rank holds the last stage.
    pub fn is_last_stage(&self) -> bool {
        self.pp.rank() + 1 == self.pp.size()
    }
}
