//! Parameters as safetensors: a few tensors in memory at a time, names and shapes those of the HF tensors that a
//! parameter is made of, f32 or f64.
//!
//! A parameter's parts lie end to end in it, so its bytes are written as they are and only the header knows of parts.
//! What ranks write is named piece by piece instead: [`write_pieces`], read by [`super::pieces`].

use crate::{Error, Result};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use slime_model::ParamSpec;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;

/// A parameter's elements.
pub(crate) enum Data {
    /// Single precision.
    F32(Vec<f32>),
    /// Double precision.
    F64(Vec<f64>),
}

impl Data {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::F32(data) => bytemuck::cast_slice(data),
            Self::F64(data) => bytemuck::cast_slice(data),
        }
    }

    pub(crate) fn zeros(wide: bool, len: usize) -> Self {
        if wide {
            Self::F64(vec![0.0; len])
        } else {
            Self::F32(vec![0.0; len])
        }
    }

    /// Put another's elements, of the same precision, after these.
    pub(crate) fn append(&mut self, more: Self) {
        match (self, more) {
            (Self::F32(data), Self::F32(more)) => data.extend(more),
            (Self::F64(data), Self::F64(more)) => data.extend(more),
            _ => unreachable!("a checkpoint's reader asks for one precision"),
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::F32(data) => bytemuck::cast_slice_mut(data),
            Self::F64(data) => bytemuck::cast_slice_mut(data),
        }
    }
}

pub(crate) fn dtype(wide: bool) -> Dtype {
    if wide { Dtype::F64 } else { Dtype::F32 }
}

/// Write every parameter once for each prefix, and sync. `read(set, index)` gives parameter `index` under prefix `set`.
pub(super) fn write(
    path: &Path,
    params: &[ParamSpec],
    prefixes: &[&str],
    wide: bool,
    mut read: impl FnMut(usize, usize) -> Result<Data>,
) -> Result<()> {
    let element_bytes = if wide { 8 } else { 4 };
    let mut at = 0;
    let mut entries = Vec::new();
    for prefix in prefixes {
        for part in params.iter().flat_map(|p| &p.parts) {
            let end = at + part.len() * element_bytes;
            let info = TensorInfo {
                dtype: dtype(wide),
                shape: part.shape.clone(),
                data_offsets: (at, end),
            };
            entries.push((format!("{prefix}{}", part.name), info));
            at = end;
        }
    }
    let each = (0..prefixes.len()).flat_map(|set| (0..params.len()).map(move |i| (set, i)));
    write_file(path, entries, each.map(|(set, i)| read(set, i)))
}

/// Write tensors of any names and shapes, all of one precision, and sync.
pub(crate) fn write_pieces(
    path: &Path,
    pieces: &[(String, Vec<usize>)],
    wide: bool,
    read: impl FnMut(usize) -> Result<Data>,
) -> Result<()> {
    let mut at = 0;
    let entry = |(name, shape): &(String, Vec<usize>)| {
        let start = at;
        at += shape.iter().product::<usize>() * if wide { 8 } else { 4 };
        let info = TensorInfo {
            dtype: dtype(wide),
            shape: shape.clone(),
            data_offsets: (start, at),
        };
        (name.clone(), info)
    };
    let entries = pieces.iter().map(entry).collect();
    write_file(path, entries, (0..pieces.len()).map(read))
}

