//! Ranks that compute together: one trait, [`Comm`], a group of ranks as each of its members sees it.
//!
//! Every sum is in rank order, so all members get the same bits, and the same bits at every run. A call that the others do
//! not make too, or make with another shape, is an error that names both sides, never a hang. It knows no layer and no
//! schedule; which ranks form a group is the trainer's (`parallel::layout`). Read [`group`] next, then where ranks meet:
//! [`threads`] and [`tcp`].

mod begun;
pub mod group;
pub mod meet;
pub mod simulated;
pub mod tcp;
pub mod threads;

pub use begun::Begun;
pub use group::Group;
pub use meet::Meet;
pub use simulated::Simulated;
pub use tcp::{Processes, Tcp};
pub use threads::{Threads, World};

use crate::{Ops, Result};

/// How host numbers are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduce {
    /// Added, in rank order.
    Sum,
    /// The largest.
    Max,
}

/// A group of ranks, seen by one of them. Members make the same calls in the same order.
///
/// Rows are the unit of what is gathered and scattered: with `n` members, `[rows, cols]` of each becomes
/// `[n rows, cols]`, in the members' order, and the reverse.
pub trait Comm<O: Ops>: Send + Sync {
    /// For people: `tp`, `dp`, …
    fn name(&self) -> &str;
    /// This rank's place among the members, from 0.
    fn rank(&self) -> usize;
    /// Number of members.
    fn size(&self) -> usize;

    /// The sum of everybody's `x`.
    ///
    /// # Errors
    /// As for every call: the members disagree, one does not answer in time, or one has failed.
    fn all_reduce(&self, x: &O::Tensor) -> Result<O::Tensor>;
    /// Everybody's rows.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn all_gather(&self, x: &O::Tensor) -> Result<O::Tensor>;
    /// This rank's share of the rows of the sum; their number is a multiple of the members'.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn reduce_scatter(&self, x: &O::Tensor) -> Result<O::Tensor>;
    /// The first `send_rows[0]` rows go to member 0, the next `send_rows[1]` to member 1, …; what comes back is everybody's
    /// rows for this rank, `recv_rows[i]` of them from member `i`.
    ///
    /// # Errors
    /// As [`Self::all_reduce`]; also if a member sends another number of rows than is awaited.
    fn all_to_all(
        &self,
        x: &O::Tensor,
        send_rows: &[usize],
        recv_rows: &[usize],
    ) -> Result<O::Tensor>;
    /// What the member before this one gave; its own goes to the next, and the last member's to the first.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn rotate(&self, x: &O::Tensor) -> Result<O::Tensor>;
    /// Give `x` to member `to`, which receives it with the same `tag`. Does not wait.
    ///
    /// # Errors
    /// A rank has failed.
    fn send(&self, to: usize, tag: u64, x: &O::Tensor) -> Result<()>;
    /// What member `from` sent with this `tag`: `[rows, cols]`.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn recv(&self, from: usize, tag: u64, rows: usize, cols: usize) -> Result<O::Tensor>;

    /// Replace an accumulator by the sum of everybody's.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn all_reduce_float(&self, x: &mut O::Float) -> Result<()>;
    /// `[1, n]` → this rank's share of the sum, `[1, n / size]`.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn reduce_scatter_float(&self, x: &O::Float) -> Result<O::Float>;
    /// `[1, n]` → everybody's, `[1, n size]`.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn all_gather_float(&self, x: &O::Float) -> Result<O::Float>;

    /// Begin a [`Self::reduce_scatter_float`] that runs beside what this rank computes from now on, where the group can.
    /// Members begin what they begin in one order.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn begin_reduce_scatter_float(&self, x: O::Float) -> Result<Begun<O::Float>> {
        self.reduce_scatter_float(&x).map(Begun::done)
    }
    /// Begin a [`Self::all_reduce`], likewise.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn begin_all_reduce(&self, x: O::Tensor) -> Result<Begun<O::Tensor>> {
        self.all_reduce(&x).map(Begun::done)
    }
    /// Begin to give every other member rows, as many each and in the members' order; what comes are theirs for this member, in
    /// that order. The half of a [`Self::reduce_scatter`] that leaves the sum, and this member's own part, to the caller.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn begin_swap(&self, x: O::Tensor, rows: usize) -> Result<Begun<O::Tensor>> {
        let mut counts = vec![rows; self.size()];
        counts[self.rank()] = 0;
        self.all_to_all(&x, &counts, &counts).map(Begun::done)
    }
    /// Begin a [`Self::rotate`], likewise.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn begin_rotate(&self, x: O::Tensor) -> Result<Begun<O::Tensor>> {
        self.rotate(&x).map(Begun::done)
    }
    /// Begin a [`Self::all_gather`], likewise.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn begin_all_gather(&self, x: O::Tensor) -> Result<Begun<O::Tensor>> {
        self.all_gather(&x).map(Begun::done)
    }

    /// Keep nothing any longer that members fetched from, once all have come here: what was begun last is otherwise kept until
    /// more is begun.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn settle(&self) -> Result<()> {
        Ok(())
    }

    /// Combine a few host numbers in place.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn all_reduce_host(&self, x: &mut [f64], how: Reduce) -> Result<()>;
    /// As [`Self::all_to_all`], of host numbers.
    ///
    /// # Errors
    /// As [`Self::all_to_all`].
    fn all_to_all_host(&self, x: &[f64], send: &[usize], recv: &[usize]) -> Result<Vec<f64>>;
    /// Everybody's host numbers, as many from each, in the members' order.
    ///
    /// # Errors
    /// As [`Self::all_reduce`].
    fn all_gather_host(&self, x: &[f64]) -> Result<Vec<f64>>;
}
