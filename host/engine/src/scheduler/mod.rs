//! The thread that owns the model: it takes commands between steps and steps while there is something to do.
//!
//! Nothing here is async and nothing here is HTTP. What a request samples depends on the weights, its tokens,
//! parameters and seed alone; batching, chunking, caching, retraction and pauses change when, never what.
//! Read `plan.rs`, then `step.rs`.

mod plan;
mod sequence;
mod step;

use crate::blocks::Blocks;
use crate::forward::{Forward, Source};
use crate::metrics::{Gauges, Metrics};
use crate::request::{Finish, Request};
use crate::{Error, Result};
use sequence::Sequence;
use slime_core::ports::TextCodec;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};
use tokio::sync::oneshot;

/// What happens to running requests during a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseMode {
    /// They end with what they have.
    Abort,
    /// They go back to the queue and are read again afterwards.
    Retract,
    /// They freeze and go on with the keys and values they have.
    InPlace,
}

/// New weights.
pub(crate) struct Update {
    pub(crate) source: Source,
    /// The label of what is sampled from now on; `None` keeps it.
    pub(crate) version: Option<String>,
    /// Recompute the keys and values of requests that are under way.
    pub(crate) flush: bool,
    pub(crate) abort_all: bool,
}

/// What the scheduler can be told.
pub(crate) enum Command {
    Submit(Box<Request>),
    Abort(Vec<u64>),
    AbortAll,
    Pause(PauseMode, oneshot::Sender<()>),
    Continue(oneshot::Sender<()>),
    /// `false`: requests are running.
    Flush(oneshot::Sender<bool>),
    /// Answers how many requests a pause held back.
    Update(Update, oneshot::Sender<Result<usize>>),
    SetVersion(String, bool, oneshot::Sender<()>),
    Checksums(oneshot::Sender<Result<Vec<(String, u64)>>>),
    /// The first rows of a tensor, and their width.
    Tensor(
        String,
        usize,
        oneshot::Sender<Result<Option<(Vec<f32>, usize)>>>,
    ),
    /// Answered between two steps: the engine is alive.
    Ping(oneshot::Sender<()>),
    Stop,
}

/// Bounds of what runs at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Rows of a step.
    pub(crate) step_tokens: usize,
    /// Sequences in a step.
    pub(crate) running: usize,
    /// Columns of the logits that are tokens.
    pub(crate) vocab: usize,
}

/// See the module.
pub(crate) struct Scheduler<F: Forward> {
    model: F,
    codec: Arc<dyn TextCodec>,
    limits: Limits,
    blocks: Blocks,
    waiting: VecDeque<Sequence>,
    /// The oldest first.
    running: Vec<Sequence>,
    paused: bool,
    version: Arc<str>,
    commands: Receiver<Command>,
    metrics: Arc<Metrics>,
    scratch: Vec<f32>,
}

impl<F: Forward> Scheduler<F> {
    pub(crate) fn new(
        model: F,
        codec: Arc<dyn TextCodec>,
        limits: Limits,
        num_blocks: usize,
        version: &str,
        commands: Receiver<Command>,
        metrics: Arc<Metrics>,
    ) -> Self {
        let blocks = Blocks::new(num_blocks, model.block_tokens());
        Self {
            model,
            codec,
            limits,
            blocks,
            waiting: VecDeque::new(),
            running: Vec::new(),
            paused: false,
            version: version.into(),
            commands,
            metrics,
            scratch: Vec::new(),
        }
    }

    /// Until told to stop, or until nobody can tell it anything any more.
    pub(crate) fn run(mut self) {
        loop {
            let idle = self.paused || (self.running.is_empty() && self.waiting.is_empty());
            let command = if idle {
                self.commands.recv().ok()
            } else {
                match self.commands.try_recv() {
                    Ok(command) => Some(command),
                    Err(TryRecvError::Disconnected) => None,
                    Err(TryRecvError::Empty) => {
                        self.step();
                        self.show();
                        continue;
                    }
                }
            };
            match command {
                None | Some(Command::Stop) => return,
                Some(command) => self.obey(command),
            }
            self.show();
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Submit(request) => self.waiting.push_back(Sequence::new(*request)),
            Command::Abort(ids) => self.abort(|id| ids.contains(&id)),
            Command::AbortAll => self.abort(|_| true),
            Command::Pause(mode, done) => {
                self.pause(mode);
                self.answer(done, ());
            }
            Command::Continue(done) => {
                self.paused = false;
                self.answer(done, ());
            }
            Command::Flush(done) => {
                let can = self.running.is_empty();
                if can {
                    self.blocks.flush();
                }
                self.answer(done, can);
            }
            Command::Update(update, done) => {
                let result = self.update(update);
                self.answer(done, result);
            }
            Command::SetVersion(version, abort_all, done) => {
                if abort_all {
                    self.abort(|_| true);
                }
                self.version = version.into();
                self.answer(done, ());
            }
            Command::Checksums(done) => self.answer(done, self.model.checksums()),
            Command::Tensor(name, rows, done) => {
                self.answer(done, self.model.tensor(&name, rows));
            }
            Command::Ping(done) => self.answer(done, ()),
            Command::Stop => {}
        }
    }

    /// The metrics say it before the answer does: who was told of a pause finds the engine paused.
    fn answer<T>(&self, done: oneshot::Sender<T>, answer: T) {
        self.show();
        // An answer that nobody waits for any more is not an error.
        let _ = done.send(answer);
    }

    fn abort(&mut self, which: impl Fn(u64) -> bool) {
        let running = std::mem::take(&mut self.running);
        let waiting = std::mem::take(&mut self.waiting);
        let (gone, kept): (Vec<_>, Vec<_>) = running.into_iter().partition(|s| which(s.request.id));
        let (queued, left): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|s| which(s.request.id));
        (self.running, self.waiting) = (kept, left.into());
        for sequence in gone {
            self.end(sequence, Finish::Abort("Aborted".into()));
        }
        for sequence in queued {
            self.end(sequence, Finish::Abort("Abort in waiting queue".into()));
        }
    }

    fn pause(&mut self, mode: PauseMode) {
        self.paused = true;
        match mode {
            PauseMode::Abort => self.abort(|_| true),
            PauseMode::Retract => self.retract_all(),
            PauseMode::InPlace => {}
        }
    }

    fn retract_all(&mut self) {
        while !self.running.is_empty() {
            self.retract_newest();
        }
    }

    /// Read and check first: whatever is wrong with them, the old weights are still whole.
    fn update(&mut self, update: Update) -> Result<usize> {
        let weights = self.model.read_weights(update.source)?;
        if update.abort_all {
            self.abort(|_| true);
        }
        if update.flush {
            self.retract_all();
        }
        // Without `flush`, requests under way keep the keys they have; nobody else ever finds them.
        self.blocks.flush();
        self.model.install(weights).map_err(|e| {
            Error::Weights(format!(
                "the weights were read but could not be put in place, publish again: {e}"
            ))
        })?;
        if let Some(version) = update.version {
            self.version = version.into();
        }
        Ok(if self.paused {
            self.waiting.len() + self.running.len()
        } else {
            0
        })
    }

    /// Tell the outside how things stand.
    fn show(&self) {
        let block = self.model.block_tokens();
        self.metrics.show(&Gauges {
            running: self.running.len(),
            waiting: self.waiting.len(),
            used_tokens: self.blocks.in_use() * block,
            evictable_tokens: (self.blocks.available() - self.blocks.num_free()) * block,
            paused: self.paused,
            version: &self.version,
        });
    }
}

#[cfg(test)]
mod tests;
