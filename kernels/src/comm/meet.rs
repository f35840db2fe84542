//! Where ranks meet: what a place must do for [`super::Group`] to compute with those who come to it.
//!
//! Numbers travel as f64 and nobody adds them on the way, so that every member adds the same numbers in the same order. The
//! places are [`super::World`] (threads of one process) and [`super::Tcp`] (processes).

use crate::Result;
use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// What one rank calls; members must agree on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// `all_reduce`, …
    pub op: Cow<'static, str>,
    /// Of what: tensors, accumulators, host numbers.
    pub kind: Cow<'static, str>,
    /// Its size.
    pub shape: (usize, usize),
}

impl Call {
    /// `op` of a `kind` of this shape.
    pub fn new(op: &'static str, kind: &'static str, shape: (usize, usize)) -> Self {
        let (op, kind) = (op.into(), kind.into());
        Self { op, kind, shape }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (rows, cols) = self.shape;
        write!(f, "{} of {} [{rows}, {cols}]", self.op, self.kind)
    }
}

/// A group, seen by one of its members.
#[derive(Clone, Debug)]
pub struct Site {
    /// Name and members: two groups of one name differ.
    pub key: Arc<str>,
    /// Ranks of the world.
    pub members: Arc<[usize]>,
    /// This member's place among them.
    pub rank: usize,
}

impl Site {
    /// This member's rank in the world.
    pub fn me(&self) -> usize {
        self.members[self.rank]
    }
}

/// What a member gives.
#[derive(Clone, Debug)]
pub struct Gift {
    /// The numbers.
    pub data: Arc<Vec<f64>>,
    /// Which of them are for each member; all for everybody where it is not said.
    pub parts: Option<Vec<Range<usize>>>,
}

impl Gift {
    /// The same for everybody.
    pub fn whole(data: Vec<f64>) -> Self {
        let data = Arc::new(data);
        Self { data, parts: None }
    }

    /// `parts[i]` for member `i`.
    pub fn parts(data: Vec<f64>, parts: Vec<Range<usize>>) -> Self {
        let (data, parts) = (Arc::new(data), Some(parts));
        Self { data, parts }
    }

    /// What member `to` gets.
    pub fn part(&self, to: usize) -> Given {
        let all = || 0..self.data.len();
        Given {
            data: self.data.clone(),
            range: self
                .parts
                .as_ref()
                .map_or_else(all, |parts| parts[to].clone()),
        }
    }
}

/// What one member gave this one.
#[derive(Clone, Debug)]
pub struct Given {
    data: Arc<Vec<f64>>,
    range: Range<usize>,
}

impl From<Vec<f64>> for Given {
    fn from(data: Vec<f64>) -> Self {
        let range = 0..data.len();
        let data = Arc::new(data);
        Self { data, range }
    }
}

impl Deref for Given {
    type Target = [f64];

    fn deref(&self) -> &[f64] {
        &self.data[self.range.clone()]
    }
}

/// What is done when the work of all ends, at once where it has.
pub type Act = Box<dyn FnOnce() + Send>;

/// What waits for the end.
#[derive(Default)]
pub(super) struct Acts(Mutex<Vec<Act>>);

impl Acts {
    /// `act` once the work ends, which it may have.
    pub(super) fn push(&self, act: Act, has_ended: impl Fn() -> bool) {
        self.lock().push(act);
        if has_ended() {
            self.run();
        }
    }

    /// Do all that was not done yet.
    pub(super) fn run(&self) {
        let acts = std::mem::take(&mut *self.lock());
        acts.into_iter().for_each(|act| act());
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Act>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A place where ranks meet.
pub trait Meet: Send + Sync {
    /// Make call `number` of the group: give, and wait for what everybody gives, in the members' order.
    ///
    /// # Errors
    /// The members call different things, one does not come in time, or one has failed.
    fn exchange(&self, site: &Site, number: u64, call: Call, gift: Gift) -> Result<Vec<Given>>;
    /// Leave something for rank `to` of the world. Does not wait for it to be fetched.
    ///
    /// # Errors
    /// A rank has failed.
    fn post(&self, site: &Site, to: usize, tag: u64, call: Call, data: Vec<f64>) -> Result<()>;
    /// What rank `from` of the world left under this tag; `what` says it for people.
    ///
    /// # Errors
    /// It does not come in time, or a rank has failed.
    fn fetch(&self, site: &Site, from: usize, tag: u64, what: &str) -> Result<(Call, Vec<f64>)>;
    /// Make every rank's present and future calls fail with `reason`. The first reason stays.
    fn end(&self, reason: String);
    /// Have something done when the work of all ends: what else ranks wait in must let them go too.
    fn on_end(&self, act: Act);
    /// Whether what is given crosses a network, so that less of it is worth one more message.
    fn travels(&self) -> bool {
        false
    }
}
