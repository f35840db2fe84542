//! The traits through which the wings meet. Only the program knows who implements them.
//!
//! | port | offered by | used by |
//! |---|---|---|
//! | [`TextCodec`] | model | rollout, runtime |
//! | [`Policy`] | rollout (pool) | rollout, runtime (judges) |
//! | [`LiveTrajectory`] | rollout | runtime (host half of the generator world) |
//! | [`Generator`] | rollout (built in), runtime (components) | rollout |
//! | [`Verifier`], [`Source`] | runtime, rollout (files) | rollout |
//! | [`GroupVerifier`], [`Filter`], [`Shaper`] | runtime (components) | rollout |
//! | [`Tools`] | runtime (components) | runtime (host half of generators) |
//! | [`Models`] | rollout (pool) | runtime (host half of judges) |

use crate::{
    Accounting, FinishReason, Message, Outcome, Prompt, SamplingParams, Tool, Trajectory,
    WeightVersion,
};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

/// A future that may move between threads.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Tokenizer and chat template of one model.
pub trait TextCodec: Send + Sync {
    /// Token ids of `text`, special tokens in it recognised, none added.
    ///
    /// # Errors
    /// Text the tokenizer refuses.
    fn encode(&self, text: &str) -> Result<Vec<u32>, CodecError>;
    /// Text of `tokens`; invalid UTF-8 becomes U+FFFD.
    fn decode(&self, tokens: &[u32], skip_special_tokens: bool) -> String;
    /// Render a conversation and tokenize it. An empty `tools` is no tools.
    ///
    /// # Errors
    /// The model has no template, or the template refuses the conversation.
    fn render_chat(
        &self,
        messages: &[Message],
        tools: &[Tool],
        add_generation_prompt: bool,
        template_kwargs: &Map<String, Value>,
    ) -> Result<Vec<u32>, CodecError>;
    /// Whether [`Self::render_chat`] can work.
    fn has_chat_template(&self) -> bool;
    /// Tokens that end a turn.
    fn eos_token_ids(&self) -> &[u32];
    /// Ids the tokenizer knows are below this.
    fn vocab_size(&self) -> usize;
}

/// What a codec refuses.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CodecError {
    /// The tokenizer failed.
    #[error("the tokenizer refused the text: {0}")]
    Tokenize(String),
    /// There is no chat template.
    #[error(
        "this model has no chat template: give prompts as text, or put chat_template.jinja beside tokenizer.json"
    )]
    NoTemplate,
    /// The template failed or refused.
    #[error("the chat template refused the conversation: {0}")]
    Template(String),
}

/// One request to the policy.
#[derive(Clone, Debug)]
pub struct SampleRequest {
    /// Unique; a retry under the same id is the same request.
    pub rid: String,
    /// Requests of one session prefer one server (prefix cache).
    pub session: u64,
    /// The whole context.
    pub tokens: Vec<u32>,
    /// How to sample.
    pub params: SamplingParams,
}

/// What the policy wrote.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sampled {
    /// The new tokens.
    pub tokens: Vec<u32>,
    /// One log-prob a token.
    pub logprobs: Vec<f32>,
    /// Versions that sampled them and how many tokens each, in order. Sums to `tokens.len()`.
    pub versions: Vec<(WeightVersion, usize)>,
    /// Why it ended.
    pub finish: Option<FinishReason>,
    /// Prompt tokens that a prefix cache served.
    pub cached_tokens: usize,
    /// Text as the engine decoded it, stop strings cut off.
    pub text: String,
    /// The experts of every token of prompt and answer but the last, where they were asked for; see
    /// [`RolloutRecord::routed_experts`](crate::RolloutRecord::routed_experts).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub routed_experts: Option<String>,
}

impl Sampled {
    /// Add what was sampled after it; `more` decides why it ended.
    pub fn extend(&mut self, more: Self) {
        if self.tokens.is_empty() {
            self.cached_tokens = more.cached_tokens;
        }
        self.tokens.extend(more.tokens);
        self.logprobs.extend(more.logprobs);
        self.text.push_str(&more.text);
        for (version, len) in more.versions {
            match self.versions.last_mut() {
                Some((last, total)) if *last == version => *total += len,
                _ => self.versions.push((version, len)),
            }
        }
        self.finish = more.finish;
        // They cover what came before, too.
        self.routed_experts = more.routed_experts;
    }

    /// Whether nothing more is to come.
    pub fn is_whole(&self) -> bool {
        self.finish
            .is_some_and(|finish| finish != FinishReason::Abort)
    }
}

/// Told what a request has, as it comes, so that it outlives the process. The last word counts.
pub trait Keep: Send + Sync {
    /// Everything sampled so far.
    fn keep(&self, so_far: &Sampled);
}

