//! The pool: every request to an engine goes through here.
//!
//! It speaks SGLang's HTTP API and nothing else, spreads requests, bounds them, retries what is safe,
//! and routes only to members that serve a known version. It refuses to know what the weights are. Read
//! `sample.rs` for a request's life, `member.rs` for a server's, `launch` for servers of this program's own.

mod address;
pub mod endpoint;
mod gauges;
pub mod launch;
mod member;
mod pair;
mod probe;
mod route;
mod router;
mod sample;
mod seat;
mod server;
#[cfg(test)]
mod tests;

pub use address::Address;
pub use endpoint::pause_generation::PauseMode;
pub use gauges::Gauges;
pub use member::Standing;
pub use pair::{Meeting, Way};
pub use route::Routing;
pub use seat::{Part, Seat};
pub use server::{CallError, Server};

use crate::fence::{self, Fence};
use crate::publish::{Bucket, Place, Proof, Round};
use crate::{RolloutError, lock};
pub(crate) use member::Member;
use reqwest::header::{HeaderMap, HeaderValue};
use route::Candidate;
use router::Router;
use slime_core::WeightVersion;
use slime_core::ports::{BoxFuture, Keep, Policy, PolicyError, SampleRequest, Sampled};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

/// How members come to be trusted with requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Trust {
    /// A member serves once it has proven the version that was published last.
    #[default]
    Proven,
    /// The weights never change: every member that answers serves, and its tokens count as this version.
    Frozen(WeightVersion),
}

/// What a pool needs to know.
#[derive(Clone, Debug)]
pub struct PoolConfig {
    /// Requests at one server at once (`sglang_server_concurrency`).
    pub concurrency: usize,
    /// How requests spread.
    pub routing: Routing,
    /// Receive tokens as they come, so that a server's death costs none of them. Servers send
    /// everything so far with every event, which costs bytes quadratic in the response.
    pub stream: bool,
    /// Ask which experts every token went to. Servers have to be started with `--enable-return-routed-experts`.
    pub routed_experts: bool,
    /// The longest one request may take, retries and waiting included.
    pub request_deadline: Duration,
    /// The longest wait for an answer that should come at once.
    pub quick_deadline: Duration,
    /// How often members are looked at.
    pub probe_interval: Duration,
    /// First and longest wait before a retry.
    pub backoff: (Duration, Duration),
    /// Token ids below this exist; a larger one would kill a server.
    pub vocab_size: usize,
    /// Tokens of prompt and response that a server holds.
    pub context_tokens: usize,
    /// Written before the version in a server's weight label, so that another run's label proves nothing.
    pub label_prefix: String,
    /// How members come to be trusted.
    pub trust: Trust,
    /// Whose run it is. Servers are told with every request, and nothing is published once it is another's.
    pub fence: Option<Fence>,
    /// An `sglang_router` that picks the member, instead of `routing`.
    pub router: Option<Address>,
    /// How long a router that failed is passed by.
    pub router_passed_by: Duration,
}

impl PoolConfig {
    /// The defaults, for a model of this vocabulary and context.
    pub fn new(vocab_size: usize, context_tokens: usize) -> Self {
        Self {
            concurrency: 512,
            routing: Routing::default(),
            stream: false,
            routed_experts: false,
            request_deadline: Duration::from_secs(3600),
            quick_deadline: Duration::from_secs(30),
            probe_interval: Duration::from_secs(2),
            backoff: (Duration::from_millis(100), Duration::from_secs(5)),
            vocab_size,
            context_tokens,
            label_prefix: String::new(),
            trust: Trust::default(),
            fence: None,
            router: None,
            router_passed_by: Duration::from_secs(5),
        }
    }

    /// The label under which a version is published.
    pub fn label(&self, version: WeightVersion) -> String {
        format!("{}{version}", self.label_prefix)
    }

    /// The version a label stands for, where it is one of ours.
    pub(crate) fn version_of(&self, label: &str) -> Option<WeightVersion> {
        match self.trust {
            Trust::Frozen(version) => Some(version),
            Trust::Proven => label
                .strip_prefix(&self.label_prefix)?
                .parse()
                .ok()
                .map(WeightVersion),
        }
    }
}

