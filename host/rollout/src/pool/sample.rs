//! A request's life: checked, assigned, sent, and continued elsewhere with the tokens it has when a
//! server breaks, until it ends or its deadline does.
//!
//! Sending the same request twice is safe: sampling changes nothing on a server but its cache. A
//! request that a server refuses (4xx) is not sent again and is not held against the server.

use super::endpoint::abort_request;
use super::endpoint::generate::{Answer, Broken, Finish, Manner, generate, prefill};
use super::pair::{Meeting, Unfilled};
use super::router::Router;
use super::{CallError, Inner, Server, Slot, Standing};
use crate::lock;
use backon::{BackoffBuilder, ExponentialBuilder};
use slime_core::FinishReason;
use slime_core::ports::{Keep, PolicyError, SampleRequest, Sampled};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

/// After an abort, how long the server has to answer with its tokens before the connection is dropped.
const ABORT_GRACE: Duration = Duration::from_secs(5);

/// Once a member is down, how long a call has to notice by itself and keep its partial tokens.
const LOST_GRACE: Duration = Duration::from_secs(1);

/// Answers of servers that cannot be used, after which a request is not sent again.
const MAX_FAULTS: u32 = 8;

/// What one call did for the request.
enum Step {
    /// It ended.
    Done(FinishReason),
    /// The request is at fault.
    Refused(String),
    /// Try again, elsewhere where possible.
    Again,
    /// The router failed: the next try goes to a member itself, however long it has to wait for that.
    Around,
    /// A server answered, and not as it should: try again, a few times.
    Fault(String),
}

/// What holds for one call.
struct Terms<'a> {
    keep: Option<&'a dyn Keep>,
    until: Instant,
    cancelled: &'a CancellationToken,
    /// Who picks the server, where the host does not.
    router: Option<&'a Router>,
}

impl Inner {
    #[tracing::instrument(level = "trace", name = "sample", skip_all, fields(rid = request.rid))]
    pub(super) async fn sample(
        &self,
        request: SampleRequest,
        begun: Sampled,
        keep: Option<Arc<dyn Keep>>,
    ) -> Result<Sampled, PolicyError> {
        if self.halted.load(Ordering::Relaxed) {
            return Err(PolicyError::Cancelled);
        }
        self.check(&request).map_err(PolicyError::Refused)?;
        let cancelled = CancellationToken::new();
        if lock(&self.live)
            .insert(request.rid.clone(), cancelled.clone())
            .is_some()
        {
            return Err(PolicyError::Refused(format!(
                "request id `{}` is in flight already",
                request.rid
            )));
        }
        let registered = Registered {
            inner: self,
            rid: request.rid.clone(),
        };
        let result = self
            .drive(request, begun, keep.as_deref(), &cancelled)
            .await;
        drop(registered);
        result
    }

    /// What a server would refuse, or die of.
    fn check(&self, request: &SampleRequest) -> Result<(), String> {
        let (vocab, context) = (self.config.vocab_size, self.config.context_tokens);
        let (have, want) = (request.tokens.len(), request.params.max_new_tokens as usize);
        if have == 0 {
            return Err("the context is empty; a request needs at least one token".into());
        }
        if let Some(id) = request.tokens.iter().find(|&&id| id as usize >= vocab) {
            return Err(format!("token id {id} is not in the vocabulary of {vocab}"));
        }
        if have + want > context {
            return Err(format!(
                "{have} tokens and {want} new ones do not fit the context of {context} tokens"
            ));
        }
        Ok(())
    }

