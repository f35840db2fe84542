//! New weights reach the pool: pause, update, prove, continue, on all members at once.
//!
//! It refuses to know what the weights mean. Read `dirs.rs` for how long a directory lives, `check.rs` for what
//! is looked at before a server is told to load it, `load.rs`, `local.rs`, `broadcast`, `handed.rs` and `live.rs` for the ways there, `proof.rs` for what is looked at
//! afterwards.

mod broadcast;
mod bucket;
mod check;
mod delta;
mod dirs;
mod handed;
mod live;
mod load;
mod local;
mod pickle;
mod proof;
#[cfg(test)]
pub(crate) mod tests;

pub use broadcast::Caster;
pub(crate) use broadcast::Round;
pub(crate) use bucket::Bucket;
pub use check::Manifest;
pub use delta::{DeltaSize, apply, encode};
pub use dirs::WeightDirs;
pub(crate) use handed::Place;
pub use handed::{Handed, Known};
pub use live::{Listed, Live, to_look_at};
pub use load::Transport;
pub use proof::FirstValues;
pub(crate) use proof::Proof;

use crate::pool::endpoint::continue_generation::continue_generation;
use crate::pool::endpoint::get_weight_version::get_weight_version;
use crate::pool::endpoint::pause_generation::pause_generation;
use crate::pool::endpoint::weights_checker::weights_checker;
use crate::pool::{Address, Inner, PauseMode, Pool, Published, Standing};
use crate::{Fence, RolloutError, lock};
use broadcast::Casting;
use local::Local;
use slime_core::WeightVersion;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// What a publish did.
#[derive(Clone, Debug)]
pub struct Report {
    /// What the pool serves now.
    pub version: WeightVersion,
    /// Members that serve it.
    pub num_serving: usize,
    /// Members that do not, and why. They are out of routing until they prove the version.
    pub failed: Vec<(Address, String)>,
    /// From the first pause to the last continue.
    pub wall: Duration,
    /// Of it, until the bytes lay where servers find them; 0 for a directory, which its writer has filled.
    pub staged: Duration,
    /// Bytes of all tensors.
    pub num_bytes: u64,
    /// Bytes that went to where servers read: less than all of them for a delta.
    pub moved_bytes: u64,
    /// Whether several members' weights were compared by checksum.
    pub compared: bool,
}

/// A version where servers find it.
struct Staged {
    dir: PathBuf,
    buckets: Option<Arc<Vec<Bucket>>>,
    moved_bytes: u64,
}

/// A version that lies ready.
struct Offer {
    place: Place,
    proof: Proof,
    buckets: Option<Arc<Vec<Bucket>>>,
    round: Option<Arc<Round>>,
    num_bytes: u64,
    moved_bytes: u64,
}

/// Publishes versions to one pool, one at a time.
pub struct Publisher {
    pool: Arc<Pool>,
    mode: PauseMode,
    transport: Transport,
    update_deadline: Duration,
    patience: Duration,
    /// This host's copy, which deltas keep in step.
    local: Option<Arc<Local>>,
    /// This process's GPU, for [`Transport::Nccl`].
    casting: Option<Casting>,
    /// What the servers were started with.
    model: Option<Manifest>,
    /// Names, shapes and types of the first directory published; the later ones must have the same.
    manifest: Mutex<Option<Manifest>>,
    one_at_a_time: tokio::sync::Mutex<()>,
}

impl Publisher {
    /// Publish to `pool`; running requests are treated as `mode` says.
    pub fn new(pool: Arc<Pool>, mode: PauseMode, update_deadline: Duration) -> Self {
        Self {
            pool,
            mode,
            transport: Transport::Disk,
            update_deadline,
            patience: Duration::ZERO,
            local: None,
            casting: None,
            model: None,
            manifest: Mutex::default(),
            one_at_a_time: tokio::sync::Mutex::default(),
        }
    }

    /// Let the bytes travel by `transport`.
    #[must_use]
    pub fn by(self, transport: Transport) -> Self {
        Self { transport, ..self }
    }

    /// Check the first version too: against the model in `dir`, which the servers were started with.
    ///
    /// # Errors
    /// The directory holds no whole weights.
    pub fn with_model(self, dir: &Path) -> Result<Self, RolloutError> {
        let model = Some(Manifest::read(dir)?);
        Ok(Self { model, ..self })
    }

    /// Keep this host's copy of what is served in `root`, for [`Transport::Delta`]. Preferably in memory; everything in
    /// it is removed with the publisher.
    ///
    /// # Errors
    /// The directory cannot be made.
    pub fn with_local(self, root: &Path) -> Result<Self, RolloutError> {
        let local = Some(Arc::new(Local::open(root)?));
        Ok(Self { local, ..self })
    }