/// Why the policy did not answer.
#[derive(Clone, Debug, thiserror::Error)]
pub enum PolicyError {
    /// The request itself is wrong; trying again cannot help.
    #[error("the engine refused the request: {0}")]
    Refused(String),
    /// No server could answer within the retry policy.
    #[error("no engine could answer: {0}")]
    Unavailable(String),
    /// The host gave up on the request.
    #[error("cancelled")]
    Cancelled,
}

/// Whoever samples tokens.
pub trait Policy: Send + Sync {
    /// Sample a continuation. Tokens received before an engine died are kept and continued elsewhere.
    fn sample(&self, request: SampleRequest) -> BoxFuture<'_, Result<Sampled, PolicyError>>;

    /// Sample on where `begun` ended, which may have been in a process that is gone. `request` is the one that began
    /// it: its `max_new_tokens` counts `begun`, and so does the answer.
    fn go_on<'a>(
        &'a self,
        mut request: SampleRequest,
        mut begun: Sampled,
        keep: Arc<dyn Keep>,
    ) -> BoxFuture<'a, Result<Sampled, PolicyError>> {
        Box::pin(async move {
            let had = u32::try_from(begun.tokens.len()).unwrap_or(u32::MAX);
            request.params.max_new_tokens = request.params.max_new_tokens.saturating_sub(had);
            request.tokens.extend_from_slice(&begun.tokens);
            if had > 0 && request.params.max_new_tokens == 0 {
                begun.finish = Some(FinishReason::Length);
                return Ok(begun);
            }
            begun.extend(self.sample(request).await?);
            keep.keep(&begun);
            Ok(begun)
        })
    }

    /// Take no more requests and give up on those in flight, each of which returns what it has.
    fn halt(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }
}

/// Why an operation on a live trajectory failed. The kinds are those a plugin can act on.
#[derive(Clone, Debug, thiserror::Error)]
pub enum LiveError {
    /// The input does not fit.
    #[error("{0}")]
    InvalidInput(String),
    /// A budget of tokens, turns or calls is used up.
    #[error("{0}")]
    LimitExceeded(String),
    /// The host gave up on this rollout.
    #[error("the host gave up on this rollout")]
    Cancelled,
    /// No engine could answer.
    #[error("{0}")]
    Unavailable(String),
}

/// One turn of the policy, as a generator sees it: the tokens stay in the host.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// Decoded, special tokens and stop strings left out.
    pub text: String,
    /// Why it ended.
    pub finish: FinishReason,
    /// Tokens sampled.
    pub num_tokens: u32,
    /// The newest version that sampled one of them.
    pub version: WeightVersion,
}

/// A token sequence that the host grows on behalf of a generator.
///
/// Cheap to clone by `Arc`; calls on one trajectory are made one after the other.
pub trait LiveTrajectory: Send + Sync {
    /// The prompt it started from.
    fn prompt(&self) -> Arc<Prompt>;
    /// All text after the prompt, special tokens left out.
    fn response(&self) -> String;
    /// Append text that the policy did not write.
    fn append(&self, message: Message) -> BoxFuture<'_, Result<(), LiveError>>;
    /// Let the policy write the next turn, at most `max_tokens` tokens of it (0 = what the run allows).
    fn sample(&self, max_tokens: u32, stop: Vec<String>) -> BoxFuture<'_, Result<Turn, LiveError>>;
    /// Tokens that still fit the context and the response budget.
    fn remaining_tokens(&self) -> u32;
    /// A copy that shares the past.
    fn fork(&self) -> Result<Arc<dyn LiveTrajectory>, LiveError>;
    /// The finished sequence; a template that rewrote history left earlier ones before it.
    fn finish(&self) -> Vec<Trajectory>;
}

/// How a generator's call ended.
pub struct Generated {
    /// What it returned, in order; kept up to the failure where it failed.
    pub trajectories: Vec<Trajectory>,
    /// `None` when it went well; then the rollout goes to the verifier.
    pub failure: Option<Outcome>,
    /// What the call cost.
    pub cost: Accounting,
}

/// Drives one rollout.
pub trait Generator: Send + Sync {
    /// Its name in metrics.
    fn name(&self) -> &str;
    /// Run one rollout to its end.
    fn generate(&self, start: Arc<dyn LiveTrajectory>, seed: u64) -> BoxFuture<'_, Generated>;
}

/// What a verifier reads.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScoreRequest {
    /// The prompt as text (rendered where it was a conversation: the last user message).
    pub prompt: String,
    /// What the policy wrote, special tokens left out.
    pub response: String,
    /// The gold answer.
    pub label: Option<String>,
    /// The prompt's metadata, a JSON object.
    pub metadata: Map<String, Value>,
    /// Why the last turn ended.
    pub finish: Option<FinishReason>,
    /// Fixes the randomness the plugin may see.
    pub seed: u64,
}

