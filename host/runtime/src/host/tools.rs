//! `tools`, as generators import it: the tools of all tool plugins of the run.
//!
//! A tool runs in an instance of its own under its own plugin's budgets; the generator waits and is not billed.

use crate::bindings::tools::{Definition, Host};
use crate::bindings::types::{Error, ErrorCode};
use crate::context::Context;
use crate::host::outside;
use crate::seed;
use serde_json::Value;
use slime_core::ports::ToolError;
use slime_core::{Outcome, Tool};
use std::sync::Arc;

/// The tool's own name.
pub(crate) fn name(tool: &Tool) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

fn definition(tool: &Tool) -> Definition {
    let function = &tool["function"];
    let parameters = match &function["parameters"] {
        Value::Null => "{}".into(),
        schema => schema.to_string(),
    };
    Definition {
        name: name(tool).into(),
        description: function["description"].as_str().unwrap_or_default().into(),
        parameters,
    }
}

impl Host for Context {
    fn definitions(&mut self) -> wasmtime::Result<Vec<Definition>> {
        self.count_host_call()?;
        let boxes = self.services.tools.iter();
        let all: Vec<Definition> = boxes
            .flat_map(|tools| tools.definitions().iter().map(definition))
            .collect();
        let bytes =
            |one: &Definition| one.name.len() + one.description.len() + one.parameters.len();
        self.check_outgoing(all.iter().map(bytes).sum())?;
        Ok(all)
    }

    async fn call(
        &mut self,
        asked: String,
        arguments: String,
    ) -> wasmtime::Result<Result<String, Error>> {
        self.count_host_call()?;
        let mut boxes = self.services.tools.iter();
        let found = boxes.find(|tools| tools.definitions().iter().any(|t| name(t) == asked));
        let Some(tools) = found.map(Arc::clone) else {
            let message = format!("there is no tool `{asked}`");
            return Ok(self.refuse(ErrorCode::InvalidInput, message));
        };
        let seed = seed::derive(self.seed, self.host_calls.used);
        let called = outside(self.caller.clone(), async move {
            Ok(tools.call(asked, arguments, seed).await)
        })
        .await;
        let answer = match called {
            Ok((answer, _cost)) => answer,
            Err(failure) => return Ok(self.refuse_live(&failure)),
        };
        match answer {
            Ok(text) => {
                self.check_outgoing(text.len())?;
                Ok(Ok(text))
            }
            Err(ToolError::InvalidInput(reason)) => {
                Ok(self.refuse(ErrorCode::InvalidInput, reason))
            }
            Err(ToolError::Failed(outcome)) => {
                let code = match outcome {
                    Outcome::Timeout(_) => ErrorCode::TimedOut,
                    Outcome::LimitExceeded(_) | Outcome::OutOfMemory(_) => ErrorCode::LimitExceeded,
                    Outcome::Cancelled(_) => ErrorCode::Cancelled,
                    Outcome::InfraFailed(_) => ErrorCode::Unavailable,
                    _ => ErrorCode::Internal,
                };
                // Not remembered as given, but for the last two: a tool's failure is not the host's.
                Ok(match code {
                    ErrorCode::Cancelled | ErrorCode::Unavailable => {
                        self.refuse(code, outcome.to_string())
                    }
                    _ => Err(crate::host::error(code, outcome.to_string())),
                })
            }
        }
    }
}
