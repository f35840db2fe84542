//! Hugging Face model directories, read and written as they are: no conversion step.
//!
//! Nothing here downloads. [`ModelFiles`] holds the small files (configuration, tokenizer, template), [`Weights`] reads
//! safetensors one tensor at a time, [`save_dir`] and [`save_weights`] write them. Read [`files`] first.

pub mod dtype;
pub mod export;
pub mod files;
pub mod fp8;
pub mod weights;

pub use dtype::Dtype;
pub use export::{DEFAULT_SHARD_BYTES, dtype_of, save_dir, save_weights};
pub use files::{HfDir, ModelFiles};
pub use fp8::Form;
pub use weights::Weights;
