//! Checkpoints of several ranks: each tensor as pieces in the files of those who held them, read by any other layout.
//!
//! A piece is a rectangle of one HF tensor (a vector is one row). Whoever reads asks for a rectangle of its own and gets it
//! from whatever pieces overlap it, so no layout knows of another. A checkpoint of one rank is the case of one piece a
//! tensor. Read [`super`] for the directory.

use super::critic::FILES;
use super::tensors::{Data, Raw, dtype, found};
use super::{CRITIC, MODEL, OPTIMIZER, prefix};
use crate::optim::Optimizer;
use crate::optim::precision::Precision;
use crate::{Error, Result};
use serde::{Deserialize, Serialize};
use slime_kernels::Ops;
use slime_model::ParamSpec;
use slime_model::layers::Weights;
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};

/// Where a rectangle of a tensor lies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// File in the checkpoint's directory.
    pub file: String,
    /// Its name in that file.
    pub name: String,
    /// First row and the one after the last.
    pub rows: [usize; 2],
    /// First column and the one after the last.
    pub cols: [usize; 2],
}

/// A tensor of the whole model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// HF's shape.
    pub shape: Vec<usize>,
    /// Its pieces, which cover it.
    pub pieces: Vec<Piece>,
}

/// Every tensor by name: HF's, or `opt/m/`, `opt/v/`, `opt/master/` and HF's; of a critic `critic/` before that.
pub type Table = BTreeMap<String, Entry>;

/// Rows and columns of a tensor; a vector is one row.
pub fn as_matrix(shape: &[usize]) -> (usize, usize) {
    match shape.split_last() {
        Some((cols, lines)) => (lines.iter().product(), *cols),
        None => (1, 1),
    }
}

pub(crate) fn file_name(path: &Path) -> String {
    path.file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into()
}

/// A checkpoint's tensors.
pub struct Library {
    dir: PathBuf,
    table: Table,
    open: BTreeMap<String, Raw>,
}

impl Library {
    /// The tensors of the checkpoint in `dir`. Without a table, each file's header is one.
    ///
    /// # Errors
    /// A file is missing or damaged.
    pub fn open(dir: &Path, table: Option<Table>) -> Result<Self> {
        let mut library = Self {
            dir: dir.to_owned(),
            table: table.unwrap_or_default(),
            open: BTreeMap::new(),
        };
        if library.table.is_empty() {
            let critic = FILES.iter().flat_map(|(model, moments)| [*model, *moments]);
            let critic = critic.flat_map(|file| found(&dir.join(file)));
            let critic = critic.filter(|path| path.exists());
            let policy = [MODEL, OPTIMIZER].into_iter();
            let policy = policy.flat_map(|file| found(&dir.join(file)));
            let critic = critic.map(|path| (path, CRITIC));
            for (path, prefix) in policy.map(|path| (path, "")).chain(critic) {
                let raw = Raw::open(&path)?;
                let file = file_name(&path);
                for name in raw.metadata.offset_keys() {
                    let Some(info) = raw.metadata.info(&name) else {
                        continue;
                    };
                    let (rows, cols) = as_matrix(&info.shape);
                    let piece = Piece {
                        file: file.clone(),
                        name: name.clone(),
                        rows: [0, rows],
                        cols: [0, cols],
                    };
                    let entry = Entry {
                        shape: info.shape.clone(),
                        pieces: vec![piece],
                    };
                    library.table.insert(format!("{prefix}{name}"), entry);
                }
                library.open.insert(file, raw);
            }
        }
        Ok(library)
    }

    fn damaged(&self, detail: String) -> Error {
        Error::Checkpoint {
            path: self.dir.clone(),
            detail,
        }
    }

