//! `trajectories-async`: the policy's turn, awaited while the other rollouts of the instance go on.

use crate::bindings::trajectories::{Sampled, Turn};
use crate::bindings::trajectories_async::{Host, HostWithStore};
use crate::bindings::types::{Error, ErrorCode};
use crate::context::Context;
use crate::host::outside;
use crate::host::trajectories::{Held, check_stops};
use slime_core::ports::LiveTrajectory;
use std::sync::Arc;
use tokio::runtime::Handle;
use wasmtime::component::{Accessor, HasSelf, Resource};

impl Host for Context {}

/// What is asked of the policy.
struct Asked {
    live: Arc<dyn LiveTrajectory>,
    most: u32,
    rollout: u64,
    caller: Option<Handle>,
}

impl Context {
    fn ask(
        &mut self,
        handle: &Resource<Held>,
        max_tokens: u32,
        stop: &[String],
    ) -> wasmtime::Result<Result<Asked, Result<Turn, Error>>> {
        let live = self.live(handle)?;
        if let Err(reason) = check_stops(stop) {
            return Ok(Err(self.refuse(ErrorCode::InvalidInput, reason)));
        }
        let most = self.affordable(&*live, max_tokens);
        if most == 0 {
            return Ok(Err(self.no_tokens()));
        }
        // Promised until it is known how many there were: a rollout may wait for several turns at once.
        self.tokens.take(most.into());
        Ok(Ok(Asked {
            live,
            most,
            rollout: self.rollout,
            caller: self.caller.clone(),
        }))
    }
}

impl HostWithStore<Context> for HasSelf<Context> {
    async fn sample(
        accessor: &Accessor<Context, Self>,
        trajectory: Resource<Held>,
        max_tokens: u32,
        stop: Vec<String>,
    ) -> wasmtime::Result<Sampled> {
        let asked = accessor.with(|mut access| access.get().ask(&trajectory, max_tokens, &stop))?;
        let asked = match asked {
            Ok(asked) => asked,
            Err(turn) => return Ok(Sampled { trajectory, turn }),
        };
        let (live, most) = (asked.live, asked.most);
        let answer = outside(asked.caller, async move { live.sample(most, stop).await }).await;
        let turn = accessor.with(|mut access| {
            let context = access.get();
            if !context.enter(asked.rollout) {
                // Nobody waits for the rollout any more; the guest is told so, and goes with its instance.
                let gone = crate::host::error(ErrorCode::Cancelled, "the rollout is over");
                return Ok(Err(gone));
            }
            context.since = context.meter.running();
            context.tokens.used = context.tokens.used.saturating_sub(most.into());
            context.finish_turn(answer)
        })?;
        Ok(Sampled { trajectory, turn })
    }
}
