//! What the turns of one rollout have sampled, kept where it outlives the process, so that a rollout that was cut
//! off goes on from its tokens.
//!
//! A generator is run again from its start: with the same prompt, seed and turns it asks the same questions, and
//! those that were answered are answered from here. A record fits a turn by its place and by the tokens before it;
//! one that does not fit is not used. It refuses to judge versions; that is the buffer's.

use crate::lock;
use crate::seed::hash64;
use serde::{Deserialize, Serialize};
use slime_core::ports::{Keep, Sampled};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// One turn, or as much of it as was sampled.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TurnRecord {
    /// Which forks led to its trajectory.
    pub lineage: u64,
    /// Which turn of it.
    pub turn: u32,
    /// Hash of the tokens before it.
    pub context: u64,
    /// What was sampled.
    pub sampled: Sampled,
}

/// Where records go.
pub(super) type Sink = Box<dyn Fn(&TurnRecord) + Send + Sync>;

/// The turns of one rollout.
#[derive(Default)]
pub(super) struct Turns {
    known: Mutex<HashMap<(u64, u32), TurnRecord>>,
    sink: Option<Sink>,
}

impl Turns {
    /// Those of an earlier process, and where this one's go.
    pub(super) fn new(begun: Vec<TurnRecord>, sink: Option<Sink>) -> Self {
        let known = begun
            .into_iter()
            .map(|record| ((record.lineage, record.turn), record));
        Self {
            known: Mutex::new(known.collect()),
            sink,
        }
    }

    /// What an earlier attempt at this turn has, if it stood where this one does.
    pub(super) fn recall(&self, lineage: u64, turn: u32, before: &[u32]) -> Sampled {
        let known = lock(&self.known);
        let record = known.get(&(lineage, turn));
        let fits = record.filter(|record| record.context == context(before));
        fits.map_or_else(Sampled::default, |record| record.sampled.clone())
    }

    /// Whoever keeps this turn.
    pub(super) fn keeper(
        self: &Arc<Self>,
        lineage: u64,
        turn: u32,
        before: &[u32],
    ) -> Arc<dyn Keep> {
        Arc::new(Keeper {
            turns: Arc::clone(self),
            lineage,
            turn,
            context: context(before),
        })
    }
}

struct Keeper {
    turns: Arc<Turns>,
    lineage: u64,
    turn: u32,
    context: u64,
}

impl Keep for Keeper {
    fn keep(&self, so_far: &Sampled) {
        let Some(sink) = &self.turns.sink else { return };
        let record = TurnRecord {
            lineage: self.lineage,
            turn: self.turn,
            context: self.context,
            sampled: so_far.clone(),
        };
        sink(&record);
        lock(&self.turns.known).insert((self.lineage, self.turn), record);
    }
}

fn context(tokens: &[u32]) -> u64 {
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|token| token.to_le_bytes())
        .collect();
    // SQLite's integers are signed.
    hash64("context", &[&bytes]) >> 1
}