/// What was published last: where the weights lie, and what proves them.
#[derive(Clone)]
pub(crate) struct Published {
    pub(crate) version: WeightVersion,
    pub(crate) place: Place,
    pub(crate) mode: PauseMode,
    pub(crate) update_deadline: Duration,
    /// The weights' checksum, once members have agreed on one.
    pub(crate) checksum: Option<Vec<String>>,
    /// Values that a member must hold afterwards.
    pub(crate) proof: Arc<Proof>,
    /// The weights in shared memory, where they travel that way; else members read `dir`.
    pub(crate) buckets: Option<Arc<Vec<Bucket>>>,
    /// The broadcast that members take part in, where they travel that way.
    pub(crate) round: Option<Arc<Round>>,
}

/// What happened to requests since the pool was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolStats {
    /// Calls to `/generate`.
    pub num_calls: u64,
    /// Calls repeated after a fault that was not the request's.
    pub num_retries: u64,
    /// Requests that went on from tokens another call had sampled.
    pub num_continued: u64,
    /// Tokens thrown away because a server could not prove their version.
    pub num_unproven_tokens: u64,
}

#[derive(Default)]
struct Counters {
    calls: AtomicU64,
    retries: AtomicU64,
    continued: AtomicU64,
    unproven_tokens: AtomicU64,
}

pub(crate) struct Inner {
    pub(crate) config: PoolConfig,
    pub(crate) members: Vec<Member>,
    pub(crate) published: Mutex<Option<Published>>,
    router: Option<Router>,
    turn: AtomicUsize,
    /// A member's standing changed.
    changed: Notify,
    /// Requests in flight by rid, and how to give up on them.
    pub(crate) live: Mutex<HashMap<String, CancellationToken>>,
    /// Nothing is sampled any more.
    halted: AtomicBool,
    gathered: gauges::Gathered,
    counters: Counters,
}

/// Servers that sample for one policy.
pub struct Pool {
    pub(crate) inner: Arc<Inner>,
    probing: Vec<tokio::task::JoinHandle<()>>,
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.probing.iter().for_each(tokio::task::JoinHandle::abort);
    }
}

impl Pool {
    /// A pool of the servers at `seats`. Call it inside a tokio runtime: it looks after its members
    /// in tasks of their own.
    ///
    /// # Errors
    /// No server, the same address twice, or an HTTP client that cannot be made.
    pub fn new(seats: Vec<impl Into<Seat>>, config: PoolConfig) -> Result<Self, RolloutError> {
        let seats: Vec<Seat> = seats.into_iter().map(Into::into).collect();
        let refuse = |reason: String| RolloutError::Config {
            what: "engine addresses".into(),
            reason,
        };
        if seats.is_empty() {
            return Err(refuse("none is given; name at least one server".into()));
        }
        for (i, Seat { address, .. }) in seats.iter().enumerate() {
            if seats[..i].iter().any(|seat| seat.address == *address) {
                return Err(refuse(format!("{address} is given twice")));
            }
        }
        // Traffic inside a pool never goes through the system's proxy.
        let mut told = HeaderMap::new();
        let epoch = config.fence.as_ref().map(Fence::header);
        if let Some(Ok(epoch)) = epoch.map(|e| HeaderValue::from_str(&e)) {
            told.insert(fence::HEADER, epoch);
        }
        let client = reqwest::Client::builder()
            .no_proxy()
            .default_headers(told)
            .connect_timeout(Duration::from_secs(10).min(config.quick_deadline))
            .pool_max_idle_per_host(config.concurrency)
            .tcp_nodelay(true)
            .build()
            .map_err(|e| refuse(format!("no HTTP client: {e}")))?;
        let standing = match config.trust {
            Trust::Proven => Standing::Unproven,
            Trust::Frozen(version) => Standing::Serving(version),
        };
        let members = seats
            .iter()
            .map(|seat| {
                let address = seat.address.clone();
                Member::new(
                    Server::new(address, client.clone(), config.quick_deadline),
                    seat,
                    config.concurrency,
                    standing,
                )
            })
            .collect();
        let router = config.router.clone();
        let router = router.map(|address| {
            let server = Server::new(address, client.clone(), config.quick_deadline);
            Router::new(server, config.router_passed_by)
        });
        let inner = Arc::new(Inner {
            config,
            members,
            router,
            published: Mutex::default(),
            turn: AtomicUsize::default(),
            changed: Notify::new(),
            live: Mutex::default(),
            halted: AtomicBool::default(),
            gathered: gauges::Gathered::default(),
            counters: Counters::default(),
        });
        let probing = (0..inner.members.len())
            .map(|index| tokio::spawn(probe::watch(Arc::downgrade(&inner), index)))
            .collect();
        Ok(Self { inner, probing })
    }

