//! What an operator may grant a plugin, and the tools of a run: call these from any world's plugin.
//!
//! A component imports only what its code calls; what it imports must be granted in the run's configuration
//! (`code_exec`, `kv`, `http`), tools apart, which every generator may call. Off the wasm target every call answers
//! `unavailable`, so plugin logic should take what it needs as an argument. Read `wit/code-exec.wit`, `wit/kv.wit`,
//! `wit/http.wit` and `wit/tool.wit` next.
#![forbid(unsafe_code)]

pub mod code_exec;
pub mod http;
pub mod kv;
pub mod tools;

#[cfg(target_family = "wasm")]
#[allow(missing_docs, reason = "generated")]
mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        inline: "
            package slime:guest;
            world capabilities {
                import slime:plugin/code-exec@0.1.0;
                import slime:plugin/http@0.1.0;
                import slime:plugin/kv@0.1.0;
                import slime:plugin/tools@0.1.0;
            }
        ",
        world: "slime:guest/capabilities",
        generate_all,
    });
}

#[cfg(target_family = "wasm")]
slime_sdk_types::conversions!(bindings);

pub use slime_sdk_types::{Error, ErrorCode};

/// What every call answers off the wasm target.
#[cfg(not(target_family = "wasm"))]
fn nobody<T>() -> Result<T, Error> {
    Err(Error::new(
        ErrorCode::Unavailable,
        "capabilities exist inside the host only",
    ))
}
