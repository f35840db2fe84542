//! From the generated bindings to [`crate::Verifier`]. Not part of the crate's interface.

use crate::bindings::exports::slime::plugin::verification as wit;
use crate::bindings::slime::plugin::{log, types};
use crate::{Error, ErrorCode, Finished, Level, Named, Verifier};
use std::marker::PhantomData;

pub struct Adapter<T>(PhantomData<T>);

impl<T: Verifier + Named> wit::Guest for Adapter<T> {
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
        let verdict = T::score(Finished::from(item))?;
        let metrics = verdict.metrics.into_iter();
        Ok(wit::Verdict {
            reward: verdict.reward,
            metrics: metrics
                .map(|(name, value)| types::Metric { name, value })
                .collect(),
        })
    }
}

impl From<Error> for types::Error {
    fn from(error: Error) -> Self {
        let code = match error.code {
            ErrorCode::InvalidInput => types::ErrorCode::InvalidInput,
            ErrorCode::InvalidGold => types::ErrorCode::InvalidGold,
            ErrorCode::Denied => types::ErrorCode::Denied,
            ErrorCode::LimitExceeded => types::ErrorCode::LimitExceeded,
            ErrorCode::TimedOut => types::ErrorCode::TimedOut,
            ErrorCode::Cancelled => types::ErrorCode::Cancelled,
            ErrorCode::Unavailable => types::ErrorCode::Unavailable,
            ErrorCode::Internal => types::ErrorCode::Internal,
            ErrorCode::Other => types::ErrorCode::Other,
        };
        Self {
            code,
            message: error.message,
            detail: error.detail,
        }
    }
}

pub(crate) fn log(level: Level, message: &str) {
    let level = match level {
        Level::Trace => log::Level::Trace,
        Level::Debug => log::Level::Debug,
        Level::Info => log::Level::Info,
        Level::Warn => log::Level::Warn,
        Level::Error => log::Level::Error,
    };
    log::log(level, message);
}
