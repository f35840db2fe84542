//! `rollouts`: a finished rollout, read through a handle that can neither sample nor append.

use crate::bindings::rollouts::{Host, HostFinished};
use crate::bindings::types::FinishReason;
use crate::context::Context;
use slime_core::ports::ScoreRequest;
use std::sync::Arc;
use wasmtime::component::Resource;

/// What the handle stands for.
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct Finished(pub(crate) Arc<ScoreRequest>);

impl Context {
    fn finished(&mut self, handle: &Resource<Finished>) -> wasmtime::Result<&ScoreRequest> {
        self.count_host_call()?;
        Ok(&self.table.get(handle)?.0)
    }

    /// A text of the rollout, its size checked before it is copied.
    fn text(
        &mut self,
        handle: &Resource<Finished>,
        pick: impl Fn(&ScoreRequest) -> Option<&str>,
    ) -> wasmtime::Result<Option<String>> {
        self.count_host_call()?;
        let text = pick(&self.table.get(handle)?.0);
        self.check_outgoing(text.map_or(0, str::len))?;
        Ok(text.map(str::to_owned))
    }
}

impl Host for Context {}

impl HostFinished for Context {
    fn prompt(&mut self, handle: Resource<Finished>) -> wasmtime::Result<String> {
        Ok(self
            .text(&handle, |item| Some(&item.prompt))?
            .unwrap_or_default())
    }

    fn response(&mut self, handle: Resource<Finished>) -> wasmtime::Result<String> {
        Ok(self
            .text(&handle, |item| Some(&item.response))?
            .unwrap_or_default())
    }

    fn label(&mut self, handle: Resource<Finished>) -> wasmtime::Result<Option<String>> {
        self.text(&handle, |item| item.label.as_deref())
    }

    fn metadata(
        &mut self,
        handle: Resource<Finished>,
        key: String,
    ) -> wasmtime::Result<Option<String>> {
        let json = self
            .finished(&handle)?
            .metadata
            .get(&key)
            .map(ToString::to_string);
        self.check_outgoing(json.as_ref().map_or(0, String::len))?;
        Ok(json)
    }

    fn metadata_json(&mut self, handle: Resource<Finished>) -> wasmtime::Result<String> {
        let json = serde_json::to_string(&self.finished(&handle)?.metadata)?;
        self.check_outgoing(json.len())?;
        Ok(json)
    }

    fn finish_reason(
        &mut self,
        handle: Resource<Finished>,
    ) -> wasmtime::Result<Option<FinishReason>> {
        Ok(self.finished(&handle)?.finish.map(Into::into))
    }

    fn drop(&mut self, handle: Resource<Finished>) -> wasmtime::Result<()> {
        self.table.delete(handle)?;
        Ok(())
    }
}

impl From<slime_core::FinishReason> for FinishReason {
    fn from(reason: slime_core::FinishReason) -> Self {
        match reason {
            slime_core::FinishReason::Stop => Self::Stop,
            slime_core::FinishReason::Length => Self::Length,
            slime_core::FinishReason::Abort => Self::Abort,
        }
    }
}
