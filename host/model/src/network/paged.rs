//! Serving: rows of many sequences through a paged cache.
//!
//! What the rows are lies on the device as a [`Step`], so that other rows can come to the same place and the device's part of
//! a step be recorded and done again. Who owns which cache block is the engine's business.

use super::Network;
use crate::cache::Cache;
use crate::layers::{Paged, Pass, Replay, Routes, Rows};
use crate::{Error, Result};
use slime_kernels::{Ops, PagedSequence};
use std::cell::RefCell;

/// Rows to serve: prefill chunks and single decode tokens of several sequences, mixed.
#[derive(Clone, Debug)]
pub struct PagedRows<'a> {
    /// Token of each row.
    pub ids: &'a [u32],
    /// Its position in its sequence.
    pub positions: &'a [u32],
    /// Where its keys and values go: `block × block_tokens + offset`.
    pub slots: &'a [usize],
    /// Which rows belong to which sequence, and that sequence's cache blocks.
    pub sequences: &'a [PagedSequence<'a>],
    /// Rows whose hidden state is wanted.
    pub wanted: &'a [u32],
}

/// Rows to serve, on the device.
pub struct Step<O: Ops> {
    ids: O::Ids,
    positions: O::Ids,
    tables: O::Tables,
    wanted: Option<Rows<O>>,
}

impl<O: Ops> Network<O> {
    /// A cache of `num_blocks` blocks for [`Self::forward_paged`].
    ///
    /// # Errors
    /// The device has no room.
    pub fn cache(&self, num_blocks: usize) -> Result<Cache<O>> {
        Ok(Cache::new(&*self.ops, &self.spec, num_blocks)?)
    }

    /// Run rows through the model and the cache → the wanted rows after the final norm, `[wanted, hidden]`.
    ///
    /// # Errors
    /// An id, position or slot out of range, or the device failed. The cache may then hold part of the rows.
    pub fn forward_paged(&self, rows: &PagedRows<'_>, cache: &mut Cache<O>) -> Result<O::Tensor> {
        self.forward_paged_with(rows, cache, Replay::Off)
    }

    /// The same, and the experts of every row in every layer, `[rows × top_k]`; so the last layer computes all rows too.
    ///
    /// # Errors
    /// As [`Self::forward_paged`].
    pub fn forward_paged_recording(
        &self,
        rows: &PagedRows<'_>,
        cache: &mut Cache<O>,
    ) -> Result<(O::Tensor, Routes)> {
        let routes = RefCell::new(Routes {
            layers: vec![Vec::new(); self.spec.layers.len()],
        });
        let every: Vec<u32> = (0..rows.ids.len() as u32).collect();
        let all = PagedRows {
            wanted: &every,
            ..rows.clone()
        };
        let hidden = self.forward_paged_with(&all, cache, Replay::Record(&routes))?;
        let wanted = self.ops.ids(rows.wanted)?;
        Ok((self.ops.gather_rows(&hidden, &wanted)?, routes.into_inner()))
    }

    fn forward_paged_with(
        &self,
        rows: &PagedRows<'_>,
        cache: &mut Cache<O>,
        routes: Replay<'_>,
    ) -> Result<O::Tensor> {
        self.run(&self.step(rows, 0)?, rows.sequences, cache, routes)
    }

    /// Bring rows to the device. [`Self::assign_step`] may bring others later whose contexts reach up to `longest`.
    ///
    /// # Errors
    /// An id or position out of range, or the device failed.
    pub fn step(&self, rows: &PagedRows<'_>, longest: usize) -> Result<Step<O>> {
        let (ids, positions) = self.upload(rows.ids, rows.positions)?;
        Ok(Step {
            ids,
            positions,
            tables: self.ops.tables(rows.slots, rows.sequences, longest)?,
            wanted: Rows::select(&*self.ops, rows.wanted, rows.ids.len())?,
        })
    }

    /// As many other rows in their place, each a sequence's newest and each wanted.
    ///
    /// # Errors
    /// As [`Self::step`], or they do not fit.
    pub fn assign_step(&self, step: &mut Step<O>, rows: &PagedRows<'_>) -> Result<()> {
        self.check_ids(rows.ids, rows.positions)?;
        if step.wanted.is_some() || rows.wanted.len() != rows.ids.len() {
            let detail = "rows of which some are not wanted cannot take the place of others";
            return Err(Error::Input(detail.into()));
        }
        let ops = &self.ops;
        ops.assign_ids(&mut step.ids, rows.ids)?;
        ops.assign_ids(&mut step.positions, rows.positions)?;
        Ok(ops.assign_tables(&mut step.tables, rows.slots, rows.sequences)?)
    }

    /// [`Self::forward_paged`] of rows on the device; `sequences` are theirs.
    ///
    /// # Errors
    /// As [`Self::forward_paged`].
    pub fn forward_step(
        &self,
        step: &Step<O>,
        sequences: &[PagedSequence<'_>],
        cache: &mut Cache<O>,
    ) -> Result<O::Tensor> {
        self.run(step, sequences, cache, Replay::Off)
    }

    fn run(
        &self,
        step: &Step<O>,
        sequences: &[PagedSequence<'_>],
        cache: &mut Cache<O>,
        routes: Replay<'_>,
    ) -> Result<O::Tensor> {
        let pass = Pass {
            routes,
            ..self.pass(&step.positions)
        };
        let mut stream = self.embed(&step.ids)?;
        let last = self.wiring.blocks.len() - 1;
        for (layer, block) in self.wiring.blocks.iter().enumerate() {
            let paged = Paged {
                cache: &mut *cache,
                layer,
                tables: &step.tables,
                sequences,
            };
            let wanted = step.wanted.as_ref().filter(|_| layer == last);
            stream = block.infer_paged(stream, paged, wanted, pass)?;
        }
        Ok(self
            .wiring
            .norm
            .forward(stream, pass.ops, pass.weights)?
            .out)
    }
}
