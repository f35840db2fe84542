//! Exchanges between the ranks of one process by their GPUs' copy engines, which take no multiprocessor from what runs beside them.
//!
//! Members meet on the host and say where their numbers lie. Each GPU then fetches what is meant for it, on its side stream,
//! as soon as the others' streams have made it; what is fetched from is kept until all have fetched, and nobody waits for
//! that. It takes one GPU, or GPUs that reach each other's memory ([`super::exchange`] finds out); what nothing runs beside
//! is quicker by that module's kernels.

use super::{Cuda, Tensor, driver};
use crate::comm::{Begun, Comm, Group, Meet};
use crate::{Error, Result};
use cudarc::driver::{CudaEvent, CudaStream, result};
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// What a member's streams have passed. Two turns' marks are enough: whoever comes to a turn knows that all have come to the turn
/// before, and so have asked for and set the marks of the one before that, which are set again now.
struct Member {
    /// What it gives has been made.
    made: [CudaEvent; 2],
    /// What it gets has been fetched.
    fetched: [CudaEvent; 2],
    /// What all may be fetching from, itself too. It lies here because who leaves first takes no memory along that others read.
    lent: Mutex<[Option<Tensor>; 2]>,
}

/// Members that have not met yet, by number.
static COMING: Mutex<BTreeMap<usize, Weak<Member>>> = Mutex::new(BTreeMap::new());

/// One member of a group of GPUs that fetch from each other.
pub(super) struct Copies {
    cuda: Arc<Cuda>,
    side: Arc<CudaStream>,
    rank: usize,
    members: Vec<Arc<Member>>,
    turn: Mutex<usize>,
}

impl Copies {
    /// All members, which are threads of one process, call it at once; copies run on `side`.
    pub(super) fn between<M: Meet>(
        cuda: &Arc<Cuda>,
        side: &Arc<CudaStream>,
        host: &Group<Cuda, M>,
    ) -> Result<Self> {
        static COME: AtomicUsize = AtomicUsize::new(0);
        let mark = || cuda.device.context.new_event(None).map_err(driver);
        let own = Arc::new(Member {
            made: [mark()?, mark()?],
            fetched: [mark()?, mark()?],
            lent: Mutex::default(),
        });
        let number = COME.fetch_add(1, Ordering::Relaxed);
        locked(&COMING).insert(number, Arc::downgrade(&own));
        let all = host.all_gather_host(&[number as f64])?;
        let member = |number: &f64| {
            let coming = locked(&COMING);
            let member = coming.get(&(*number as usize)).and_then(Weak::upgrade);
            member.ok_or_else(|| Error::Comm(format!("{}: a member has left", host.name())))
        };
        let members = all.iter().map(member).collect::<Result<_>>()?;
        host.all_gather_host(&[])?;
        locked(&COMING).remove(&number);
        Ok(Self {
            cuda: cuda.clone(),
            side: side.clone(),
            rank: host.rank(),
            members,
            turn: Mutex::default(),
        })
    }

    /// Memory that was lent in a turn of this parity, which all have begun, may be written again.
    fn take_back(&self, parity: usize) -> Result<()> {
        let Some(lent) = locked(&self.members[self.rank].lent)[parity].take() else {
            return Ok(());
        };
        for member in &self.members {
            let fetched = &member.fetched[parity];
            self.cuda.device.stream.wait(fetched).map_err(driver)?;
        }
        drop(lent);
        Ok(())
    }

    /// As [`Comm::settle`].
    pub(super) fn settle<M: Meet>(&self, host: &Group<Cuda, M>) -> Result<()> {
        host.all_gather_host(&[])?;
        self.cuda.device.bind()?;
        (0..2).try_for_each(|parity| self.take_back(parity))
    }

    /// Begin to give each member the elements `given` of `x`; what each gives this one comes to `places` of `y`.
    pub(super) fn begin<M: Meet>(
        &self,
        host: &Group<Cuda, M>,
        (x, given): (Tensor, &[Range<usize>]),
        (y, places): (Tensor, &[Range<usize>]),
    ) -> Result<Begun<Tensor>> {
        let device = &self.cuda.device;
        device.bind()?;
        let mut turn = locked(&self.turn);
        let (now, own) = (*turn % 2, &self.members[self.rank]);
        self.take_back(now)?;
        own.made[now].record(&device.stream).map_err(driver)?;
        let address = |x: &Tensor, start: usize| x.block.ptr + 2 * start as u64;
        let said: Vec<f64> = given
            .iter()
            .flat_map(|piece| [address(&x, piece.start) as f64, piece.len() as f64])
            .collect();
        // Before the others know: whoever is told that the meeting failed may not know who was not.
        locked(&own.lent)[now] = Some(x);
        let all = host.all_gather_host(&said)?;
        *turn += 1;
        for member in &self.members {
            self.side.wait(&member.made[now]).map_err(driver)?;
        }
        let span = device.profile().begin(&self.side)?;
        for (member, place) in places.iter().enumerate() {
            let at = 2 * (member * self.members.len() + self.rank);
            let (from, len) = (all[at] as u64, all[at + 1] as usize);
            if len != place.len() {
                let wanted = place.len();
                let why = format!("{len} numbers came from member {member}, not {wanted}");
                return Err(Error::Comm(format!("{}: {why}", host.name())));
            }
            if len == 0 {
                continue;
            }
            let to = address(&y, place.start);
            // SAFETY: `place` lies in y, and the other's piece in its tensor; both are kept until the copy is done.
            unsafe { result::memcpy_dtod_async(to, from, 2 * len, self.side.cu_stream()) }
                .map_err(driver)?;
        }
        device
            .profile()
            .end(&self.side, span, || "copies between GPUs".into())?;
        own.fetched[now].record(&self.side).map_err(driver)?;
        let done = self.side.record_event(None).map_err(driver)?;
        let cuda = self.cuda.clone();
        Ok(Begun::new(y, move || {
            cuda.device.bind()?;
            cuda.device.stream.wait(&done).map_err(driver)
        }))
    }
}

fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}
