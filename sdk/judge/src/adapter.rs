//! From the generated bindings to [`crate::Judge`]. Not part of the crate's interface.

use crate::bindings::exports::slime::plugin::judgement as wit;
use crate::bindings::slime::plugin::{models, types};
use crate::{Answer, Error, FinishReason, Judge, Message, Model, Named};
use std::marker::PhantomData;

pub struct Adapter<T>(PhantomData<T>);

impl<T: Judge + Named> wit::Guest for Adapter<T> {
    fn describe() -> wit::Info {
        wit::Info {
            about: types::About {
                name: T::NAME
                    .strip_prefix("slime-plugin-")
                    .unwrap_or(T::NAME)
                    .into(),
                version: T::VERSION.into(),
            },
            reward_min: T::REWARD_MIN,
            reward_max: T::REWARD_MAX,
        }
    }

    fn score(item: wit::Finished) -> Result<wit::Verdict, types::Error> {
        Ok(verdict(T::score(Finished::from(item), &Pool)?))
    }
}

struct Pool;

impl Model for Pool {
    fn ask(
        &self,
        model: &str,
        messages: &[Message],
        max_tokens: u32,
        temperature: f64,
    ) -> Result<Answer, Error> {
        let messages: Vec<_> = messages
            .iter()
            .map(|message| types::Message {
                role: message.role.clone(),
                content: message.content.clone(),
                extra: message.extra.clone(),
            })
            .collect();
        let answer = models::ask(model, &messages, max_tokens, temperature).map_err(error)?;
        Ok(Answer {
            text: answer.text,
            finish_reason: match answer.finish_reason {
                types::FinishReason::Stop => FinishReason::Stop,
                types::FinishReason::Length => FinishReason::Length,
                types::FinishReason::Abort => FinishReason::Abort,
            },
            num_tokens: answer.num_tokens,
        })
    }
}

fn verdict(verdict: crate::Verdict) -> wit::Verdict {
    let metrics = verdict.metrics.into_iter();
    wit::Verdict {
        reward: verdict.reward,
        metrics: metrics
            .map(|(name, value)| types::Metric { name, value })
            .collect(),
    }
}

slime_sdk_types::conversions!(bindings);
slime_sdk_types::logging!(bindings);
slime_sdk_types::finished!(bindings);
