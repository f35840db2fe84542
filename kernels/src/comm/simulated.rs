//! Ranks that are not there: every call is noted and answered at once with the right shape.
//!
//! Over [`Shapes`](crate::shapes::Shapes) a single thread runs each rank of a large machine in turn, and what it noted is
//! replayed afterwards against a clock (the trainer's `plan`). It cannot know what others would have sent: numbers it
//! returns are its own.

use super::{Begun, Comm, Reduce};
use crate::shapes::{ShapeFloat, ShapeTensor, Shapes};
use crate::{Error, Ops, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What is exchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exchange {
    /// Everybody's sum to everybody.
    AllReduce,
    /// Everybody's rows to everybody.
    AllGather,
    /// Each a share of the sum.
    ReduceScatter,
    /// Some rows from each to each.
    AllToAll,
    /// To the next member, from the one before.
    Rotate,
    /// To one member.
    Send {
        /// Rank of the world.
        to: usize,
        /// Message.
        tag: u64,
    },
    /// From one member.
    Recv {
        /// Rank of the world.
        from: usize,
        /// Message.
        tag: u64,
    },
    /// A few host numbers.
    Host,
    /// What was begun with this number is waited for.
    Wait(u64),
}

/// One call of one rank.
#[derive(Clone, Debug, PartialEq)]
pub struct Noted {
    /// Which call.
    pub exchange: Exchange,
    /// Bytes this rank puts in.
    pub bytes: usize,
    /// It runs beside what comes after it, until [`Exchange::Wait`] names this number; of this rank in this group.
    pub begun: Option<u64>,
}

/// Told of each call: the group's name and members, and the call.
pub type Told = Arc<dyn Fn(&str, &[usize], Noted) + Send + Sync>;

/// One rank's membership of a group that is not there.
pub struct Simulated {
    ops: Arc<Shapes>,
    name: String,
    members: Vec<usize>,
    rank: usize,
    told: Told,
    /// How many calls were begun.
    begun: AtomicU64,
}

impl Simulated {
    /// Rank `rank` of the world as a member of `members`; calls are told to `told`.
    ///
    /// # Errors
    /// The rank is no member.
    pub fn new(
        ops: Arc<Shapes>,
        name: &str,
        members: Vec<usize>,
        rank: usize,
        told: Told,
    ) -> Result<Self> {
        let place = members.iter().position(|&m| m == rank);
        let rank = place.ok_or_else(|| {
            Error::Comm(format!("rank {rank} is no member of {name} {members:?}"))
        })?;
        Ok(Self {
            ops,
            name: name.into(),
            members,
            rank,
            told,
            begun: AtomicU64::new(0),
        })
    }

    fn note(&self, exchange: Exchange, bytes: usize) {
        self.tell(exchange, bytes, None);
    }

    fn tell(&self, exchange: Exchange, bytes: usize, begun: Option<u64>) {
        let noted = Noted {
            exchange,
            bytes,
            begun,
        };
        (self.told)(&self.name, &self.members, noted);
    }

    /// A call that is begun with `x`, which is kept until then; `value` is what it will have given.
    fn begin<X: Send + 'static, T>(
        &self,
        exchange: Exchange,
        (x, bytes): (X, usize),
        value: T,
    ) -> Begun<T> {
        let number = self.begun.fetch_add(1, Ordering::Relaxed);
        self.tell(exchange, bytes, Some(number));
        let (told, name, members) = (self.told.clone(), self.name.clone(), self.members.clone());
        Begun::new(value, move || {
            let noted = Noted {
                exchange: Exchange::Wait(number),
                bytes: 0,
                begun: None,
            };
            told(&name, &members, noted);
            drop(x);
            Ok(())
        })
    }

    fn tensor_bytes(&self, x: &ShapeTensor) -> usize {
        let (rows, cols) = self.ops.shape(x);
        rows * cols * self.ops.meter().widths().tensor
    }

    fn of_tensor(&self, exchange: Exchange, x: &ShapeTensor) -> (usize, usize) {
        self.note(exchange, self.tensor_bytes(x));
        self.ops.shape(x)
    }

    fn of_float(&self, exchange: Exchange, x: &ShapeFloat) -> usize {
        let (rows, cols) = self.ops.float_shape(x);
        self.note(exchange, rows * cols * self.ops.meter().widths().float);
        rows * cols
    }

    fn share(&self, op: &str, n: usize) -> Result<usize> {
        match n % self.members.len() {
            0 => Ok(n / self.members.len()),
            _ => Err(Error::Comm(format!(
                "{op} of {}: {n} is no multiple of its {} members",
                self.name,
                self.members.len()
            ))),
        }
    }
}

impl Comm<Shapes> for Simulated {
    fn name(&self) -> &str {
        &self.name
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.members.len()
    }

    fn all_reduce(&self, x: &ShapeTensor) -> Result<ShapeTensor> {
        let (rows, cols) = self.of_tensor(Exchange::AllReduce, x);
        Ok(self.ops.tensor_of(rows, cols))
    }

