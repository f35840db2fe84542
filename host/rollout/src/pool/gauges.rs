//! What servers said about their load since somebody last asked: looked at with every probe, kept as maxima.

use super::Inner;
use super::endpoint::v1_loads::{Loads, v1_loads};
use crate::lock;
use std::sync::Mutex;

/// The busiest moments of a pool's servers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Gauges {
    /// Share of its cache that the fullest server had in use.
    pub kv_usage_frac_max: f64,
    /// Requests running at one server.
    pub num_running_max: u64,
    /// Requests waiting at one server.
    pub num_waiting_max: u64,
    /// Tokens a second of the fastest moment of one server.
    pub tokens_per_sec_max: f64,
    /// Share of prompt tokens that prefix caches served: the last look's mean.
    pub cache_hit_frac: f64,
    /// Looks that were answered.
    pub num_looks: u64,
}

/// Gathers looks until they are taken.
#[derive(Default)]
pub(super) struct Gathered(Mutex<Gauges>);

impl Gathered {
    fn add(&self, loads: &Loads) {
        let mut g = lock(&self.0);
        let usage = loads.num_used_tokens as f64 / loads.num_total_tokens.max(1) as f64;
        g.kv_usage_frac_max = g.kv_usage_frac_max.max(usage);
        g.num_running_max = g.num_running_max.max(loads.num_running);
        g.num_waiting_max = g.num_waiting_max.max(loads.num_waiting);
        g.tokens_per_sec_max = g.tokens_per_sec_max.max(loads.tokens_per_sec);
        g.cache_hit_frac = loads.cache_hit_frac;
        g.num_looks += 1;
    }

    pub(super) fn take(&self) -> Gauges {
        std::mem::take(&mut *lock(&self.0))
    }
}

/// Look at one member. A server that does not say is no fault.
pub(super) async fn look(inner: &Inner, index: usize) {
    if let Ok(loads) = v1_loads(&inner.members[index].server).await {
        inner.gathered.add(&loads);
    }
}