    /// Broadcast from `caster`, for [`Transport::Nccl`].
    #[must_use]
    pub fn with_caster(self, caster: Arc<dyn Caster>) -> Self {
        let casting = Some(Casting::new(caster));
        Self { casting, ..self }
    }

    /// Where no member takes a version, wait for so long that one comes back and does.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Give every member the weights in `dir` as `version`.
    ///
    /// The directory is checked first, because a torn or misshapen file kills a stock server. Members are
    /// updated concurrently. One that fails is out of routing and is tried again in the background.
    ///
    /// # Errors
    /// The directory cannot be served, or no member serves it.
    #[tracing::instrument(name = "publish", skip_all, fields(%version))]
    pub async fn publish(
        &self,
        dir: &Path,
        version: WeightVersion,
    ) -> Result<Report, RolloutError> {
        let _one = self.one_at_a_time.lock().await;
        self.pool.inner.check_fence()?;
        let manifest = Manifest::read(dir)?;
        self.check(&manifest, dir)?;
        let begin = Instant::now();
        let staged = self.stage(dir, &manifest, version).await?;
        let offer = Offer {
            place: Place::Directory(staged.dir),
            proof: Proof::of(&manifest)?,
            buckets: staged.buckets,
            round: self.round(&manifest)?,
            num_bytes: manifest.num_bytes(),
            moved_bytes: staged.moved_bytes,
        };
        let report = self.spread(offer, version, begin).await?;
        lock(&self.manifest).get_or_insert(manifest);
        Ok(report)
    }

    /// Give every member the weights that `live` keeps as `version`: those that can join a group by a broadcast from there,
    /// the others by a directory.
    ///
    /// # Errors
    /// As [`Self::publish`].
    #[tracing::instrument(name = "publish", skip_all, fields(%version))]
    pub async fn publish_live(
        &self,
        live: Arc<dyn Live>,
        version: WeightVersion,
    ) -> Result<Report, RolloutError> {
        let _one = self.one_at_a_time.lock().await;
        self.pool.inner.check_fence()?;
        let manifest = live::manifest(live.buckets())?;
        self.check(&manifest, Path::new(live::HERE))?;
        let members = self.pool.inner.members.len();
        let casts = self.transport == Transport::Nccl && self.casting.is_some();
        if !casts {
            live.skip();
        }
        let offer = Offer {
            proof: Proof::later(Arc::clone(&live)),
            buckets: None,
            round: casts.then(|| Arc::new(Round::live(&live, members))),
            num_bytes: manifest.num_bytes(),
            moved_bytes: manifest.num_bytes(),
            place: Place::Live(live),
        };
        let report = self.spread(offer, version, Instant::now()).await?;
        lock(&self.manifest).get_or_insert(manifest);
        Ok(report)
    }

    /// Are these tensors, in `dir`, the model's and those of the version before?
    fn check(&self, manifest: &Manifest, dir: &Path) -> Result<(), RolloutError> {
        if let Some(model) = &self.model {
            manifest.expect_model(model, dir)?;
        }
        match lock(&self.manifest).as_ref() {
            Some(first) => first.expect_same(manifest, dir),
            None => Ok(()),
        }
    }

    /// Give the pool's one member, an engine of this process, the weights that are `handed` as `version`.
    ///
    /// # Errors
    /// The pool has other members, or the engine does not serve them.
    #[tracing::instrument(name = "publish", skip_all, fields(%version))]
    pub async fn publish_handed(
        &self,
        handed: Arc<dyn Handed>,
        version: WeightVersion,
    ) -> Result<Report, RolloutError> {
        let _one = self.one_at_a_time.lock().await;
        self.pool.inner.check_fence()?;
        if self.pool.inner.members.len() != 1 {
            return Err(RolloutError::Publish {
                version,
                reason: "tensors of this process reach its own engine only; write a directory"
                    .into(),
            });
        }
        let offer = Offer {
            proof: Proof::known(handed.known()),
            num_bytes: handed.num_bytes(),
            moved_bytes: handed.num_bytes(),
            place: Place::Memory(handed),
            buckets: None,
            round: None,
        };
        self.spread(offer, version, Instant::now()).await
    }

