//! Generated from `wit/`: one module a world, with the interfaces they share generated once.
//!
//! Host functions that may wait are async; the others are plain, which is cheaper.
#![allow(missing_docs, unreachable_pub, reason = "generated")]

pub(crate) mod verifier {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "slime:plugin/verifier",
        imports: { default: trappable },
        exports: { default: async },
        with: { "slime:plugin/rollouts.finished": crate::host::rollouts::Finished },
    });
}

pub(crate) mod generator {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "slime:plugin/generator",
        imports: {
            default: trappable,
            "slime:plugin/trajectories.[method]trajectory.append": async | trappable,
            "slime:plugin/trajectories.[method]trajectory.sample": async | trappable,
            "slime:plugin/trajectories.sample-all": async | trappable,
        },
        exports: { default: async },
        with: {
            "slime:plugin/types": super::verifier::slime::plugin::types,
            "slime:plugin/log": super::verifier::slime::plugin::log,
            "slime:plugin/trajectories.trajectory": crate::host::trajectories::Held,
        },
    });
}

pub(crate) mod source {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "slime:plugin/source",
        imports: { default: trappable },
        exports: { default: async },
        with: {
            "slime:plugin/types": super::verifier::slime::plugin::types,
            "slime:plugin/log": super::verifier::slime::plugin::log,
        },
    });
}

pub(crate) use generator::slime::plugin::trajectories;
pub(crate) use verifier::slime::plugin::{log, rollouts, types};
