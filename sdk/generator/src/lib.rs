//! Write a generator in Rust: implement [`Generator`], name the type in [`export!`], build for `wasm32-wasip2`.
//!
//! ```
//! use slime_sdk_generator::{Error, Generator, Message, Sampling, Trajectory, export};
//!
//! /// Lets the policy look at its answer once more.
//! struct Twice;
//!
//! impl Generator for Twice {
//!     fn generate(start: Trajectory) -> Result<Vec<Trajectory>, Error> {
//!         start.sample(&Sampling::default())?;
//!         start.append(&Message::new("user", "Are you sure? Answer again."))?;
//!         start.sample(&Sampling::default())?;
//!         Ok(vec![start])
//!     }
//! }
//!
//! export!(Twice);
//!
//! // Off the wasm target the policy's turns come from a script, so plugin logic has ordinary unit tests.
//! let start = Trajectory::scripted("What is 2 + 2?", ["5", "4"]);
//! let done = Twice::generate(start)?;
//! assert_eq!(done[0].response(), "5Are you sure? Answer again.4");
//! # Ok::<(), Error>(())
//! ```
//!
//! Token ids, log-probs and masks stay in the host. Read `wit/trajectories.wit` next.
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
        world: "generator",
        pub_export_macro: true,
        default_bindings_module: "slime_sdk_generator::bindings",
    });
}
#[cfg(not(target_family = "wasm"))]
mod scripted;

#[cfg(target_family = "wasm")]
pub use adapter::{Trajectory, sample_all};
#[cfg(not(target_family = "wasm"))]
pub use scripted::{Trajectory, sample_all};
pub use slime_sdk_types::{Error, ErrorCode, FinishReason, Level, Message, Prompt};

/// Drives rollouts. Nothing survives between calls.
pub trait Generator {
    /// Drive one rollout to its end and return the trajectories to train on; the last is the one that verifiers
    /// read.
    ///
    /// # Errors
    /// An error fails this rollout only.
    fn generate(start: Trajectory) -> Result<Vec<Trajectory>, Error>;
}

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

/// Write a line to the host's log; off the wasm target, to stderr.
pub fn log(level: Level, message: &str) {
    #[cfg(target_family = "wasm")]
    adapter::log(level, message);
    #[cfg(not(target_family = "wasm"))]
    eprintln!("{level:?}: {message}");
}

/// Name and version of the crate that exports a plugin. Written by [`export!`].
#[doc(hidden)]
pub trait Named {
    const NAME: &'static str;
    const VERSION: &'static str;
}

/// Export a [`Generator`] from this crate's component. The plugin is called as its crate is, without a leading
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
        #[cfg(not(target_family = "wasm"))]
        const _: fn($crate::Trajectory) -> Result<Vec<$crate::Trajectory>, $crate::Error> =
            <$plugin as $crate::Generator>::generate;
    };
}
