//! One step: rows through the model, logits of the rows that need them, tokens into their sequences.

use super::Scheduler;
use super::plan::Plan;
use super::sequence::Sequence;
use crate::Result;
use crate::forward::{Forward, Rows};
use crate::random;
use crate::request::{Finish, Token};
use crate::sampler::{self, NotFinite};
use rayon::prelude::*;
use slime_kernels::{Draw, PagedSequence};
use std::ops::Range;

/// A token for each wanted row.
type Drawn = Vec<Result<Token, NotFinite>>;

/// What a wanted row's logits are for.
struct Use {
    sequence: usize,
    position: usize,
    /// Score the known next token instead of sampling one.
    scores: bool,
}

impl<F: Forward> Scheduler<F> {
    /// Plan and run one step.
    pub(super) fn step(&mut self) {
        let plan = self.plan();
        let rows: usize = plan.iter().sum();
        if rows == 0 {
            return;
        }
        let (decodes, before) = (plan.iter().all(|&n| n <= 1), self.model.replays());
        let outcome = self.compute(&plan);
        if decodes {
            self.metrics.decoded(self.model.replays() > before);
        }
        match outcome {
            Ok((uses, tokens)) => self.apply(&plan, &uses, tokens),
            Err(e) => self.fail_all(&e.to_string()),
        }
    }

    fn compute(&mut self, plan: &Plan) -> Result<(Vec<Use>, Drawn)> {
        let block = self.model.block_tokens();
        let (mut tokens, mut positions, mut slots) = (Vec::new(), Vec::new(), Vec::new());
        let (mut sequences, mut wanted, mut uses) = (Vec::new(), Vec::new(), Vec::new());
        for (index, (s, &n)) in self.running.iter().zip(plan).enumerate() {
            if n == 0 {
                continue;
            }
            let first = tokens.len();
            let blocks = s.lease.blocks();
            for position in s.computed..s.computed + n {
                let scores = s.scores(position);
                if scores || s.samples(position) {
                    wanted.push(tokens.len() as u32);
                    uses.push(Use {
                        sequence: index,
                        position,
                        scores,
                    });
                }
                tokens.push(s.tokens[position]);
                positions.push(position as u32);
                slots.push(blocks[position / block] as usize * block + position % block);
            }
            sequences.push(PagedSequence {
                rows: first..tokens.len(),
                context: s.computed + n,
                blocks,
            });
        }
        let rows = Rows {
            tokens: &tokens,
            positions: &positions,
            slots: &slots,
            sequences: &sequences,
        };
        let hidden = self.model.forward(&rows, &wanted)?;
        let mut drawn = Vec::with_capacity(uses.len());
        let chunk = self.model.logit_rows();
        for start in (0..uses.len()).step_by(chunk) {
            let range = start..(start + chunk).min(uses.len());
            if let Some(mut tokens) = self.draw_on_device(&hidden, range.clone(), &uses)? {
                drawn.append(&mut tokens);
                continue;
            }
            let mut logits = self.model.logits(&hidden, range.clone())?;
            drawn.append(&mut self.draw(&uses[range], &mut logits));
        }
        Ok((uses, drawn))
    }

    /// Tokens of the `range` of rows, where the device draws and every one of them asks for no more than a temperature.
    fn draw_on_device(
        &self,
        hidden: &F::Hidden,
        range: Range<usize>,
        uses: &[Use],
    ) -> Result<Option<Drawn>> {
        let vocab = self.limits.vocab;
        let how = |what: &Use| {
            let request = &self.running[what.sequence].request;
            let params = &request.params;
            let plain = !what.scores && request.wanted.top == 0 && params.plain(vocab);
            plain.then(|| match params.greedy() {
                true => Draw {
                    inv_temperature: 1.0,
                    uniform: None,
                },
                false => Draw {
                    inv_temperature: 1.0 / params.temperature,
                    uniform: Some(random::uniform(request.seed, what.position as u64 + 1)),
                },
            })
        };
        let Some(draws) = uses[range.clone()]
            .iter()
            .map(how)
            .collect::<Option<Vec<_>>>()
        else {
            return Ok(None);
        };
        let tokens = self.model.draw(hidden, range, &draws, vocab)?;
        Ok(tokens.map(|tokens| {
            let token = |drawn: slime_kernels::Drawn| match drawn.logprob.is_nan() {
                true => Err(NotFinite),
                false => Ok(Token {
                    id: drawn.token,
                    logprob: Some(drawn.logprob as f32),
                    top: Vec::new(),
                }),
            };
            tokens.into_iter().map(token).collect()
        }))
    }

