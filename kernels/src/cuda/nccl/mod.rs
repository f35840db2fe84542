//! Ranks on several GPUs: NCCL, found at run time, behind [`Comm`].
//!
//! Collectives run on the device's one stream, so they are ordered with the kernels around them, and those that are begun
//! on a stream beside it; messages between stages run on two streams of their own, one a direction, so that no send waits
//! for a receive queued behind it. Ranks are threads of one process or processes: host numbers go through the place where
//! they meet, which also gave every member the group's id. When a rank fails, every communicator is
//! aborted, which frees whoever waits in one. Read [`crate::comm`] for the contract.

mod api;

pub use api::version;
pub(super) use api::{Api, Line, UniqueId};

use super::copies::Copies;
use super::exchange::{Collective, Exchange, Lane};
use super::{Cuda, Float, Tensor, driver};
use crate::Result;
use crate::comm::{Begun, Comm, Group, Meet, Reduce, World};
use api::{BF16, F32, Handle, SUM, Status, failed};
use cudarc::driver::{CudaEvent, CudaStream, result};
use std::collections::{BTreeSet, VecDeque};
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// A tensor on its way to another rank, kept until it has left.
type Leaving = VecDeque<(CudaEvent, Tensor)>;

/// Messages of one direction.
struct Post {
    line: Arc<Line>,
    stream: Arc<CudaStream>,
    leaving: Mutex<Leaving>,
}

/// One rank's membership of a group of GPUs.
pub struct Nccl<M: Meet = World> {
    cuda: Arc<Cuda>,
    api: &'static Api,
    host: Group<Cuda, M>,
    line: Arc<Line>,
    /// Where what is begun runs, beside the device's stream.
    side: Arc<CudaStream>,
    /// Forward and backward; made for groups that send messages.
    posts: Option<[Post; 2]>,
    /// What is quicker where GPUs reach each other's memory.
    direct: Option<Exchange>,
    /// What runs beside other work there, and on one GPU.
    copies: Option<Copies>,
    /// Members are threads of one process on one GPU (NCCL's `NCCL_MULTI_RANK_GPU_ENABLE`). A kernel that waits for another
    /// member then holds the device that this member may need in order to come: one that loads a kernel or copies waits for
    /// all there is. So members meet on the host before a call, and wait for its end. Single messages go through the host.
    share_a_gpu: bool,
}

