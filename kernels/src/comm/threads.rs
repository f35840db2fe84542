//! Ranks as threads of one process: numbers meet on the host, in f64, and are added in rank order.
//!
//! Works over any device and is slow on all: it is where parallel code is proven before a cluster sees it. Each call of a
//! group carries its number, name, type and size, and all members must agree on them; a member that does not come within
//! the patience given ends the world for everybody, naming who waits where and what the absent rank did last.

use super::{Comm, Reduce};
use crate::{Error, Ops, Result};
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What one rank calls.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Call {
    op: &'static str,
    kind: &'static str,
    /// Compared between members.
    shape: (usize, usize),
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, cols) = self.shape;
        write!(f, "{} of {} [{rows}, {cols}]", self.op, self.kind)
    }
}

/// A call of a group, while its members gather.
struct Meeting {
    call: Call,
    first: usize,
    gifts: Vec<Option<Arc<Vec<f64>>>>,
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
    on_end: Mutex<Vec<Box<dyn Fn() + Send>>>,
}

impl World {
    /// `size` ranks that wait for each other at most `patience`.
    pub fn new(size: usize, patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            size,
            patience,
            state: Mutex::default(),
            changed: Condvar::new(),
            on_end: Mutex::default(),
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

    /// Have something done when the world ends: what else ranks wait in must let them go too.
    pub fn on_end(&self, act: impl Fn() + Send + 'static) {
        let mut acts = self.on_end.lock().unwrap_or_else(PoisonError::into_inner);
        acts.push(Box::new(act));
    }

    /// Wake everybody after the world has ended.
    fn tell(&self) {
        self.changed.notify_all();
        let mut acts = self.on_end.lock().unwrap_or_else(PoisonError::into_inner);
        for act in acts.drain(..) {
            act();
        }
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

/// One rank's membership of a group of threads.
pub struct Threads<O: Ops> {
    ops: Arc<O>,
    world: Arc<World>,
    name: String,
    /// Name and members: two groups of one name differ.
    key: Arc<str>,
    members: Vec<usize>,
    rank: usize,
    calls: AtomicU64,
}

impl<O: Ops> Threads<O> {
    /// Rank `rank` of the world as a member of the group `members`, which are ranks of the world.
    ///
    /// # Errors
    /// The rank is no member.
    pub fn new(
        ops: Arc<O>,
        world: Arc<World>,
        name: &str,
        members: Vec<usize>,
        rank: usize,
    ) -> Result<Self> {
        let place = members.iter().position(|&m| m == rank);
        let rank = place.ok_or_else(|| {
            Error::Comm(format!("rank {rank} is no member of {name} {members:?}"))
        })?;
        Ok(Self {
            ops,
            world,
            name: name.into(),
            key: format!("{name} {members:?}").into(),
            members,
            rank,
            calls: AtomicU64::new(0),
        })
    }

    fn me(&self) -> usize {
        self.members[self.rank]
    }

    /// Give `gift`, wait for everybody's.
    fn meet(&self, call: Call, gift: Vec<f64>) -> Result<Vec<Arc<Vec<f64>>>> {
        let number = self.calls.fetch_add(1, Ordering::Relaxed);
        let (at, me) = ((self.key.clone(), number), self.me());
        let disagree = {
            let mut state = self.world.lock();
            state
                .last
                .insert(me, format!("call {number} of {}, {call}", self.key));
            let meeting = state.meetings.entry(at.clone()).or_insert_with(|| Meeting {
                call: call.clone(),
                first: me,
                gifts: vec![None; self.members.len()],
                left: 0,
            });
            if meeting.call != call {
                let reason = format!(
                    "ranks disagree in call {number} of {}: rank {} calls {}, rank {me} calls {call}",
                    self.key, meeting.first, meeting.call
                );
                Some(reason)
            } else {
                meeting.gifts[self.rank] = Some(Arc::new(gift));
                None
            }
        };
        match disagree {
            Some(reason) => self.world.end(reason),
            None => self.world.changed.notify_all(),
        }
        let members = self.members.len();
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
                let gifts = meeting.gifts.iter().zip(&self.members);
                gifts
                    .filter(|(gift, _)| gift.is_none())
                    .map(|(_, &m)| m)
                    .collect()
            });
            self.waited(me, &format!("call {number}, {call}"), &missing, state)
        };
        self.world.wait(all_here, absent)
    }

    fn waited(&self, me: usize, what: &str, missing: &[usize], state: &State) -> String {
        let patience = self.world.patience.as_secs_f64();
        let absent: Vec<String> = missing
            .iter()
            .map(|m| {
                let last = state.last.get(m).map_or("nothing", String::as_str);
                format!("rank {m} (its last: {last})")
            })
            .collect();
        let absent = absent.join(", ");
        format!(
            "rank {me} waited {patience} s in {} for {what}; absent: {absent}",
            self.key
        )
    }

