//! Hugging Face model directories, read and written as they are: no conversion step.

pub mod files;

pub use files::ModelFiles;
