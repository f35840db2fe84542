//! A finished rollout: a handle of the host's on the wasm target, plain values elsewhere.

#[cfg(target_family = "wasm")]
slime_sdk_types::finished!(bindings);

#[cfg(not(target_family = "wasm"))]
pub use slime_sdk_types::Finished;
