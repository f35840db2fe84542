//! A model from its files to its arithmetic: what it is ([`spec`], [`families`]), its tensors ([`params`]), Hugging
//! Face directories read and written ([`hf`]), GGUF imported ([`gguf`]), tokenizer and chat template ([`text`]), and
//! the layers over any device.
//!
//! It knows no loss, no optimizer and no server. Read [`spec`] first, then [`hf`].
#![forbid(unsafe_code)]

pub mod cache;
pub mod cost;
pub mod error;
pub mod families;
pub mod gguf;
pub mod hf;
pub mod init;
pub mod layers;
pub mod network;
pub mod params;
pub mod spec;
pub mod text;

pub use cache::Cache;
pub use error::{Error, Result};
pub use hf::{Dtype, HfDir, ModelFiles, Weights};
pub use network::{Activations, Network, PagedRows, Step};
pub use params::{ParamKind, ParamSpec, Part, params};
pub use spec::{
    Attention, Ffn, GroupedAttention, LatentAttention, LayerSpec, ModelSpec, MoeSpec, Rope,
    RopeScaling, Routing,
};
