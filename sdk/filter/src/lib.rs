//! Write a filter in Rust: implement [`Filter`], name the type in [`export!`], build for `wasm32-wasip2`.
//!
//! ```
//! use slime_sdk_filter::{Decision, Error, Filter, Finished, Group, export};
//!
//! /// Keeps groups that hold at least one right and one wrong answer.
//! struct Mixed;
//!
//! impl Filter for Mixed {
//!     fn decide(group: Group) -> Result<Decision, Error> {
//!         let rewards: Vec<f64> = group.rewards().into_iter().flatten().collect();
//!         let mixed = rewards.iter().any(|r| *r > 0.5) && rewards.iter().any(|r| *r <= 0.5);
//!         Ok(if mixed { Decision::Keep } else { Decision::Drop("one-sided".into()) })
//!     }
//! }
//!
//! export!(Mixed);
//!
//! // Off the wasm target a group is made by hand, so plugin logic has ordinary unit tests.
//! let group = Group::new([(Finished::new("", ""), Some(1.0)), (Finished::new("", ""), Some(0.0))]);
//! assert_eq!(Mixed::decide(group)?, Decision::Keep);
//! # Ok::<(), Error>(())
//! ```
//!
//! It sees raw rewards, before any shaping. Read `wit/filter.wit` next.
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
        world: "filter",
        pub_export_macro: true,
        default_bindings_module: "slime_sdk_filter::bindings",
    });
}

#[cfg(target_family = "wasm")]
pub use adapter::{Finished, Group};
pub use slime_sdk_types::{Error, ErrorCode, FinishReason, Level};
#[cfg(not(target_family = "wasm"))]
pub use slime_sdk_types::{Finished, Group};

/// What becomes of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// It may be trained on.
    Keep,
    /// It is dropped; the reason is counted by its exact text, so use few different ones.
    Drop(String),
}

/// Keeps groups or drops them. Nothing survives between calls.
pub trait Filter {
    /// Decide about one group.
    ///
    /// # Errors
    /// An error keeps nobody from training: the host says what it does with a group its filter failed on.
    fn decide(group: Group) -> Result<Decision, Error>;
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

/// Export a [`Filter`] from this crate's component. The plugin is called as its crate is, without a leading
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
        const _: fn() = || {
            fn implements<T: $crate::Filter>() {}
            implements::<$plugin>();
        };
    };
}
