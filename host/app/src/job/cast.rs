//! A version that is broadcast from the trainer's device, and kept in this process's memory for servers that are away.
//!
//! ```text
//! pool       pause ─► meet ─► "send" ─────────────► prove, continue
//! trainer                       └► send, bucket by bucket ─► keep ─► the next step may train
//! ```
//!
//! Servers that meet receive what lies on the device; nothing is written. Who cannot join, or comes back later, reads a
//! directory, which is made of what was kept when the first one asks for it. Read `publish.rs` for when this way is taken.

#[cfg(test)]
mod tests;

use super::Learn;
use super::learner::lock;
use crate::error::Result;
use crate::wire::rollout_failed;
use slime_core::ports::BoxFuture;
use slime_kernels::Ops;
use slime_model::hf::{self, DEFAULT_SHARD_BYTES, save_weights};
use slime_model::{ModelSpec, ParamSpec, params};
use slime_rollout::publish::{FirstValues, Known, Listed, Live, to_look_at};
use slime_trainer::parallel::whole::runs;
use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{OnceCell, watch};

/// Elements that go as one: 1 GiB, which lies on the trainer's device and twice on a server's.
const AT_ONCE: usize = 512 << 20;

/// What goes together, in which order.
pub struct Buckets {
    /// Parameters of each bucket, by number.
    pub runs: Arc<[Vec<usize>]>,
    /// Their tensors, as servers are told of them.
    listed: Vec<Vec<Listed>>,
    /// Buckets of numbers that files hold in 32 bits.
    wide: Vec<bool>,
    /// Where each parameter begins.
    places: HashMap<String, Place>,
    /// What servers are asked for afterwards, and where it is.
    looked_at: Vec<(FirstValues, Place)>,
    /// Memory of the version that was kept before: to give it back takes as long as to read a version, and so does getting as much anew.
    room: Mutex<Vec<Vec<u16>>>,
}

/// An element of a bucket.
#[derive(Clone, Copy)]
struct Place {
    bucket: usize,
    at: usize,
}

impl Buckets {
    /// Those of a model that servers hold in bf16.
    ///
    /// # Errors
    /// Two of its tensors have one name.
    pub fn of(spec: &ModelSpec) -> Result<Self> {
        Self::within(spec, AT_ONCE)
    }

    fn within(spec: &ModelSpec, at_once: usize) -> Result<Self> {
        let all = params(spec);
        let is_wide = |param: &ParamSpec| hf::dtype_of(param, hf::Dtype::Bf16) == hf::Dtype::F32;
        let mut runs_of = runs(&all, at_once, |param| !is_wide(param));
        runs_of.extend(runs(&all, at_once, is_wide));
        let (mut places, mut parts) = (HashMap::new(), HashMap::new());
        let mut listed = Vec::new();
        for (bucket, run) in runs_of.iter().enumerate() {
            let (mut at, mut tensors) = (0, Vec::new());
            for param in run.iter().map(|&param| &all[param]) {
                places.insert(param.name.clone(), Place { bucket, at });
                let dtype = hf::dtype_of(param, hf::Dtype::Bf16).safetensors_name();
                for part in &param.parts {
                    parts.insert(part.name.clone(), Place { bucket, at });
                    at += part.len();
                    tensors.push(Listed {
                        name: part.name.clone(),
                        dtype,
                        shape: part.shape.iter().map(|&n| n as u64).collect(),
                    });
                }
            }
            listed.push(tensors);
        }
        let looked_at = to_look_at(&listed).map_err(rollout_failed)?;
        let looked_at = looked_at.into_iter().map(|look| {
            let place = parts[&look.name];
            (look, place)
        });
        Ok(Self {
            wide: runs_of.iter().map(|run| is_wide(&all[run[0]])).collect(),
            looked_at: looked_at.collect(),
            runs: runs_of.into(),
            listed,
            places,
            room: Mutex::default(),
        })
    }

    /// For the numbers of each bucket: the memory of the version that was kept before, or none.
    pub fn room(&self) -> Vec<Vec<u16>> {
        let mut room = std::mem::take(&mut *lock(&self.room));
        room.resize_with(self.runs.len(), Vec::new);
        room
    }

    /// Do servers hold the numbers of a bucket in 32 bits?
    pub fn is_wide(&self, bucket: usize) -> bool {
        self.wide[bucket]
    }
}

/// A version's buckets, and what is seen of them on their way.
#[derive(Clone)]
pub struct Seen {
    /// What passes.
    pub buckets: Arc<Buckets>,
    known: Arc<Mutex<Vec<Known>>>,
}

impl Seen {
    /// Note what servers will be asked for of a bucket, the first time it passes.
    ///
    /// # Errors
    /// The device failed.
    pub fn look<O: Ops>(
        &self,
        ops: &O,
        bucket: usize,
        tensor: &O::Tensor,
    ) -> slime_kernels::Result<()> {
        for (look, place) in &self.buckets.looked_at {
            let is_known = lock(&self.known)
                .iter()
                .any(|known| known.name == look.name);
            if place.bucket != bucket || is_known {
                continue;
            }
            let first = ops.cut(tensor, place.at..place.at + look.len, 1, look.len)?;
            lock(&self.known).push(Known {
                name: look.name.clone(),
                rows: look.rows,
                values: ops.read(&first)?,
            });
        }
        Ok(())
    }
}