    fn summed(gifts: &[Arc<Vec<f64>>], range: Range<usize>) -> Vec<f64> {
        let mut sum = gifts[0][range.clone()].to_vec();
        for gift in &gifts[1..] {
            for (sum, x) in sum.iter_mut().zip(&gift[range.clone()]) {
                *sum += x;
            }
        }
        sum
    }

    /// This member's part of `n` equal parts.
    fn share(&self, op: &str, n: usize) -> Result<Range<usize>> {
        let members = self.members.len();
        if !n.is_multiple_of(members) {
            return Err(Error::Comm(format!(
                "{op} of {}: {n} is no multiple of its {members} members",
                self.key
            )));
        }
        let part = n / members;
        Ok(self.rank * part..(self.rank + 1) * part)
    }

    /// Each member's rows for this one. `call` has the shape of what this one gives.
    fn dealt_out(
        &self,
        call: Call,
        data: &[f64],
        send_rows: &[usize],
        recv_rows: &[usize],
    ) -> Result<Vec<f64>> {
        let (rows, cols) = call.shape;
        let members = self.members.len();
        if send_rows.len() != members
            || recv_rows.len() != members
            || send_rows.iter().sum::<usize>() != rows
        {
            return Err(Error::Comm(format!(
                "all_to_all of {}: {send_rows:?} and {recv_rows:?} rows for {members} members and {rows} rows",
                self.key
            )));
        }
        // The number of rows differs from rank to rank by design; each pair's is checked below.
        let call = Call {
            shape: (0, cols),
            ..call
        };
        let mut gift: Vec<f64> = send_rows.iter().map(|&n| n as f64).collect();
        gift.extend(data);
        let gifts = self.meet(call, gift)?;
        let mut all = Vec::new();
        for (from, gift) in gifts.iter().enumerate() {
            let counts: Vec<usize> = gift[..members].iter().map(|&n| n as usize).collect();
            if counts[self.rank] != recv_rows[from] {
                let reason = format!(
                    "all_to_all of {}: rank {} sends {} rows to rank {}, which awaits {}",
                    self.key,
                    self.members[from],
                    counts[self.rank],
                    self.me(),
                    recv_rows[from]
                );
                self.world.end(reason.clone());
                return Err(Error::Comm(reason));
            }
            let start = members + counts[..self.rank].iter().sum::<usize>() * cols;
            all.extend_from_slice(&gift[start..][..counts[self.rank] * cols]);
        }
        Ok(all)
    }

    fn tensor_call(&self, op: &'static str, x: &O::Tensor) -> Result<(Call, Vec<f64>)> {
        let (shape, kind) = (self.ops.shape(x), "tensors");
        Ok((Call { op, kind, shape }, self.ops.read_f64(x)?))
    }

    fn float_call(&self, op: &'static str, x: &O::Float) -> Result<(Call, Vec<f64>)> {
        let (shape, kind) = (self.ops.float_shape(x), "accumulators");
        Ok((Call { op, kind, shape }, self.ops.read_float_f64(x)?))
    }
}

