//! How a version's bytes reach one server: a directory it reads, shared memory it is told the name of, a broadcast it
//! takes part in (`broadcast`, `live.rs`), or tensors of this process (`handed.rs`). A delta ends in a directory too (`local.rs`).

use super::broadcast::Ticket;
use super::bucket::Bucket;
use super::handed::Place;
use crate::pool::endpoint::server_info::server_info;
use crate::pool::endpoint::update_weights_from_disk::update_weights_from_disk;
use crate::pool::endpoint::update_weights_from_tensor::update_weights_from_tensor;
use crate::pool::endpoint::weight_session;
use crate::pool::{Member, Published, Server};
use serde::{Deserialize, Serialize};
use std::sync::Arc;

/// How new weights travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Transport {
    /// Servers read the directory themselves. It must lie where all of them can.
    #[default]
    Disk,
    /// The bytes are put into shared memory and servers are told its name. Servers of this host only.
    SharedMemory,
    /// What changed is written beside the version and applied to a copy in this host's memory, which servers of this
    /// host read.
    Delta,
    /// The bytes go from this process's GPU to those of all servers at once, over NCCL.
    Nccl,
}

/// Load `published` as `label`.
///
/// # Errors
/// In words; the server's weights are unknown then.
pub(super) async fn load(
    member: &Member,
    published: &Published,
    ticket: Option<Ticket>,
    label: &str,
) -> Result<(), String> {
    let (server, deadline) = (&member.server, published.update_deadline);
    if let Some(buckets) = &published.buckets {
        return from_shared_memory(server, published, buckets, label).await;
    }
    if let Some(ticket) = ticket
        && ticket
            .receive(server, member.lost(), label, deadline)
            .await?
    {
        return Ok(());
    }
    let written;
    let dir = match &published.place {
        Place::Directory(dir) => dir,
        Place::Memory(handed) => return handed.install(label).await,
        Place::Live(live) => {
            written = live.directory().await?;
            &written
        }
    };
    update_weights_from_disk(server, dir, label, deadline)
        .await
        .map_err(|e| format!("update: {e}"))
}

async fn from_shared_memory(
    server: &Server,
    published: &Published,
    buckets: &Arc<Vec<Bucket>>,
    label: &str,
) -> Result<(), String> {
    let deadline = published.update_deadline;
    let info = server_info(server)
        .await
        .map_err(|e| format!("server info: {e}"))?;
    if info.dp_size() != 1 {
        return Err(format!(
            "it has {} data-parallel ranks, and tensors can be given to one only; use the disk transport",
            info.dp_size()
        ));
    }
    let work = async {
        for (index, bucket) in buckets.iter().enumerate() {
            let is_last = index + 1 == buckets.len();
            let payloads = (0..info.tp_size()).map(|_| bucket.payload());
            let payloads = payloads
                .collect::<std::io::Result<Vec<_>>>()
                .map_err(|e| format!("shared memory: {e}"))?;
            update_weights_from_tensor(server, &payloads, is_last.then_some(label), deadline)
                .await
                .map_err(|e| format!("update: {e}"))?;
        }
        Ok(())
    };
    weight_session::within(server, deadline, work).await
}
