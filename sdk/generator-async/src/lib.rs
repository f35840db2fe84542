//! Write an asynchronous generator in Rust: one instance drives up to 64 rollouts, so that thousands of them cost a few
//! mebibytes instead of one instance each. Implement [`Generator`], name the type in [`export!`], build for
//! `wasm32-wasip2`.
//!
//! ```ignore
//! use slime_sdk_generator_async::{Error, Generator, Message, Sampling, Trajectory, export};
//!
//! /// Lets the policy look at its answer once more.
//! struct Twice;
//!
//! impl Generator for Twice {
//!     async fn generate(mut start: Trajectory) -> Result<Vec<Trajectory>, Error> {
//!         start.sample(&Sampling::default()).await?;
//!         start.append(&Message::new("user", "Are you sure? Answer again."))?;
//!         start.sample(&Sampling::default()).await?;
//!         Ok(vec![start])
//!     }
//! }
//!
//! export!(Twice);
//! ```
//!
//! What it costs: rollouts of one instance share its memory and its statics, so a panic or an endless loop ends all of
//! them. Where that matters, or a rollout computes much, use `slime-sdk-generator`. Exists on the wasm target only;
//! `slime-host plugin test` runs its cases. Read `wit/trajectories.wit` next.
#![forbid(unsafe_code)]

#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub mod adapter;
#[cfg(target_family = "wasm")]
#[doc(hidden)]
#[allow(missing_docs, reason = "generated")]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "generator-async",
        pub_export_macro: true,
        default_bindings_module: "slime_sdk_generator_async::bindings",
    });
}

#[cfg(target_family = "wasm")]
pub use adapter::{Generator, Trajectory};
pub use slime_sdk_types::{Error, ErrorCode, FinishReason, Level, Message, Prompt};

/// How one turn is sampled. Temperature and the like belong to the run's configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sampling {
    /// At most this many tokens; 0 = as many as still fit.
    pub max_tokens: u32,
    /// Strings that end the turn.
    pub stop: Vec<String>,
}

/// What the policy wrote in one turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Decoded, special tokens and stop strings left out.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens sampled.
    pub num_tokens: u32,
    /// The newest version of the weights that sampled one of them.
    pub weight_version: u64,
}

/// Write a line to the host's log.
#[cfg(target_family = "wasm")]
pub fn log(level: Level, message: &str) {
    adapter::log(level, message);
}

/// Name and version of the crate that exports a plugin. Written by [`export!`].
#[doc(hidden)]
pub trait Named {
    const NAME: &'static str;
    const VERSION: &'static str;
}

/// Export a `Generator` from this crate's component. The plugin is called as its crate is, without a leading
/// `slime-plugin-`.
#[macro_export]
macro_rules! export {
    ($plugin:ident) => {
        impl $crate::Named for $plugin {
            const NAME: &'static str = env!("CARGO_PKG_NAME");
            const VERSION: &'static str = env!("CARGO_PKG_VERSION");
        }
        #[cfg(target_family = "wasm")]
        const _: () = {
            type Exported = $crate::adapter::Adapter<$plugin>;
    $crate::bindings::export!(Exported with_types_in $crate::bindings);
        };
    };
}
