//! Ranks as processes, on one machine or many: they meet over TCP, and give what they would give as threads.
//!
//! Every rank has a connection to every other. What is given is added by each receiver, as on threads, so the bits are those
//! of [`super::World`]. A peer whose connection breaks, or that sends nothing for [`Timing::silence`], ends the work of all in
//! seconds; a sign of life goes out every [`Timing::beat`], whatever a rank computes. Who leads the ranks tells them what to
//! do in words ([`Processes::tell`], [`Processes::hear`]) over the same connections. There is no encryption: ranks belong on a
//! network of their own. Read [`rendezvous`] for how they find each other, [`frame`] for what is sent.

mod frame;
mod link;
pub mod rendezvous;

pub use rendezvous::{Rendezvous, Timing};

use super::Group;
use super::meet::{Act, Acts, Call, Gift, Given, Meet, Site};
use crate::{Error, Result};
use frame::Frame;
use link::Link;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Shutdown};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// One rank's membership of a group of processes.
pub type Tcp<O> = Group<O, Processes>;

#[derive(Default)]
struct State {
    ended: Option<String>,
    /// Each rank's last call, for people.
    last: BTreeMap<usize, String>,
    /// By group, number of the call and giver.
    gifts: HashMap<(String, u64, usize), (Call, Vec<f64>)>,
    /// By group, sender and tag.
    mail: HashMap<(String, usize, u64), VecDeque<(Call, Vec<f64>)>>,
    words: BTreeMap<usize, VecDeque<Vec<u8>>>,
    /// Who has left in good order.
    left: BTreeSet<usize>,
}

struct Inner {
    rank: usize,
    timing: Timing,
    /// By rank; none to itself.
    links: Vec<Option<Link>>,
    patience: Mutex<Duration>,
    state: Mutex<State>,
    changed: Condvar,
    at_end: Acts,
}