    async fn drive(
        &self,
        mut request: SampleRequest,
        mut got: Sampled,
        keep: Option<&dyn Keep>,
        cancelled: &CancellationToken,
    ) -> Result<Sampled, PolicyError> {
        let until = Instant::now() + self.config.request_deadline;
        let (min, max) = self.config.backoff;
        let mut delays = ExponentialBuilder::default()
            .with_min_delay(min)
            .with_max_delay(max)
            .without_max_times()
            .build();
        let prompt_len = request.tokens.len();
        // SGLang refuses a request that would fill the context to its last token.
        let room = self.config.context_tokens.saturating_sub(prompt_len + 1);
        let budget = request
            .params
            .max_new_tokens
            .min(u32::try_from(room).unwrap_or(u32::MAX));
        let mut avoid = Vec::new();
        let (mut faults, mut around) = (0, false);

        loop {
            if cancelled.is_cancelled() {
                got.finish = Some(FinishReason::Abort);
                return Ok(got);
            }
            request.params.max_new_tokens = budget.saturating_sub(got.tokens.len() as u32);
            if request.params.max_new_tokens == 0 {
                got.finish = Some(FinishReason::Length);
                return Ok(got);
            }
            let assigned = tokio::select! {
                slot = timeout_at(until, self.assign(request.session, &avoid)) => slot,
                () = cancelled.cancelled() => continue,
            };
            let Ok(slot) = assigned else {
                return Err(PolicyError::Unavailable(self.complaints()));
            };
            avoid = slot.indices();
            request.tokens.truncate(prompt_len);
            request.tokens.extend_from_slice(&got.tokens);
            if !got.tokens.is_empty() {
                self.counters.continued.fetch_add(1, Ordering::Relaxed);
            }
            let had = got.tokens.len();
            let terms = Terms {
                keep,
                until,
                cancelled,
                router: self.router.as_ref().filter(|r| !around && r.is_up()),
            };
            let step = self.call(&slot, &request, &mut got, terms).await;
            around = matches!(step, Step::Around);
            if let Step::Done(finish) = &step {
                got.finish = Some(*finish);
            }
            if let Some(keep) = keep
                && (got.tokens.len() > had || got.is_whole())
            {
                keep.keep(&got);
            }
            match step {
                Step::Done(finish) => {
                    got.finish = Some(finish);
                    return Ok(got);
                }
                Step::Refused(reason) => return Err(PolicyError::Refused(reason)),
                Step::Fault(reason) => {
                    faults += 1;
                    if faults >= MAX_FAULTS {
                        return Err(PolicyError::Unavailable(format!(
                            "{faults} unusable answers, the last: {reason}"
                        )));
                    }
                }
                Step::Again | Step::Around => {}
            }
            drop(slot);
            if Instant::now() >= until {
                return Err(PolicyError::Unavailable(self.complaints()));
            }
            self.counters.retries.fetch_add(1, Ordering::Relaxed);
            let delay = delays.next().unwrap_or(max);
            tokio::select! {
                () = tokio::time::sleep(delay) => {}
                () = cancelled.cancelled() => {}
            }
        }
    }