    /// The rectangle `rows × cols` of the tensor `name`, whose whole shape is `shape`, in f64 if `wide`.
    ///
    /// # Errors
    /// The tensor is missing, of another shape or precision, or not whole; or a file is damaged.
    pub(crate) fn block(
        &mut self,
        name: &str,
        shape: &[usize],
        (rows, cols): (Range<usize>, Range<usize>),
        wide: bool,
    ) -> Result<Data> {
        let Some(entry) = self.table.get(name) else {
            return Err(self.damaged(format!("{name} is missing")));
        };
        if entry.shape != shape {
            let have = &entry.shape;
            let detail = format!("{name} is {have:?}, the model wants {shape:?}");
            return Err(self.damaged(detail));
        }
        let size = if wide { 8 } else { 4 };
        let mut out = Data::zeros(wide, rows.len() * cols.len());
        let mut covered = 0;
        for piece in entry.pieces.clone() {
            let meet = |a: &Range<usize>, b: [usize; 2]| a.start.max(b[0])..a.end.min(b[1]);
            let (at_rows, at_cols) = (meet(&rows, piece.rows), meet(&cols, piece.cols));
            if at_rows.is_empty() || at_cols.is_empty() {
                continue;
            }
            let bytes = self.piece(&piece, wide)?;
            let width = piece.cols[1] - piece.cols[0];
            for row in at_rows.clone() {
                let from = (row - piece.rows[0]) * width + at_cols.start - piece.cols[0];
                let to = (row - rows.start) * cols.len() + at_cols.start - cols.start;
                let line = &bytes[from * size..][..at_cols.len() * size];
                out.bytes_mut()[to * size..][..line.len()].copy_from_slice(line);
            }
            covered += at_rows.len() * at_cols.len();
        }
        if covered != rows.len() * cols.len() {
            return Err(self.damaged(format!("{name} is not whole: pieces of it are missing")));
        }
        Ok(out)
    }

    /// A whole parameter, its parts end to end.
    fn param(&mut self, param: &ParamSpec, prefix: &str, wide: bool) -> Result<Data> {
        let mut whole = Data::zeros(wide, 0);
        for part in &param.parts {
            let (rows, cols) = as_matrix(&part.shape);
            let name = format!("{prefix}{}", part.name);
            whole.append(self.block(&name, &part.shape, (0..rows, 0..cols), wide)?);
        }
        Ok(whole)
    }

    /// Put whole parameters and their states in place, whose tensors' names begin with `start`.
    pub(crate) fn take_set<O: Ops>(
        &mut self,
        ops: &O,
        start: &str,
        params: &[ParamSpec],
        weights: &mut Weights<O>,
        optimizer: &mut Optimizer<O>,
    ) -> Result<()> {
        let wide = Precision::of_weights(ops)? == Precision::Double;
        let wide_float = Precision::of_accumulators(ops)? == Precision::Double;
        for (i, param) in params.iter().enumerate() {
            weights.0[i] = match self.param(param, start, wide)? {
                Data::F32(data) => ops.tensor(param.rows, param.cols, &data)?,
                Data::F64(data) => ops.tensor_f64(param.rows, param.cols, &data)?,
            };
            optimizer.restore(ops, i, &weights.0[i], |state| {
                let prefix = format!("{start}{}", prefix(state));
                self.param(param, &prefix, wide_float)
            })?;
        }
        Ok(())
    }

    fn piece(&mut self, piece: &Piece, wide: bool) -> Result<Vec<u8>> {
        if !self.open.contains_key(&piece.file) {
            let raw = Raw::open(&self.dir.join(&piece.file))?;
            self.open.insert(piece.file.clone(), raw);
        }
        let raw = self
            .open
            .get_mut(&piece.file)
            .expect("opened just now or before");
        let Some(info) = raw.metadata.info(&piece.name).cloned() else {
            return Err(raw.damaged(format!("{} is missing", piece.name)));
        };
        let len = (piece.rows[1] - piece.rows[0]) * (piece.cols[1] - piece.cols[0]);
        if info.shape.iter().product::<usize>() != len {
            return Err(raw.damaged(format!(
                "{} has another size than the index says",
                piece.name
            )));
        }
        if info.dtype != dtype(wide) {
            let (have, want) = (info.dtype, dtype(wide));
            let name = &piece.name;
            return Err(raw.damaged(format!(
                "{name} is {have:?}, this device computes in {want:?}"
            )));
        }
        let mut bytes = vec![0; info.data_offsets.1 - info.data_offsets.0];
        raw.read(&info, &mut bytes)?;
        Ok(bytes)
    }
}
