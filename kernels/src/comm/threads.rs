//! Ranks as threads of one process: a [`World`] is where they meet.
//!
//! It is slow on any device: it is where parallel code is proven before a cluster sees it. A member that does not come within
//! the patience given ends the world for everybody, naming who waits where and what the absent rank did last. What they
//! compute together is [`super::group`]'s.

use super::Group;
use super::meet::{Act, Acts, Call, Gift, Given, Meet, Site};
use crate::{Error, Result};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// One rank's membership of a group of threads.
pub type Threads<O> = Group<O, World>;

/// A call of a group, while its members gather.
struct Meeting {
    call: Call,
    first: usize,
    gifts: Vec<Option<Arc<Gift>>>,
    left: usize,
}

type Mail = HashMap<(Arc<str>, usize, usize, u64), VecDeque<(Call, Vec<f64>)>>;

#[derive(Default)]
struct State {
    ended: Option<String>,
    /// Each rank's last call, for people.
    last: BTreeMap<usize, String>,
    meetings: HashMap<(Arc<str>, u64), Meeting>,
    mail: Mail,
}

/// All ranks of a run that live in this process.
pub struct World {
    size: usize,
    patience: Duration,
    state: Mutex<State>,
    changed: Condvar,
    at_end: Acts,
}

impl World {
    /// `size` ranks that wait for each other at most `patience`.
    pub fn new(size: usize, patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            size,
            patience,
            state: Mutex::default(),
            changed: Condvar::new(),
            at_end: Acts::default(),
        })
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Make every rank's present and future calls fail with `reason`. The first reason stays.
    pub fn end(&self, reason: impl Into<String>) {
        let mut state = self.lock();
        state.ended.get_or_insert_with(|| reason.into());
        drop(state);
        self.tell();
    }

    /// Wake everybody after the world has ended.
    fn tell(&self) {
        self.changed.notify_all();
        self.at_end.run();
    }

    /// Why it ended, if it has.
    pub fn ended(&self) -> Option<String> {
        self.lock().ended.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wait until `ready` gives something; `absent` says after the patience what is missing.
    fn wait<T>(
        &self,
        mut ready: impl FnMut(&mut State) -> Option<T>,
        absent: impl Fn(&State) -> String,
    ) -> Result<T> {
        let deadline = Instant::now() + self.patience;
        let mut state = self.lock();
        loop {
            if let Some(reason) = &state.ended {
                return Err(Error::Comm(reason.clone()));
            }
            if let Some(found) = ready(&mut state) {
                return Ok(found);
            }
            let now = Instant::now();
            if now >= deadline {
                let reason = absent(&state);
                state.ended = Some(reason.clone());
                drop(state);
                self.tell();
                return Err(Error::Comm(reason));
            }
            state = self
                .changed
                .wait_timeout(state, deadline - now)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl World {
    fn waited(&self, site: &Site, what: &str, missing: &[usize], state: &State) -> String {
        let patience = self.patience.as_secs_f64();
        let absent: Vec<String> = missing
            .iter()
            .map(|m| {
                let last = state.last.get(m).map_or("nothing", String::as_str);
                format!("rank {m} (its last: {last})")
            })
            .collect();
        let (me, absent) = (site.me(), absent.join(", "));
        format!(
            "rank {me} waited {patience} s in {} for {what}; absent: {absent}",
            site.key
        )
    }
}

impl Meet for World {
    fn exchange(&self, site: &Site, number: u64, call: Call, gift: Gift) -> Result<Vec<Given>> {
        let (at, me) = ((site.key.clone(), number), site.me());
        let members = site.members.len();
        let disagree = {
            let mut state = self.lock();
            state
                .last
                .insert(me, format!("call {number} of {}, {call}", site.key));
            let meeting = state.meetings.entry(at.clone()).or_insert_with(|| Meeting {
                call: call.clone(),
                first: me,
                gifts: vec![None; members],
                left: 0,
            });
            if meeting.call != call {
                let reason = format!(
                    "ranks disagree in call {number} of {}: rank {} calls {}, rank {me} calls {call}",
                    site.key, meeting.first, meeting.call
                );
                Some(reason)
            } else {
                meeting.gifts[site.rank] = Some(Arc::new(gift));
                None
            }
        };
        match disagree {
            Some(reason) => self.end(reason),
            None => self.changed.notify_all(),
        }
        let all_here = |state: &mut State| {
            let meeting = state.meetings.get_mut(&at)?;
            let gifts: Option<Vec<_>> = meeting.gifts.iter().cloned().collect();
            let gifts = gifts?;
            meeting.left += 1;
            if meeting.left == members {
                state.meetings.remove(&at);
            }
            Some(gifts)
        };
        let absent = |state: &State| {
            let missing = state.meetings.get(&at).map_or(Vec::new(), |meeting| {
                let gifts = meeting.gifts.iter().zip(&site.members[..]);
                gifts
                    .filter(|(gift, _)| gift.is_none())
                    .map(|(_, &m)| m)
                    .collect()
            });
            self.waited(site, &format!("call {number}, {call}"), &missing, state)
        };
        let gifts = self.wait(all_here, absent)?;
        Ok(gifts.iter().map(|gift| gift.part(site.rank)).collect())
    }

    fn post(&self, site: &Site, to: usize, tag: u64, call: Call, data: Vec<f64>) -> Result<()> {
        let mut state = self.lock();
        if let Some(reason) = &state.ended {
            return Err(Error::Comm(reason.clone()));
        }
        let me = site.me();
        let said = format!("{}: {call} to rank {to}, tag {tag}", site.key);
        state.last.insert(me, said);
        state
            .mail
            .entry((site.key.clone(), me, to, tag))
            .or_default()
            .push_back((call, data));
        drop(state);
        self.changed.notify_all();
        Ok(())
    }

    fn fetch(&self, site: &Site, from: usize, tag: u64, what: &str) -> Result<(Call, Vec<f64>)> {
        let me = site.me();
        let at = (site.key.clone(), from, me, tag);
        self.lock().last.insert(me, format!("{}: {what}", site.key));
        let arrived = |state: &mut State| {
            let queue = state.mail.get_mut(&at)?;
            let found = queue.pop_front();
            if queue.is_empty() {
                state.mail.remove(&at);
            }
            found
        };
        let absent = |state: &State| self.waited(site, what, &[from], state);
        self.wait(arrived, absent)
    }

    fn on_end(&self, act: Act) {
        self.at_end.push(act, || self.ended().is_some());
    }

    fn end(&self, reason: String) {
        Self::end(self, reason);
    }
}