    /// One call to one member. What it sampled is added to `got`.
    async fn call(
        &self,
        slot: &Slot<'_>,
        request: &SampleRequest,
        got: &mut Sampled,
        terms: Terms<'_>,
    ) -> Step {
        let Terms {
            keep,
            until,
            cancelled,
            router,
        } = terms;
        let member = slot.member;
        let first = slot.prefill.as_deref().unwrap_or(slot);
        let (lost, first_lost) = (member.lost(), first.member.lost());
        let gone = async {
            tokio::select! {
                () = lost.cancelled() => {}
                () = first_lost.cancelled() => {}
            }
        };
        let through = async {
            let own = member.gate.acquire().await;
            let other = match &slot.prefill {
                Some(slot) => Some(slot.member.gate.acquire().await),
                None => None,
            };
            (own, other)
        };
        let (permit, first_permit) = tokio::select! {
            permits = through => permits,
            () = gone => return Step::Again,
            () = cancelled.cancelled() => return Step::Again,
            () = tokio::time::sleep_until(until) => return Step::Again,
        };
        let serves = |slot: &Slot<'_>| matches!(slot.member.standing(), Standing::Serving(_));
        if !serves(slot) || !serves(first) {
            return Step::Again;
        }
        let turn = self.counters.calls.fetch_add(1, Ordering::Relaxed);
        let meeting = first
            .member
            .door
            .as_ref()
            .map(|door| door.meet(&request.rid, turn));
        let mut guard = AbortOnDrop {
            // Where a router picked, any of them may have it.
            servers: match router {
                None => {
                    let first = slot.prefill.as_ref().map(|slot| &slot.member.server);
                    std::iter::once(&member.server).chain(first).collect()
                }
                Some(_) => self.members.iter().map(|m| &m.server).collect(),
            },
            rid: &request.rid,
            armed: true,
        };
        let server = router.map_or(&member.server, |router| &router.server);
        let left = until.saturating_duration_since(Instant::now());
        let given_up = async {
            cancelled.cancelled().await;
            tokio::time::sleep(ABORT_GRACE).await;
        };
        let abandoned = async {
            lost.cancelled().await;
            tokio::time::sleep(LOST_GRACE).await;
        };
        let half = meeting.as_ref().zip(first_permit);
        // What a stream has brought is kept while more comes, if its weights are known.
        let so_far = |answer: &Answer| {
            if let (Some(keep), Some(more)) = (keep, self.proven(answer)) {
                let mut all = got.clone();
                all.extend(more);
                keep.keep(&all);
            }
        };
        let manner = Manner {
            stream: self.config.stream,
            routed_experts: self.config.routed_experts,
        };
        let result = tokio::select! {
            result = generate(server, request, manner, meeting.as_ref(), left, so_far) => result,
            unfilled = fill(first, request, half, &first_lost, left) => return match unfilled {
                Unfilled::GivenUp => Step::Again,
                Unfilled::Failed(error) => self.blame(first, request, &error),
            },
            () = abandoned => return Step::Again,
            () = given_up => return Step::Again,
        };
        drop(permit);
        // A timeout leaves the request running; every other end means that the server is done with it.
        guard.armed = matches!(
            &result,
            Err(Broken {
                error: CallError::Timeout,
                ..
            })
        ) || (meeting.is_some() && result.is_err());
        match result {
            Ok(answer) => {
                if let Some(router) = router {
                    router.answered();
                    return self.absorb(None, got, answer, cancelled);
                }
                member.praise();
                first.member.praise();
                self.absorb(Some(slot.index), got, answer, cancelled)
            }
            Err(Broken { error, .. }) if error.is_refusal() => {
                let reason = error.to_string();
                if reason.contains("Duplicate request ID") {
                    // An earlier call of ours that broke off is still running there.
                    guard.armed = true;
                    return Step::Again;
                }
                Step::Refused(reason)
            }
            Err(Broken { error, partial }) => {
                if let Some(partial) = partial {
                    let from = router.is_none().then_some(slot.index);
                    self.absorb(from, got, partial, cancelled);
                }
                if let Some(router) = router {
                    router.pass_by(&error);
                    return Step::Around;
                }
                self.blame(slot, request, &error)
            }
        }
    }

    /// A call to one member failed.
    fn blame(&self, slot: &Slot<'_>, request: &SampleRequest, error: &CallError) -> Step {
        let member = slot.member;
        if error.is_refusal() {
            let reason = error.to_string();
            return match reason.contains("Duplicate request ID") {
                true => Step::Again,
                false => Step::Refused(reason),
            };
        }
        if matches!(
            error,
            CallError::Status {
                status: 408 | 429,
                ..
            }
        ) {
            return Step::Again; // Busy is no fault.
        }
        let gone = error.is_gone();
        tracing::debug!(server = %member.server.address(), rid = request.rid, %error, "a call failed");
        if member.strike(error.to_string(), gone)
            && matches!(member.standing(), Standing::Serving(_))
        {
            tracing::warn!(server = %member.server.address(), %error, "a server is out of routing until it answers again");
            self.set_standing(slot.index, Standing::Down);
        }
        match error {
            CallError::Malformed(_)
            | CallError::Status {
                status: 500..=502 | 504..,
                ..
            } => Step::Fault(error.to_string()),
            _ => Step::Again,
        }
    }

