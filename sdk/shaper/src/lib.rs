//! Write a shaper in Rust: implement [`Shaper`], name the type in [`export!`], build for `wasm32-wasip2`.
//!
//! ```
//! use slime_sdk_shaper::{Error, Finished, Group, Shaper, export};
//!
//! /// Takes a tenth off for every kilobyte.
//! struct Brief;
//!
//! impl Shaper for Brief {
//!     fn shape(group: Group) -> Result<Vec<Option<f64>>, Error> {
//!         let cost = |item: &Finished| item.response().len() as f64 / 10_000.0;
//!         let items = group.rollouts();
//!         Ok(items.iter().zip(group.rewards()).map(|(item, reward)| Some(reward? - cost(item))).collect())
//!     }
//! }
//!
//! export!(Brief);
//!
//! let group = Group::new([(Finished::new("", "x".repeat(1000)), Some(1.0)), (Finished::new("", ""), None)]);
//! assert_eq!(Brief::shape(group)?, [Some(0.9), None]);
//! # Ok::<(), Error>(())
//! ```
//!
//! Metrics keep the raw rewards. Read `wit/shaper.wit` next.
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
        world: "shaper",
        pub_export_macro: true,
        default_bindings_module: "slime_sdk_shaper::bindings",
    });
}

#[cfg(target_family = "wasm")]
pub use adapter::{Finished, Group};
pub use slime_sdk_types::{Error, ErrorCode, FinishReason, Level};
#[cfg(not(target_family = "wasm"))]
pub use slime_sdk_types::{Finished, Group};

/// Rewards of a group in, rewards out. Nothing survives between calls.
pub trait Shaper {
    /// New rewards, one a rollout in order of index; `None` exactly where the raw reward is.
    ///
    /// # Errors
    /// An error fails the whole group.
    fn shape(group: Group) -> Result<Vec<Option<f64>>, Error>;
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

/// Export a [`Shaper`] from this crate's component. The plugin is called as its crate is, without a leading
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
            fn implements<T: $crate::Shaper>() {}
            implements::<$plugin>();
        };
    };
}
