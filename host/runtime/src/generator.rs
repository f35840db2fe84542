//! The generator port, offered by a component.

use crate::bindings::types::Error;
use crate::call::{self, Job, Left};
use crate::context::Context;
use crate::plugin::Loaded;
use crate::shards;
use slime_core::ports::{BoxFuture, Generated, Generator, LiveTrajectory};
use slime_core::{Outcome, Trajectory};
use std::sync::Arc;
use wasmtime::Store;

pub(crate) struct ComponentGenerator(pub(crate) Arc<Loaded>);

impl Generator for ComponentGenerator {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn generate(&self, start: Arc<dyn LiveTrajectory>, seed: u64) -> BoxFuture<'_, Generated> {
        Box::pin(async move {
            let ended = if self.0.worlds.generator_async.is_some() {
                shards::dispatch(&self.0, Arc::clone(&start), seed).await
            } else {
                let job = Generate(Arc::clone(&start));
                let wall = self.0.limits.rollout_wall;
                // Boxed, or thousands of asynchronous rollouts would each hold the room that a store takes here.
                Box::pin(call::dispatch(&self.0, job, seed, wall)).await
            };
            let left = ended.left.unwrap_or(Left {
                opened: vec![start],
                given: Vec::new(),
            });
            let (done, failure) = match ended.answer {
                Ok(Ok(returned)) if returned.is_empty() => (
                    left.opened,
                    Some(Outcome::Error(
                        "the generator returned no trajectory".into(),
                    )),
                ),
                Ok(Ok(returned)) => (returned, None),
                Ok(Err(error)) => (left.opened, Some(call::of_guest(&error, &left.given))),
                Err(outcome) => (left.opened, Some(outcome)),
            };
            let trajectories: Vec<Trajectory> =
                done.iter().flat_map(|live| live.finish()).collect();
            Generated {
                trajectories,
                failure,
                cost: ended.cost,
            }
        })
    }
}

struct Generate(Arc<dyn LiveTrajectory>);

impl Job for Generate {
    type Answer = Result<Vec<Arc<dyn LiveTrajectory>>, Error>;

    async fn run(
        self,
        plugin: &Loaded,
        store: &mut Store<Context>,
    ) -> wasmtime::Result<Self::Answer> {
        let Some(world) = &plugin.worlds.generator else {
            return Err(wasmtime::Error::msg("no generator"));
        };
        let start = store.data_mut().hold(self.0)?;
        let bindings = world.instantiate_async(&mut *store).await?;
        let returned = match bindings
            .slime_plugin_generation()
            .call_generate(&mut *store, start)
            .await?
        {
            Ok(returned) => returned,
            Err(error) => return Ok(Err(error)),
        };
        let mut done = Vec::with_capacity(returned.len());
        for handle in returned {
            done.push(store.data_mut().table.delete(handle)?.live);
        }
        Ok(Ok(done))
    }
}