    /// What an answer holds, if each of its tokens was sampled by weights that were published here.
    fn proven(&self, answer: &Answer) -> Option<Sampled> {
        let versions = answer
            .versions
            .iter()
            .map(|(label, len)| Some((self.config.version_of(label)?, *len)));
        Some(Sampled {
            tokens: answer.tokens.clone(),
            logprobs: answer.logprobs.clone(),
            versions: versions.collect::<Option<_>>()?,
            finish: None,
            cached_tokens: answer.cached_tokens,
            text: answer.text.clone(),
            routed_experts: answer.routed_experts.clone(),
        })
    }

    /// Keep what a server sampled, if it can prove with which weights.
    fn absorb(
        &self,
        from: Option<usize>,
        got: &mut Sampled,
        answer: Answer,
        cancelled: &CancellationToken,
    ) -> Step {
        let Some(more) = self.proven(&answer) else {
            self.counters
                .unproven_tokens
                .fetch_add(answer.tokens.len() as u64, Ordering::Relaxed);
            let Some(index) = from else {
                // A router knows who it was, and members are looked at anyway.
                return Step::Again;
            };
            let member = &self.members[index];
            let label = answer
                .versions
                .iter()
                .find(|(label, _)| self.config.version_of(label).is_none());
            let label = label.map_or("", |(label, _)| label.as_str());
            member.complain(format!(
                "it sampled with weights `{label}`, which nobody published here"
            ));
            tracing::warn!(server = %member.server.address(), label, "out of routing: unknown weights");
            self.set_standing(index, Standing::Unproven);
            return Step::Again;
        };
        got.extend(more);
        match answer.finish {
            Finish::Stop => Step::Done(FinishReason::Stop),
            Finish::Length => Step::Done(FinishReason::Length),
            Finish::Abort { .. } if cancelled.is_cancelled() => Step::Done(FinishReason::Abort),
            Finish::Abort {
                message,
                status: Some(status),
            } if (400..500).contains(&status) => Step::Refused(message),
            // A pause for new weights, or the server's own decision: the request goes on.
            Finish::Abort { .. } | Finish::Unfinished => Step::Again,
        }
    }
}

/// The prompt's half of a request that passes through two servers; returns only when that failed.
async fn fill(
    first: &Slot<'_>,
    request: &SampleRequest,
    half: Option<(&Meeting, impl Sized)>,
    lost: &CancellationToken,
    deadline: Duration,
) -> Unfilled {
    let Some((meeting, permit)) = half else {
        return std::future::pending().await;
    };
    let abandoned = async {
        lost.cancelled().await;
        tokio::time::sleep(LOST_GRACE).await;
    };
    let filled = tokio::select! {
        filled = prefill(&first.member.server, request, meeting, deadline) => filled,
        () = abandoned => return Unfilled::GivenUp,
    };
    // From here on only the server that decodes is busy with it.
    drop(permit);
    match filled {
        Ok(true) => std::future::pending().await,
        Ok(false) => Unfilled::GivenUp,
        Err(error) => Unfilled::Failed(error),
    }
}

struct Registered<'a> {
    inner: &'a Inner,
    rid: String,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        lock(&self.inner.live).remove(&self.rid);
    }
}

/// A request whose caller went away must not go on sampling.
struct AbortOnDrop<'a> {
    servers: Vec<&'a Server>,
    rid: &'a str,
    armed: bool,
}

impl Drop for AbortOnDrop<'_> {
    fn drop(&mut self) {
        if !self.armed {
            return;
        }
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let servers: Vec<Server> = self.servers.iter().map(|&s| s.clone()).collect();
            let rid = self.rid.to_owned();
            runtime.spawn(async move {
                for server in servers {
                    if let Err(error) = abort_request::one(&server, &rid).await {
                        tracing::debug!(rid, %error, "an abort did not arrive");
                    }
                }
            });
        }
    }
}