    /// Tell every member of what lies ready, and say who serves it.
    async fn spread(
        &self,
        offer: Offer,
        version: WeightVersion,
        begin: Instant,
    ) -> Result<Report, RolloutError> {
        let inner = &self.pool.inner;
        let mut published = Published {
            version,
            place: offer.place,
            mode: self.mode,
            update_deadline: self.update_deadline,
            checksum: None,
            proof: Arc::new(offer.proof),
            buckets: None,
            round: None,
        };
        // A member that comes back later reads the directory: shared memory is given back at once, and a broadcast is over.
        *lock(&inner.published) = Some(published.clone());
        published.buckets = offer.buckets;
        published.round = offer.round;
        let staged_in = begin.elapsed();
        let updates = (0..inner.members.len()).map(|i| update_member(inner, i, &published));
        let leading = async {
            if let (Some(casting), Some(round)) = (&self.casting, &published.round) {
                casting.lead(round, self.update_deadline).await;
            }
        };
        futures::future::join(futures::future::join_all(updates), leading).await;
        drop(published);
        let compared = self.compare(version).await;
        let wall = begin.elapsed();
        self.wait_for_one(version).await;

        let mut report = Report {
            version,
            num_serving: 0,
            failed: Vec::new(),
            wall,
            staged: staged_in,
            num_bytes: offer.num_bytes,
            moved_bytes: offer.moved_bytes,
            compared,
        };
        for member in &inner.members {
            if member.standing() == Standing::Serving(version) {
                report.num_serving += 1;
            } else {
                report
                    .failed
                    .push((member.server.address().clone(), member.complaint()));
            }
        }
        for (address, reason) in &report.failed {
            tracing::warn!(server = %address, reason, "a member missed the publish and is out of routing");
        }
        if report.num_serving == 0 {
            self.pool.inner.check_fence()?;
            let reason = report
                .failed
                .iter()
                .map(|(a, r)| format!("{a}: {r}"))
                .collect::<Vec<_>>()
                .join("; ");
            return Err(RolloutError::Publish { version, reason });
        }
        Ok(report)
    }

    /// A broadcast to all members, where weights travel that way.
    fn round(&self, manifest: &Manifest) -> Result<Option<Arc<Round>>, RolloutError> {
        if self.transport != Transport::Nccl || self.casting.is_none() {
            return Ok(None);
        }
        let members = self.pool.inner.members.len();
        Ok(Some(Arc::new(Round::new(manifest, members)?)))
    }

    /// Put the bytes where servers find them.
    async fn stage(
        &self,
        dir: &Path,
        manifest: &Manifest,
        version: WeightVersion,
    ) -> Result<Staged, RolloutError> {
        let whole = Staged {
            dir: dir.to_path_buf(),
            buckets: None,
            moved_bytes: manifest.num_bytes(),
        };
        let (manifest, in_use) = (manifest.clone(), self.in_use());
        let work: Box<dyn FnOnce() -> Result<Staged, RolloutError> + Send> =
            match (self.transport, &self.local) {
                (Transport::Disk | Transport::Nccl, _) | (Transport::Delta, None) => {
                    return Ok(whole);
                }
                (Transport::SharedMemory, _) => Box::new(move || {
                    let name = format!("slime-{}-{version}", std::process::id());
                    let root = Path::new(bucket::SHARED_MEMORY);
                    let buckets = Bucket::fill(root, &name, &manifest, BUCKET_BYTES)?;
                    Ok(Staged {
                        buckets: Some(Arc::new(buckets)),
                        ..whole
                    })
                }),
                (Transport::Delta, Some(local)) => {
                    let local = Arc::clone(local);
                    Box::new(move || {
                        let moved = local.follow(&whole.dir, &manifest, version, &in_use)?;
                        Ok(Staged {
                            dir: moved.dir,
                            moved_bytes: moved.num_bytes,
                            ..whole
                        })
                    })
                }
            };
        tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| {
            Err(RolloutError::Publish {
                version,
                reason: e.to_string(),
            })
        })
    }

    /// Until a member serves `version`, or patience is at its end.
    async fn wait_for_one(&self, version: WeightVersion) {
        let until = Instant::now() + self.patience;
        let members = &self.pool.inner.members;
        let serves = |m: &crate::pool::Member| m.standing() == Standing::Serving(version);
        let mut told = false;
        let ours = || self.pool.inner.check_fence().is_ok();
        while !members.iter().any(serves) && Instant::now() < until && ours() {
            if !std::mem::replace(&mut told, true) {
                tracing::warn!(%version, "no server took the new weights; waiting for one to come back");
            }
            tokio::time::sleep(self.pool.inner.config.probe_interval).await;
        }
    }

    /// Members of one layout must hold the same bytes; those that differ from the most are out.
    async fn compare(&self, version: WeightVersion) -> bool {
        let inner = &self.pool.inner;
        let serving: Vec<usize> = (0..inner.members.len())
            .filter(|&i| inner.members[i].standing() == Standing::Serving(version))
            .collect();
        if serving.len() < 2 {
            return false;
        }
        let calls = serving
            .iter()
            .map(|&i| weights_checker(&inner.members[i].server, self.update_deadline));
        let mut sums = Vec::new();
        for (&index, result) in serving.iter().zip(futures::future::join_all(calls).await) {
            match result {
                Ok(Some(sum)) => sums.push((index, sum)),
                Ok(None) => {}
                Err(error) => {
                    inner.members[index].demand_reload(format!("no checksum: {error}"));
                    inner.set_standing(index, Standing::Unproven);
                }
            }
        }
        let votes = |sum: &Vec<String>| sums.iter().filter(|(_, other)| other == sum).count();
        // Ties go to the first member.
        let Some((_, right)) = sums.iter().rev().max_by_key(|(_, sum)| votes(sum)) else {
            return false;
        };
        for (index, sum) in &sums {
            if sum.len() == right.len() && sum != right {
                inner.members[*index].demand_reload(DIFFERS.into());
                inner.set_standing(*index, Standing::Unproven);
            }
        }
        if sums.len() < 2 {
            return false;
        }
        if let Some(published) = lock(&inner.published).as_mut() {
            published.checksum = Some(right.clone());
        }
        true
    }

    /// Versions whose directories a member may still be reading.
    pub fn in_use(&self) -> Vec<WeightVersion> {
        self.pool
            .inner
            .members
            .iter()
            .filter_map(|m| m.may_read())
            .collect()
    }
}

