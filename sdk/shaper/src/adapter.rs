//! From the generated bindings to [`crate::Shaper`]. Not part of the crate's interface.

use crate::bindings::exports::slime::plugin::shaping as wit;
use crate::bindings::slime::plugin::types;
use crate::{Named, Shaper};
use std::marker::PhantomData;

pub struct Adapter<T>(PhantomData<T>);

impl<T: Shaper + Named> wit::Guest for Adapter<T> {
    fn describe() -> types::About {
        types::About {
            name: T::NAME
                .strip_prefix("slime-plugin-")
                .unwrap_or(T::NAME)
                .into(),
            version: T::VERSION.into(),
        }
    }

    fn shape(group: wit::Group) -> Result<Vec<Option<f64>>, types::Error> {
        Ok(T::shape(Group::from(group))?)
    }
}

slime_sdk_types::conversions!(bindings);
slime_sdk_types::logging!(bindings);
slime_sdk_types::finished!(bindings);
slime_sdk_types::group!(bindings);
