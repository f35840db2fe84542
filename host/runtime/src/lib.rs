//! The sandbox: runs other people's code and lets it harm nothing.
//!
//! A plugin is a WebAssembly component behind the contract in `wit/`. Each call gets a fresh instance, its own
//! budgets, and ends as an outcome; it never ends the run. The crate knows no tensors, no HTTP and no configuration
//! files: what the policy writes comes through [`slime_core::ports`].
//!
//! ```no_run
//! use slime_core::ports::{ScoreRequest, Verifier};
//! use slime_runtime::{Grants, Limits, Runtime, RuntimeConfig, build_plugin};
//!
//! # async fn example() -> Result<(), slime_runtime::RuntimeError> {
//! let runtime = Runtime::new(RuntimeConfig::default())?;
//! let component = build_plugin("plugins/exact-match".as_ref())?;
//! let plugin = runtime.load(&component, "exact-match", Limits::default(), Grants::default())?;
//! let item = ScoreRequest { response: "4".into(), label: Some("4".into()), ..ScoreRequest::default() };
//! let scored = plugin.verifier()?.score(item).await;
//! assert_eq!(scored.outcome.reward(), Some(1.0));
//! # Ok(())
//! # }
//! ```
//!
//! Read [`plugin`] (how a component is let in), then `call` (how a call is kept within its budgets).
#![deny(unsafe_code)]

mod bench;
mod bindings;
mod build;
mod cache;
mod call;
mod cases;
pub mod code;
mod context;
mod contract;
mod convert;
mod description;
mod engine;
mod error;
mod generator;
mod group;
mod host;
mod in_flight;
mod kept;
mod limits;
mod memo;
mod meter;
pub mod plugin;
mod runtime;
mod sandbox;
mod score;
mod scripted;
mod seed;
mod seen;
mod services;
mod shadow;
mod shards;
mod source;
mod ticker;
mod toolbox;
pub mod trust;
mod units;
mod verifier;
mod worlds;

pub use bench::Costs;
pub use build::{LANGUAGE_TOOLS, Language, LanguageTool, Manifest, WIT_FILES, build_plugin};
pub use cases::Case;
pub use description::Description;
pub use error::{MAKE_WHOLE, Problem, RuntimeError};
pub use in_flight::InFlight;
pub use limits::{Grants, Limits, ProgramLimits};
pub use memo::Memoised;
pub use plugin::Plugin;
pub use runtime::{Runtime, RuntimeConfig};
pub use score::{ScoreSummary, score};
pub use services::{Http, HttpError, HttpRequest, HttpResponse, Services};
pub use shadow::Shadowed;
