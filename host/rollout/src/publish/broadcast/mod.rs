//! New weights from one GPU to all servers' GPUs: rank 0 of a process group sends, the servers' ranks receive.
//!
//! A broadcast needs everybody. Members arrive paused; when all have arrived or dropped out, those that are there form the
//! group (the last one, if it was theirs) and receive together. Where no group can be formed all of them read the directory
//! instead, and where a broadcast fails its members are out of routing and load from the directory later. Who sends is
//! behind [`Caster`]: this room knows no GPU. Read `store.rs` for how a group meets.

mod store;
#[cfg(test)]
mod tests;

use super::bucket::{copy, groups, torch_dtype};
use super::check::{Manifest, Tensor};
use super::live::{Listed, Live};
use crate::pool::Server;
use crate::pool::endpoint::server_info::server_info;
use crate::pool::endpoint::update_weights_from_distributed::{
    Bucket, update_weights_from_distributed,
};
use crate::pool::endpoint::weight_session;
use crate::pool::endpoint::weights_group::{self, Group};
use crate::{RolloutError, lock};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv4Addr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use store::Store;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Rank 0 of a group of GPUs whose other ranks are the servers'.
pub trait Caster: Send + Sync {
    /// An id for a new group, which every rank has to know.
    ///
    /// # Errors
    /// The library that would make it is not there.
    fn new_id(&self) -> Result<Vec<u8>, String>;

    /// Be rank 0 of the `world_size` ranks of group `id`; returns when all have joined. The group before is left.
    ///
    /// # Errors
    /// The library's words, or [`Caster::abort`] was called.
    fn join(&self, id: &[u8], world_size: usize) -> Result<(), String>;

    /// Send `bytes` to every rank; returns when they have left.
    ///
    /// # Errors
    /// As [`Caster::join`].
    fn send(&self, bytes: &[u8]) -> Result<(), String>;

    /// Leave the group at once, and free whoever waits in `join` or `send`.
    fn abort(&self);
}

/// Bytes that go as one: they lie in the sender's memory twice.
const BUCKET_BYTES: u64 = 1 << 30;
/// How long servers have to meet at the store.
const MEETING: Duration = Duration::from_secs(60);
/// Where torch's NCCL group looks for its id: the prefixes that SGLang's group construction adds, and the number of the
/// group's first communicator.
fn id_key(group: &str) -> String {
    format!("/{group}/{group}//cuda//0")
}

/// A group that servers have joined.
struct Formed {
    name: String,
    /// Members by index in the pool, with what is cancelled when one goes down: started again, it is in no group.
    members: Vec<(usize, CancellationToken)>,
    _store: Store,
}

/// Broadcasts to one pool.
pub(super) struct Casting {
    caster: Arc<dyn Caster>,
    formed: tokio::sync::Mutex<Option<Formed>>,
    num_groups: AtomicU64,
}

impl fmt::Debug for Casting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Casting").finish_non_exhaustive()
    }
}

/// How the members of a round get their weights.
#[derive(Clone, Debug)]
enum Way {
    /// Not everybody is there yet.
    Undecided,
    /// In this group.
    Group(Arc<str>),
    /// From the directory.
    Directory,
}

/// A member that has arrived.
#[derive(Debug)]
struct Here {
    index: usize,
    server: Server,
    lost: CancellationToken,
}

/// Where a round's bytes come from.
enum Source {
    /// Files, bucket by bucket.
    Files(Vec<Vec<Tensor>>),
    /// Whoever keeps the weights sends them.
    Live(Arc<dyn Live>),
}

impl Source {
    fn send(&self, caster: &dyn Caster) -> Result<(), String> {
        let buckets = match self {
            Self::Files(buckets) => buckets,
            Self::Live(live) => return live.send(),
        };
        buckets.iter().try_for_each(|tensors| {
            let mut bytes = Vec::new();
            copy(tensors, &mut bytes).map_err(|e| format!("weights cannot be read: {e}"))?;
            caster.send(&bytes)
        })
    }

    /// There is no group to send to.
    fn skip(&self) {
        if let Self::Live(live) = self {
            live.skip();
        }
    }
}

/// One version on its way to every member.
pub(crate) struct Round {
    buckets: Vec<Bucket>,
    source: Source,
    /// Members that have not arrived and not dropped out.
    expected: watch::Sender<usize>,
    here: Mutex<Vec<Here>>,
    way: watch::Sender<Way>,
    /// A member's update failed: the others wait for nothing.
    broken: watch::Sender<Option<String>>,
}