    /// Wait until every member answers `/health`.
    ///
    /// # Errors
    /// Those that do not by the deadline, and what they said last.
    pub async fn wait_until_up(&self, deadline: Duration) -> Result<(), RolloutError> {
        let waiting = self.inner.members.iter().map(|member| async {
            let until = tokio::time::Instant::now() + deadline;
            loop {
                match endpoint::health::health(&member.server).await {
                    Ok(()) => return None,
                    Err(error) if tokio::time::Instant::now() >= until => {
                        return Some(format!("{}: {error}", member.server.address()));
                    }
                    Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
                }
            }
        });
        let late: Vec<String> = futures::future::join_all(waiting)
            .await
            .into_iter()
            .flatten()
            .collect();
        if late.is_empty() {
            Ok(())
        } else {
            Err(RolloutError::NoEngine {
                reason: late.join("; "),
            })
        }
    }

    /// Make the router know every member; nothing to do where there is none.
    ///
    /// # Errors
    /// It cannot be reached, or does not take a member.
    pub async fn introduce(&self) -> Result<(), RolloutError> {
        let Some(router) = &self.inner.router else {
            return Ok(());
        };
        let members: Vec<Address> = self.servers().map(|s| s.address().clone()).collect();
        router.introduce(&members).await
    }

    /// The members, for calls that are not requests to sample.
    pub fn servers(&self) -> impl Iterator<Item = &Server> {
        self.inner.members.iter().map(|m| &m.server)
    }

    /// A way through each member that answers requests. `rid` is the request that will take them, each once.
    pub fn ways(&self, rid: &str) -> Vec<Way> {
        let members = &self.inner.members;
        let doors: Vec<_> = members
            .iter()
            .filter_map(|m| Some((m, m.door.as_ref()?)))
            .collect();
        let answering = members.iter().filter(|m| m.part != Part::Prefill);
        let ways = answering.enumerate().map(|(i, member)| Way {
            server: member.server.clone(),
            prefill: (member.part == Part::Decode && !doors.is_empty()).then(|| {
                let (prefill, door) = doors[i % doors.len()];
                (prefill.server.clone(), door.meet(rid, i as u64))
            }),
        });
        ways.collect()
    }

    /// Each member's address and standing.
    pub fn standings(&self) -> Vec<(Address, Standing)> {
        self.inner
            .members
            .iter()
            .map(|m| (m.server.address().clone(), m.standing()))
            .collect()
    }

    /// What happened so far.
    pub fn stats(&self) -> PoolStats {
        let c = &self.inner.counters;
        PoolStats {
            num_calls: c.calls.load(Ordering::Relaxed),
            num_retries: c.retries.load(Ordering::Relaxed),
            num_continued: c.continued.load(Ordering::Relaxed),
            num_unproven_tokens: c.unproven_tokens.load(Ordering::Relaxed),
        }
    }

    /// What servers said about their load since this was last asked.
    pub fn take_gauges(&self) -> Gauges {
        self.inner.gathered.take()
    }

    /// Give up on one request; it returns the tokens it has. Unknown ids are ignored.
    pub async fn abort(&self, rid: &str) {
        let Some(token) = lock(&self.inner.live).get(rid).cloned() else {
            return;
        };
        token.cancel();
        let calls = self
            .inner
            .members
            .iter()
            .map(|m| endpoint::abort_request::one(&m.server, rid));
        self.report_aborts(futures::future::join_all(calls).await);
    }

    /// Give up on every request in flight; each returns the tokens it has. A member that cannot be
    /// reached does not keep the others from stopping.
    pub async fn abort_all(&self) {
        let live: Vec<_> = lock(&self.inner.live)
            .iter()
            .map(|(rid, token)| (rid.clone(), token.clone()))
            .collect();
        live.iter().for_each(|(_, token)| token.cancel());
        // By id and not `abort_all`: a server given by address may have other clients.
        let calls = live.iter().flat_map(|(rid, _)| {
            self.inner
                .members
                .iter()
                .map(|m| endpoint::abort_request::one(&m.server, rid))
        });
        self.report_aborts(futures::future::join_all(calls).await);
    }

