//! From the generated bindings to [`crate::Tools`]. Not part of the crate's interface.

use crate::bindings::exports::slime::plugin::tools as wit;
use crate::bindings::slime::plugin::types;
use crate::{Named, Tools};
use std::marker::PhantomData;

pub struct Adapter<T>(PhantomData<T>);

impl<T: Tools + Named> wit::Guest for Adapter<T> {
    fn definitions() -> Vec<wit::Definition> {
        T::definitions()
            .into_iter()
            .map(|tool| wit::Definition {
                name: tool.name,
                description: tool.description,
                parameters: tool.parameters,
            })
            .collect()
    }

    fn call(name: String, arguments: String) -> Result<String, types::Error> {
        Ok(T::call(&name, &arguments)?)
    }
}

slime_sdk_types::conversions!(bindings);
slime_sdk_types::logging!(bindings);