impl<O: Ops> Comm<O> for Threads<O> {
    fn name(&self) -> &str {
        &self.name
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn all_reduce(&self, x: &O::Tensor) -> Result<O::Tensor> {
        let (call, gift) = self.tensor_call("all_reduce", x)?;
        let (shape, len) = (call.shape, gift.len());
        let gifts = self.meet(call, gift)?;
        self.ops
            .tensor_f64(shape.0, shape.1, &Self::summed(&gifts, 0..len))
    }

    fn all_gather(&self, x: &O::Tensor) -> Result<O::Tensor> {
        let (call, gift) = self.tensor_call("all_gather", x)?;
        let (rows, cols) = call.shape;
        let gifts = self.meet(call, gift)?;
        let all: Vec<f64> = gifts.iter().flat_map(|gift| gift.iter().copied()).collect();
        self.ops.tensor_f64(rows * gifts.len(), cols, &all)
    }

    fn reduce_scatter(&self, x: &O::Tensor) -> Result<O::Tensor> {
        let (call, gift) = self.tensor_call("reduce_scatter", x)?;
        let (rows, cols) = call.shape;
        let share = self.share("reduce_scatter", rows)?;
        let gifts = self.meet(call, gift)?;
        let range = share.start * cols..share.end * cols;
        self.ops
            .tensor_f64(share.len(), cols, &Self::summed(&gifts, range))
    }

    fn all_to_all(
        &self,
        x: &O::Tensor,
        send_rows: &[usize],
        recv_rows: &[usize],
    ) -> Result<O::Tensor> {
        let (call, data) = self.tensor_call("all_to_all", x)?;
        let cols = call.shape.1;
        let all = self.dealt_out(call, &data, send_rows, recv_rows)?;
        self.ops.tensor_f64(recv_rows.iter().sum(), cols, &all)
    }

    fn rotate(&self, x: &O::Tensor) -> Result<O::Tensor> {
        let (call, gift) = self.tensor_call("rotate", x)?;
        let (rows, cols) = call.shape;
        let gifts = self.meet(call, gift)?;
        let before = (self.rank + gifts.len() - 1) % gifts.len();
        self.ops.tensor_f64(rows, cols, &gifts[before])
    }

    fn send(&self, to: usize, tag: u64, x: &O::Tensor) -> Result<()> {
        let (call, data) = self.tensor_call("send", x)?;
        let mut state = self.world.lock();
        if let Some(reason) = &state.ended {
            return Err(Error::Comm(reason.clone()));
        }
        let (me, to) = (self.me(), self.members[to]);
        let said = format!("{}: {call} to rank {to}, tag {tag}", self.key);
        state.last.insert(me, said);
        state
            .mail
            .entry((self.key.clone(), me, to, tag))
            .or_default()
            .push_back((call, data));
        drop(state);
        self.world.changed.notify_all();
        Ok(())
    }

    fn recv(&self, from: usize, tag: u64, rows: usize, cols: usize) -> Result<O::Tensor> {
        let (me, from) = (self.me(), self.members[from]);
        let at = (self.key.clone(), from, me, tag);
        let what = format!("recv of [{rows}, {cols}] from rank {from}, tag {tag}");
        self.world
            .lock()
            .last
            .insert(me, format!("{}: {what}", self.key));
        let arrived = |state: &mut State| {
            let queue = state.mail.get_mut(&at)?;
            let found = queue.pop_front();
            if queue.is_empty() {
                state.mail.remove(&at);
            }
            found
        };
        let absent = |state: &State| self.waited(me, &what, &[from], state);
        let (call, data) = self.world.wait(arrived, absent)?;
        if call.shape != (rows, cols) {
            let reason = format!(
                "ranks disagree in {}: rank {from} calls {call}, rank {me} calls {what}",
                self.key
            );
            self.world.end(reason.clone());
            return Err(Error::Comm(reason));
        }
        self.ops.tensor_f64(rows, cols, &data)
    }

    fn all_reduce_float(&self, x: &mut O::Float) -> Result<()> {
        let (call, gift) = self.float_call("all_reduce", x)?;
        let (shape, len) = (call.shape, gift.len());
        let gifts = self.meet(call, gift)?;
        *x = self
            .ops
            .float_f64(shape.0, shape.1, &Self::summed(&gifts, 0..len))?;
        Ok(())
    }

    fn reduce_scatter_float(&self, x: &O::Float) -> Result<O::Float> {
        let (call, gift) = self.float_call("reduce_scatter", x)?;
        let share = self.share("reduce_scatter", gift.len())?;
        let gifts = self.meet(call, gift)?;
        self.ops
            .float_f64(1, share.len(), &Self::summed(&gifts, share))
    }

    fn all_gather_float(&self, x: &O::Float) -> Result<O::Float> {
        let (call, gift) = self.float_call("all_gather", x)?;
        let gifts = self.meet(call, gift)?;
        let all: Vec<f64> = gifts.iter().flat_map(|gift| gift.iter().copied()).collect();
        self.ops.float_f64(1, all.len(), &all)
    }

    fn all_reduce_host(&self, x: &mut [f64], how: Reduce) -> Result<()> {
        let (op, kind) = match how {
            Reduce::Sum => ("all_reduce", "host numbers"),
            Reduce::Max => ("all_reduce of the largest", "host numbers"),
        };
        let shape = (1, x.len());
        let gifts = self.meet(Call { op, kind, shape }, x.to_vec())?;
        match how {
            Reduce::Sum => x.copy_from_slice(&Self::summed(&gifts, 0..x.len())),
            Reduce::Max => {
                for (i, x) in x.iter_mut().enumerate() {
                    *x = gifts.iter().map(|gift| gift[i]).fold(*x, f64::max);
                }
            }
        }
        Ok(())
    }

    fn all_to_all_host(&self, x: &[f64], send: &[usize], recv: &[usize]) -> Result<Vec<f64>> {
        let (op, kind, shape) = ("all_to_all", "host numbers", (x.len(), 1));
        self.dealt_out(Call { op, kind, shape }, x, send, recv)
    }

    fn all_gather_host(&self, x: &[f64]) -> Result<Vec<f64>> {
        let (op, kind, shape) = ("all_gather", "host numbers", (1, x.len()));
        let gifts = self.meet(Call { op, kind, shape }, x.to_vec())?;
        Ok(gifts.iter().flat_map(|gift| gift.iter().copied()).collect())
    }
}
