//! One server's life in the pool: what it serves, whether it may be asked, and how it fell from grace.

use super::pair::Door;
use super::{Part, Seat, Server};
use crate::lock;
use slime_core::WeightVersion;
use std::sync::Mutex;
use std::sync::atomic::AtomicUsize;
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

/// Faults in a row, none of them a request's own, after which a member is down.
const STRIKES: u32 = 3;

/// Whether a member may be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It has not proven which weights it serves.
    Unproven,
    /// It serves this version. Only such members get requests.
    Serving(WeightVersion),
    /// It loads new weights.
    Updating,
    /// It does not answer.
    Down,
}

struct State {
    standing: Standing,
    strikes: u32,
    complaint: String,
    /// Cancelled when the member goes down, so that no request waits for it.
    lost: CancellationToken,
    /// It may still be reading this version's directory.
    may_read: Option<WeightVersion>,
    /// Its label is right and its weights are not: the label proves nothing until it loads again.
    must_reload: bool,
}

/// A server and the pool's opinion of it.
pub(crate) struct Member {
    pub(crate) server: Server,
    /// Which part of a request it does.
    pub(super) part: Part,
    /// Where it meets those that decode, if it prefills.
    pub(super) door: Option<Door>,
    /// Requests at the server.
    pub(crate) gate: Semaphore,
    /// Requests given to it, those waiting at the gate included.
    pub(crate) load: AtomicUsize,
    /// One update at a time.
    pub(crate) updating: tokio::sync::Mutex<()>,
    state: Mutex<State>,
}

impl Member {
    pub(crate) fn new(server: Server, seat: &Seat, concurrency: usize, standing: Standing) -> Self {
        Self {
            server,
            part: seat.part,
            door: Door::of(seat),
            gate: Semaphore::new(concurrency.max(1)),
            load: AtomicUsize::new(0),
            updating: tokio::sync::Mutex::default(),
            state: Mutex::new(State {
                standing,
                strikes: 0,
                complaint: "no weights were published to it yet".into(),
                lost: CancellationToken::new(),
                may_read: None,
                must_reload: false,
            }),
        }
    }

    pub(crate) fn standing(&self) -> Standing {
        lock(&self.state).standing
    }

    /// Whether that changed anything.
    pub(crate) fn set(&self, standing: Standing) -> bool {
        let mut state = lock(&self.state);
        let changed = state.standing != standing;
        state.standing = standing;
        match standing {
            Standing::Down => state.lost.cancel(),
            _ if state.lost.is_cancelled() => state.lost = CancellationToken::new(),
            _ => {}
        }
        if let Standing::Serving(_) = standing {
            state.strikes = 0;
            state.must_reload = false;
            state.complaint = "it serves".into();
        }
        changed
    }

    /// A fault that was not the request's. Whether the member should go down for it.
    pub(crate) fn strike(&self, complaint: String, gone: bool) -> bool {
        let mut state = lock(&self.state);
        state.strikes += 1;
        state.complaint = complaint;
        gone || state.strikes >= STRIKES
    }

    pub(crate) fn praise(&self) {
        lock(&self.state).strikes = 0;
    }

    pub(crate) fn complaint(&self) -> String {
        lock(&self.state).complaint.clone()
    }

    pub(crate) fn complain(&self, complaint: String) {
        lock(&self.state).complaint = complaint;
    }

    /// Distrust its weights whatever its label says.
    pub(crate) fn demand_reload(&self, complaint: String) {
        let mut state = lock(&self.state);
        state.must_reload = true;
        state.complaint = complaint;
    }

    pub(crate) fn must_reload(&self) -> bool {
        lock(&self.state).must_reload
    }

    pub(crate) fn lost(&self) -> CancellationToken {
        lock(&self.state).lost.clone()
    }

    pub(crate) fn set_reading(&self, version: Option<WeightVersion>) {
        lock(&self.state).may_read = version;
    }

    pub(crate) fn may_read(&self) -> Option<WeightVersion> {
        lock(&self.state).may_read
    }
}
