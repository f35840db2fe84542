//! What a weights directory holds, read from the safetensors headers alone.
//!
//! A stock server dies of a truncated file or a wrong shape, so both are found here first.

use crate::RolloutError;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::Path;

/// A header larger than this is not one.
const MAX_HEADER_BYTES: u64 = 100 << 20;

/// A tensor's type and shape.
type Kind = (String, Vec<u64>);

/// Every tensor's type and shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    tensors: BTreeMap<String, Kind>,
}

impl Manifest {
    /// Read `dir/*.safetensors` and check that each file is whole.
    ///
    /// # Errors
    /// No such file, one that is torn, or a tensor that two files hold.
    pub fn read(dir: &Path) -> Result<Self, RolloutError> {
        let bad = |path: &Path, reason: String| RolloutError::File {
            path: path.to_path_buf(),
            reason,
        };
        let entries =
            std::fs::read_dir(dir).map_err(|e| bad(dir, format!("weights cannot be read: {e}")))?;
        let mut files: Vec<_> = entries
            .filter_map(|e| Some(e.ok()?.path()))
            .filter(|p| p.extension().is_some_and(|e| e == "safetensors"))
            .collect();
        files.sort();
        if files.is_empty() {
            return Err(bad(
                dir,
                "holds no *.safetensors file; publish a directory of weights".into(),
            ));
        }
        let mut tensors = BTreeMap::new();
        for path in files {
            for (name, kind) in header(&path).map_err(|reason| bad(&path, reason))? {
                if tensors.insert(name.clone(), kind).is_some() {
                    return Err(bad(
                        &path,
                        format!("tensor `{name}` is in another file of the directory too"),
                    ));
                }
            }
        }
        Ok(Self { tensors })
    }

    /// Number of tensors.
    pub fn num_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Check that `next` has exactly these tensors.
    ///
    /// # Errors
    /// The first tensor that is missing, new, or of another type or shape.
    pub fn expect_same(&self, next: &Self, dir: &Path) -> Result<(), RolloutError> {
        let names = self.tensors.keys().chain(next.tensors.keys());
        for name in names {
            let reason = match (self.tensors.get(name), next.tensors.get(name)) {
                (Some(a), Some(b)) if a == b => continue,
                (Some((dtype, shape)), Some((new_dtype, new_shape))) => {
                    format!(
                        "tensor `{name}` is {new_dtype} {new_shape:?}; the servers were given {dtype} {shape:?}"
                    )
                }
                (Some(_), None) => {
                    format!("tensor `{name}` is missing; the servers were given one before")
                }
                _ => format!("tensor `{name}` is new; the servers know no such tensor"),
            };
            return Err(RolloutError::File {
                path: dir.to_path_buf(),
                reason,
            });
        }
        Ok(())
    }
}

fn header(path: &Path) -> Result<Vec<(String, Kind)>, String> {
    let mut file = File::open(path).map_err(|e| e.to_string())?;
    let size = file.metadata().map_err(|e| e.to_string())?.len();
    let mut len = [0; 8];
    file.read_exact(&mut len)
        .map_err(|_| "is torn: shorter than a safetensors header".to_owned())?;
    let len = u64::from_le_bytes(len);
    if len > MAX_HEADER_BYTES || len + 8 > size {
        return Err(format!(
            "is torn: its header claims {len} bytes, the file has {size}"
        ));
    }
    let mut text = vec![0; usize::try_from(len).map_err(|e| e.to_string())?];
    file.read_exact(&mut text).map_err(|e| e.to_string())?;
    let entries: Map<String, Value> =
        serde_json::from_slice(&text).map_err(|e| format!("is not safetensors: {e}"))?;
    let mut tensors = Vec::new();
    let mut end = 0;
    for (name, entry) in entries {
        if name == "__metadata__" {
            continue;
        }
        let dtype = entry["dtype"].as_str().map(str::to_owned);
        let numbers = |v: &Value| {
            v.as_array()?
                .iter()
                .map(Value::as_u64)
                .collect::<Option<Vec<u64>>>()
        };
        match (
            dtype,
            numbers(&entry["shape"]),
            numbers(&entry["data_offsets"]).as_deref(),
        ) {
            (Some(dtype), Some(shape), Some([_, last])) => {
                end = end.max(*last);
                tensors.push((name, (dtype, shape)));
            }
            _ => {
                return Err(format!(
                    "is not safetensors: tensor `{name}` lacks a type, shape or place"
                ));
            }
        }
    }
    if 8 + len + end != size {
        return Err(format!(
            "is torn: its tensors end at byte {}, the file has {size}",
            8 + len + end
        ));
    }
    Ok(tensors)
}
