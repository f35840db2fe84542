//! Write a source of prompts in Rust: implement [`Source`], name the type in [`export!`], build for
//! `wasm32-wasip2`.
//!
//! ```
//! use slime_sdk_source::{Draw, Drawn, Error, Source, export};
//!
//! struct Doubles;
//!
//! impl Source for Doubles {
//!     fn draw(draw: Draw) -> Result<Drawn, Error> {
//!         let n = draw.random().below(50);
//!         Ok(Drawn::text(format!("2 * {n} = ")).with_label((2 * n).to_string()))
//!     }
//! }
//!
//! export!(Doubles);
//!
//! let draw = Draw { index: 3, seed: 1, difficulty: 0.0 };
//! assert_eq!(Doubles::draw(draw), Doubles::draw(draw));
//! ```
//!
//! It keeps no state: a prompt is a function of index, seed and difficulty, so that a run resumes at any index.
//! Read `wit/source.wit` next.
#![forbid(unsafe_code)]

mod random;

#[cfg(target_family = "wasm")]
#[doc(hidden)]
pub mod adapter;
#[cfg(target_family = "wasm")]
#[doc(hidden)]
#[allow(missing_docs, reason = "generated")]
pub mod bindings {
    wit_bindgen::generate!({
        path: "../../wit",
        world: "source",
        pub_export_macro: true,
        default_bindings_module: "slime_sdk_source::bindings",
    });
}

pub use random::Random;
pub use slime_sdk_types::{Error, ErrorCode, Level, Message, Prompt};

/// Which prompt is asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Draw {
    /// Counts the draws of the whole run, from 0.
    pub index: u64,
    /// The run's seed, below 2^53.
    pub seed: u64,
    /// From 0 (easiest) to 1 (hardest).
    pub difficulty: f64,
}

impl Draw {
    /// Random numbers that belong to this draw alone.
    #[must_use]
    pub fn random(&self) -> Random {
        Random::new(self.seed, self.index)
    }
}

/// Gives prompts.
pub trait Source {
    /// Rows of one epoch; `None` for a source that makes prompts up.
    const NUM_ROWS: Option<u64> = None;

    /// The prompt of one draw: a function of its argument and of nothing else.
    ///
    /// # Errors
    /// An error ends the run: a source that cannot give a prompt has no next one either.
    fn draw(draw: Draw) -> Result<Drawn, Error>;
}

/// One prompt with what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Drawn {
    /// What the policy reads.
    pub prompt: Prompt,
    /// The gold answer, for verifiers.
    pub label: Option<String>,
    /// A JSON object that travels with the prompt.
    pub metadata: Option<String>,
    /// Tools for the chat template: a JSON array in OpenAI's shape.
    pub tools: Option<String>,
}

impl Drawn {
    /// A prompt of plain text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::new(Prompt::Text(text.into()))
    }

    /// A conversation of one user message.
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Prompt::Messages(vec![Message::new("user", content)]))
    }

    /// Any prompt.
    #[must_use]
    pub fn new(prompt: Prompt) -> Self {
        Self {
            prompt,
            label: None,
            metadata: None,
            tools: None,
        }
    }

    /// Give it a gold answer.
    #[must_use]
    pub fn with_label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// Give it metadata: a JSON object.
    #[must_use]
    pub fn with_metadata(mut self, json: impl Into<String>) -> Self {
        self.metadata = Some(json.into());
        self
    }
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

/// Export a [`Source`] from this crate's component. The plugin is called as its crate is, without a leading
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
        const _: fn($crate::Draw) -> Result<$crate::Drawn, $crate::Error> =
            <$plugin as $crate::Source>::draw;
    };
}