/// A version in this process's memory, in 16 bits a number.
pub struct Kept {
    /// What it consists of.
    pub buckets: Arc<Buckets>,
    /// Each bucket's numbers.
    pub bits: Vec<Vec<u16>>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        *lock(&self.buckets.room) = std::mem::take(&mut self.bits);
    }
}

impl Kept {
    /// Write it as servers read it.
    ///
    /// # Errors
    /// The disk refused.
    pub fn write(&self, dir: &Path, spec: &ModelSpec, form: &hf::Form) -> Result<()> {
        let read = |param: &ParamSpec| {
            let Place { bucket, at } = self.buckets.places[&param.name];
            let bits = self.bits[bucket][at..at + param.len()].iter();
            Ok(bits
                .map(|&half| f32::from_bits(u32::from(half) << 16))
                .collect())
        };
        let written = save_weights(dir, spec, form.clone(), DEFAULT_SHARD_BYTES, read);
        written.map_err(super::learner::train_failed)
    }
}

/// What the pool asks of the trainer's thread.
pub enum Order {
    /// Send now, and say how it went.
    Send(Sender<std::result::Result<(), String>>),
    /// There is nobody to send to.
    Skip,
}

/// What the trainer's thread did, and how long it took.
pub struct Work {
    /// Sending, where it was asked for and done.
    pub send: Option<Duration>,
    /// Reading into this process's memory.
    pub keep: Duration,
}

type Write = Box<dyn Fn(&Kept) -> Result<PathBuf> + Send + Sync>;

/// A version as the pool knows it: orders go to the thread that has the trainer.
pub struct Waiting {
    seen: Seen,
    orders: Sender<Order>,
    kept: watch::Sender<Option<Arc<Kept>>>,
    write: Arc<Write>,
    written: OnceCell<PathBuf>,
}

impl Waiting {
    /// A version that `write` makes a directory of, and what is ordered of it.
    pub fn new(
        buckets: Arc<Buckets>,
        write: impl Fn(&Kept) -> Result<PathBuf> + Send + Sync + 'static,
    ) -> (Arc<Self>, Receiver<Order>) {
        let (orders, told) = channel();
        let waiting = Self {
            seen: Seen {
                buckets,
                known: Arc::default(),
            },
            orders,
            kept: watch::Sender::new(None),
            write: Arc::new(Box::new(write)),
            written: OnceCell::new(),
        };
        (Arc::new(waiting), told)
    }

    /// Do what is ordered with the trainer, on this thread; whatever it is, the version is kept afterwards.
    ///
    /// # Errors
    /// The trainer failed.
    pub fn work(&self, orders: &Receiver<Order>, learner: &dyn Learn) -> Result<Work> {
        let mut send = None;
        if let Ok(Order::Send(answer)) = orders.recv() {
            let begin = Instant::now();
            let sent = learner.send(&self.seen);
            send = matches!(sent, Ok(Ok(()))).then(|| begin.elapsed());
            let (said, sent) = match sent {
                Ok(said) => (said, Ok(())),
                Err(failure) => (Err(failure.to_string()), Err(failure)),
            };
            // Whoever asked may have given up.
            let _ = answer.send(said);
            sent?;
        }
        let begin = Instant::now();
        let kept = learner.keep(&self.seen)?;
        self.kept.send_replace(Some(Arc::new(kept)));
        Ok(Work {
            send,
            keep: begin.elapsed(),
        })
    }

    async fn written(&self) -> std::result::Result<PathBuf, String> {
        let mut kept = self.kept.subscribe();
        let kept = kept.wait_for(Option::is_some).await;
        let kept = kept.map_err(|e| e.to_string())?.clone();
        let kept = kept.ok_or("the version was not kept")?;
        let write = Arc::clone(&self.write);
        let written = tokio::task::spawn_blocking(move || write(&kept)).await;
        written
            .map_err(|e| e.to_string())?
            .map_err(|failure| failure.to_string())
    }
}

impl Live for Waiting {
    fn buckets(&self) -> &[Vec<Listed>] {
        &self.seen.buckets.listed
    }

    fn send(&self) -> std::result::Result<(), String> {
        let gone = |_| "the trainer does not send any more".to_owned();
        let (answer, told) = channel();
        self.orders
            .send(Order::Send(answer))
            .map_err(|_| gone(()))?;
        told.recv().map_err(|_| gone(()))?
    }

    fn skip(&self) {
        // The trainer's thread waits for the first order only.
        let _ = self.orders.send(Order::Skip);
    }

    fn known(&self) -> Vec<Known> {
        lock(&self.seen.known).clone()
    }

    fn directory(&self) -> BoxFuture<'_, std::result::Result<PathBuf, String>> {
        Box::pin(async move {
            let written = self.written.get_or_try_init(|| self.written());
            written.await.cloned()
        })
    }
}
