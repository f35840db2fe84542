//! Decode steps done again: the device's part of a step is recorded once for each size of step and replayed from then on,
//! so that launching it costs the host one call.
//!
//! Sizes are rounded up, rows to 1, 2, 4, 8, 16, 24, … and the longest context to a power of two; rows that are too many
//! belong to nobody and write to a block that is nobody's. The first step of a size runs as any other, the second is
//! recorded. New weights are put where the old ones were, so recordings outlive them. It knows no layer; a model whose steps the host takes part in (choosing experts, say) runs without.

use crate::Result;
use slime_kernels::{Ops, PagedSequence, Replay};
use slime_model::{Cache, Network, PagedRows, Step};
use std::collections::BTreeMap;

/// Contexts up to this length share recordings.
const SHORT: usize = 512;

/// The recordings of one model's steps.
pub(crate) struct Decoder<O: Ops> {
    /// Steps of more rows are not recorded; 0: none are.
    most_rows: usize,
    /// The cache block of rows that are nobody's.
    spare: u32,
    /// By rows and context.
    recordings: BTreeMap<(usize, usize), Recording<O>>,
    replays: u64,
}

struct Recording<O: Ops> {
    /// Where a step's rows are put before each replay.
    step: Step<O>,
    /// What does it again, and where the hidden rows then are; after the second step.
    done_again: Option<(Replay, O::Tensor)>,
}

/// Rows of the step that `rows` are rounded up to.
fn padded(rows: usize) -> usize {
    match rows {
        0..=8 => rows.next_power_of_two(),
        _ => rows.next_multiple_of(8),
    }
}

impl<O: Ops> Decoder<O> {
    /// For steps of up to `most_rows`, on a device that can.
    pub(crate) fn new(ops: &O, most_rows: usize) -> Self {
        let gains_nothing = most_rows == 0 || matches!(ops.record(&mut || Ok(())), Ok(None));
        Self {
            most_rows: if gains_nothing { 0 } else { most_rows },
            spare: 0,
            recordings: BTreeMap::new(),
            replays: 0,
        }
    }

    /// Blocks that it needs behind `num_blocks` of the cache.
    pub(crate) fn reserve(&mut self, num_blocks: usize) -> usize {
        self.spare = num_blocks as u32;
        usize::from(self.most_rows > 0)
    }

    /// Steps that were replayed so far.
    pub(crate) fn replays(&self) -> u64 {
        self.replays
    }

    /// Hidden rows of a step in which every sequence has one row, which is wanted; `None` of others.
    pub(crate) fn forward(
        &mut self,
        network: &Network<O>,
        cache: &mut Cache<O>,
        rows: &PagedRows<'_>,
    ) -> Result<Option<O::Tensor>> {
        let count = rows.ids.len();
        let decodes = rows.sequences.len() == count && rows.wanted.len() == count;
        if !decodes || count > self.most_rows {
            return Ok(None);
        }
        let longest = rows.sequences.iter().map(|s| s.context).max();
        let longest = longest.unwrap_or(0).next_power_of_two().max(SHORT);
        let size = (padded(count).min(self.most_rows), longest);
        let block = network.ops().kv_block_tokens();
        let spare = [self.spare];
        let sequences = rows.sequences.iter().cloned();
        let spares = (count..size.0).map(|row| PagedSequence {
            rows: row..row + 1,
            context: 1,
            blocks: &spare,
        });
        let sequences: Vec<_> = sequences.chain(spares).collect();
        let with = |rows: &[u32]| [rows, &vec![0; size.0 - count]].concat();
        let slot_of_spares = self.spare as usize * block;
        let all = PagedRows {
            ids: &with(rows.ids),
            positions: &with(rows.positions),
            slots: &[rows.slots, &vec![slot_of_spares; size.0 - count]].concat(),
            sequences: &sequences,
            wanted: &(0..size.0 as u32).collect::<Vec<_>>(),
        };
        let hidden = self.hidden(network, cache, &all, size)?;
        if count == size.0 {
            return Ok(Some(hidden));
        }
        let width = network.spec().hidden;
        let ops = network.ops();
        Ok(Some(ops.cut(&hidden, 0..count * width, count, width)?))
    }

    fn hidden(
        &mut self,
        network: &Network<O>,
        cache: &mut Cache<O>,
        rows: &PagedRows<'_>,
        size: (usize, usize),
    ) -> Result<O::Tensor> {
        let Some(recording) = self.recordings.get_mut(&size) else {
            let step = network.step(rows, size.1)?;
            let hidden = network.forward_step(&step, rows.sequences, cache)?;
            let done_again = None;
            self.recordings.insert(size, Recording { step, done_again });
            return Ok(hidden);
        };
        network.assign_step(&mut recording.step, rows)?;
        if recording.done_again.is_none() {
            match record(network, cache, &recording.step, rows.sequences) {
                Ok(done_again) => recording.done_again = Some(done_again),
                Err(why) => {
                    tracing::warn!(why, "decoding without CUDA graphs");
                    let hidden = network.forward_step(&recording.step, rows.sequences, cache)?;
                    self.recordings.clear();
                    self.most_rows = 0;
                    return Ok(hidden);
                }
            }
        }
        let Some((replay, hidden)) = &recording.done_again else {
            unreachable!("it was recorded above");
        };
        replay()?;
        self.replays += 1;
        Ok(hidden.clone())
    }
}

/// The device's part of a step, and where it leaves the hidden rows.
fn record<O: Ops>(
    network: &Network<O>,
    cache: &mut Cache<O>,
    step: &Step<O>,
    sequences: &[PagedSequence<'_>],
) -> Result<(Replay, O::Tensor), String> {
    let mut hidden = None;
    let replay = network.ops().record(&mut || {
        hidden = Some(network.forward_step(step, sequences, cache));
        Ok(())
    });
    match (replay, hidden) {
        (_, Some(Err(why))) => Err(why.to_string()),
        (Err(why), _) => Err(why.to_string()),
        (Ok(Some(replay)), Some(Ok(hidden))) => Ok((replay, hidden)),
        (Ok(_), _) => Err("the device records nothing".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_rounded_up_to_few_sizes() {
        let sizes = [1, 2, 3, 5, 8, 9, 16, 17, 24, 25, 250].map(padded);
        assert_eq!(sizes, [1, 2, 4, 8, 8, 16, 16, 24, 24, 32, 256]);
    }
}
