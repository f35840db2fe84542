//! One set of parameters with its optimizer, as two files.

use super::tensors::{self, Data, Reader};
use super::{MASTER, MOMENTS, prefix, read_float, read_weight};
use crate::Result;
use crate::optim::Optimizer;
use crate::optim::precision::Precision;
use slime_kernels::Ops;
use slime_model::ParamSpec;
use slime_model::layers::Weights;
use std::path::PathBuf;

/// Write parameters to the first file and what their optimizer keeps to the second.
pub(super) fn save_set<O: Ops>(
    ops: &O,
    params: &[ParamSpec],
    weights: &Weights<O>,
    optimizer: &Optimizer<O>,
    [model, moments]: &[PathBuf; 2],
) -> Result<()> {
    let wide = Precision::of_weights(ops)? == Precision::Double;
    tensors::write(model, params, &[""], wide, |_, i| {
        read_weight(ops, &weights.0[i], wide)
    })?;
    let wide = Precision::of_accumulators(ops)? == Precision::Double;
    let mut prefixes = MOMENTS.to_vec();
    let mut sets = vec![&optimizer.m, &optimizer.v];
    if let Some(master) = &optimizer.master {
        prefixes.push(MASTER);
        sets.push(master);
    }
    tensors::write(moments, params, &prefixes, wide, |set, i| {
        read_float(ops, &sets[set][i], wide)
    })
}

/// Put parameters and their states in place, once both files are known to hold them.
pub(super) fn load_set<O: Ops>(
    ops: &O,
    params: &[ParamSpec],
    weights: &mut Weights<O>,
    optimizer: &mut Optimizer<O>,
    [model, moments]: &[PathBuf; 2],
) -> Result<()> {
    let wide = Precision::of_weights(ops)? == Precision::Double;
    let mut model = Reader::open(model, params, &[""], wide)?;
    let wide = Precision::of_accumulators(ops)? == Precision::Double;
    let mut prefixes = MOMENTS.to_vec();
    if optimizer.master.is_some() {
        prefixes.push(MASTER);
    }
    let mut moments = Reader::open(moments, params, &prefixes, wide)?;
    for (i, param) in params.iter().enumerate() {
        weights.0[i] = match model.read(param, "")? {
            Data::F32(data) => ops.tensor(param.rows, param.cols, &data)?,
            Data::F64(data) => ops.tensor_f64(param.rows, param.cols, &data)?,
        };
        optimizer.restore(ops, i, &weights.0[i], |state| {
            moments.read(param, prefix(state))
        })?;
    }
    Ok(())
}