/// A whole file. The next tensor is read while one is written.
fn write_file(
    path: &Path,
    entries: Vec<(String, TensorInfo)>,
    tensors: impl Iterator<Item = Result<Data>>,
) -> Result<()> {
    let damaged = |e: String| Error::Checkpoint {
        path: path.to_owned(),
        detail: e,
    };
    let metadata = Metadata::new(None, entries).map_err(|e| damaged(e.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| damaged(e.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = File::create(path).map_err(Error::io(path))?;
    let (sender, coming) = sync_channel::<Data>(1);
    std::thread::scope(|scope| {
        let writing = scope.spawn(move || {
            file.write_all(&(header.len() as u64).to_le_bytes())?;
            file.write_all(&header)?;
            for data in coming {
                file.write_all(data.bytes())?;
            }
            file.sync_all()
        });
        for data in tensors {
            // Where nobody listens any more, the writer says why.
            if sender.send(data?).is_err() {
                break;
            }
        }
        drop(sender);
        let written = writing.join();
        written
            .expect("a writer never panics")
            .map_err(Error::io(path))
    })
}

/// A safetensors file, its header read and its length checked.
pub(super) struct Raw {
    path: PathBuf,
    file: File,
    /// What it holds.
    pub(super) metadata: Metadata,
    data_start: u64,
}

impl Raw {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let io = |e| Error::io(path)(e);
        let damaged = |detail: String| Error::Checkpoint {
            path: path.to_owned(),
            detail,
        };
        let mut file = File::open(path).map_err(io)?;
        let num_bytes = file.metadata().map_err(io)?.len();
        let mut size = [0; 8];
        file.read_exact(&mut size).map_err(io)?;
        let header_bytes = u64::from_le_bytes(size);
        if header_bytes > num_bytes.saturating_sub(8) {
            return Err(damaged("is truncated, or not safetensors".into()));
        }
        let mut header = vec![0; header_bytes as usize];
        file.read_exact(&mut header).map_err(io)?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|e| damaged(format!("has a damaged header: {e}")))?;
        let needed = 8 + header_bytes + metadata.data_len() as u64;
        if needed != num_bytes {
            return Err(damaged(format!(
                "has {num_bytes} bytes, its header describes {needed}: it is truncated"
            )));
        }
        Ok(Self {
            path: path.to_owned(),
            file,
            metadata,
            data_start: 8 + header_bytes,
        })
    }

    /// The bytes of a tensor, into `to`, which is as long.
    pub(super) fn read(&mut self, info: &TensorInfo, to: &mut [u8]) -> Result<()> {
        self.file
            .seek(SeekFrom::Start(
                self.data_start + info.data_offsets.0 as u64,
            ))
            .and_then(|_| self.file.read_exact(to))
            .map_err(Error::io(&self.path))
    }

    pub(super) fn damaged(&self, detail: String) -> Error {
        Error::Checkpoint {
            path: self.path.clone(),
            detail,
        }
    }
}

/// A file of parameters, checked against the parameters it must hold.
pub(super) struct Reader {
    raw: Raw,
    wide: bool,
}

impl Reader {
    pub(super) fn open(
        path: &Path,
        params: &[ParamSpec],
        prefixes: &[&str],
        wide: bool,
    ) -> Result<Self> {
        let raw = Raw::open(path)?;
        for prefix in prefixes {
            for part in params.iter().flat_map(|p| &p.parts) {
                let name = format!("{prefix}{}", part.name);
                match raw.metadata.info(&name) {
                    None => return Err(raw.damaged(format!("{name} is missing"))),
                    Some(info) if info.shape != part.shape => {
                        return Err(raw.damaged(format!(
                            "{name} is {:?}, the model wants {:?}",
                            info.shape, part.shape
                        )));
                    }
                    Some(info) if info.dtype != dtype(wide) => {
                        let (have, want) = (info.dtype, dtype(wide));
                        return Err(raw.damaged(format!(
                            "{name} is {have:?}, this device computes in {want:?}"
                        )));
                    }
                    Some(_) => {}
                }
            }
        }
        Ok(Self { raw, wide })
    }

    pub(super) fn read(&mut self, param: &ParamSpec, prefix: &str) -> Result<Data> {
        let mut data = Data::zeros(self.wide, param.len());
        let mut rest = data.bytes_mut();
        for part in &param.parts {
            let name = format!("{prefix}{}", part.name);
            let info = self.raw.metadata.info(&name);
            let info = info.expect("open found every part").clone();
            let (own, after) = rest.split_at_mut(info.data_offsets.1 - info.data_offsets.0);
            self.raw.read(&info, own)?;
            rest = after;
        }
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_that_cannot_be_read_and_a_file_that_cannot_be_written_end_the_save() {
        let dir = tempfile::tempdir().unwrap();
        let pieces: Vec<_> = (0..9).map(|i| (format!("t{i}"), vec![1000])).collect();
        let fails = |index| match index {
            4 => Err(Error::Ranks("gone".into())),
            _ => Ok(Data::zeros(false, 1000)),
        };
        let failed = write_pieces(&dir.path().join("a"), &pieces, false, fails);
        assert!(matches!(failed, Err(Error::Ranks(_))), "{failed:?}");
        let full = Path::new("/dev/full");
        if full.exists() {
            let failed = write_pieces(full, &pieces, false, |_| Ok(Data::zeros(false, 1000)));
            assert!(failed.is_err(), "a full disk is said");
        }
    }
}