/// All ranks of a run, as one of them sees them.
pub struct Processes {
    inner: Arc<Inner>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Processes {
    /// Meet the other ranks.
    ///
    /// # Errors
    /// They do not all come in time, or their number differs.
    pub fn join(at: &Rendezvous, timing: Timing) -> Result<Arc<Self>> {
        let links = rendezvous::connect(at, timing)?;
        let inner = Arc::new(Inner {
            rank: at.rank,
            patience: Mutex::new(timing.patience),
            timing,
            links,
            state: Mutex::default(),
            changed: Condvar::new(),
            at_end: Acts::default(),
        });
        let mut threads = Vec::new();
        for peer in (0..at.size).filter(|&peer| peer != at.rank) {
            let inner = inner.clone();
            threads.push(thread("peer", move || inner.listen(peer))?);
        }
        let beating = inner.clone();
        threads.push(thread("beat", move || beating.beat())?);
        let threads = Mutex::new(threads);
        Ok(Arc::new(Self { inner, threads }))
    }

    /// From now on wait at most so long for a rank that lives. Ranks meet before they know what they will do.
    pub fn set_patience(&self, patience: Duration) {
        *self
            .inner
            .patience
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = patience;
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.inner.rank
    }

    /// Number of ranks.
    pub fn size(&self) -> usize {
        self.inner.links.len()
    }

    /// Where a rank is, as seen from here; `None` for this one.
    pub fn address(&self, rank: usize) -> Option<IpAddr> {
        Some(self.inner.links[rank].as_ref()?.address.ip())
    }

    /// Why the work has ended, if it has.
    pub fn ended(&self) -> Option<String> {
        self.inner.lock().ended.clone()
    }

    /// Say something to a rank.
    ///
    /// # Errors
    /// A rank has failed.
    pub fn tell(&self, to: usize, words: &[u8]) -> Result<()> {
        self.inner.send(to, &frame::word(words))
    }

    /// What a rank said next. Without a limit it waits as long as that rank lives.
    ///
    /// # Errors
    /// A rank has failed, or has left; or nothing was said within the limit.
    pub fn hear(&self, from: usize, limit: Option<Duration>) -> Result<Vec<u8>> {
        let me = self.rank();
        let absent = |_: &State| {
            let limit = limit.unwrap_or_default().as_secs_f64();
            format!("rank {me} waited {limit} s for what rank {from} says")
        };
        let said =
            |state: &mut State| match state.words.get_mut(&from).and_then(VecDeque::pop_front) {
                Some(words) => Some(Ok(words)),
                None => state.gone(&[from]).map(|gone| Err(Error::Comm(gone))),
            };
        self.inner.wait(limit, said, absent)?
    }

    /// Leave in good order: the others are told that this rank's silence means nothing.
    pub fn leave(&self) {
        for link in self.inner.links.iter().flatten() {
            let _ = link.write(&frame::bye());
            let _ = link.stream.shutdown(Shutdown::Write);
        }
        let mut state = self.inner.lock();
        let left = "this rank has left the others".to_owned();
        state.ended.get_or_insert(left);
        drop(state);
        self.inner.changed.notify_all();
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.leave();
        for link in self.inner.links.iter().flatten() {
            // Wakes the thread that reads it.
            let _ = link.stream.shutdown(Shutdown::Both);
        }
        let mut threads = self.threads.lock().unwrap_or_else(PoisonError::into_inner);
        for thread in threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn thread(name: &str, body: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
    std::thread::Builder::new()
        .name(format!("ranks-{name}"))
        .spawn(body)
        .map_err(|e| Error::Comm(format!("no thread for a connection: {e}")))
}

impl State {
    /// Which of `ranks` have left, in words.
    fn gone(&self, ranks: &[usize]) -> Option<String> {
        let gone = ranks.iter().find(|rank| self.left.contains(rank))?;
        Some(format!("rank {gone} has left"))
    }

    fn last_of(&self, rank: usize) -> &str {
        self.last.get(&rank).map_or("nothing", String::as_str)
    }
}

impl Inner {
    fn patience(&self) -> Duration {
        *self.patience.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn called(&self, rank: usize) -> String {
        match &self.links[rank] {
            Some(link) => format!("rank {rank} at {}", link.address.ip()),
            None => format!("rank {rank}"),
        }
    }

    /// End the work of all: here, and wherever a connection still works.
    fn end(&self, reason: String) {
        let mut state = self.lock();
        let is_first = state.ended.is_none();
        state.ended.get_or_insert_with(|| reason.clone());
        drop(state);
        self.changed.notify_all();
        if is_first {
            let said = frame::end(&reason);
            for link in self.links.iter().flatten() {
                link.write_if_free(&said);
            }
        }
        self.at_end.run();
    }

    fn send(&self, to: usize, bytes: &[u8]) -> Result<()> {
        if let Some(reason) = &self.lock().ended {
            return Err(Error::Comm(reason.clone()));
        }
        let Some(link) = &self.links[to] else {
            return Err(Error::Comm(format!("rank {to} sends to itself")));
        };
        match link.write(bytes) {
            Ok(()) => Ok(()),
            Err(error) => {
                self.end(format!("{} cannot be reached: {error}", self.called(to)));
                Err(Error::Comm(self.lock().ended.clone().unwrap_or_default()))
            }
        }
    }

    /// Wait until `ready` gives something; `absent` says after the limit what is missing.
    fn wait<T>(
        &self,
        limit: Option<Duration>,
        mut ready: impl FnMut(&mut State) -> Option<T>,
        absent: impl Fn(&State) -> String,
    ) -> Result<T> {
        let deadline = limit.map(|limit| Instant::now() + limit);
        let mut state = self.lock();
        loop {
            // What has arrived counts, even if its sender has failed since.
            if let Some(found) = ready(&mut state) {
                return Ok(found);
            }
            if let Some(reason) = &state.ended {
                return Err(Error::Comm(reason.clone()));
            }
            let left = deadline.map_or(Duration::from_secs(3600), |at| {
                at.saturating_duration_since(Instant::now())
            });
            if left.is_zero() {
                let reason = absent(&state);
                drop(state);
                self.end(reason.clone());
                return Err(Error::Comm(reason));
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    /// Take in what `peer` sends, until it leaves or is lost.
    fn listen(&self, peer: usize) {
        let Some(link) = &self.links[peer] else {
            return;
        };
        let mut from = std::io::BufReader::with_capacity(1 << 16, &link.stream);
        loop {
            let read = frame::read(&mut from);
            let mut state = self.lock();
            match read {
                Ok(Frame::Gift {
                    key,
                    number,
                    call,
                    data,
                }) => {
                    state
                        .last
                        .insert(peer, format!("call {number} of {key}, {call}"));
                    state.gifts.insert((key, number, peer), (call, data));
                }
                Ok(Frame::Mail {
                    key,
                    tag,
                    call,
                    data,
                }) => {
                    let mail = state.mail.entry((key, peer, tag)).or_default();
                    mail.push_back((call, data));
                }
                Ok(Frame::Word(words)) => state.words.entry(peer).or_default().push_back(words),
                Ok(Frame::Beat(last)) => {
                    state.last.insert(peer, last);
                    continue;
                }
                Ok(Frame::End(reason)) => {
                    drop(state);
                    self.end(reason);
                    return;
                }
                Ok(Frame::Bye) => {
                    state.left.insert(peer);
                    drop(state);
                    self.changed.notify_all();
                    return;
                }
                Err(error) => {
                    let last = state.last_of(peer).to_owned();
                    drop(state);
                    let (who, silence) = (self.called(peer), self.timing.silence.as_secs_f64());
                    let how = match error.kind() {
                        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => {
                            format!("sent nothing for {silence} s")
                        }
                        std::io::ErrorKind::InvalidData => format!("sends {error}"),
                        _ => "closed its connection".to_owned(),
                    };
                    self.end(format!("{who} is lost: it {how} (its last: {last})"));
                    return;
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    /// Show that this rank lives, until the work ends.
    fn beat(&self) {
        let me = self.rank;
        loop {
            let state = self.lock();
            let (state, _) = self
                .changed
                .wait_timeout_while(state, self.timing.beat, |state| state.ended.is_none())
                .unwrap_or_else(PoisonError::into_inner);
            if state.ended.is_some() {
                return;
            }
            let beat = frame::beat(state.last_of(me));
            let present: Vec<&Link> = (0..self.links.len())
                .filter(|rank| !state.left.contains(rank))
                .filter_map(|rank| self.links[rank].as_ref())
                .collect();
            drop(state);
            for link in present {
                // Whoever holds it is sending, which says as much.
                link.write_if_free(&beat);
            }
        }
    }
}

impl Meet for Processes {
    fn exchange(&self, site: &Site, number: u64, call: Call, gift: Gift) -> Result<Vec<Given>> {
        let (inner, me) = (&*self.inner, site.me());
        let what = format!("call {number} of {}, {call}", site.key);
        inner.lock().last.insert(me, what);
        let mut same = None;
        for (place, &to) in site.members.iter().enumerate().filter(|(_, m)| **m != me) {
            match &gift.parts {
                None => {
                    let encode = || frame::gift(&site.key, number, &call, &gift.data);
                    inner.send(to, same.get_or_insert_with(encode))?;
                }
                Some(_) => {
                    let part = gift.part(place);
                    inner.send(to, &frame::gift(&site.key, number, &call, &part))?;
                }
            }
        }
        drop(same);
        let others: Vec<usize> = site.members.iter().copied().filter(|&m| m != me).collect();
        let at = |from: usize| (site.key.to_string(), number, from);
        let missing = |state: &State| -> Vec<usize> {
            let here = |m: &usize| state.gifts.contains_key(&at(*m));
            others.iter().copied().filter(|m| !here(m)).collect()
        };
        let all_here = |state: &mut State| {
            let missing = missing(state);
            if !missing.is_empty() {
                return state.gone(&missing).map(Err);
            }
            let taken = others.iter().filter_map(|&m| state.gifts.remove(&at(m)));
            Some(Ok(taken.collect::<Vec<_>>()))
        };
        let absent = |state: &State| {
            inner.waited(
                site,
                &format!("call {number}, {call}"),
                &missing(state),
                state,
            )
        };
        let taken = inner.wait(Some(inner.patience()), all_here, absent)?;
        let taken = taken.map_err(|gone| {
            let reason = format!(
                "{gone}, and rank {me} waits for it in call {number} of {}, {call}",
                site.key
            );
            inner.end(reason.clone());
            Error::Comm(reason)
        })?;
        if let Some((from, (said, _))) = others
            .iter()
            .zip(&taken)
            .find(|(_, (said, _))| *said != call)
        {
            // Named in rank order, so that both sides say the same.
            let (first, second) = if *from < me {
                ((from, said), (&me, &call))
            } else {
                ((&me, &call), (from, said))
            };
            let reason = format!(
                "ranks disagree in call {number} of {}: rank {} calls {}, rank {} calls {}",
                site.key, first.0, first.1, second.0, second.1
            );
            inner.end(reason.clone());
            return Err(Error::Comm(reason));
        }
        let mut taken = taken.into_iter();
        let given = site
            .members
            .iter()
            .enumerate()
            .map(|(place, &m)| match m == me {
                true => Some(gift.part(place)),
                false => Some(Given::from(taken.next()?.1)),
            });
        Ok(given.flatten().collect())
    }

    fn post(&self, site: &Site, to: usize, tag: u64, call: Call, data: Vec<f64>) -> Result<()> {
        let (inner, me) = (&*self.inner, site.me());
        let said = format!("{}: {call} to rank {to}, tag {tag}", site.key);
        inner.lock().last.insert(me, said);
        inner.send(to, &frame::mail(&site.key, tag, &call, &data))
    }

    fn fetch(&self, site: &Site, from: usize, tag: u64, what: &str) -> Result<(Call, Vec<f64>)> {
        let (inner, me) = (&*self.inner, site.me());
        inner
            .lock()
            .last
            .insert(me, format!("{}: {what}", site.key));
        let at = (site.key.to_string(), from, tag);
        let arrived = |state: &mut State| {
            let Some(queue) = state.mail.get_mut(&at) else {
                return state.gone(&[from]).map(|gone| Err(Error::Comm(gone)));
            };
            let found = queue.pop_front();
            if queue.is_empty() {
                state.mail.remove(&at);
            }
            found.map(Ok)
        };
        let absent = |state: &State| inner.waited(site, what, &[from], state);
        inner.wait(Some(inner.patience()), arrived, absent)?
    }

    fn end(&self, reason: String) {
        self.inner.end(reason);
    }

    fn on_end(&self, act: Act) {
        self.inner.at_end.push(act, || self.ended().is_some());
    }

    fn travels(&self) -> bool {
        true
    }
}

impl Inner {
    fn waited(&self, site: &Site, what: &str, missing: &[usize], state: &State) -> String {
        let patience = self.patience().as_secs_f64();
        let absent: Vec<String> = missing
            .iter()
            .map(|&m| format!("{} (its last: {})", self.called(m), state.last_of(m)))
            .collect();
        let (me, key, absent) = (site.me(), &site.key, absent.join(", "));
        format!("rank {me} waited {patience} s in {key} for {what}; absent: {absent}")
    }
}
