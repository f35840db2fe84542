//! From the generated bindings to [`crate::GroupVerifier`]. Not part of the crate's interface.

use crate::bindings::exports::slime::plugin::group_verification as wit;
use crate::bindings::slime::plugin::types;
use crate::{GroupVerifier, Named};
use std::marker::PhantomData;

pub struct Adapter<T>(PhantomData<T>);

impl<T: GroupVerifier + Named> wit::Guest for Adapter<T> {
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

    fn score(group: wit::Group) -> Result<Vec<Result<wit::Verdict, types::Error>>, types::Error> {
        let scores = T::score(Group::from(group))?;
        Ok(scores
            .into_iter()
            .map(|score| score.map(verdict).map_err(Into::into))
            .collect())
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
slime_sdk_types::group!(bindings);
