//! Which rows the next step computes: every decoding sequence one, the rest of the budget for prompts.
//!
//! The oldest sequence goes first in everything. When blocks run out the newest gives its own back and waits at
//! the head of the queue (a retraction); the oldest therefore always gets on, and nothing can starve.

use super::Scheduler;
use super::sequence::Sequence;
use crate::blocks::Blocks;
use crate::forward::Forward;

/// Rows of each running sequence in a step, in their order; 0 for one that has to wait for the budget.
pub(super) type Plan = Vec<usize>;

impl<F: Forward> Scheduler<F> {
    /// Take sequences in, take some back if need be, and give everyone room for its rows.
    pub(super) fn plan(&mut self) -> Plan {
        let decoding = self.running.iter().filter(|s| s.pending() == 1).count();
        // A step full of decoding sequences still moves a prompt by a block.
        let mut budget = self
            .limits
            .step_tokens
            .saturating_sub(decoding)
            .max(self.model.block_tokens());
        let mut plan = Plan::new();
        while plan.len() < self.running.len() {
            let i = plan.len();
            let pending = self.running[i].pending();
            let rows = if pending == 1 { 1 } else { pending.min(budget) };
            if !self.make_room(i, rows) {
                break;
            }
            if pending > 1 {
                budget -= rows;
            }
            plan.push(rows);
        }
        let mut place = 0;
        while budget > 0 && self.running.len() < self.limits.running && place < self.waiting.len() {
            let next = &self.waiting[place];
            if self.will_be_cached(next, &plan) {
                place += 1;
                continue;
            }
            if !fits(&self.blocks, next, self.running.len()) {
                break;
            }
            let Some(mut sequence) = self.waiting.remove(place) else {
                break;
            };
            let lease = self.blocks.lease(&sequence.tokens, sequence.cacheable());
            let cached = lease.blocks().len() * self.model.block_tokens();
            sequence.admit(lease, cached);
            let rows = sequence.pending().min(budget);
            if !self.blocks.grow(&mut sequence.lease, cached + rows) {
                self.give_back(&mut sequence);
                self.waiting.insert(place, sequence);
                break;
            }
            budget -= rows;
            plan.push(rows);
            self.running.push(sequence);
        }
        plan
    }

    /// Room for `rows` more tokens of running sequence `i`, if need be at the newest ones' expense.
    /// `false` when it was itself taken back.
    fn make_room(&mut self, i: usize, rows: usize) -> bool {
        loop {
            let Some(sequence) = self.running.get_mut(i) else {
                return false;
            };
            let want = sequence.computed + rows;
            if self.blocks.grow(&mut sequence.lease, want) {
                return true;
            }
            self.retract_newest();
        }
    }

    /// Take the newest running sequence's blocks; it starts over from its tokens.
    pub(super) fn retract_newest(&mut self) {
        let Some(mut sequence) = self.running.pop() else {
            return;
        };
        self.give_back(&mut sequence);
        sequence.retractions += 1;
        self.metrics.retracted();
        self.waiting.push_front(sequence);
    }

    /// Release a sequence's blocks.
    pub(super) fn give_back(&mut self, sequence: &mut Sequence) {
        self.blocks.release(std::mem::take(&mut sequence.lease));
        sequence.computed = 0;
    }

    /// Whether a prompt that is being read in this step will leave a block that `next` can use: then waiting one
    /// step is cheaper than reading it twice. All samples of one prompt arrive together, so this is the usual case.
    fn will_be_cached(&self, next: &Sequence, plan: &[usize]) -> bool {
        let block = self.model.block_tokens();
        let (known, _) = self.blocks.known(&next.tokens, next.cacheable());
        let wanted = (known + 1) * block;
        if wanted > next.cacheable() {
            return false;
        }
        self.running.iter().zip(plan).any(|(s, &rows)| {
            rows > 0
                && s.computed < wanted
                && s.tokens.len() >= wanted
                && s.tokens[..wanted] == next.tokens[..wanted]
        })
    }
}

/// Whether a waiting sequence can be read whole and everyone still has a block to go on with.
fn fits(blocks: &Blocks, next: &Sequence, running: usize) -> bool {
    let (known, unused) = blocks.known(&next.tokens, next.cacheable());
    let need = blocks.blocks_for(next.tokens.len()) - known;
    need + running <= blocks.available() - unused
}
