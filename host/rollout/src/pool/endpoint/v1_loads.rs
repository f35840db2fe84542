//! `GET /v1/loads`: what a server runs and queues, per data-parallel rank.

use crate::pool::server::{CallError, Server};
use serde::Deserialize;

/// The sum over a server's ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Loads {
    /// Requests running.
    pub num_running: u64,
    /// Requests waiting.
    pub num_waiting: u64,
    /// Tokens in the cache.
    pub num_used_tokens: u64,
    /// Tokens the cache holds.
    pub num_total_tokens: u64,
    /// Tokens a second, as the server last measured it.
    pub tokens_per_sec: f64,
    /// Share of prompt tokens that the prefix cache served lately; the mean of the ranks.
    pub cache_hit_frac: f64,
}

#[derive(Deserialize)]
struct Answer {
    loads: Vec<Rank>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Rank {
    num_running_reqs: u64,
    num_waiting_reqs: u64,
    num_used_tokens: u64,
    max_total_num_tokens: u64,
    gen_throughput: f64,
    cache_hit_rate: f64,
}

/// Ask.
///
/// # Errors
/// The server cannot be reached, or is too old to say (404).
pub async fn v1_loads(server: &Server) -> Result<Loads, CallError> {
    let answer: Answer = server.get_json(&["/v1/loads"]).await?;
    let num_ranks = answer.loads.len().max(1) as f64;
    Ok(answer
        .loads
        .iter()
        .fold(Loads::default(), |sum, rank| Loads {
            num_running: sum.num_running + rank.num_running_reqs,
            num_waiting: sum.num_waiting + rank.num_waiting_reqs,
            num_used_tokens: sum.num_used_tokens + rank.num_used_tokens,
            num_total_tokens: sum.num_total_tokens + rank.max_total_num_tokens,
            tokens_per_sec: sum.tokens_per_sec + rank.gen_throughput,
            cache_hit_frac: sum.cache_hit_frac + rank.cache_hit_rate / num_ranks,
        }))
}
