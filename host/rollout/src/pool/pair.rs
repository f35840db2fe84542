//! A request that passes through two servers: one reads the prompt, one writes the response.
//!
//! Both are sent the same request at once, with the place where they meet: the prefill server's bootstrap host and port,
//! and a room of the request's own. The decode server takes the keys and values from there and answers; the prefill
//! server's answer says only that it has done its part. Read `sample.rs` for what becomes of a failure on either side.

use super::server::{CallError, Server};
use super::{Address, Part, Seat};
use crate::seed::hash64;
use serde::Serialize;

/// Rooms are signed numbers at the servers.
const ROOM_BITS: u32 = 62;

/// Where a decode server meets the prefill server of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Meeting {
    bootstrap_host: String,
    bootstrap_port: u16,
    bootstrap_room: u64,
}

/// A way of a request through the pool.
#[derive(Clone, Debug)]
pub struct Way {
    /// Who answers.
    pub server: Server,
    /// Who reads the prompt first, where that is another server.
    pub prefill: Option<(Server, Meeting)>,
}

impl Way {
    /// Where requests through here are answered.
    pub fn address(&self) -> &Address {
        self.server.address()
    }
}

/// The door of a prefill server: where those that decode knock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Door {
    host: String,
    port: u16,
}

impl Door {
    /// That of a seat, if it has one.
    pub(super) fn of(seat: &Seat) -> Option<Self> {
        let port = seat.bootstrap_port.filter(|_| seat.part == Part::Prefill)?;
        let (host, _) = seat.address.authority().rsplit_once(':')?;
        Some(Self {
            host: host.to_owned(),
            port,
        })
    }

    /// A meeting of the request `rid`; `turn` differs with every call of it.
    pub(super) fn meet(&self, rid: &str, turn: u64) -> Meeting {
        let process = u64::from(std::process::id()).to_le_bytes();
        let room = hash64("room", &[rid.as_bytes(), &turn.to_le_bytes(), &process]);
        Meeting {
            bootstrap_host: self.host.clone(),
            bootstrap_port: self.port,
            bootstrap_room: room >> (64 - ROOM_BITS),
        }
    }
}

/// How a prefill server's part failed.
#[derive(Debug)]
pub(super) enum Unfilled {
    /// It gave the request up: a pause for new weights, or its own decision.
    GivenUp,
    /// It failed.
    Failed(CallError),
}