    /// A token for each row of `logits: [uses, vocab]`.
    fn draw(&mut self, uses: &[Use], logits: &mut [f32]) -> Drawn {
        let width = self.model.vocab_size();
        // Columns beyond the tokenizer's vocabulary are no tokens.
        let vocab = self.limits.vocab;
        self.scratch.resize(logits.len(), 0.0);
        let (running, ends) = (&self.running, self.codec.eos_token_ids());
        let rows = logits
            .par_chunks_mut(width)
            .zip(self.scratch.par_chunks_mut(width))
            .zip(uses);
        rows.map(|((logits, scratch), what)| {
            let logits = &mut logits[..vocab];
            let s: &Sequence = &running[what.sequence];
            let (params, top) = (&s.request.params, s.request.wanted.top);
            if what.scores {
                return sampler::score(logits, scratch, s.tokens[what.position + 1], top);
            }
            sampler::adjust(logits, params, &s.counts, s.num_sampled(), ends);
            sampler::sample(
                logits,
                scratch,
                params,
                s.request.seed,
                what.position + 1,
                top,
            )
        })
        .collect()
    }

    /// Tokens into their sequences; finished ones leave.
    fn apply(&mut self, plan: &Plan, uses: &[Use], tokens: Drawn) {
        let mut finished: Vec<Option<Finish>> = vec![None; self.running.len()];
        for (i, (s, &rows)) in self.running.iter_mut().zip(plan).enumerate() {
            if s.pending() > 1 {
                self.metrics.prefilled(rows);
            }
            s.computed += rows;
            self.blocks.publish(&mut s.lease, &s.tokens, s.computed);
            if s.request.params.max_new_tokens == 0 && s.pending() == 0 {
                finished[i] = Some(Finish::Length(0));
            }
        }
        for (what, token) in uses.iter().zip(tokens) {
            let s = &mut self.running[what.sequence];
            match token {
                Ok(token) if what.scores => s.push_scored(token),
                Ok(token) => {
                    self.metrics.sampled();
                    finished[what.sequence] = s.push_sampled(token, &self.version, &*self.codec);
                }
                Err(NotFinite) => {
                    let why = "the model's logits are not finite: its weights are damaged or have diverged";
                    finished[what.sequence] = Some(Finish::Failed(why.into()));
                }
            }
        }
        let mut fates = finished.into_iter();
        let mut index = 0;
        while index < self.running.len() {
            match fates.next().flatten() {
                Some(finish) => {
                    let sequence = self.running.remove(index);
                    self.end(sequence, finish);
                }
                None => {
                    self.running[index].send_progress(&self.version);
                    index += 1;
                }
            }
        }
    }

    /// The model failed: whoever took part is told, and no half-written block is kept.
    fn fail_all(&mut self, why: &str) {
        tracing::error!(why, "a step failed");
        for sequence in std::mem::take(&mut self.running) {
            self.end(sequence, Finish::Failed(why.to_owned()));
        }
        self.blocks.flush();
    }

    /// Release a sequence's blocks and send what is left of it.
    pub(super) fn end(&mut self, mut sequence: Sequence, finish: Finish) {
        let block = self.model.block_tokens();
        let slots = sequence.routed_slots(block);
        let routes = slots.and_then(|slots| self.model.routes(&slots));
        self.give_back(&mut sequence);
        self.metrics.ended(&finish);
        sequence.end(&self.version, finish, routes);
    }
}