    fn report_aborts(&self, results: Vec<Result<(), CallError>>) {
        if let Some(error) = results.into_iter().find_map(Result::err) {
            tracing::warn!(%error, "a server did not take an abort; its requests are dropped instead");
        }
    }
}

impl Inner {
    /// The member for a request, once one serves. `avoid` is passed over where another serves.
    async fn assign(&self, session: u64, avoid: &[usize]) -> Slot<'_> {
        loop {
            let changed = self.changed.notified();
            let mut changed = std::pin::pin!(changed);
            changed.as_mut().enable();
            if let Some(slot) = self.try_assign(session, avoid) {
                return slot;
            }
            changed.await;
        }
    }

    fn try_assign(&self, session: u64, avoid: &[usize]) -> Option<Slot<'_>> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let prefills = |standing: Standing| {
            let mut members = self.members.iter();
            members.any(|m| m.part == Part::Prefill && m.standing() == standing)
        };
        let index = self.pick(session, turn, avoid, |member| match member.part {
            Part::Whole => true,
            Part::Decode => prefills(member.standing()),
            Part::Prefill => false,
        })?;
        let member = &self.members[index];
        let prefill = match member.part {
            Part::Decode => {
                // Both halves are the work of one version.
                let standing = member.standing();
                let index = self.pick(session, turn, avoid, |other| {
                    other.part == Part::Prefill && other.standing() == standing
                })?;
                Some(Box::new(Slot::take(index, &self.members[index])))
            }
            _ => None,
        };
        let mut slot = Slot::take(index, member);
        slot.prefill = prefill;
        Some(slot)
    }

    /// A member that serves and that `fits`.
    fn pick(
        &self,
        session: u64,
        turn: usize,
        avoid: &[usize],
        fits: impl Fn(&Member) -> bool,
    ) -> Option<usize> {
        let serving = |skip: &[usize]| -> Vec<Candidate> {
            let members = self.members.iter().enumerate();
            members
                .filter(|(i, member)| {
                    !skip.contains(i)
                        && matches!(member.standing(), Standing::Serving(_))
                        && fits(member)
                })
                .map(|(i, member)| Candidate {
                    member: i,
                    load: member.load.load(Ordering::Relaxed),
                })
                .collect()
        };
        let mut candidates = serving(avoid);
        if candidates.is_empty() {
            candidates = serving(&[]);
        }
        route::pick(&candidates, self.config.routing, session, turn)
    }

    /// Change a member's standing and wake the requests that wait for one.
    pub(crate) fn set_standing(&self, index: usize, standing: Standing) {
        if self.members[index].set(standing) {
            tracing::debug!(server = %self.members[index].server.address(), ?standing, "member");
            self.changed.notify_waiters();
        }
    }

    /// What each member said last.
    fn complaints(&self) -> String {
        let each = self
            .members
            .iter()
            .map(|m| format!("{}: {}", m.server.address(), m.complaint()));
        each.collect::<Vec<_>>().join("; ")
    }
}

/// A request's place at a member, given back when dropped.
struct Slot<'a> {
    index: usize,
    member: &'a Member,
    /// Its place at the member that reads the prompt, where that is another one.
    prefill: Option<Box<Self>>,
}

impl<'a> Slot<'a> {
    fn take(index: usize, member: &'a Member) -> Self {
        member.load.fetch_add(1, Ordering::Relaxed);
        Self {
            index,
            member,
            prefill: None,
        }
    }

    /// The members it is at.
    fn indices(&self) -> Vec<usize> {
        let prefill = self.prefill.as_ref().map(|slot| slot.index);
        std::iter::once(self.index).chain(prefill).collect()
    }
}

impl Drop for Slot<'_> {
    fn drop(&mut self) {
        self.member.load.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Policy for Pool {
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>> {
        Box::pin(self.inner.sample(request, Sampled::default(), None))
    }

    fn go_on<'a>(
        &'a self,
        request: SampleRequest,
        begun: Sampled,
        keep: Arc<dyn Keep>,
    ) -> BoxFuture<'a, Result<Sampled, PolicyError>> {
        Box::pin(self.inner.sample(request, begun, Some(keep)))
    }

    fn halt(&self) -> BoxFuture<'_, ()> {
        self.inner.halted.store(true, Ordering::Relaxed);
        Box::pin(self.abort_all())
    }
}
