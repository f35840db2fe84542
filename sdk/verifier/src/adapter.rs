//! From the generated bindings to [`crate::Verifier`]. Not part of the crate's interface.

use crate::bindings::exports::slime::plugin::verification as wit;
use crate::bindings::slime::plugin::types;
use crate::{Finished, Named, Verifier};
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

slime_sdk_types::conversions!(bindings);
slime_sdk_types::logging!(bindings);