impl<M: Meet + 'static> Nccl<M> {
    /// Rank `rank` of those that meet at `place` as a member of the group `members`, all of which call it at the same time;
    /// each has a GPU of its own, unless NCCL is new enough and told to let them share one. `messages` says whether members will send each other single tensors.
    ///
    /// # Errors
    /// There is no NCCL, it refuses, or a rank failed.
    pub fn new(
        cuda: Arc<Cuda>,
        place: Arc<M>,
        name: &str,
        members: Vec<usize>,
        rank: usize,
        messages: bool,
    ) -> Result<Self> {
        let api = Api::get()?;
        let host = Group::new(cuda.clone(), place.clone(), name, members, rank)?;
        cuda.device.bind()?;
        let line = || -> Result<Arc<Line>> {
            let mut id = UniqueId([0; 128]);
            if host.rank() == 0 {
                id = UniqueId::new(api)?;
            }
            let said: Vec<f64> = id.0.iter().map(|&b| f64::from(b)).collect();
            let all = host.all_gather_host(&said)?;
            for (byte, said) in id.0.iter_mut().zip(&all) {
                *byte = *said as u8;
            }
            let line = Line::new(api, host.size(), host.rank(), id)?;
            let (watched, api) = (Arc::downgrade(&line), api);
            place.on_end(Box::new(move || {
                // On a thread of its own: to abort one may take the device, which kernels of the others hold until they
                // are aborted too.
                if let Some(line) = watched.upgrade() {
                    std::thread::spawn(move || line.abort(api));
                }
            }));
            Ok(line)
        };
        let main = line()?;
        let post = || -> Result<Post> {
            Ok(Post {
                line: line()?,
                stream: cuda.device.context.new_stream().map_err(driver)?,
                leaving: Mutex::default(),
            })
        };
        let posts = match messages {
            true => Some([post()?, post()?]),
            false => None,
        };
        let (_, first) = result::stream::get_priority_range().map_err(driver)?;
        let (mut share_a_gpu, mut direct, mut can_copy) = (false, None, false);
        if !place.travels() {
            let gpus = host.all_gather_host(&[cuda.device.context.ordinal() as f64])?;
            let gpus: Vec<usize> = gpus.into_iter().map(|gpu| gpu as usize).collect();
            share_a_gpu = gpus.iter().collect::<BTreeSet<_>>().len() < gpus.len();
            direct = Exchange::between(&cuda, &host, &gpus)?;
            can_copy = direct.is_some() || share_a_gpu && gpus.iter().all(|&gpu| gpu == gpus[0]);
        }
        if let Some(direct) = &direct {
            let ended = Arc::downgrade(direct.ended());
            place.on_end(Box::new(move || {
                if let Some(ended) = ended.upgrade() {
                    ended.set();
                }
            }));
        }
        // What is begun early comes before what it runs beside: others wait for it.
        let side = cuda.device.context.new_stream_with_priority(first);
        let side = side.map_err(driver)?;
        let copies = match can_copy {
            true => Some(Copies::between(&cuda, &side, &host)?),
            false => None,
        };
        Ok(Self {
            api,
            host,
            direct,
            copies,
            line: main,
            side,
            posts,
            cuda,
            share_a_gpu,
        })
    }

    fn call(&self, op: &str, call: impl FnOnce(Handle, *mut c_void) -> Status) -> Result<()> {
        self.call_on(&self.cuda.device.stream, op, call)
    }

    fn call_on(
        &self,
        stream: &Arc<CudaStream>,
        op: &str,
        call: impl FnOnce(Handle, *mut c_void) -> Status,
    ) -> Result<()> {
        let device = &self.cuda.device;
        device.bind()?;
        if self.share_a_gpu {
            self.host.all_gather_host(&[])?;
        }
        let span = device.profile().begin(stream)?;
        let on = stream.cu_stream().cast();
        let status = self.line.with(|handle| call(handle, on))?;
        self.api.check(op, status)?;
        if self.share_a_gpu {
            stream.synchronize().map_err(driver)?;
        }
        device.profile().end(stream, span, || op.into())
    }

    /// Make `y` of everybody's `x`, on the stream of a lane.
    fn collect(&self, lane: Lane, call: Collective, x: &Tensor, y: &Tensor) -> Result<()> {
        let stream = match lane {
            Lane::Main => &self.cuda.device.stream,
            Lane::Side => &self.side,
        };
        if let Some(direct) = self.direct.as_ref().filter(|d| d.takes(call, x, y)) {
            return direct.run(lane, stream, call, x, y);
        }
        let api = self.api;
        let (from, to) = (at(x.block.ptr), at(y.block.ptr));
        let (given, got) = (x.rows * x.cols, y.rows * y.cols);
        // SAFETY: x and y hold as many bf16 as the call reads and writes, and live until the stream has passed it.
        let queue = |handle, on| unsafe {
            match call {
                Collective::Sum => (api.all_reduce)(from, to, given, BF16, SUM, handle, on),
                Collective::Share => (api.reduce_scatter)(from, to, got, BF16, SUM, handle, on),
                Collective::Gather => (api.all_gather)(from, to, given, BF16, handle, on),
            }
        };
        let name = match call {
            Collective::Sum => "ncclAllReduce",
            Collective::Share => "ncclReduceScatter",
            Collective::Gather => "ncclAllGather",
        };
        self.call_on(stream, name, queue)
    }

    /// Memory for what a call makes of `x`.
    fn room(&self, call: Collective, x: &Tensor) -> Result<Tensor> {
        let (rows, what) = match call {
            Collective::Sum => (x.rows, "a sum over ranks"),
            Collective::Share => (
                divided("reduce_scatter", x.rows, self.size())?,
                "a share of a sum",
            ),
            Collective::Gather => (x.rows * self.size(), "gathered ranks"),
        };
        self.cuda.new_tensor(rows, x.cols, what)
    }

    fn collected(&self, call: Collective, x: &Tensor) -> Result<Tensor> {
        let y = self.room(call, x)?;
        self.collect(Lane::Main, call, x, &y)?;
        Ok(y)
    }

    fn begin_collecting(&self, call: Collective, x: Tensor) -> Result<Begun<Tensor>> {
        let y = self.room(call, &x)?;
        self.begin((x, y), |x, y| self.collect(Lane::Side, call, x, y))
    }

    /// Do what `queue` queues on the side stream beside the device's, after what is queued there now. It reads `x` and
    /// writes `y`.
    fn begin<X: Send + 'static, Y>(
        &self,
        (x, y): (X, Y),
        queue: impl FnOnce(&X, &Y) -> Result<()>,
    ) -> Result<Begun<Y>> {
        let cuda = self.cuda.clone();
        self.side.join(&cuda.device.stream).map_err(driver)?;
        queue(&x, &y)?;
        let done = self.side.record_event(None).map_err(driver)?;
        Ok(Begun::new(y, move || {
            cuda.device.bind()?;
            cuda.device.stream.wait(&done).map_err(driver)?;
            // Its memory may be written from now on, in the stream's order.
            drop(x);
            Ok(())
        }))
    }

    // What is called with a stream: blocks are found now, and have to live until the stream has passed the call.

    /// `y` becomes this rank's share of everybody's sum of `x`.
    fn scatter_float(
        &self,
        x: &Float,
        y: &Float,
    ) -> Result<impl FnOnce(Handle, *mut c_void) -> Status + use<M>> {
        let (scatter, n) = (self.api.reduce_scatter, y.rows * y.cols);
        let device = &self.cuda.device;
        let (from, to) = (at(x.at(device)?), at(y.at(device)?));
        // SAFETY: y holds n f32, x as many for each member.
        Ok(move |handle, stream| unsafe { scatter(from, to, n, F32, SUM, handle, stream) })
    }

    /// Several sends and receives as one call.
    fn grouped(
        &self,
        stream: &Arc<CudaStream>,
        op: &str,
        calls: impl FnOnce(Handle, *mut c_void) -> Status,
    ) -> Result<()> {
        self.call_on(stream, op, |handle, stream| {
            // SAFETY: every start has its end, on this thread.
            let begun = unsafe { (self.api.group_start)() };
            if begun != 0 {
                return begun;
            }
            let inside = calls(handle, stream);
            // SAFETY: as above.
            let ended = unsafe { (self.api.group_end)() };
            if inside != 0 { inside } else { ended }
        })
    }

    /// `y` becomes the rows that all members give this one, as [`Comm::all_to_all`] says.
    fn dealt_out(
        &self,
        stream: &Arc<CudaStream>,
        x: &Tensor,
        send_rows: &[usize],
        recv_rows: &[usize],
        y: &Tensor,
    ) -> Result<()> {
        let size = self.size();
        let fits = send_rows.len() == size
            && recv_rows.len() == size
            && send_rows.iter().sum::<usize>() == x.rows;
        if !fits {
            let detail = format!(
                "{send_rows:?} and {recv_rows:?} rows for {size} members and {}",
                x.rows
            );
            return Err(failed(format!("all_to_all: {detail}")));
        }
        self.grouped(stream, "all_to_all", |handle, stream| {
            let (mut from, mut to) = (x.block.ptr, y.block.ptr);
            statuses((0..size).map(|peer| {
                let (n, m) = (send_rows[peer] * x.cols, recv_rows[peer] * x.cols);
                let mut status = 0;
                // SAFETY: the counts sum to the rows of x and of y.
                unsafe {
                    if n > 0 {
                        status = (self.api.send)(at(from), n, BF16, peer as c_int, handle, stream);
                    }
                    if m > 0 && status == 0 {
                        status = (self.api.recv)(at(to), m, BF16, peer as c_int, handle, stream);
                    }
                }
                (from, to) = (from + 2 * n as u64, to + 2 * m as u64);
                status
            }))
        })
    }

    fn post(&self, tag: u64) -> Result<&Post> {
        let posts = self.posts.as_ref();
        let posts = posts.ok_or_else(|| failed("this group was made without messages"))?;
        Ok(&posts[(tag % 2) as usize])
    }
}

