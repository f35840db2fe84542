//! The tools port, offered by a component: each call of a tool in an instance of its own.

use crate::bindings::tool::exports::slime::plugin::tools::Definition;
use crate::bindings::types::{Error, ErrorCode};
use crate::call::{self, Job};
use crate::context::Context;
use crate::plugin::Loaded;
use serde_json::{Value, json};
use slime_core::ports::{BoxFuture, ToolError, Tools};
use slime_core::{Accounting, Tool};
use std::sync::Arc;
use wasmtime::Store;

const MAX_TOOLS: usize = 64;
const MAX_NAME_BYTES: usize = 64;

/// Definitions as the chat template takes them, or why they cannot be used.
pub(crate) fn described(definitions: Vec<Definition>) -> Result<Vec<Tool>, String> {
    if definitions.is_empty() || definitions.len() > MAX_TOOLS {
        let count = definitions.len();
        return Err(format!(
            "it defines {count} tools, 1 to {MAX_TOOLS} are allowed"
        ));
    }
    let mut tools: Vec<Tool> = Vec::new();
    for Definition {
        name,
        description,
        parameters,
    } in definitions
    {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        if name.is_empty() || name.len() > MAX_NAME_BYTES || !name.chars().all(is_plain) {
            return Err(format!(
                "the tool `{name}`: a name is 1 to {MAX_NAME_BYTES} letters, digits, `_` and `-`"
            ));
        }
        if tools.iter().any(|tool| tool["function"]["name"] == name) {
            return Err(format!("two tools are called `{name}`"));
        }
        let parameters: Value = serde_json::from_str(&parameters)
            .map_err(|error| format!("the tool `{name}`: its parameters are no JSON: {error}"))?;
        if !parameters.is_object() {
            return Err(format!(
                "the tool `{name}`: its parameters are no JSON Schema object, but {parameters}"
            ));
        }
        let function =
            json!({ "name": name, "description": description, "parameters": parameters });
        tools.push(json!({ "type": "function", "function": function }));
    }
    Ok(tools)
}

pub(crate) struct ComponentTools(pub(crate) Arc<Loaded>);

impl Tools for ComponentTools {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn definitions(&self) -> &[Tool] {
        self.0.told().map_or(&[], |told| &told.tools)
    }

    fn call(
        &self,
        name: String,
        arguments: String,
        seed: u64,
    ) -> BoxFuture<'_, (Result<String, ToolError>, Accounting)> {
        Box::pin(async move {
            let known = |tool: &Tool| tool["function"]["name"] == name;
            if !self.definitions().iter().any(known) {
                let error = ToolError::InvalidInput(format!("there is no tool `{name}`"));
                return (Err(error), Accounting::default());
            }
            if !serde_json::from_str::<Value>(&arguments).is_ok_and(|value| value.is_object()) {
                let error = ToolError::InvalidInput(format!(
                    "the arguments of `{name}` are no JSON object"
                ));
                return (Err(error), Accounting::default());
            }
            let job = Call { name, arguments };
            let ended = call::dispatch(&self.0, job, seed, self.0.limits.wall).await;
            let given = ended.left.map(|left| left.given).unwrap_or_default();
            let answer = match ended.answer {
                Ok(Ok(text)) => Ok(text),
                Ok(Err(error)) if error.code == ErrorCode::InvalidInput => {
                    let outcome = call::of_guest(&error, &given);
                    Err(ToolError::InvalidInput(outcome.detail().to_owned()))
                }
                Ok(Err(error)) => Err(ToolError::Failed(call::of_guest(&error, &given))),
                Err(outcome) => Err(ToolError::Failed(outcome)),
            };
            (answer, ended.cost)
        })
    }
}

struct Call {
    name: String,
    arguments: String,
}

impl Job for Call {
    type Answer = Result<String, Error>;

    async fn run(
        self,
        plugin: &Loaded,
        store: &mut Store<Context>,
    ) -> wasmtime::Result<Self::Answer> {
        let Some(world) = &plugin.worlds.tool else {
            return Err(wasmtime::Error::msg("no tool"));
        };
        let bindings = world.instantiate_async(&mut *store).await?;
        bindings
            .slime_plugin_tools()
            .call_call(store, &self.name, &self.arguments)
            .await
    }
}
