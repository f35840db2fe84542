//! What a server holds after an update, compared with what was published: the first values of a few tensors that
//! keep their name inside a server.
//!
//! Fused projections are not looked at; members of one layout are also compared by checksum. A value may come back
//! rounded to the server's own type, and in no other way changed.

use super::check::{Manifest, Tensor};
use super::handed::Known;
use super::live::Live;
use crate::RolloutError;
use crate::pool::Server;
use crate::pool::endpoint::get_weights_by_name::get_weights_by_name;
use half::{bf16, f16};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::sync::Arc;

/// Tensors looked at.
const LOOKED_AT: usize = 3;
/// Values of each at most.
const VALUES: u64 = 256;

/// How a tensor begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FirstValues {
    /// Its name in a file.
    pub name: String,
    /// Rows that a server is asked for.
    pub rows: usize,
    /// Values in them.
    pub len: usize,
}

/// The first values of some published tensors.
#[derive(Clone, Default)]
pub(crate) struct Proof {
    tensors: Vec<Known>,
    /// Who knows them once the weights have been read.
    later: Option<Arc<dyn Live>>,
}

/// What is looked at of these tensors.
pub(super) fn first_values(manifest: &Manifest) -> Vec<FirstValues> {
    let own_name = |t: &&Tensor| match t.shape.as_slice() {
        [len] => *len > 1 && t.name.ends_with("norm.weight"),
        [_, width] => *width <= 16 * VALUES && t.name.ends_with("embed_tokens.weight"),
        _ => false,
    };
    let readable = |t: &&Tensor| matches!(t.dtype.as_str(), "F32" | "BF16");
    let mut found: Vec<&Tensor> = manifest
        .in_order()
        .iter()
        .filter(own_name)
        .filter(readable)
        .collect();
    // What changes most in training first, then the ends of the model.
    found.sort_by(|a, b| {
        (a.shape.len(), &b.name)
            .cmp(&(b.shape.len(), &a.name))
            .reverse()
    });
    if found.len() > LOOKED_AT {
        let last = found.len() - 1;
        found = vec![found[0], found[1], found[last]];
    }
    let first = found.into_iter().map(|tensor| {
        let (rows, len) = match tensor.shape.as_slice() {
            [len] => (VALUES.min(*len), VALUES.min(*len)),
            shape => (1, shape[1]),
        };
        FirstValues {
            name: tensor.name.clone(),
            rows: rows as usize,
            len: len as usize,
        }
    });
    first.collect()
}

impl Proof {
    /// Read them from the published files.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn of(manifest: &Manifest) -> Result<Self, RolloutError> {
        let mut tensors = Vec::new();
        for FirstValues { name, rows, len } in first_values(manifest) {
            let mut all = manifest.in_order().iter();
            let Some(tensor) = all.find(|tensor| tensor.name == name) else {
                continue;
            };
            let values = read_first(tensor, len).map_err(|e| RolloutError::File {
                path: tensor.file.clone(),
                reason: format!("tensor `{name}` cannot be read back: {e}"),
            })?;
            tensors.push(Known { name, rows, values });
        }
        Ok(Self {
            tensors,
            later: None,
        })
    }

    /// Values that somebody else read.
    pub(super) fn known(values: &[Known]) -> Self {
        Self {
            tensors: values.to_vec(),
            later: None,
        }
    }

    /// Values that are read while the weights are.
    pub(super) fn later(live: Arc<dyn Live>) -> Self {
        Self {
            tensors: Vec::new(),
            later: Some(live),
        }
    }

    /// Ask `server` for the same values. `Ok` where all that it answers are the published ones.
    ///
    /// # Errors
    /// The first tensor that differs, or a server that cannot be reached.
    pub(crate) async fn check(&self, server: &Server) -> Result<(), String> {
        let later = self.later.as_ref().map(|live| live.known());
        for Known { name, rows, values } in self.tensors.iter().chain(later.iter().flatten()) {
            let published = values;
            let held = get_weights_by_name(server, name, *rows)
                .await
                .map_err(|e| format!("`{name}` cannot be read back: {e}"))?;
            let Some(held) = held.filter(|held| held.len() == published.len()) else {
                continue;
            };
            if !held
                .iter()
                .zip(published)
                .all(|(&held, &sent)| same(held, sent))
            {
                let at = held
                    .iter()
                    .zip(published)
                    .position(|(&h, &s)| !same(h, s))
                    .unwrap_or(0);
                return Err(format!(
                    "value {at} of `{name}` is {} there and was published as {}",
                    held[at], published[at]
                ));
            }
        }
        Ok(())
    }
}

/// Equal, or rounded to a shorter type.
fn same(held: f64, sent: f32) -> bool {
    let equals = |value: f32| held as f32 == value;
    equals(sent) || equals(bf16::from_f32(sent).to_f32()) || equals(f16::from_f32(sent).to_f32())
}

fn read_first(tensor: &Tensor, n: usize) -> std::io::Result<Vec<f32>> {
    let mut file = File::open(&tensor.file)?;
    file.seek(SeekFrom::Start(tensor.start))?;
    let width = if tensor.dtype == "F32" { 4 } else { 2 };
    let mut bytes = vec![0; n * width];
    file.read_exact(&mut bytes)?;
    let values = bytes.chunks_exact(width).map(|value| match *value {
        [a, b, c, d] => f32::from_le_bytes([a, b, c, d]),
        [a, b] => bf16::from_le_bytes([a, b]).to_f32(),
        _ => f32::NAN,
    });
    Ok(values.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_may_be_rounded_and_not_otherwise_changed() {
        assert!(same(f64::from(0.1f32), 0.1) && same(0.10009765625, 0.1));
        assert!(same(f64::from(f16::from_f32(0.1).to_f32()), 0.1));
        // One step of bf16 away, as after an update that was missed.
        assert!(!same(0.1005859375, 0.1) && !same(0.0, 0.1));
    }
}