/// A member's place in a round. Dropped without having arrived, it is nobody's.
pub(crate) struct Ticket {
    round: Arc<Round>,
    index: usize,
    arrived: bool,
}

impl Round {
    pub(super) fn new(manifest: &Manifest, num_members: usize) -> Result<Self, RolloutError> {
        let groups = groups(manifest, BUCKET_BYTES)?;
        let buckets = groups.iter().map(|tensors| {
            let each = tensors.iter();
            bucket(each.map(|t| (&t.name, t.dtype.as_str(), &t.shape)))
        });
        let files = groups.iter().map(|tensors| tensors.to_vec()).collect();
        Ok(Self::of(
            buckets.collect(),
            Source::Files(files),
            num_members,
        ))
    }

    pub(super) fn live(live: &Arc<dyn Live>, num_members: usize) -> Self {
        let buckets = live.buckets().iter().map(|listed| {
            let each = listed.iter();
            bucket(each.map(|Listed { name, dtype, shape }| (name, *dtype, shape)))
        });
        let source = Source::Live(Arc::clone(live));
        Self::of(buckets.collect(), source, num_members)
    }

    fn of(buckets: Vec<Bucket>, source: Source, num_members: usize) -> Self {
        Self {
            buckets,
            source,
            expected: watch::Sender::new(num_members),
            here: Mutex::default(),
            way: watch::Sender::new(Way::Undecided),
            broken: watch::Sender::new(None),
        }
    }

    pub(crate) fn ticket(self: &Arc<Self>, index: usize) -> Ticket {
        Ticket {
            round: Arc::clone(self),
            index,
            arrived: false,
        }
    }
}

/// What a server is told of a bucket: names, types and shapes.
fn bucket<'a>(tensors: impl Iterator<Item = (&'a String, &'a str, &'a Vec<u64>)>) -> Bucket {
    let mut bucket = Bucket::default();
    for (name, dtype, shape) in tensors {
        bucket.names.push(name.clone());
        bucket.dtypes.push(torch_dtype(dtype).unwrap_or_default());
        bucket.shapes.push(shape.clone());
    }
    bucket
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if !self.arrived {
            self.round.expected.send_modify(|n| *n -= 1);
        }
    }
}

impl Ticket {
    /// Take part. `Ok(false)`: there is no group, and the directory has to be read.
    ///
    /// # Errors
    /// In words; the server's weights are unknown then.
    pub(super) async fn receive(
        mut self,
        server: &Server,
        lost: CancellationToken,
        label: &str,
        deadline: Duration,
    ) -> Result<bool, String> {
        let round = Arc::clone(&self.round);
        self.arrived = true;
        lock(&round.here).push(Here {
            index: self.index,
            server: server.clone(),
            lost,
        });
        round.expected.send_modify(|n| *n -= 1);
        let mut way = round.way.subscribe();
        let way = match way.wait_for(|way| !matches!(way, Way::Undecided)).await {
            Ok(way) => way.clone(),
            Err(_) => Way::Directory,
        };
        let Way::Group(group) = way else {
            return Ok(false);
        };
        let result = round.load(server, &group, label, deadline).await;
        if let Err(reason) = &result {
            round
                .broken
                .send_modify(|broken| _ = broken.get_or_insert_with(|| reason.clone()));
        }
        result.map(|()| true)
    }
}

impl Round {
    async fn load(
        &self,
        server: &Server,
        group: &str,
        label: &str,
        deadline: Duration,
    ) -> Result<(), String> {
        let work = async {
            for (index, bucket) in self.buckets.iter().enumerate() {
                let label = (index + 1 == self.buckets.len()).then_some(label);
                update_weights_from_distributed(server, group, bucket, label, deadline)
                    .await
                    .map_err(|e| format!("update: {e}"))?;
            }
            Ok(())
        };
        weight_session::within(server, deadline, work).await
    }
}

impl Casting {
    pub(super) fn new(caster: Arc<dyn Caster>) -> Self {
        Self {
            caster,
            formed: tokio::sync::Mutex::default(),
            num_groups: AtomicU64::new(0),
        }
    }

