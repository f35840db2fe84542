//! Exchanges between the ranks of one process by their GPUs' copy engines, which take no multiprocessor from what runs beside them.
//!
//! Members meet on the host and say where their numbers lie. Each GPU then fetches what is meant for it, on its side stream, as
//! soon as the others' streams have made it; nobody's memory is written again before all have fetched. It takes one GPU, or GPUs that
//! reach each other's memory ([`super::exchange`] finds out); what nothing runs beside is quicker by that module's kernels.

use super::{Cuda, Tensor, driver};
use crate::comm::{Begun, Comm, Group, Meet};
use crate::{Error, Result};
use cudarc::driver::{CudaEvent, CudaStream, result};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// What a member's streams have passed. Two turns' marks are enough: whoever comes to a turn has asked for the marks of the turn
/// before, and a mark is set again two turns later.
struct Marks {
    /// What it gives has been made.
    made: [CudaEvent; 2],
    /// What it gets has been fetched.
    fetched: [CudaEvent; 2],
}

/// One member of a group of GPUs that fetch from each other.
pub(super) struct Copies {
    cuda: Arc<Cuda>,
    side: Arc<CudaStream>,
    rank: usize,
    /// Of all members.
    marks: Vec<Arc<Marks>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    turn: usize,
    /// What the others may be fetching from.
    lent: Option<Tensor>,
}

impl Copies {
    /// All members, which are threads of one process, call it at once; copies run on `side`.
    pub(super) fn between<M: Meet>(
        cuda: &Arc<Cuda>,
        side: &Arc<CudaStream>,
        host: &Group<Cuda, M>,
    ) -> Result<Self> {
        let mark = || cuda.device.context.new_event(None).map_err(driver);
        let own = Arc::new(Marks {
            made: [mark()?, mark()?],
            fetched: [mark()?, mark()?],
        });
        let all = host.all_gather_host(&[Arc::as_ptr(&own) as usize as f64])?;
        let shared = |&at: &f64| {
            let at = at as usize as *const Marks;
            // SAFETY: another thread of this process made it from an Arc, which it keeps until all have come to the call below.
            unsafe {
                Arc::increment_strong_count(at);
                Arc::from_raw(at)
            }
        };
        let marks = all.iter().map(shared).collect();
        host.all_gather_host(&[])?;
        Ok(Self {
            cuda: cuda.clone(),
            side: side.clone(),
            rank: host.rank(),
            marks,
            state: Mutex::default(),
        })
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
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let (now, before) = (state.turn % 2, (state.turn + 1) % 2);
        self.marks[self.rank].made[now]
            .record(&device.stream)
            .map_err(driver)?;
        let address = |x: &Tensor, start: usize| x.block.ptr + 2 * start as u64;
        let said: Vec<f64> = given
            .iter()
            .flat_map(|piece| [address(&x, piece.start) as f64, piece.len() as f64])
            .collect();
        let all = host.all_gather_host(&said)?;
        let others = || {
            self.marks
                .iter()
                .enumerate()
                .filter(|(m, _)| *m != self.rank)
        };
        if state.turn > 0 {
            for (_, marks) in others() {
                let fetched = &marks.fetched[before];
                device.stream.wait(fetched).map_err(driver)?;
            }
        }
        (state.lent, state.turn) = (Some(x), state.turn + 1);
        for marks in &self.marks {
            self.side.wait(&marks.made[now]).map_err(driver)?;
        }
        let span = device.profile().begin(&self.side)?;
        for (member, place) in places.iter().enumerate() {
            let at = 2 * (member * self.marks.len() + self.rank);
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
        self.marks[self.rank].fetched[now]
            .record(&self.side)
            .map_err(driver)?;
        let done = self.side.record_event(None).map_err(driver)?;
        let cuda = self.cuda.clone();
        Ok(Begun::new(y, move || {
            cuda.device.bind()?;
            cuda.device.stream.wait(&done).map_err(driver)
        }))
    }
}
