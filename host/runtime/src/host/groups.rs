//! `groups`: all rollouts of one prompt, read through handles.

use crate::bindings::groups::{Host, HostGroup};
use crate::context::Context;
use crate::host::rollouts::Finished;
use slime_core::ports::GroupRequest;
use std::sync::Arc;
use wasmtime::component::Resource;

/// What the handle stands for.
#[allow(unreachable_pub, reason = "the generated bindings re-export it")]
pub struct Shown(pub(crate) Arc<GroupRequest>);

impl Context {
    fn shown(&mut self, handle: &Resource<Shown>) -> wasmtime::Result<Arc<GroupRequest>> {
        self.count_host_call()?;
        Ok(Arc::clone(&self.table.get(handle)?.0))
    }
}

impl Host for Context {}

impl HostGroup for Context {
    fn size(&mut self, handle: Resource<Shown>) -> wasmtime::Result<u32> {
        Ok(u32::try_from(self.shown(&handle)?.rollouts.len())?)
    }

    fn get(
        &mut self,
        handle: Resource<Shown>,
        index: u32,
    ) -> wasmtime::Result<Option<Resource<Finished>>> {
        let group = self.shown(&handle)?;
        let Some((item, _)) = group.rollouts.get(index as usize) else {
            return Ok(None);
        };
        Ok(Some(self.table.push(Finished(Arc::clone(item)))?))
    }

    fn reward(&mut self, handle: Resource<Shown>, index: u32) -> wasmtime::Result<Option<f64>> {
        let group = self.shown(&handle)?;
        let rollout = group.rollouts.get(index as usize);
        Ok(rollout.and_then(|(_, outcome)| outcome.reward()))
    }

    fn outcome(&mut self, handle: Resource<Shown>, index: u32) -> wasmtime::Result<String> {
        let group = self.shown(&handle)?;
        let rollout = group.rollouts.get(index as usize);
        Ok(rollout.map_or_else(String::new, |(_, outcome)| outcome.kind().to_owned()))
    }

    fn drop(&mut self, handle: Resource<Shown>) -> wasmtime::Result<()> {
        self.table.delete(handle)?;
        Ok(())
    }
}
