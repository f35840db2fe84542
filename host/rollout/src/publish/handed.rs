//! Weights that never leave this process: a trainer hands its tensors to the engine beside it.
//!
//! What a publish promises holds all the same: the engine pauses, loads, says the version and shows values before it is
//! given a request. Whose tensors they are and on which device is not known here. Read `mod.rs` for the order.

use super::live::Live;
use slime_core::ports::BoxFuture;
use std::path::PathBuf;
use std::sync::Arc;

/// One version's weights, in memory that an engine of this process can take them from.
pub trait Handed: Send + Sync {
    /// Make the engine serve them as `label`, its cache of older ones forgotten.
    fn install<'a>(&'a self, label: &'a str) -> BoxFuture<'a, Result<(), String>>;
    /// Bytes of all tensors.
    fn num_bytes(&self) -> u64;
    /// Values that the engine must hold afterwards, as the trainer holds them.
    fn known(&self) -> &[Known];
}

/// The first rows of a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct Known {
    /// Its name in a file.
    pub name: String,
    /// How many.
    pub rows: usize,
    /// Their values.
    pub values: Vec<f32>,
}

/// Where a version is found.
#[derive(Clone)]
pub(crate) enum Place {
    /// Safetensors that servers read.
    Directory(PathBuf),
    /// Tensors of this process.
    Memory(Arc<dyn Handed>),
    /// With the trainer, who writes a directory for whoever asks.
    Live(Arc<dyn Live>),
}
