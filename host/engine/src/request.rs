//! A request as the scheduler sees it, and what comes back. JSON is `server/`'s business.

use std::sync::Arc;
use tokio::sync::mpsc::UnboundedSender;

/// Sampling parameters after checking: nothing here can be out of range.
#[derive(Clone, Debug)]
pub(crate) struct Params {
    pub(crate) max_new_tokens: usize,
    /// Stop tokens cannot be sampled before.
    pub(crate) min_new_tokens: usize,
    /// Above 0; greedy decoding is `top_k == 1`.
    pub(crate) temperature: f64,
    /// `usize::MAX` keeps all.
    pub(crate) top_k: usize,
    pub(crate) top_p: f64,
    pub(crate) min_p: f64,
    pub(crate) frequency_penalty: f64,
    pub(crate) presence_penalty: f64,
    pub(crate) repetition_penalty: f64,
    pub(crate) logit_bias: Vec<(u32, f32)>,
    pub(crate) stop: Vec<String>,
    pub(crate) stop_token_ids: Vec<u32>,
    pub(crate) ignore_eos: bool,
    pub(crate) skip_special_tokens: bool,
    pub(crate) no_stop_trim: bool,
    pub(crate) seed: Option<u64>,
    pub(crate) n: usize,
}

impl Default for Params {
    fn default() -> Self {
        Self {
            max_new_tokens: 128,
            min_new_tokens: 0,
            temperature: 1.0,
            top_k: usize::MAX,
            top_p: 1.0,
            min_p: 0.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            repetition_penalty: 1.0,
            logit_bias: Vec::new(),
            stop: Vec::new(),
            stop_token_ids: Vec::new(),
            ignore_eos: false,
            skip_special_tokens: true,
            no_stop_trim: false,
            seed: None,
            n: 1,
        }
    }
}

impl Params {
    pub(crate) fn greedy(&self) -> bool {
        self.top_k == 1
    }

    /// Whether nothing but the temperature stands between the logits and the token, so that a device can draw it.
    pub(crate) fn plain(&self, vocab: usize) -> bool {
        (self.greedy() || self.top_k >= vocab)
            && self.top_p >= 1.0
            && self.min_p <= 0.0
            && self.min_new_tokens == 0
            && self.frequency_penalty == 0.0
            && self.presence_penalty == 0.0
            && self.repetition_penalty == 1.0
            && self.logit_bias.is_empty()
    }

    /// Whether logits are changed before sampling by what was sampled already.
    pub(crate) fn counts_tokens(&self) -> bool {
        self.frequency_penalty != 0.0
            || self.presence_penalty != 0.0
            || self.repetition_penalty != 1.0
    }
}

/// Which log-probs are wanted.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wanted {
    /// Of sampled tokens.
    pub(crate) output: bool,
    /// Of prompt tokens after this position.
    pub(crate) input_from: Option<usize>,
    /// So many of the most likely tokens at each position.
    pub(crate) top: usize,
    /// The experts of every position from this one on.
    pub(crate) routes_from: Option<usize>,
}

/// One sequence to continue.
pub(crate) struct Request {
    /// The scheduler's own name for it.
    pub(crate) id: u64,
    pub(crate) prompt: Vec<u32>,
    pub(crate) params: Params,
    /// Seed after defaults.
    pub(crate) seed: u64,
    pub(crate) wanted: Wanted,
    /// Send tokens as they come; otherwise once, at the end.
    pub(crate) stream: bool,
    pub(crate) out: UnboundedSender<Chunk>,
}

/// A token with its log-prob.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Token {
    pub(crate) id: u32,
    /// `None` for the first prompt token asked for: nothing predicts it.
    pub(crate) logprob: Option<f32>,
    /// The most likely tokens there, best first.
    pub(crate) top: Vec<(f32, u32)>,
}

/// What is known once the prompt has been read.
#[derive(Clone, Debug, Default)]
pub(crate) struct PromptFacts {
    pub(crate) cached_tokens: usize,
    pub(crate) logprobs: Vec<Token>,
}

/// Output tokens `start..end` were sampled by these weights.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Span {
    pub(crate) version: Arc<str>,
    pub(crate) start: usize,
    pub(crate) end: usize,
}

/// Why a request ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Finish {
    Length(usize),
    StopToken(u32),
    StopString(String),
    Abort(String),
    /// The arithmetic failed; not the client's fault.
    Failed(String),
}

/// The last thing said about a request.
#[derive(Clone, Debug)]
pub(crate) struct Ending {
    pub(crate) finish: Finish,
    pub(crate) spans: Vec<Span>,
    /// `[positions but the last, layers, experts of a token]`, where they were asked for.
    pub(crate) routes: Option<Vec<i32>>,
}

/// News of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chunk {
    /// Tokens since the last chunk.
    pub(crate) tokens: Vec<Token>,
    /// With the first chunk that has it.
    pub(crate) prompt: Option<PromptFacts>,
    /// Served when the newest token was sampled.
    pub(crate) version: Option<Arc<str>>,
    pub(crate) retractions: u32,
    pub(crate) ending: Option<Ending>,
}