/// A verifier's answer and its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Scored {
    /// The verdict, or why there is none.
    pub outcome: Outcome,
    /// What the call cost.
    pub cost: Accounting,
}

/// Scores one rollout.
pub trait Verifier: Send + Sync {
    /// Its name in metrics.
    fn name(&self) -> &str;
    /// Score one finished rollout. Never fails: what goes wrong is an [`Outcome`].
    fn score(&self, item: ScoreRequest) -> BoxFuture<'_, Scored>;
}

/// All rollouts of one prompt, as group plugins read them: each with what its verifier made of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GroupRequest {
    /// In order of index, at least one.
    pub rollouts: Vec<(Arc<ScoreRequest>, Outcome)>,
    /// Fixes the randomness the plugin may see.
    pub seed: u64,
}

/// A group plugin's answer and its cost.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupAnswer<T> {
    /// What it said of the whole group, or why it said nothing.
    pub answer: Result<T, Outcome>,
    /// What the call cost.
    pub cost: Accounting,
}

/// Scores the rollouts of one prompt together.
pub trait GroupVerifier: Send + Sync {
    /// Its name in metrics.
    fn name(&self) -> &str;
    /// One outcome a rollout, in order of index. Never fails: where the whole call fails, every rollout ends so.
    fn score_group(&self, group: GroupRequest) -> BoxFuture<'_, (Vec<Outcome>, Accounting)>;
}

/// What becomes of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may be trained on.
    Keep,
    /// It is dropped, for this reason.
    Drop(String),
}

/// Keeps groups or drops them, by raw rewards.
pub trait Filter: Send + Sync {
    /// Its name in metrics.
    fn name(&self) -> &str;
    /// Decide about one group.
    fn decide(&self, group: GroupRequest) -> BoxFuture<'_, GroupAnswer<Decision>>;
}

/// Rewards of a group in, rewards out.
pub trait Shaper: Send + Sync {
    /// Its name in metrics.
    fn name(&self) -> &str;
    /// New rewards in order of index; `None` exactly where the rollout was not scored.
    fn shape(&self, group: GroupRequest) -> BoxFuture<'_, GroupAnswer<Vec<Option<f64>>>>;
}

/// Why a tool did not answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ToolError {
    /// There is no such tool, or the arguments do not fit: the policy's mistake, to be told to it.
    #[error("{0}")]
    InvalidInput(String),
    /// The tool failed, or its budget ran out.
    #[error("{0}")]
    Failed(Outcome),
}

/// Runs tools for the policy.
pub trait Tools: Send + Sync {
    /// Its name in metrics.
    fn name(&self) -> &str;
    /// The tools, as the chat template takes them (OpenAI's shape).
    fn definitions(&self) -> &[Tool];
    /// Call one. `arguments` is a JSON object as text.
    fn call(
        &self,
        name: String,
        arguments: String,
        seed: u64,
    ) -> BoxFuture<'_, (Result<String, ToolError>, Accounting)>;
}

/// One question to a named model of the pool. What it answers is never trained on.
#[derive(Clone, Debug, PartialEq)]
pub struct Ask {
    /// A name from the run's configuration.
    pub model: String,
    /// The conversation.
    pub messages: Vec<Message>,
    /// At most this many tokens.
    pub max_tokens: u32,
    /// 0 is greedy.
    pub temperature: f64,
    /// Fixes the sampling, as far as the model's engine is repeatable.
    pub seed: u64,
}

/// What a model of the pool answered.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelAnswer {
    /// Decoded, special tokens left out.
    pub text: String,
    /// Why it ended.
    pub finish: FinishReason,
    /// Tokens sampled.
    pub num_tokens: u32,
}

/// Named models of the pool, for judges.
pub trait Models: Send + Sync {
    /// The names that may be asked.
    fn names(&self) -> Vec<String>;
    /// Ask one of them.
    fn ask(&self, ask: Ask) -> BoxFuture<'_, Result<ModelAnswer, LiveError>>;
}

/// Why a source gave no prompt.
#[derive(Clone, Debug, thiserror::Error)]
pub enum SourceError {
    /// The source cannot go on.
    #[error("source {name}: {reason}")]
    Failed {
        /// The source's name.
        name: String,
        /// What happened, and the cure.
        reason: String,
    },
}

/// Where prompts come from. The draw is a function of its index, so a run resumes without replaying.
pub trait Source: Send + Sync {
    /// Its name, part of every [`crate::PromptId`].
    fn name(&self) -> &str;
    /// Number of rows in an epoch; `None` for a source that makes prompts up.
    fn len(&self) -> Option<u64>;
    /// Whether an epoch has no rows.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }
    /// The prompt of draw `index` (counted over the whole run) under the run's seed.
    fn draw(&self, index: u64, seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>>;
}
