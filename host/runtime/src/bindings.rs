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

/// What is granted, or offered by other plugins of the run.
pub(crate) mod capabilities {
    wasmtime::component::bindgen!({
        path: "../../wit",
        inline: "
            package slime:host;
            world capabilities {
                import slime:plugin/code-exec@0.1.0;
                import slime:plugin/http@0.1.0;
                import slime:plugin/kv@0.1.0;
                import slime:plugin/models@0.1.0;
                import slime:plugin/tools@0.1.0;
            }
        ",
        world: "slime:host/capabilities",
        imports: {
            default: async | trappable,
            "slime:plugin/kv.get": trappable,
            "slime:plugin/kv.set": trappable,
            "slime:plugin/kv.remove": trappable,
            "slime:plugin/tools.definitions": trappable,
        },
        with: { "slime:plugin/types": super::verifier::slime::plugin::types },
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
            "slime:plugin/tools": super::capabilities::slime::plugin::tools,
            "slime:plugin/trajectories.trajectory": crate::host::trajectories::Held,
        },
    });
}

pub(crate) mod generator_async {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "slime:plugin/generator-async",
        imports: {
            default: trappable,
            "slime:plugin/trajectories-async.sample": async | store | trappable,
        },
        exports: { default: async },
        with: {
            "slime:plugin/types": super::verifier::slime::plugin::types,
            "slime:plugin/log": super::verifier::slime::plugin::log,
            "slime:plugin/tools": super::capabilities::slime::plugin::tools,
            "slime:plugin/trajectories": super::generator::slime::plugin::trajectories,
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

pub(crate) mod group_verifier {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "slime:plugin/group-verifier",
        imports: { default: trappable },
        exports: { default: async },
        with: {
            "slime:plugin/types": super::verifier::slime::plugin::types,
            "slime:plugin/log": super::verifier::slime::plugin::log,
            "slime:plugin/rollouts": super::verifier::slime::plugin::rollouts,
            "slime:plugin/verdicts": super::verifier::slime::plugin::verdicts,
            "slime:plugin/groups.group": crate::host::groups::Shown,
        },
    });
}

pub(crate) mod filter {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "slime:plugin/filter",
        imports: { default: trappable },
        exports: { default: async },
        with: {
            "slime:plugin/types": super::verifier::slime::plugin::types,
            "slime:plugin/log": super::verifier::slime::plugin::log,
            "slime:plugin/rollouts": super::verifier::slime::plugin::rollouts,
            "slime:plugin/groups": super::group_verifier::slime::plugin::groups,
        },
    });
}

pub(crate) mod shaper {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "slime:plugin/shaper",
        imports: { default: trappable },
        exports: { default: async },
        with: {
            "slime:plugin/types": super::verifier::slime::plugin::types,
            "slime:plugin/log": super::verifier::slime::plugin::log,
            "slime:plugin/rollouts": super::verifier::slime::plugin::rollouts,
            "slime:plugin/groups": super::group_verifier::slime::plugin::groups,
        },
    });
}

pub(crate) mod judge {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "slime:plugin/judge",
        imports: { default: async | trappable },
        exports: { default: async },
        with: {
            "slime:plugin/types": super::verifier::slime::plugin::types,
            "slime:plugin/log": super::verifier::slime::plugin::log,
            "slime:plugin/rollouts": super::verifier::slime::plugin::rollouts,
            "slime:plugin/verdicts": super::verifier::slime::plugin::verdicts,
            "slime:plugin/models": super::capabilities::slime::plugin::models,
        },
    });
}

pub(crate) mod tool {
    wasmtime::component::bindgen!({
        path: "../../wit",
        world: "slime:plugin/tool",
        imports: { default: trappable },
        exports: { default: async },
        with: {
            "slime:plugin/types": super::verifier::slime::plugin::types,
            "slime:plugin/log": super::verifier::slime::plugin::log,
        },
    });
}

pub(crate) use capabilities::slime::plugin::{code_exec, http, kv, models, tools};
pub(crate) use generator::slime::plugin::trajectories;
pub(crate) use generator_async::slime::plugin::trajectories_async;
pub(crate) use group_verifier::slime::plugin::groups;
pub(crate) use verifier::slime::plugin::{log, rollouts, types, verdicts};
