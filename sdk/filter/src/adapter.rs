//! From the generated bindings to [`crate::Filter`]. Not part of the crate's interface.

use crate::bindings::exports::slime::plugin::filtering as wit;
use crate::bindings::slime::plugin::types;
use crate::{Decision, Filter, Named};
use std::marker::PhantomData;

pub struct Adapter<T>(PhantomData<T>);

impl<T: Filter + Named> wit::Guest for Adapter<T> {
    fn describe() -> types::About {
        types::About {
            name: T::NAME
                .strip_prefix("slime-plugin-")
                .unwrap_or(T::NAME)
                .into(),
            version: T::VERSION.into(),
        }
    }

    fn decide(group: wit::Group) -> Result<wit::Decision, types::Error> {
        Ok(match T::decide(Group::from(group))? {
            Decision::Keep => wit::Decision::Keep,
            Decision::Drop(reason) => wit::Decision::Drop(reason),
        })
    }
}

slime_sdk_types::conversions!(bindings);
slime_sdk_types::logging!(bindings);
slime_sdk_types::finished!(bindings);
slime_sdk_types::group!(bindings);
