//! What a weights directory holds, read from the safetensors headers alone.
//!
//! A stock server dies of a truncated file or a wrong shape, so both are found here first. Where each tensor
//! lies is kept for those who carry it on (`bucket.rs`, `delta.rs`).

use crate::RolloutError;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

/// A header larger than this is not one.
const MAX_HEADER_BYTES: u64 = 100 << 20;

/// A tensor's type and shape.
type Kind = (String, Vec<u64>);

/// One tensor and where its bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Tensor {
    pub(super) name: String,
    /// As safetensors names it: `BF16`.
    pub(super) dtype: String,
    pub(super) shape: Vec<u64>,
    pub(super) file: PathBuf,
    /// First byte in the file, and the one after the last.
    pub(super) start: u64,
    pub(super) end: u64,
}

impl Tensor {
    pub(super) fn num_bytes(&self) -> u64 {
        self.end - self.start
    }
}

/// Every tensor's type, shape and place.
#[derive(Clone, Debug)]
pub struct Manifest {
    tensors: BTreeMap<String, Kind>,
    places: Vec<Tensor>,
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
        let mut places = Vec::new();
        for path in files {
            let mut found = header(&path).map_err(|reason| bad(&path, reason))?;
            found.sort_by_key(|tensor| tensor.start);
            for tensor in found {
                let kind = (tensor.dtype.clone(), tensor.shape.clone());
                if tensors.insert(tensor.name.clone(), kind).is_some() {
                    return Err(bad(
                        &path,
                        format!(
                            "tensor `{}` is in another file of the directory too",
                            tensor.name
                        ),
                    ));
                }
                places.push(tensor);
            }
        }
        Ok(Self { tensors, places })
    }

    /// These tensors.
    ///
    /// # Errors
    /// The name that two of them have.
    pub(super) fn of(places: Vec<Tensor>) -> Result<Self, String> {
        let mut tensors = BTreeMap::new();
        for tensor in &places {
            let kind = (tensor.dtype.clone(), tensor.shape.clone());
            if tensors.insert(tensor.name.clone(), kind).is_some() {
                return Err(tensor.name.clone());
            }
        }
        Ok(Self { tensors, places })
    }

    /// The tensors, file by file, in the order of their bytes.
    pub(super) fn in_order(&self) -> &[Tensor] {
        &self.places
    }

    /// Bytes of all tensors.
    pub fn num_bytes(&self) -> u64 {
        self.places.iter().map(Tensor::num_bytes).sum()
    }

    /// Number of tensors.
    pub fn num_tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Check that these tensors are those of the model in `dir`, whatever their type: a stock server dies of a wrong
    /// shape, and keeps silent about names it does not know and about what is missing.
    ///
    /// # Errors
    /// The first tensor that does not fit, and why.
    pub(super) fn expect_model(&self, model: &Self, dir: &Path) -> Result<(), RolloutError> {
        let bad = |reason: String| RolloutError::File {
            path: dir.to_path_buf(),
            reason,
        };
        for (name, (dtype, shape)) in &self.tensors {
            let Some((_, expected)) = model.tensors.get(name) else {
                if name == "lm_head.weight" {
                    continue; // A tied one may be written out.
                }
                return Err(bad(format!(
                    "tensor `{name}` is new; the model knows no such tensor"
                )));
            };
            if shape != expected {
                return Err(bad(format!(
                    "tensor `{name}` is {shape:?}; the model's is {expected:?}"
                )));
            }
            if !matches!(dtype.as_str(), "F32" | "BF16" | "F16" | "F8_E4M3") {
                return Err(bad(format!(
                    "tensor `{name}` is {dtype}; weights are floating point"
                )));
            }
        }
        let needed =
            |name: &&String| !name.ends_with("rotary_emb.inv_freq") && *name != "lm_head.weight";
        match model
            .tensors
            .keys()
            .filter(needed)
            .find(|name| !self.tensors.contains_key(*name))
        {
            Some(name) => Err(bad(format!("tensor `{name}` of the model is missing"))),
            None => Ok(()),
        }
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

fn header(path: &Path) -> Result<Vec<Tensor>, String> {
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
            (Some(dtype), Some(shape), Some(&[first, last])) => {
                end = end.max(last);
                let size = shape
                    .iter()
                    .try_fold(element_bytes(&dtype).unwrap_or(0), |size, &n| {
                        size.checked_mul(n)
                    });
                if size.is_none() || last.checked_sub(first) != size {
                    return Err(format!(
                        "is torn: tensor `{name}`, {dtype} {shape:?}, lies from byte {first} to {last}"
                    ));
                }
                tensors.push(Tensor {
                    name,
                    dtype,
                    shape,
                    file: path.to_path_buf(),
                    start: 8 + len + first,
                    end: 8 + len + last,
                });
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

/// Bytes of one element of a safetensors type.
pub(super) fn element_bytes(dtype: &str) -> Option<u64> {
    Some(match dtype {
        "F64" | "I64" | "U64" => 8,
        "F32" | "I32" | "U32" => 4,
        "BF16" | "F16" | "I16" | "U16" => 2,
        "F8_E4M3" | "F8_E5M2" | "F8_E8M0" | "I8" | "U8" | "BOOL" => 1,
        _ => return None,
    })
}
