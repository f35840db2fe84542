//! One request on its way: its tokens, its blocks, and what has not been sent yet.

use crate::blocks::Lease;
use crate::request::{Chunk, Ending, Finish, PromptFacts, Request, Span, Token};
use crate::sampler::Counts;
use crate::text::StopWatch;
use slime_core::ports::TextCodec;
use std::sync::Arc;

/// A sequence that waits or runs.
pub(super) struct Sequence {
    pub(super) request: Request,
    /// Prompt and output.
    pub(super) tokens: Vec<u32>,
    /// Leading tokens whose keys and values are in `lease`.
    pub(super) computed: usize,
    pub(super) lease: Lease,
    pub(super) counts: Counts,
    pub(super) retractions: u32,
    /// The next prompt position to be scored; the prompt's length when none is left.
    scored: usize,
    facts: PromptFacts,
    facts_sent: bool,
    admitted: bool,
    watch: Option<StopWatch>,
    outbox: Vec<Token>,
    spans: Vec<Span>,
}

impl Sequence {
    pub(super) fn new(mut request: Request) -> Self {
        let tokens = std::mem::take(&mut request.prompt);
        let params = &request.params;
        let watch = (!params.stop.is_empty())
            .then(|| StopWatch::new(&tokens, params.skip_special_tokens, &params.stop));
        let mut facts = PromptFacts::default();
        let mut scored = tokens.len();
        if let Some(from) = request
            .wanted
            .input_from
            .filter(|&from| from < tokens.len())
        {
            facts.logprobs.push(Token {
                id: tokens[from],
                logprob: None,
                top: Vec::new(),
            });
            scored = from + 1;
        }
        Self {
            request,
            tokens,
            computed: 0,
            lease: Lease::default(),
            counts: Counts::default(),
            retractions: 0,
            scored,
            facts,
            facts_sent: false,
            admitted: false,
            watch,
            outbox: Vec::new(),
            spans: Vec::new(),
        }
    }

    pub(super) fn prompt_len(&self) -> usize {
        self.tokens.len() - self.num_sampled()
    }

    pub(super) fn num_sampled(&self) -> usize {
        self.spans.last().map_or(0, |s| s.end)
    }

    /// Rows until the next token can be sampled; 1 while decoding.
    pub(super) fn pending(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Leading tokens that a cache may stand in for: the last one is always computed, and so is whatever
    /// predicts a prompt token that is to be scored.
    pub(super) fn cacheable(&self) -> usize {
        let last = self.tokens.len() - 1;
        if self.scored < self.prompt_len() {
            last.min(self.scored - 1)
        } else {
            last
        }
    }

    /// Whether the row at `position` predicts a prompt token that is still to be scored.
    pub(super) fn scores(&self, position: usize) -> bool {
        position + 1 >= self.scored && position + 1 < self.prompt_len()
    }

    /// Whether the row at `position` predicts the next token.
    pub(super) fn samples(&self, position: usize) -> bool {
        position + 1 == self.tokens.len() && self.request.params.max_new_tokens > 0
    }

    /// The blocks found at admission. Only the first counts as cached for the client.
    pub(super) fn admit(&mut self, lease: Lease, cached_tokens: usize) {
        self.lease = lease;
        self.computed = cached_tokens;
        if !self.admitted {
            self.admitted = true;
            self.facts.cached_tokens = cached_tokens;
        }
    }

    pub(super) fn push_scored(&mut self, token: Token) {
        self.facts.logprobs.push(token);
        self.scored += 1;
    }

    /// A sampled token; `Some` when it ends the request. Stop strings win over stop tokens, those over the length.
    pub(super) fn push_sampled(
        &mut self,
        token: Token,
        version: &Arc<str>,
        codec: &dyn TextCodec,
    ) -> Option<Finish> {
        let id = token.id;
        self.tokens.push(id);
        if self.request.params.counts_tokens() {
            self.counts.add(id);
        }
        let start = self.num_sampled();
        match self.spans.last_mut().filter(|s| s.version == *version) {
            Some(span) => span.end += 1,
            None => self.spans.push(Span {
                version: version.clone(),
                start,
                end: start + 1,
            }),
        }
        self.outbox.push(if self.request.wanted.output {
            token
        } else {
            Token {
                logprob: None,
                ..token
            }
        });
        let params = &self.request.params;
        if let Some(stop) = self
            .watch
            .as_mut()
            .and_then(|w| w.push(codec, id, &params.stop))
        {
            return Some(Finish::StopString(stop.clone()));
        }
        if !params.ignore_eos
            && (params.stop_token_ids.contains(&id) || codec.eos_token_ids().contains(&id))
        {
            return Some(Finish::StopToken(id));
        }
        (start + 1 >= params.max_new_tokens).then_some(Finish::Length(params.max_new_tokens))
    }

    /// Send what is new to a client that streams.
    pub(super) fn send_progress(&mut self, version: &Arc<str>) {
        if self.request.stream && !self.outbox.is_empty() {
            self.send(version, None);
        }
    }

    /// Slots of the positions whose experts are wanted, as far as they were computed: all but the last token's.
    pub(super) fn routed_slots(&self, block: usize) -> Option<Vec<usize>> {
        let from = self.request.wanted.routes_from?;
        let end = self.computed.min(self.tokens.len() - 1);
        let blocks = self.lease.blocks();
        let slot = |p: usize| blocks[p / block] as usize * block + p % block;
        Some((from.min(end)..end).map(slot).collect())
    }

    /// Send everything that is left.
    pub(super) fn end(mut self, version: &Arc<str>, finish: Finish, routes: Option<Vec<i32>>) {
        let ending = Ending {
            finish,
            spans: std::mem::take(&mut self.spans),
            routes,
        };
        self.send(version, Some(ending));
    }

    fn send(&mut self, version: &Arc<str>, ending: Option<Ending>) {
        let prompt = (!self.facts_sent).then(|| std::mem::take(&mut self.facts));
        self.facts_sent = true;
        let chunk = Chunk {
            tokens: std::mem::take(&mut self.outbox),
            prompt,
            version: Some(version.clone()),
            retractions: self.retractions,
            ending,
        };
        // Nobody listens any more: the abort that says so is on its way.
        let _ = self.request.out.send(chunk);
    }
}
