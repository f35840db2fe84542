//! Write a group verifier in Rust: implement [`GroupVerifier`], name the type in [`export!`], build for
//! `wasm32-wasip2`.
//!
//! ```
//! use slime_sdk_group_verifier::{Error, Finished, Group, GroupVerifier, Verdict, export};
//!
//! /// The shortest answer gets 1, the others 0.
//! struct Shortest;
//!
//! impl GroupVerifier for Shortest {
//!     fn score(group: Group) -> Result<Vec<Result<Verdict, Error>>, Error> {
//!         let lengths: Vec<usize> = group.rollouts().iter().map(|item| item.response().len()).collect();
//!         let least = lengths.iter().min().copied();
//!         Ok(lengths.iter().map(|n| Ok(Verdict::reward(f64::from(Some(*n) == least)))).collect())
//!     }
//! }
//!
//! export!(Shortest);
//!
//! let group = Group::new([(Finished::new("", "long"), None), (Finished::new("", "x"), None)]);
//! let rewards: Vec<f64> = Shortest::score(group)?.into_iter().map(|v| v.unwrap().reward).collect();
//! assert_eq!(rewards, [0.0, 1.0]);
//! # Ok::<(), Error>(())
//! ```
//!
//! Use it where a verdict depends on the other rollouts; else a verifier is simpler. Read `wit/group-verifier.wit`
//! next.
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
        world: "group-verifier",
        pub_export_macro: true,
        default_bindings_module: "slime_sdk_group_verifier::bindings",
    });
}

#[cfg(target_family = "wasm")]
pub use adapter::{Finished, Group};
pub use slime_sdk_types::{Error, ErrorCode, FinishReason, Level, Verdict};
#[cfg(not(target_family = "wasm"))]
pub use slime_sdk_types::{Finished, Group};

/// Scores all rollouts of one prompt together. Nothing survives between calls.
pub trait GroupVerifier {
    /// The smallest reward it gives.
    const REWARD_MIN: f64 = 0.0;
    /// The largest reward it gives.
    const REWARD_MAX: f64 = 1.0;

    /// One answer a rollout, in order of index.
    ///
    /// # Errors
    /// The outer error fails the whole group, an inner one its rollout only.
    fn score(group: Group) -> Result<Vec<Result<Verdict, Error>>, Error>;
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

/// Export a [`GroupVerifier`] from this crate's component. The plugin is called as its crate is, without a leading
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
            fn implements<T: $crate::GroupVerifier>() {}
            implements::<$plugin>();
        };
    };
}
