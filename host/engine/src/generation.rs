//! A request's answer as it grows: chunks from the scheduler put together, tokens turned into text.
//!
//! What is shown is whole characters, without the stop string or stop token that ended it, and never takes
//! back what it has shown: text that may become a stop string is held until it is decided.

use crate::engine::Running;
use crate::metrics::Metrics;
use crate::request::{Ending, Finish, Params, PromptFacts, Span, Token};
use crate::text::{Decoder, decode_all, held_back, trim_stop};
use crate::{Error, Result};
use slime_core::ports::TextCodec;
use std::sync::Arc;

/// See the module.
pub(crate) struct Generation {
    running: Running,
    codec: Arc<dyn TextCodec>,
    metrics: Arc<Metrics>,
    stop: Vec<String>,
    no_stop_trim: bool,
    skip_special: bool,
    /// `None` while the whole text is only wanted at the end.
    decoder: Option<Decoder>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) prompt: PromptFacts,
    pub(crate) version: Arc<str>,
    pub(crate) retractions: u32,
    pub(crate) ending: Option<Ending>,
    pub(crate) seconds: f64,
    text: String,
}

impl Generation {
    pub(crate) fn new(running: Running, params: &Params, stream: bool) -> Self {
        let engine = running.engine();
        let (codec, metrics) = (engine.inner.codec.clone(), engine.inner.metrics.clone());
        let version = metrics.version().into();
        Self {
            decoder: stream.then(|| Decoder::new(&running.prompt, params.skip_special_tokens)),
            running,
            codec,
            metrics,
            stop: params.stop.clone(),
            no_stop_trim: params.no_stop_trim,
            skip_special: params.skip_special_tokens,
            tokens: Vec::new(),
            prompt: PromptFacts::default(),
            version,
            retractions: 0,
            ending: None,
            seconds: 0.0,
            text: String::new(),
        }
    }

    /// Take in what has come since. Returns whether more is to come.
    ///
    /// # Errors
    /// The engine stopped, or its arithmetic failed.
    pub(crate) async fn advance(&mut self) -> Result<bool> {
        let chunk = self.running.next().await?;
        let first = self.tokens.len();
        if first == 0 && !chunk.tokens.is_empty() {
            self.metrics
                .first_token_after(self.running.since.elapsed().as_secs_f64());
        }
        self.tokens.extend(chunk.tokens);
        self.prompt = chunk.prompt.unwrap_or(std::mem::take(&mut self.prompt));
        self.version = chunk.version.unwrap_or(self.version.clone());
        self.retractions = chunk.retractions;
        self.ending = chunk.ending;
        if let Some(Ending {
            finish: Finish::Failed(why),
            ..
        }) = &self.ending
        {
            return Err(Error::Model(why.clone()));
        }
        let mut end = self.tokens.len();
        if matches!(
            &self.ending,
            Some(Ending {
                finish: Finish::StopToken(_),
                ..
            })
        ) && !self.no_stop_trim
        {
            end -= 1;
        }
        if let Some(decoder) = &mut self.decoder {
            for token in &self.tokens[first.min(end)..end] {
                self.text.push_str(&decoder.push(&*self.codec, token.id));
            }
        }
        if let Some(ending) = &self.ending {
            match &mut self.decoder {
                Some(decoder) => self.text.push_str(&decoder.finish(&*self.codec)),
                None => {
                    let ids: Vec<u32> = self.tokens[..end].iter().map(|t| t.id).collect();
                    self.text =
                        decode_all(&*self.codec, &self.running.prompt, &ids, self.skip_special);
                }
            }
            if let Finish::StopString(stop) = &ending.finish {
                trim_stop(&mut self.text, stop, self.no_stop_trim);
            }
            self.seconds = self.running.since.elapsed().as_secs_f64();
            self.metrics.answered(
                self.running.prompt.len(),
                self.prompt.cached_tokens,
                self.seconds,
            );
        }
        Ok(self.ending.is_none())
    }

    /// Wait for the end.
    ///
    /// # Errors
    /// As [`Self::advance`].
    pub(crate) async fn complete(mut self) -> Result<Self> {
        while self.advance().await? {}
        Ok(self)
    }

    /// The text so far.
    pub(crate) fn text(&self) -> &str {
        let held = if self.ending.is_some() {
            0
        } else {
            held_back(&self.text, &self.stop)
        };
        &self.text[..self.text.len() - held]
    }

    pub(crate) fn rid(&self) -> &str {
        &self.running.rid
    }

    pub(crate) fn prompt_ids(&self) -> &[u32] {
        &self.running.prompt
    }

    pub(crate) fn output_ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|t| t.id).collect()
    }

    /// Which weights sampled which tokens; one empty span where there are none.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let spans = self.ending.as_ref().map_or(&[][..], |e| &e.spans);
        if spans.is_empty() {
            return vec![Span {
                version: self.version.clone(),
                start: 0,
                end: 0,
            }];
        }
        spans.to_vec()
    }
}
