//! What a server holds after an update, compared with what was published: the first values of a few tensors that
//! keep their name inside a server.
//!
//! Fused projections are not looked at; members of one layout are also compared by checksum. A value may come back
//! rounded to the server's own type, and in no other way changed.

use super::check::{Manifest, Tensor};
use super::handed::Known;
use crate::RolloutError;
use crate::pool::Server;
use crate::pool::endpoint::get_weights_by_name::get_weights_by_name;
use half::{bf16, f16};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};

/// Tensors looked at.
const LOOKED_AT: usize = 3;
/// Values of each at most.
const VALUES: u64 = 256;

/// The first values of some published tensors.
#[derive(Clone, Debug, Default)]
pub(crate) struct Proof {
    tensors: Vec<(String, usize, Vec<f32>)>,
}

impl Proof {
    /// Read them from the published files.
    ///
    /// # Errors
    /// A file cannot be read.
    pub(super) fn of(manifest: &Manifest) -> Result<Self, RolloutError> {
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
        let tensors = found.into_iter().map(|tensor| {
            let (rows, num_values) = match tensor.shape.as_slice() {
                [len] => (VALUES.min(*len), VALUES.min(*len)),
                shape => (1, shape[1]),
            };
            let values = first_values(tensor, num_values).map_err(|e| RolloutError::File {
                path: tensor.file.clone(),
                reason: format!("tensor `{}` cannot be read back: {e}", tensor.name),
            })?;
            Ok((tensor.name.clone(), rows as usize, values))
        });
        Ok(Self {
            tensors: tensors.collect::<Result<_, RolloutError>>()?,
        })
    }

    /// Values that somebody else read.
    pub(super) fn known(values: &[Known]) -> Self {
        let tensors = values.iter().cloned();
        Self {
            tensors: tensors.map(|k| (k.name, k.rows, k.values)).collect(),
        }
    }

    /// Ask `server` for the same values. `Ok` where all that it answers are the published ones.
    ///
    /// # Errors
    /// The first tensor that differs, or a server that cannot be reached.
    pub(crate) async fn check(&self, server: &Server) -> Result<(), String> {
        for (name, rows, published) in &self.tensors {
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

fn first_values(tensor: &Tensor, n: u64) -> std::io::Result<Vec<f32>> {
    let mut file = File::open(&tensor.file)?;
    file.seek(SeekFrom::Start(tensor.start))?;
    let width = if tensor.dtype == "F32" { 4 } else { 2 };
    let mut bytes = vec![0; n as usize * width];
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