impl<M: Meet> Drop for Nccl<M> {
    fn drop(&mut self) {
        // Kernels of NCCL may still run; a communicator is destroyed after them.
        let _ = self.cuda.synchronize();
        let posts = self.posts.iter().flatten();
        let lines = posts.map(|post| &post.line).chain([&self.line]);
        lines.for_each(|line| line.destroy(self.api));
    }
}

fn at(block: u64) -> *mut c_void {
    block as *mut c_void
}

fn statuses(all: impl Iterator<Item = Status>) -> Status {
    all.fold(0, |first, status| if first != 0 { first } else { status })
}

impl<M: Meet + 'static> Comm<Cuda> for Nccl<M> {
    fn name(&self) -> &str {
        self.host.name()
    }

    fn rank(&self) -> usize {
        self.host.rank()
    }

    fn size(&self) -> usize {
        self.host.size()
    }

    fn all_reduce(&self, x: &Tensor) -> Result<Tensor> {
        self.collected(Collective::Sum, x)
    }

    fn all_gather(&self, x: &Tensor) -> Result<Tensor> {
        self.collected(Collective::Gather, x)
    }

    fn reduce_scatter(&self, x: &Tensor) -> Result<Tensor> {
        self.collected(Collective::Share, x)
    }

    fn all_to_all(&self, x: &Tensor, send_rows: &[usize], recv_rows: &[usize]) -> Result<Tensor> {
        let rows = recv_rows.iter().sum();
        let y = self.cuda.new_tensor(rows, x.cols, "rows of all ranks")?;
        let stream = &self.cuda.device.stream;
        self.dealt_out(stream, x, send_rows, recv_rows, &y)?;
        Ok(y)
    }

    fn rotate(&self, x: &Tensor) -> Result<Tensor> {
        let (size, rank) = (self.size(), self.rank());
        let (next, before) = ((rank + 1) % size, (rank + size - 1) % size);
        let y = self.cuda.new_tensor(x.rows, x.cols, "a neighbour's rows")?;
        let n = x.rows * x.cols;
        let direct = self.direct.as_ref();
        if let Some(direct) = direct.filter(|d| d.takes(Collective::Gather, x, &y)) {
            direct.fetch(&self.cuda.device.stream, x, &y, before)?;
            return Ok(y);
        }
        self.grouped(&self.cuda.device.stream, "rotate", |handle, stream| {
            // SAFETY: both blocks hold n bf16.
            unsafe {
                let sent = (self.api.send)(at(x.block.ptr), n, BF16, next as c_int, handle, stream);
                let got =
                    (self.api.recv)(at(y.block.ptr), n, BF16, before as c_int, handle, stream);
                if sent != 0 { sent } else { got }
            }
        })?;
        Ok(y)
    }

    fn send(&self, to: usize, tag: u64, x: &Tensor) -> Result<()> {
        if self.share_a_gpu {
            return self.host.send(to, tag, x);
        }
        let post = self.post(tag)?;
        self.cuda.device.bind()?;
        // What made x comes first; x lives until it has left.
        post.stream.join(&self.cuda.device.stream).map_err(driver)?;
        let (n, stream) = (x.rows * x.cols, post.stream.cu_stream().cast());
        let status = post.line.with(|handle| {
            // SAFETY: x holds n bf16 and is kept below until the stream has passed this point.
            unsafe { (self.api.send)(at(x.block.ptr), n, BF16, to as c_int, handle, stream) }
        })?;
        self.api.check("ncclSend", status)?;
        let left = post.stream.record_event(None).map_err(driver)?;
        let mut leaving = post.leaving.lock().unwrap_or_else(PoisonError::into_inner);
        while leaving
            .front()
            .is_some_and(|(event, _)| event.is_complete())
        {
            leaving.pop_front();
        }
        leaving.push_back((left, x.clone()));
        Ok(())
    }

    fn recv(&self, from: usize, tag: u64, rows: usize, cols: usize) -> Result<Tensor> {
        if self.share_a_gpu {
            return self.host.recv(from, tag, rows, cols);
        }
        let post = self.post(tag)?;
        self.cuda.device.bind()?;
        let y = self.cuda.new_tensor(rows, cols, "a stage's stream")?;
        // Who used this memory before comes first, and who reads it comes after.
        post.stream.join(&self.cuda.device.stream).map_err(driver)?;
        let stream = post.stream.cu_stream().cast();
        let status = post.line.with(|handle| {
            // SAFETY: y holds rows × cols bf16, and the device's stream waits for the message below.
            unsafe {
                (self.api.recv)(
                    at(y.block.ptr),
                    rows * cols,
                    BF16,
                    from as c_int,
                    handle,
                    stream,
                )
            }
        })?;
        self.api.check("ncclRecv", status)?;
        self.cuda.device.stream.join(&post.stream).map_err(driver)?;
        Ok(y)
    }

    fn all_reduce_float(&self, x: &mut Float) -> Result<()> {
        let n = x.rows * x.cols;
        let ptr = at(x.at(&self.cuda.device)?);
        self.call("ncclAllReduce", |handle, stream| {
            // SAFETY: in place over n f32.
            unsafe { (self.api.all_reduce)(ptr, ptr, n, F32, SUM, handle, stream) }
        })
    }

    fn reduce_scatter_float(&self, x: &Float) -> Result<Float> {
        let n = divided("reduce_scatter", x.rows * x.cols, self.size())?;
        let y = self.cuda.new_float(1, n, "a share of a sum")?;
        self.call("ncclReduceScatter", self.scatter_float(x, &y)?)?;
        Ok(y)
    }

    fn begin_reduce_scatter_float(&self, x: Float) -> Result<Begun<Float>> {
        let n = divided("reduce_scatter", x.rows * x.cols, self.size())?;
        let y = self.cuda.new_float(1, n, "a share of a sum")?;
        self.begin((x, y), |x, y| {
            self.call_on(&self.side, "ncclReduceScatter", self.scatter_float(x, y)?)
        })
    }

    fn begin_all_reduce(&self, x: Tensor) -> Result<Begun<Tensor>> {
        self.begin_collecting(Collective::Sum, x)
    }

    fn begin_all_gather(&self, x: Tensor) -> Result<Begun<Tensor>> {
        let Some(copies) = &self.copies else {
            return self.begin_collecting(Collective::Gather, x);
        };
        let (y, len) = (self.room(Collective::Gather, &x)?, x.rows * x.cols);
        let given = vec![0..len; self.size()];
        let places: Vec<_> = (0..self.size()).map(|m| m * len..(m + 1) * len).collect();
        copies.begin(&self.host, (x, &given), (y, &places))
    }

    fn begin_swap(&self, x: Tensor, rows: usize) -> Result<Begun<Tensor>> {
        if x.rows != rows * (self.size() - 1) {
            let detail = format!("{} rows, {rows} for each other member", x.rows);
            return Err(failed(format!("swap: {detail}")));
        }
        let y = self.cuda.new_tensor(x.rows, x.cols, "others' rows")?;
        let mut counts = vec![rows; self.size()];
        counts[self.rank()] = 0;
        let Some(copies) = &self.copies else {
            return self.begin((x, y), |x, y| {
                self.dealt_out(&self.side, x, &counts, &counts, y)
            });
        };
        let mut at = 0;
        let pieces: Vec<_> = counts
            .iter()
            .map(|rows| {
                let start = at;
                at += rows * x.cols;
                start..at
            })
            .collect();
        copies.begin(&self.host, (x, &pieces), (y, &pieces))
    }

    fn begin_rotate(&self, x: Tensor) -> Result<Begun<Tensor>> {
        let Some(copies) = &self.copies else {
            return self.rotate(&x).map(Begun::done);
        };
        let y = self.cuda.new_tensor(x.rows, x.cols, "a neighbour's rows")?;
        let (size, rank, len) = (self.size(), self.rank(), x.rows * x.cols);
        let only = |chosen: usize| -> Vec<Range<usize>> {
            let of = |member| if member == chosen { len } else { 0 };
            (0..size).map(|member| 0..of(member)).collect()
        };
        let (next, before) = (only((rank + 1) % size), only((rank + size - 1) % size));
        copies.begin(&self.host, (x, &next), (y, &before))
    }

    fn settle(&self) -> Result<()> {
        let copies = self.copies.as_ref();
        copies.map_or(Ok(()), |copies| copies.settle(&self.host))
    }

    fn all_gather_float(&self, x: &Float) -> Result<Float> {
        let n = x.rows * x.cols;
        let y = self.cuda.new_float(1, n * self.size(), "gathered ranks")?;
        let (from, to) = (at(x.at(&self.cuda.device)?), at(y.at(&self.cuda.device)?));
        self.call("ncclAllGather", |handle, stream| {
            // SAFETY: x holds n f32, y as many for each member.
            unsafe { (self.api.all_gather)(from, to, n, F32, handle, stream) }
        })?;
        Ok(y)
    }

    fn all_reduce_host(&self, x: &mut [f64], how: Reduce) -> Result<()> {
        self.host.all_reduce_host(x, how)
    }

    fn all_to_all_host(&self, x: &[f64], send: &[usize], recv: &[usize]) -> Result<Vec<f64>> {
        self.host.all_to_all_host(x, send, recv)
    }

    fn all_gather_host(&self, x: &[f64]) -> Result<Vec<f64>> {
        self.host.all_gather_host(x)
    }
}

fn divided(op: &str, n: usize, members: usize) -> Result<usize> {
    match n % members {
        0 => Ok(n / members),
        _ => Err(failed(format!(
            "{op}: {n} is no multiple of {members} members"
        ))),
    }
}
