//! A stage at work: it runs its schedule's pieces in order, takes what other stages send and sends on.
//!
//! With one stage it is a plain loop over micro-batches. What happens on the last stage (the head, the loss) is the
//! caller's. Read [`super::schedule`] for the order.

use super::mesh::Group;
use super::schedule::{Work, forwards, one_f_one_b};
use super::slice::LocalMicro;
use super::stage::{Finished, Passed, Saved, Stage};
use crate::Result;
use slime_kernels::Ops;
use slime_model::layers::{Gradients, Recompute, Routes};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// A stage, its neighbours and the micro-batches of one pass.
pub struct Pipeline<'a, O: Ops> {
    /// What runs here.
    pub stage: &'a Stage<O>,
    /// All stages.
    pub pp: &'a Group<O>,
    /// In order.
    pub micros: &'a [LocalMicro],
}

impl<O: Ops> Pipeline<'_, O> {
    /// Number of the virtual stage that a chunk is, and whether it is the first or the last.
    fn place(&self, chunk: usize) -> (usize, bool, bool) {
        let at = self.stage.virtual_stage(chunk);
        (at, at == 0, at + 1 == self.stage.num_virtual())
    }

    /// Messages of one pass differ in this: the virtual stage that receives, the micro-batch, the direction.
    fn tag(&self, to: usize, micro: usize, backward: bool) -> u64 {
        2 * (to * self.micros.len() + micro) as u64 + u64::from(backward)
    }

    fn receive(&self, chunk: usize, micro: usize, backward: bool) -> Result<O::Tensor> {
        let stages = self.pp.size();
        let (at, ..) = self.place(chunk);
        let from = if backward { at + 1 } else { at + stages - 1 } % stages;
        let (rows, cols) = self.stage.stream_shape(&self.micros[micro]);
        let tag = self.tag(at, micro, backward);
        Ok(self.pp.recv(from, tag, rows, cols)?)
    }

    fn send(&self, to: usize, micro: usize, backward: bool, x: &O::Tensor) -> Result<()> {
        let tag = self.tag(to, micro, backward);
        Ok(self.pp.send(to % self.pp.size(), tag, x)?)
    }

    /// Take the stream before, run a chunk, send the stream on. On the last virtual stage: what it gave.
    fn forward(
        &self,
        chunk: usize,
        micro: usize,
        keep: Option<&[Recompute]>,
        record: Option<&RefCell<Routes>>,
    ) -> Result<(Option<O::Tensor>, Option<Saved<O>>)> {
        let (at, is_first, is_last) = self.place(chunk);
        let input = match is_first {
            true => None,
            false => Some(self.receive(chunk, micro, false)?),
        };
        let Passed { out, saved } =
            self.stage
                .forward(chunk, input, &self.micros[micro], keep, record)?;
        if is_last {
            return Ok((Some(out), saved));
        }
        self.send(at + 1, micro, false, &out)?;
        Ok((None, saved))
    }

    /// Forwards only. `last` gets each micro-batch's wanted hidden rows, on the last stage.
    ///
    /// # Errors
    /// A rank or the device failed, or what `last` returns.
    pub fn look(&self, last: impl FnMut(usize, O::Tensor) -> Result<()>) -> Result<()> {
        self.look_and_record(None, last)
    }

    /// The same, and what routers here choose for each micro-batch is noted in `routes`.
    ///
    /// # Errors
    /// As [`Self::look`].
    pub fn look_and_record(
        &self,
        routes: Option<&[RefCell<Routes>]>,
        mut last: impl FnMut(usize, O::Tensor) -> Result<()>,
    ) -> Result<()> {
        let (stages, chunks) = (self.pp.size(), self.stage.num_chunks());
        for work in forwards(stages, chunks, self.micros.len()) {
            let Work::Forward { chunk, micro } = work else {
                continue;
            };
            let record = routes.map(|routes| &routes[micro]);
            if let (Some(hidden), _) = self.forward(chunk, micro, None, record)? {
                last(micro, hidden)?;
            }
        }
        Ok(())
    }

    /// Forwards and backwards of all micro-batches: adds to `grads`. `last` gets each micro-batch's wanted hidden rows on
    /// the last stage and gives their gradient, of which this rank's part is enough. `finished` is told which gradients
    /// are done, while others are not.
    ///
    /// # Errors
    /// A rank or the device failed, or what `last` returns.
    pub fn train(
        &self,
        recompute: &[Recompute],
        grads: &mut Gradients<O>,
        mut last: impl FnMut(usize, O::Tensor, &mut Gradients<O>) -> Result<O::Tensor>,
        finished: &mut Finished<'_, O>,
    ) -> Result<()> {
        let (stages, chunks) = (self.pp.size(), self.stage.num_chunks());
        let mut kept: BTreeMap<(usize, usize), (Option<O::Tensor>, Saved<O>)> = BTreeMap::new();
        for work in one_f_one_b(self.pp.rank(), stages, chunks, self.micros.len()) {
            match work {
                Work::Forward { chunk, micro } => {
                    let (hidden, saved) = self.forward(chunk, micro, Some(recompute), None)?;
                    let dhidden = match hidden {
                        Some(hidden) => Some(last(micro, hidden, grads)?),
                        None => None,
                    };
                    let saved = saved.expect("a forward that is to keep something does");
                    kept.insert((chunk, micro), (dhidden, saved));
                }
                Work::Backward { chunk, micro } => {
                    let found = kept.remove(&(chunk, micro));
                    let (dhidden, saved) = found.expect("a forward comes before its backward");
                    let dout = match dhidden {
                        Some(dhidden) => dhidden,
                        None => self.receive(chunk, micro, true)?,
                    };
                    // Backwards of a chunk come in the micro-batches' order.
                    let finished = (micro + 1 == self.micros.len()).then_some(&mut *finished);
                    let micro_batch = &self.micros[micro];
                    let din =
                        self.stage
                            .backward(chunk, dout, micro_batch, saved, grads, finished)?;
                    if let Some(din) = din {
                        let (at, ..) = self.place(chunk);
                        self.send(at - 1, micro, true, &din)?;
                    }
                }
            }
        }
        Ok(())
    }
}
