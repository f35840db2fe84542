//! `models`: a judge asks a named model of the pool. What it answers is never trained on.

use crate::bindings::models::{Answer, Host};
use crate::bindings::types::{Error, ErrorCode, Message};
use crate::context::Context;
use crate::host::outside;
use crate::{convert, seed};
use slime_core::ports::Ask;

impl Host for Context {
    async fn ask(
        &mut self,
        model: String,
        messages: Vec<Message>,
        max_tokens: u32,
        temperature: f64,
    ) -> wasmtime::Result<Result<Answer, Error>> {
        self.count_host_call()?;
        if !self.plugin.grants.models.contains(&model) {
            let granted = self.plugin.grants.models.join(", ");
            let message = format!("the model `{model}` is not granted, but: {granted}");
            return Ok(self.refuse(ErrorCode::Denied, message));
        }
        let Some(models) = self.services.models.clone() else {
            return Ok(self.refuse(ErrorCode::Unavailable, "this host has no models to ask"));
        };
        if !(0.0..=2.0).contains(&temperature) || max_tokens == 0 {
            let message = format!(
                "temperature {temperature} and max-tokens {max_tokens}: 0 to 2, and at least 1"
            );
            return Ok(self.refuse(ErrorCode::InvalidInput, message));
        }
        let messages = match messages.into_iter().map(convert::from_guest).collect() {
            Ok(messages) => messages,
            Err(reason) => return Ok(self.refuse::<Answer>(ErrorCode::InvalidInput, reason)),
        };
        let left = u32::try_from(self.tokens.left()).unwrap_or(u32::MAX);
        if left == 0 {
            let message = format!(
                "the call's budget of {} tokens is used up",
                self.tokens.limit
            );
            return Ok(self.refuse(ErrorCode::LimitExceeded, message));
        }
        let ask = Ask {
            model,
            messages,
            max_tokens: max_tokens.min(left),
            temperature,
            seed: seed::derive(self.seed, self.host_calls.used),
        };
        match outside(self.caller.clone(), async move { models.ask(ask).await }).await {
            Ok(answer) => {
                self.tokens.take(answer.num_tokens.into());
                self.check_outgoing(answer.text.len())?;
                Ok(Ok(Answer {
                    text: answer.text,
                    finish_reason: answer.finish.into(),
                    num_tokens: answer.num_tokens,
                }))
            }
            Err(failure) => Ok(self.refuse_live(&failure)),
        }
    }
}
