//! The embedded engine: the trainer's own model code behind SGLang's HTTP API, so that the first five minutes,
//! tests and laptops need no Python.
//!
//! One thread owns the model ([`scheduler`]); an async face checks requests and collects answers ([`engine`]);
//! [`server`] speaks JSON. It is no general server: what SGLang has and this has not is refused by name.
//! A token depends on weights, tokens, parameters and seed alone, never on the batch it was sampled in.
#![forbid(unsafe_code)]

mod blocks;
mod decode;
mod engine;
mod error;
mod forward;
mod generation;
mod inlet;
mod metrics;
mod model;
mod random;
mod request;
mod sampler;
mod scheduler;
mod server;
mod text;
mod weights;

pub use engine::{EngineConfig, EngineHandle, SamplingDefaults};
pub use error::{Error, Result};
pub use inlet::Inlet;
pub use model::Engine;
pub use scheduler::PauseMode;
pub use server::{ServerHandle, serve};
