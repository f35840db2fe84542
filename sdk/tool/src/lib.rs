//! Write tools for the policy in Rust: implement [`Tools`], name the type in [`export!`], build for `wasm32-wasip2`.
//!
//! ```
//! use slime_sdk_tool::{Definition, Error, Tools, export};
//!
//! struct Upper;
//!
//! impl Tools for Upper {
//!     fn definitions() -> Vec<Definition> {
//!         vec![Definition {
//!             name: "upper".into(),
//!             description: "Writes text in capitals.".into(),
//!             parameters: r#"{"type":"object","properties":{"text":{"type":"string"}}}"#.into(),
//!         }]
//!     }
//!
//!     fn call(name: &str, arguments: &str) -> Result<String, Error> {
//!         match name {
//!             "upper" => Ok(arguments.to_uppercase()),
//!             other => Err(Error::invalid_input(format!("there is no tool `{other}`"))),
//!         }
//!     }
//! }
//!
//! export!(Upper);
//!
//! assert_eq!(Upper::call("upper", "{}")?, "{}");
//! # Ok::<(), Error>(())
//! ```
//!
//! A generator calls them through the host; each call runs in an instance of its own. Read `wit/tool.wit` next.
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
        world: "tool",
        pub_export_macro: true,
        default_bindings_module: "slime_sdk_tool::bindings",
    });
}

pub use slime_sdk_types::{Error, ErrorCode, Level};

/// One tool as the policy sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    /// Letters, digits, `_` and `-`; 1 to 64 bytes.
    pub name: String,
    /// What it does, for the policy.
    pub description: String,
    /// JSON Schema of the arguments.
    pub parameters: String,
}

/// Describes tools and runs them. Nothing survives between calls.
pub trait Tools {
    /// The tools, always the same ones in the same order.
    fn definitions() -> Vec<Definition>;

    /// Call one tool. `arguments` is a JSON object; the answer is text for the policy.
    ///
    /// # Errors
    /// [`Error::invalid_input`] is told to the policy, which may try again.
    fn call(name: &str, arguments: &str) -> Result<String, Error>;
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

/// Export a [`Tools`] from this crate's component. The plugin is called as its crate is, without a leading
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
            fn implements<T: $crate::Tools>() {}
            implements::<$plugin>();
        };
    };
}