    /// Wait until everybody has arrived or dropped out, then send. Returns when the bytes have left, or nobody waits for them.
    pub(super) async fn lead(&self, round: &Arc<Round>, deadline: Duration) {
        let mut expected = round.expected.subscribe();
        let _ = expected.wait_for(|n| *n == 0).await;
        let mut here = std::mem::take(&mut *lock(&round.here));
        here.sort_by_key(|member| member.index);
        if here.is_empty() {
            round.source.skip();
            return;
        }
        let mut formed = self.formed.lock().await;
        let id = match self.meet(&here, &mut formed).await {
            Ok(id) => id,
            Err(reason) => {
                tracing::warn!(
                    reason,
                    "no group of GPUs could be formed; servers read the directory"
                );
                round.source.skip();
                round.way.send_replace(Way::Directory);
                return;
            }
        };
        let name: Arc<str> = formed.as_ref().map_or("", |f| f.name.as_str()).into();
        round.way.send_replace(Way::Group(name));
        let (caster, sent) = (Arc::clone(&self.caster), Arc::clone(round));
        let sending = tokio::task::spawn_blocking(move || {
            if let Some((id, world_size)) = id {
                caster.join(&id, world_size)?;
            }
            sent.source.send(&*caster)
        });
        let mut broken = round.broken.subscribe();
        let result = tokio::select! {
            result = sending => result.unwrap_or_else(|e| Err(e.to_string())),
            broken = broken.wait_for(Option::is_some) => {
                let words = broken.ok().and_then(|broken| broken.clone());
                Err(format!("a server did not take it: {}", words.unwrap_or_default()))
            }
            () = tokio::time::sleep(deadline) => Err(format!("it took more than {} s", deadline.as_secs())),
        };
        if let Err(reason) = result {
            tracing::warn!(reason, "a broadcast failed; its group is given up");
            self.caster.abort();
            *formed = None;
        }
    }

    /// Have exactly `here` in one group. The id and size of a group that is new, nothing for the one before.
    async fn meet(
        &self,
        here: &[Here],
        formed: &mut Option<Formed>,
    ) -> Result<Option<(Vec<u8>, usize)>, String> {
        let stays = |old: &Formed| {
            let same = old
                .members
                .iter()
                .map(|(index, _)| *index)
                .eq(here.iter().map(|m| m.index));
            same && !old.members.iter().any(|(_, lost)| lost.is_cancelled())
        };
        if formed.as_ref().is_some_and(stays) {
            return Ok(None);
        }
        let asked = here.iter().map(|member| server_info(&member.server));
        let infos = futures::future::try_join_all(asked)
            .await
            .map_err(|e| e.to_string())?;
        if let Some(old) = formed.take() {
            let leaving = here
                .iter()
                .map(|m| weights_group::destroy(&m.server, &old.name, MEETING));
            futures::future::join_all(leaving).await;
        }
        if let Some(info) = infos.iter().find(|info| info.dp_size() != 1) {
            return Err(format!(
                "a server has {} data-parallel ranks, and a broadcast reaches one",
                info.dp_size()
            ));
        }
        let number = self.num_groups.fetch_add(1, Ordering::Relaxed);
        let name = format!("slime-{}-{number}", std::process::id());
        let caster = Arc::clone(&self.caster);
        let id = tokio::task::spawn_blocking(move || caster.new_id()).await;
        let id = id.map_err(|e| e.to_string())??;
        let store = Store::listen(towards(&here[0].server))
            .await
            .map_err(|e| format!("no store: {e}"))?;
        store.set(&id_key(&name), id.clone());
        let world_size = 1 + infos
            .iter()
            .map(|info| info.tp_size() as usize)
            .sum::<usize>();
        let mut rank_offset = 1;
        let joining = here.iter().zip(&infos).map(|(Here { server, .. }, info)| {
            let group = Group {
                name: &name,
                store: store.address(),
                rank_offset,
                world_size,
            };
            rank_offset += info.tp_size() as usize;
            async move {
                let joined = weights_group::init(server, group, MEETING).await;
                joined.map_err(|e| format!("{}: {e}", server.address()))
            }
        });
        let joining: Vec<_> = joining.collect();
        let joined: Vec<Result<(), String>> = futures::future::join_all(joining).await;
        if let Some(reason) = joined.into_iter().find_map(Result::err) {
            let leaving = here
                .iter()
                .map(|m| weights_group::destroy(&m.server, &name, MEETING));
            futures::future::join_all(leaving).await;
            return Err(reason);
        }
        let members = here.iter().map(|m| (m.index, m.lost.clone())).collect();
        *formed = Some(Formed {
            name,
            members,
            _store: store,
        });
        Ok(Some((id, world_size)))
    }
}

/// The address of this machine that `server` can reach.
fn towards(server: &Server) -> IpAddr {
    let reach = || -> io::Result<IpAddr> {
        let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        // Sends nothing: it picks the route.
        socket.connect(server.address().authority())?;
        Ok(socket.local_addr()?.ip())
    };
    reach().unwrap_or(Ipv4Addr::LOCALHOST.into())
}
