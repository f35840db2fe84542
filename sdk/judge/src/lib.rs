//! Write a judge in Rust: implement [`Judge`], name the type in [`export!`], build for `wasm32-wasip2`.
//!
//! ```
//! use slime_sdk_judge::{Error, Finished, Judge, Message, Model, Verdict, export};
//!
//! /// Asks the model whether the answer is right.
//! struct AsksAModel;
//!
//! impl Judge for AsksAModel {
//!     fn score(item: Finished, model: &dyn Model) -> Result<Verdict, Error> {
//!         let question = format!("Is `{}` right? Say yes or no.", item.response());
//!         let answer = model.ask("judge", &[Message::new("user", question)], 8, 0.0)?;
//!         Ok(Verdict::reward(f64::from(answer.text.to_lowercase().contains("yes"))))
//!     }
//! }
//!
//! export!(AsksAModel);
//!
//! // Off the wasm target the model's answers come from a script.
//! let script = slime_sdk_judge::Scripted::new(["Yes."]);
//! assert_eq!(AsksAModel::score(Finished::new("2 + 2", "4"), &script)?.reward, 1.0);
//! # Ok::<(), Error>(())
//! ```
//!
//! What the model answers is never trained on. Read `wit/judge.wit` next.
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
        world: "judge",
        pub_export_macro: true,
        default_bindings_module: "slime_sdk_judge::bindings",
    });
}

#[cfg(target_family = "wasm")]
pub use adapter::Finished;
#[cfg(not(target_family = "wasm"))]
pub use slime_sdk_types::Finished;
pub use slime_sdk_types::{Error, ErrorCode, FinishReason, Level, Message, Verdict};

/// A model's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Decoded, special tokens left out.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// Tokens sampled; they count against the call's budget.
    pub num_tokens: u32,
}

/// The models of the pool that were granted.
pub trait Model {
    /// Ask `model` for one answer of at most `max_tokens` tokens; temperature 0 is greedy.
    ///
    /// # Errors
    /// `denied`: the model was not granted. `limit-exceeded`: the token budget is used up.
    fn ask(
        &self,
        model: &str,
        messages: &[Message],
        max_tokens: u32,
        temperature: f64,
    ) -> Result<Answer, Error>;
}

/// A verifier that may ask a model of the pool. Nothing survives between calls.
pub trait Judge {
    /// The smallest reward it gives.
    const REWARD_MIN: f64 = 0.0;
    /// The largest reward it gives.
    const REWARD_MAX: f64 = 1.0;

    /// Score one finished rollout.
    ///
    /// # Errors
    /// An error fails this rollout only.
    fn score(item: Finished, model: &dyn Model) -> Result<Verdict, Error>;
}

/// A model whose answers were written beforehand, for unit tests.
#[cfg(not(target_family = "wasm"))]
pub struct Scripted(std::cell::RefCell<std::collections::VecDeque<String>>);

#[cfg(not(target_family = "wasm"))]
impl Scripted {
    /// Answers in the order in which they are asked for.
    pub fn new<S: Into<String>>(answers: impl IntoIterator<Item = S>) -> Self {
        Self(std::cell::RefCell::new(
            answers.into_iter().map(Into::into).collect(),
        ))
    }
}

#[cfg(not(target_family = "wasm"))]
impl Model for Scripted {
    fn ask(&self, model: &str, _: &[Message], _: u32, _: f64) -> Result<Answer, Error> {
        let text = self.0.borrow_mut().pop_front().ok_or_else(|| {
            Error::new(
                ErrorCode::Unavailable,
                format!("no answer of {model} is left"),
            )
        })?;
        Ok(Answer {
            num_tokens: u32::try_from(text.split_whitespace().count()).unwrap_or(u32::MAX),
            text,
            finish_reason: FinishReason::Stop,
        })
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

/// Export a [`Judge`] from this crate's component. The plugin is called as its crate is, without a leading
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
            fn implements<T: $crate::Judge>() {}
            implements::<$plugin>();
        };
    };
}