/// Shared memory of one bucket: a server copies one at a time.
const BUCKET_BYTES: u64 = 4 << 30;

const DIFFERS: &str = "its weights' checksum differs from the other members'";

/// Pause one member, load, prove, continue. Its standing says how it went.
pub(crate) async fn update_member(inner: &Inner, index: usize, published: &Published) {
    let member = &inner.members[index];
    let ticket = published.round.as_ref().map(|round| round.ticket(index));
    let _one = member.updating.lock().await;
    // A newer version was published while this waited, or somebody else gave it this one.
    if lock(&inner.published)
        .as_ref()
        .is_none_or(|last| last.version != published.version)
    {
        return;
    }
    inner.set_standing(index, Standing::Updating);
    let server = &member.server;
    let label = inner.config.label(published.version);
    // A stock server takes orders from anybody, so it is asked before each whether this run may still give them.
    let ours = || inner.check_fence().map_err(|e| e.to_string());
    if let Err(reason) = ours() {
        member.complain(reason);
        inner.set_standing(index, Standing::Unproven);
        return;
    }
    let result = async {
        pause_generation(server, published.mode)
            .await
            .map_err(|e| format!("pause: {e}"))?;
        member.set_reading(Some(published.version));
        ours()?;
        load::load(member, published, ticket, &label).await?;
        let proven = get_weight_version(server)
            .await
            .map_err(|e| format!("version: {e}"))?;
        if proven != label {
            return Err(format!("it serves `{proven}` after an update to `{label}`"));
        }
        if let Err(reason) = published.proof.check(server).await {
            member.demand_reload(reason.clone());
            return Err(reason);
        }
        if let Some(right) = &published.checksum {
            let sum = weights_checker(server, published.update_deadline)
                .await
                .map_err(|e| format!("checksum: {e}"))?;
            if sum.is_some_and(|sum| sum.len() == right.len() && &sum != right) {
                member.demand_reload(DIFFERS.into());
                return Err(DIFFERS.into());
            }
        }
        Ok(())
    }
    .await;
    // A server that failed to load is left to go on too: its requests end, and their tokens prove nothing.
    let continued = match ours() {
        Ok(()) => continue_generation(server)
            .await
            .map_err(|e| format!("continue: {e}")),
        Err(over) => Err(over),
    };
    match result.and(continued) {
        Ok(()) => {
            member.set_reading(None);
            inner.set_standing(index, Standing::Serving(published.version));
        }
        Err(reason) => {
            member.complain(reason);
            inner.set_standing(index, Standing::Unproven);
        }
    }
}

impl Inner {
    /// Whether the run is still this process's, where that is watched.
    fn check_fence(&self) -> Result<(), RolloutError> {
        self.config.fence.as_ref().map_or(Ok(()), Fence::check)
    }
}
