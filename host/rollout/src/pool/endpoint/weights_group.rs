//! `POST /init_weights_update_group` and `/destroy_weights_update_group`: a server's ranks join a process group whose rank
//! 0 is not theirs.
//!
//! The first answers when its ranks have met at the store. A server that finds no store there blocks its scheduler until
//! torch gives up, so the store listens before anybody is sent to it.

use crate::pool::server::{CallError, Server};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::net::SocketAddr;
use std::time::Duration;

/// A process group, as one server is told of it.
#[derive(Clone, Copy, Debug)]
pub struct Group<'a> {
    /// What all call it.
    pub name: &'a str,
    /// Where the store listens.
    pub store: SocketAddr,
    /// The server's first rank in it.
    pub rank_offset: usize,
    /// Ranks of all, rank 0 included.
    pub world_size: usize,
}

#[derive(Serialize)]
struct Body<'a> {
    master_address: String,
    master_port: u16,
    rank_offset: usize,
    world_size: usize,
    group_name: &'a str,
    backend: &'a str,
}

#[derive(Deserialize)]
struct Answer {
    success: bool,
    #[serde(default)]
    message: String,
}

/// Join; GPUs talk by NCCL.
///
/// # Errors
/// The server has no GPU, did not find the store, or refused.
pub async fn init(server: &Server, group: Group<'_>, deadline: Duration) -> Result<(), CallError> {
    let body = Body {
        master_address: group.store.ip().to_string(),
        master_port: group.store.port(),
        rank_offset: group.rank_offset,
        world_size: group.world_size,
        group_name: group.name,
        backend: "nccl",
    };
    let answer: Answer = server
        .post_json("/init_weights_update_group", &body, deadline)
        .await?;
    match answer.success {
        true => Ok(()),
        false => Err(CallError::Malformed(answer.message)),
    }
}

/// Leave. A server that knows no such group says so, which changes nothing.
///
/// # Errors
/// It cannot be reached.
pub async fn destroy(server: &Server, name: &str, deadline: Duration) -> Result<(), CallError> {
    let body = json!({ "group_name": name });
    let asked = server.post("/destroy_weights_update_group", &body, deadline);
    match Server::read_text(asked).await {
        Err(CallError::Status { .. }) | Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}
