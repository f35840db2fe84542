//! Where a serving step's rows lie in the cache and what they see of it: uploaded once, read by every layer.
//!
//! Other steps' numbers may come to the same place ([`Ops::assign_tables`](crate::Ops)), so everything a launch is given of
//! them, grids included, follows from what the tables were made for.

use super::Cuda;
use super::ops::expect;
use super::pool::Block;
use super::sources::{BLOCK_TOKENS, SPLIT};
use crate::{PagedSequence, Result};
use std::ops::Range;

/// Prompts of so many tokens are worth a tile of the tensor-core kernels.
const WHOLE_PROMPT: usize = 32;

/// On the device `[slots | rows | where their blocks begin | tokens they see | first row of the same sequence | blocks]`, rows of
/// prompts read whole last.
pub struct Tables {
    block: Block,
    slots: usize,
    rows: usize,
    /// Rows that are of no prompt read whole.
    few: usize,
    /// Prompts read whole: they see their own rows only.
    pub(super) whole: Vec<Range<usize>>,
    /// Pieces of [`SPLIT`] keys, of those few rows and of all.
    splits: [usize; 2],
    /// Blocks there is room for.
    room: usize,
}

/// Rows that attend, as the kernels take them.
pub(super) struct Attending {
    pub(super) rows: usize,
    pub(super) splits: usize,
    pub(super) which: u64,
    pub(super) table: u64,
    pub(super) seen: u64,
    pub(super) run: u64,
    pub(super) blocks: u64,
}

/// The numbers of one step.
struct Step {
    slots: Vec<u32>,
    which: Vec<u32>,
    table: Vec<u32>,
    seen: Vec<u32>,
    run: Vec<u32>,
    blocks: Vec<u32>,
    few: usize,
    whole: Vec<Range<usize>>,
    /// Most tokens that one of the few rows sees, and one of all.
    longest: [usize; 2],
}

impl Step {
    fn new(slots: &[usize], sequences: &[PagedSequence<'_>]) -> Self {
        let is_whole =
            |s: &&PagedSequence<'_>| s.rows.len() == s.context && s.context >= WHOLE_PROMPT;
        let (whole, few): (Vec<_>, Vec<_>) = sequences.iter().partition(is_whole);
        let mut step = Self {
            slots: slots.iter().map(|&s| s as u32).collect(),
            which: Vec::new(),
            table: Vec::new(),
            seen: Vec::new(),
            run: Vec::new(),
            blocks: Vec::new(),
            few: 0,
            whole: whole.iter().map(|s| s.rows.clone()).collect(),
            longest: [0; 2],
        };
        few.iter().for_each(|s| step.list(s));
        (step.few, step.longest[0]) = (step.which.len(), step.longest[1]);
        whole.iter().for_each(|s| step.list(s));
        step
    }

    fn list(&mut self, sequence: &PagedSequence<'_>) {
        let start = self.blocks.len() as u32;
        let used = sequence.context.div_ceil(BLOCK_TOKENS);
        self.blocks
            .extend_from_slice(&sequence.blocks[..used.min(sequence.blocks.len())]);
        let run = self.which.len() as u32;
        for row in sequence.rows.clone() {
            let seen = sequence.context - (sequence.rows.end - 1 - row);
            self.which.push(row as u32);
            self.table.push(start);
            self.seen.push(seen as u32);
            self.run.push(run);
            self.longest[1] = self.longest[1].max(seen);
        }
    }

    fn splits(&self) -> [usize; 2] {
        self.longest.map(|seen| seen.div_ceil(SPLIT).max(1))
    }

    fn numbers(&self) -> Vec<u32> {
        [
            &self.slots[..],
            &self.which,
            &self.table,
            &self.seen,
            &self.run,
            &self.blocks,
        ]
        .concat()
    }
}

impl Tables {
    /// Where each row's slot is, for `rows` rows.
    pub(super) fn slots(&self, rows: usize) -> Result<u64> {
        expect("kv_write", self.slots == rows, || {
            format!("{} slots for {rows} rows", self.slots)
        })?;
        Ok(self.block.ptr)
    }

    /// All rows, or those alone that are of no prompt read whole.
    pub(super) fn attending(&self, all: bool) -> Attending {
        let at = |numbers: usize| self.block.ptr + 4 * numbers as u64;
        Attending {
            rows: if all { self.rows } else { self.few },
            splits: self.splits[usize::from(all)],
            which: at(self.slots),
            table: at(self.slots + self.rows),
            seen: at(self.slots + 2 * self.rows),
            run: at(self.slots + 3 * self.rows),
            blocks: at(self.slots + 4 * self.rows),
        }
    }
}

impl Cuda {
    pub(super) fn new_tables(
        &self,
        slots: &[usize],
        sequences: &[PagedSequence<'_>],
        longest: usize,
    ) -> Result<Tables> {
        let step = Step::new(slots, sequences);
        let ahead = sequences.len() * longest.div_ceil(BLOCK_TOKENS);
        let room = step.blocks.len().max(ahead);
        let numbers = step.numbers();
        let bytes = 4 * (numbers.len() - step.blocks.len() + room);
        let tables = Tables {
            block: self.device.pool.take(bytes, "cache tables")?,
            slots: slots.len(),
            rows: step.which.len(),
            few: step.few,
            splits: step.splits().map(|n| n.max(longest.div_ceil(SPLIT))),
            room,
            whole: step.whole,
        };
        self.device.write(&tables.block, &numbers)?;
        Ok(tables)
    }

    pub(super) fn put_tables(
        &self,
        to: &mut Tables,
        slots: &[usize],
        sequences: &[PagedSequence<'_>],
    ) -> Result<()> {
        let step = Step::new(slots, sequences);
        let fits = (slots.len(), step.which.len()) == (to.slots, to.rows)
            && step.blocks.len() <= to.room
            && step
                .splits()
                .iter()
                .zip(to.splits)
                .all(|(n, has)| *n <= has)
            && step.whole.is_empty()
            && to.whole.is_empty();
        expect("assign_tables", fits, || {
            format!(
                "{} slots, {} rows that see up to {} tokens in {} blocks, for tables of {} slots, {} rows, {} pieces of {SPLIT} tokens and {} blocks",
                slots.len(),
                step.which.len(),
                step.longest[1],
                step.blocks.len(),
                to.slots,
                to.rows,
                to.splits[1],
                to.room
            )
        })?;
        self.device.write(&to.block, &step.numbers())
    }
}
