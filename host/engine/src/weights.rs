//! A directory of `*.safetensors` as a change of the model's weights: read whole, checked whole, and only then used. Tensors
//! that come without a file are checked here too.
//!
//! Any subset of the model's tensors will do. Everything that is wrong is said at once: unknown names, wrong
//! shapes, unreadable types, numbers that are not finite, a tensor given twice, a file cut short. Files are read,
//! not mapped: a file that shrinks under a map would kill the process.

use crate::{Error, Result};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use slime_kernels::Ops;
use slime_model::{ModelSpec, ParamSpec};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Problems named in a refusal; a wrong directory has thousands.
const SHOWN: usize = 8;

/// A tensor that the directory holds: where it belongs in which parameter, and its values.
pub(crate) struct Piece {
    /// Index of the parameter.
    pub(crate) param: usize,
    /// First element of it.
    pub(crate) start: usize,
    pub(crate) values: Vec<f32>,
}

/// Read and check `dir` against the model's parameters.
pub(crate) fn read(dir: &Path, params: &[ParamSpec], spec: &ModelSpec) -> Result<Vec<Piece>> {
    let files = files(dir)?;
    let places = places(params);
    let (mut pieces, mut problems, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for path in &files {
        let bytes = std::fs::read(path)
            .map_err(|e| refused_dir(dir, &[format!("{}: {e}", path.display())]))?;
        let tensors = match SafeTensors::deserialize(&bytes) {
            Ok(tensors) => tensors,
            Err(e) => {
                problems.push(format!("{} is damaged or cut short: {e}", path.display()));
                continue;
            }
        };
        for (name, view) in tensors.iter() {
            if !seen.insert(name.to_owned()) {
                problems.push(format!("{name} is there twice"));
                continue;
            }
            let Some(&(param, start, shape)) = places.get(name) else {
                // What lies beside the parameters: a copy of the embedding, constants, heads that are not served.
                let copy = spec.tied && name == "lm_head.weight";
                if !(copy || name.ends_with("rotary_emb.inv_freq") || spec.carries(name)) {
                    problems.push(format!("{name} is no tensor of this model"));
                }
                continue;
            };
            if view.shape() != shape {
                problems.push(format!(
                    "{name} is {:?}, this model's is {shape:?}",
                    view.shape()
                ));
                continue;
            }
            match values(&view) {
                Ok(values) => pieces.push(Piece {
                    param,
                    start,
                    values,
                }),
                Err(why) => problems.push(format!("{name} {why}")),
            }
        }
    }
    if !problems.is_empty() {
        return Err(refused_dir(dir, &problems));
    }
    if pieces.is_empty() {
        return Err(refused_dir(dir, &["the files hold no tensor".into()]));
    }
    Ok(pieces)
}

/// Check that `tensors` are `params`, whole and finite.
pub(crate) fn check<O: Ops>(ops: &O, params: &[ParamSpec], tensors: &[O::Tensor]) -> Result<()> {
    let mut problems = Vec::new();
    if params.len() != tensors.len() {
        problems.push(format!(
            "{} tensors for {} parameters",
            tensors.len(),
            params.len()
        ));
    }
    for (param, tensor) in params.iter().zip(tensors) {
        let shape = ops.shape(tensor);
        if shape != (param.rows, param.cols) {
            let (name, own) = (&param.name, (param.rows, param.cols));
            problems.push(format!("{name} is {shape:?}, this model's is {own:?}"));
        }
    }
    if problems.is_empty() && !ops.all_finite(tensors)? {
        for (param, tensor) in params.iter().zip(tensors) {
            if !ops.all_finite(std::slice::from_ref(tensor))? {
                problems.push(format!("{} has values that are not finite", param.name));
            }
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(refused("this process", &problems)),
    }
}

fn refused_dir(dir: &Path, problems: &[String]) -> Error {
    refused(&format!("`{}`", dir.display()), problems)
}

fn refused(from: &str, problems: &[String]) -> Error {
    let more = problems.len().saturating_sub(SHOWN);
    let shown = problems[..problems.len().min(SHOWN)].join("; ");
    let rest = if more > 0 {
        format!("; and {more} more")
    } else {
        String::new()
    };
    Error::Weights(format!(
        "Failed to update model weights from {from}: {shown}{rest}. The old weights are still served."
    ))
}

/// The directory's safetensors files, by name; those an index lists have to be there.
fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let nothing = || {
        Error::Weights(format!(
            "Failed to get weights iterator: Cannot find any model weights with `{}`: give a directory with *.safetensors in it",
            dir.display()
        ))
    };
    let entries = std::fs::read_dir(dir).map_err(|_| nothing())?;
    let mut files: Vec<PathBuf> = entries
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|path| path.extension().is_some_and(|e| e == "safetensors"))
        .collect();
    files.sort();
    let index = dir.join("model.safetensors.index.json");
    if let Ok(text) = std::fs::read_to_string(&index) {
        let json: serde_json::Value = serde_json::from_str(&text)
            .map_err(|e| refused_dir(dir, &[format!("{} is not JSON: {e}", index.display())]))?;
        let listed: BTreeSet<&str> = json["weight_map"]
            .as_object()
            .map(|map| map.values().filter_map(serde_json::Value::as_str).collect())
            .unwrap_or_default();
        let missing: Vec<String> = listed
            .into_iter()
            .filter(|name| {
                !files
                    .iter()
                    .any(|f| f.file_name().is_some_and(|n| n == *name))
            })
            .map(|name| format!("{name} is in the index and not in the directory"))
            .collect();
        if !missing.is_empty() {
            return Err(refused_dir(dir, &missing));
        }
    }
    if files.is_empty() {
        Err(nothing())
    } else {
        Ok(files)
    }
}

/// HF name → (parameter, first element, shape).
fn places(params: &[ParamSpec]) -> BTreeMap<&str, (usize, usize, &[usize])> {
    let mut places = BTreeMap::new();
    for (index, param) in params.iter().enumerate() {
        let mut start = 0;
        for part in &param.parts {
            places.insert(part.name.as_str(), (index, start, part.shape.as_slice()));
            start += part.len();
        }
    }
    places
}

fn values(view: &TensorView<'_>) -> Result<Vec<f32>, String> {
    let data = view.data();
    let values: Vec<f32> = match view.dtype() {
        Dtype::F32 => data
            .as_chunks()
            .0
            .iter()
            .map(|&b| f32::from_le_bytes(b))
            .collect(),
        Dtype::BF16 => data
            .as_chunks()
            .0
            .iter()
            .map(|&b| half::bf16::from_le_bytes(b).to_f32())
            .collect(),
        Dtype::F16 => data
            .as_chunks()
            .0
            .iter()
            .map(|&b| half::f16::from_le_bytes(b).to_f32())
            .collect(),
        Dtype::F64 => data
            .as_chunks()
            .0
            .iter()
            .map(|&b| f64::from_le_bytes(b) as f32)
            .collect(),
        other => return Err(format!("is {other:?}: weights are F32, BF16, F16 or F64")),
    };
    // No short cut, so that it vectorises.
    if !values.iter().fold(true, |ok, x| ok & x.is_finite()) {
        let bad = values.iter().filter(|x| !x.is_finite()).count();
        return Err(format!("has {bad} values that are not finite"));
    }
    Ok(values)
}

/// A checksum of a tensor's values.
pub(crate) fn checksum(values: &[f32]) -> u64 {
    let hash = values.iter().fold(values.len() as u64, |hash, x| {
        (hash.rotate_left(23) ^ u64::from(x.to_bits())).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    hash ^ (hash >> 31)
}
