//! Weights that are broadcast from where the trainer keeps them: no file is between its device and the servers' devices.
//!
//! What a publish promises holds all the same. Names and shapes are checked before a server is told of them, values are read
//! back, and a server that was away finds the version in a directory, which is written when the first one asks for it. Who
//! keeps the weights is behind [`Live`]. Read `broadcast` for who meets when.

use super::check::{Manifest, Tensor, element_bytes};
use super::handed::Known;
use super::proof::{FirstValues, first_values};
use crate::RolloutError;
use slime_core::ports::BoxFuture;
use std::path::{Path, PathBuf};

/// A tensor of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name in a file.
    pub name: String,
    /// As safetensors names it: `BF16`.
    pub dtype: &'static str,
    /// Rows and columns.
    pub shape: Vec<u64>,
}

/// One version's weights, in the keeping of somebody who can send them to a group that was joined.
pub trait Live: Send + Sync {
    /// The tensors that go as one, in the order of their bytes.
    fn buckets(&self) -> &[Vec<Listed>];
    /// Send all buckets to the group that the caster has joined; returns when they have left.
    ///
    /// # Errors
    /// In words: they could not be sent, or the group was left meanwhile.
    fn send(&self) -> Result<(), String>;
    /// Nobody will ask for [`Live::send`] any more.
    fn skip(&self);
    /// The values that [`to_look_at`] names, once the weights have been read.
    fn known(&self) -> Vec<Known>;
    /// A directory that holds them, written if there is none yet.
    fn directory(&self) -> BoxFuture<'_, Result<PathBuf, String>>;
}

/// Where errors say that the tensors lie.
pub(super) const HERE: &str = "the trainer's weights";

/// Of which of a version's tensors servers are asked how they begin.
///
/// # Errors
/// A tensor is listed twice.
pub fn to_look_at(buckets: &[Vec<Listed>]) -> Result<Vec<FirstValues>, RolloutError> {
    Ok(first_values(&manifest(buckets)?))
}

/// What a directory of these tensors would hold.
pub(super) fn manifest(buckets: &[Vec<Listed>]) -> Result<Manifest, RolloutError> {
    let mut start = 0;
    let tensors = buckets.iter().flatten().map(|listed| {
        let each = element_bytes(listed.dtype).unwrap_or(0);
        let begin = start;
        start += each * listed.shape.iter().product::<u64>();
        Tensor {
            name: listed.name.clone(),
            dtype: listed.dtype.into(),
            shape: listed.shape.clone(),
            file: HERE.into(),
            start: begin,
            end: start,
        }
    });
    Manifest::of(tensors.collect()).map_err(|name| RolloutError::File {
        path: Path::new(HERE).into(),
        reason: format!("tensor `{name}` is there twice"),
    })
}