    fn all_gather(&self, x: &ShapeTensor) -> Result<ShapeTensor> {
        let (rows, cols) = self.of_tensor(Exchange::AllGather, x);
        Ok(self.ops.tensor_of(rows * self.members.len(), cols))
    }

    fn reduce_scatter(&self, x: &ShapeTensor) -> Result<ShapeTensor> {
        let (rows, cols) = self.of_tensor(Exchange::ReduceScatter, x);
        Ok(self
            .ops
            .tensor_of(self.share("reduce_scatter", rows)?, cols))
    }

    fn all_to_all(&self, x: &ShapeTensor, _: &[usize], recv_rows: &[usize]) -> Result<ShapeTensor> {
        let (_, cols) = self.of_tensor(Exchange::AllToAll, x);
        Ok(self.ops.tensor_of(recv_rows.iter().sum(), cols))
    }

    fn rotate(&self, x: &ShapeTensor) -> Result<ShapeTensor> {
        let (rows, cols) = self.of_tensor(Exchange::Rotate, x);
        Ok(self.ops.tensor_of(rows, cols))
    }

    fn send(&self, to: usize, tag: u64, x: &ShapeTensor) -> Result<()> {
        let to = self.members[to];
        self.of_tensor(Exchange::Send { to, tag }, x);
        Ok(())
    }

    fn recv(&self, from: usize, tag: u64, rows: usize, cols: usize) -> Result<ShapeTensor> {
        let from = self.members[from];
        let bytes = rows * cols * self.ops.meter().widths().tensor;
        self.note(Exchange::Recv { from, tag }, bytes);
        Ok(self.ops.tensor_of(rows, cols))
    }

    fn all_reduce_float(&self, x: &mut ShapeFloat) -> Result<()> {
        self.of_float(Exchange::AllReduce, x);
        Ok(())
    }

    fn reduce_scatter_float(&self, x: &ShapeFloat) -> Result<ShapeFloat> {
        let n = self.of_float(Exchange::ReduceScatter, x);
        self.ops.float_zeros(1, self.share("reduce_scatter", n)?)
    }

    fn all_gather_float(&self, x: &ShapeFloat) -> Result<ShapeFloat> {
        let n = self.of_float(Exchange::AllGather, x);
        self.ops.float_zeros(1, n * self.members.len())
    }

    fn begin_reduce_scatter_float(&self, x: ShapeFloat) -> Result<Begun<ShapeFloat>> {
        let (rows, cols) = self.ops.float_shape(&x);
        let bytes = rows * cols * self.ops.meter().widths().float;
        let share = self.share("reduce_scatter", rows * cols)?;
        let share = self.ops.float_zeros(1, share)?;
        Ok(self.begin(Exchange::ReduceScatter, (x, bytes), share))
    }

    fn begin_all_reduce(&self, x: ShapeTensor) -> Result<Begun<ShapeTensor>> {
        let (rows, cols) = self.ops.shape(&x);
        let (sum, bytes) = (self.ops.tensor_of(rows, cols), self.tensor_bytes(&x));
        Ok(self.begin(Exchange::AllReduce, (x, bytes), sum))
    }

    fn begin_all_gather(&self, x: ShapeTensor) -> Result<Begun<ShapeTensor>> {
        let (rows, cols) = self.ops.shape(&x);
        let all = self.ops.tensor_of(rows * self.members.len(), cols);
        let bytes = self.tensor_bytes(&x);
        Ok(self.begin(Exchange::AllGather, (x, bytes), all))
    }

    fn begin_swap(&self, x: ShapeTensor, rows: usize) -> Result<Begun<ShapeTensor>> {
        let (others, cols) = self.ops.shape(&x);
        let theirs = self.ops.tensor_of(others, cols);
        // The half of one that takes the time.
        let bytes = (others + rows) * cols * self.ops.meter().widths().tensor;
        Ok(self.begin(Exchange::ReduceScatter, (x, bytes), theirs))
    }

    fn begin_rotate(&self, x: ShapeTensor) -> Result<Begun<ShapeTensor>> {
        let (rows, cols) = self.ops.shape(&x);
        let (next, bytes) = (self.ops.tensor_of(rows, cols), self.tensor_bytes(&x));
        Ok(self.begin(Exchange::Rotate, (x, bytes), next))
    }

    fn all_reduce_host(&self, x: &mut [f64], _: Reduce) -> Result<()> {
        self.note(Exchange::Host, 8 * x.len());
        Ok(())
    }

    fn all_to_all_host(&self, x: &[f64], _: &[usize], recv: &[usize]) -> Result<Vec<f64>> {
        self.note(Exchange::Host, 8 * x.len());
        Ok(vec![0.0; recv.iter().sum()])
    }

    fn all_gather_host(&self, x: &[f64]) -> Result<Vec<f64>> {
        self.note(Exchange::Host, 8 * x.len());
        Ok(x.repeat(self.members.len()))
    }
}
