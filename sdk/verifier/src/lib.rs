//! Write a verifier in Rust: implement [`Verifier`], name the type in [`export!`], build for `wasm32-wasip2`.
//!
//! ```
//! use slime_sdk_verifier::{Error, Finished, Verdict, Verifier, export};
//!
//! struct ExactMatch;
//!
//! impl Verifier for ExactMatch {
//!     fn score(item: Finished) -> Result<Verdict, Error> {
//!         let label = item.label().ok_or_else(|| Error::invalid_gold("exact-match needs a label"))?;
//!         Ok(Verdict::reward(f64::from(item.response().trim() == label)))
//!     }
//! }
//!
//! export!(ExactMatch);
//!
//! // Off the wasm target a `Finished` is made by hand, so plugin logic has ordinary unit tests.
//! let item = Finished::new("2 + 2 =", " 4\n").with_label("4");
//! assert_eq!(ExactMatch::score(item)?.reward, 1.0);
//! # Ok::<(), Error>(())
//! ```
//!
//! It says nothing of tokens or log-probs: a verifier reads text. Read `wit/verifier.wit` next.
#![forbid(unsafe_code)]

mod finished;

#[cfg(target_family = "wasm")]
#[doc(hidden)]
#[allow(missing_docs, reason = "generated")]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "verifier",
        pub_export_macro: true,
        default_bindings_module: "slime_sdk_verifier::bindings",
    });
}
#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub mod adapter;

pub use finished::Finished;
pub use slime_sdk_types::{Error, ErrorCode, FinishReason, Level, Verdict};

/// Scores finished rollouts. Same input, same verdict: nothing survives between calls.
pub trait Verifier {
    /// The smallest reward it gives.
    const REWARD_MIN: f64 = 0.0;
    /// The largest reward it gives.
    const REWARD_MAX: f64 = 1.0;

    /// Score one finished rollout.
    ///
    /// # Errors
    /// An error fails this rollout only. [`Error::invalid_gold`] says that the label itself cannot be used.
    fn score(item: Finished) -> Result<Verdict, Error>;
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

/// Export a [`Verifier`] from this crate's component. The plugin is called as its crate is, without a leading
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
        const _: fn($crate::Finished) -> Result<$crate::Verdict, $crate::Error> =
            <$plugin as $crate::Verifier>::score;
    };
}
