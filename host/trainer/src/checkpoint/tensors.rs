//! Parameters as safetensors: a few tensors in memory at a time, names and shapes those of the HF tensors that a
//! parameter is made of, f32 or f64.
//!
//! A parameter's parts lie end to end in it, so its bytes are written as they are and only the header knows of parts.
//! What ranks write is named piece by piece instead: [`write_files`], read by [`super::pieces`].

use crate::{Error, Result};
use safetensors::tensor::{Dtype, Metadata, TensorInfo};
use slime_model::{ParamSpec, Part};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{SyncSender, sync_channel};

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

/// A file takes 1 to 2 GB a second, whatever disk it is on: what is larger than this goes to several at once.
const FILE_BYTES: usize = 4 << 30;
const MOST_FILES: usize = 4;

/// The files that stand for `path` when there are `of`: itself, or as HF numbers them.
fn numbered(path: &Path, of: usize) -> Vec<PathBuf> {
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let name = |i| path.with_file_name(format!("{stem}-{i:05}-of-{of:05}.safetensors"));
    match of {
        0 | 1 => vec![path.to_owned()],
        _ => (1..=of).map(name).collect(),
    }
}

/// The files that were written for `path`; itself where there are none.
pub(super) fn found(path: &Path) -> Vec<PathBuf> {
    let counts = (2..=MOST_FILES).map(|of| numbered(path, of));
    let mut all = counts.filter(|files| files[0].exists() && !path.exists());
    all.next().unwrap_or_else(|| vec![path.to_owned()])
}

/// A tensor's name and shape.
pub(crate) type Named = (String, Vec<usize>);

/// Tensors on their way to their files.
pub(crate) struct Writer {
    files: Vec<SyncSender<(usize, Data)>>,
}

impl Writer {
    /// What was announced as number `index` → whether there is still a file to write it to; where there is not,
    /// [`write_files`] says why in the end.
    pub(crate) fn put(&self, index: usize, data: Data) -> bool {
        let of = self.files.len();
        self.files[index % of].send((index / of, data)).is_ok()
    }
}

/// Write every parameter once for each prefix, and sync. `read(set, index)` gives parameter `index` under prefix `set`.
pub(super) fn write(
    path: &Path,
    params: &[ParamSpec],
    prefixes: &[&str],
    wide: bool,
    mut read: impl FnMut(usize, usize) -> Result<Data>,
) -> Result<()> {
    let of_prefix = |prefix| {
        let part = move |part: &Part| (format!("{prefix}{}", part.name), part.shape.clone());
        params
            .iter()
            .map(move |p| p.parts.iter().map(part).collect())
    };
    let announced: Vec<Vec<Named>> = prefixes.iter().flat_map(of_prefix).collect();
    write_files(path, &announced, wide, |writer| {
        for index in 0..announced.len() {
            let data = read(index / params.len(), index % params.len())?;
            if !writer.put(index, data) {
                break;
            }
        }
        Ok(())
    })
    .map(drop)
}

/// Write tensors of any names and shapes, all of one precision, to as many files as are worth it, and sync → the file of each
/// announced. `announced[i]` lie end to end in what `feed` puts as number `i`, in any order; each file is written by a thread
/// of its own while the next tensor is read.
pub(crate) fn write_files(
    path: &Path,
    announced: &[Vec<Named>],
    wide: bool,
    feed: impl FnOnce(&Writer) -> Result<()>,
) -> Result<Vec<PathBuf>> {
    let elements = |(_, shape): &Named| shape.iter().product::<usize>();
    let total: usize = announced.iter().flatten().map(elements).sum();
    let bytes = total * if wide { 8 } else { 4 };
    let of = (bytes / FILE_BYTES).clamp(1, MOST_FILES);
    write_numbered(&numbered(path, of), announced, wide, feed)
}

fn write_numbered(
    paths: &[PathBuf],
    announced: &[Vec<Named>],
    wide: bool,
    feed: impl FnOnce(&Writer) -> Result<()>,
) -> Result<Vec<PathBuf>> {
    let of = paths.len();
    std::thread::scope(|scope| {
        let (mut files, mut writing) = (Vec::new(), Vec::new());
        for (number, path) in paths.iter().enumerate() {
            let own: Vec<&[Named]> = announced
                .iter()
                .skip(number)
                .step_by(of)
                .map(|n| &n[..])
                .collect();
            let (mut file, starts) = begin(path, &own, wide)?;
            let (sender, coming) = sync_channel::<(usize, Data)>(1);
            files.push(sender);
            writing.push(scope.spawn(move || {
                let mut missing = starts.len();
                for (index, data) in coming {
                    file.seek(SeekFrom::Start(starts[index]))?;
                    file.write_all(data.bytes())?;
                    missing -= 1;
                }
                file.sync_all()?;
                Ok(missing)
            }));
        }
        let fed = feed(&Writer { files });
        let written: Vec<_> = writing.into_iter().map(|thread| thread.join()).collect();
        fed?;
        for (written, path) in written.into_iter().zip(paths) {
            let written = written.expect("a writer never panics");
            let missing = written.map_err(Error::io(path))?;
            assert_eq!(missing, 0, "tensors of {} were never put", path.display());
        }
        Ok((0..announced.len())
            .map(|i| paths[i % of].clone())
            .collect())
    })
}

/// A file with its header → where what is put there begins.
fn begin(path: &Path, announced: &[&[Named]], wide: bool) -> Result<(File, Vec<u64>)> {
    let damaged = |e: String| Error::Checkpoint {
        path: path.to_owned(),
        detail: e,
    };
    let (mut at, mut starts, mut entries) = (0, Vec::new(), Vec::new());
    for tensors in announced {
        starts.push(at as u64);
        for (name, shape) in *tensors {
            let end = at + shape.iter().product::<usize>() * if wide { 8 } else { 4 };
            let info = TensorInfo {
                dtype: dtype(wide),
                shape: shape.clone(),
                data_offsets: (at, end),
            };
            entries.push((name.clone(), info));
            at = end;
        }
    }
    let metadata = Metadata::new(None, entries).map_err(|e| damaged(e.to_string()))?;
    let mut header = serde_json::to_vec(&metadata).map_err(|e| damaged(e.to_string()))?;
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut file = File::create(path).map_err(Error::io(path))?;
    file.write_all(&(header.len() as u64).to_le_bytes())
        .and_then(|()| file.write_all(&header))
        .map_err(Error::io(path))?;
    let data_start = 8 + header.len() as u64;
    starts.iter_mut().for_each(|start| *start += data_start);
    Ok((file, starts))
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

/// Files of parameters, checked against the parameters they must hold.
pub(super) struct Reader {
    files: Vec<Raw>,
    wide: bool,
}

impl Reader {
    pub(super) fn open(
        path: &Path,
        params: &[ParamSpec],
        prefixes: &[&str],
        wide: bool,
    ) -> Result<Self> {
        let files = found(path);
        let files = files.iter().map(|path| Raw::open(path));
        let mut reader = Self {
            files: files.collect::<Result<_>>()?,
            wide,
        };
        for prefix in prefixes {
            for part in params.iter().flat_map(|p| &p.parts) {
                let name = format!("{prefix}{}", part.name);
                let Some((raw, info)) = reader.tensor(&name) else {
                    return Err(reader.files[0].damaged(format!("{name} is missing")));
                };
                if info.shape != part.shape {
                    let detail = format!(
                        "{name} is {:?}, the model wants {:?}",
                        info.shape, part.shape
                    );
                    return Err(raw.damaged(detail));
                }
                if info.dtype != dtype(wide) {
                    let (have, want) = (info.dtype, dtype(wide));
                    return Err(raw.damaged(format!(
                        "{name} is {have:?}, this device computes in {want:?}"
                    )));
                }
            }
        }
        Ok(reader)
    }

    fn tensor(&mut self, name: &str) -> Option<(&mut Raw, TensorInfo)> {
        let of_file = |raw: &Raw| raw.metadata.info(name).cloned();
        let at = self.files.iter().position(|raw| of_file(raw).is_some())?;
        let info = of_file(&self.files[at])?;
        Some((&mut self.files[at], info))
    }

    pub(super) fn read(&mut self, param: &ParamSpec, prefix: &str) -> Result<Data> {
        let mut data = Data::zeros(self.wide, param.len());
        let mut rest = data.bytes_mut();
        for part in &param.parts {
            let found = self.tensor(&format!("{prefix}{}", part.name));
            let (raw, info) = found.expect("open found every part");
            let (own, after) = rest.split_at_mut(info.data_offsets.1 - info.data_offsets.0);
            raw.read(&info, own)?;
            rest = after;
        }
        Ok(data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn announced(count: usize) -> Vec<Vec<Named>> {
        (0..count)
            .map(|i| vec![(format!("t{i}"), vec![1000])])
            .collect()
    }

    fn filled(value: usize) -> Data {
        Data::F32(vec![value as f32; 1000])
    }

    #[test]
    fn a_tensor_that_cannot_be_read_and_a_file_that_cannot_be_written_end_the_save() {
        let dir = tempfile::tempdir().unwrap();
        let tensors = announced(9);
        let failed = write_files(&dir.path().join("a"), &tensors, false, |writer| {
            writer.put(0, filled(0));
            Err(Error::Ranks("gone".into()))
        });
        assert!(matches!(failed, Err(Error::Ranks(_))), "{failed:?}");
        let full = Path::new("/dev/full");
        if full.exists() {
            let failed = write_files(full, &tensors, false, |writer| {
                let _ = (0..9).all(|i| writer.put(i, filled(i)));
                Ok(())
            });
            assert!(failed.is_err(), "a full disk is said");
        }
    }

    #[test]
    fn several_files_written_in_any_order_are_found_by_the_name_of_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("optimizer.safetensors");
        let tensors = announced(8);
        let paths = numbered(&path, 3);
        let files = write_numbered(&paths, &tensors, false, |writer| {
            (0..8).rev().for_each(|i| assert!(writer.put(i, filled(i))));
            Ok(())
        });
        assert_eq!(files.unwrap()[4], paths[1]);
        assert_eq!(found(&path), paths);
        for (number, path) in paths.iter().enumerate() {
            let bytes = std::fs::read(path).unwrap();
            let file = safetensors::SafeTensors::deserialize(&bytes).unwrap();
            for i in (number..8).step_by(3) {
                let values = file.tensor(&format!("t{i}")).unwrap();
                let values: &[f32] = bytemuck::cast_slice(values.data());
                assert!(values.iter().all(|v| *v == i as f32), "tensor {i}");
            }
        }
        std::fs::write(&path, "").unwrap();
        assert_eq!(found(&path), [path]);
    }
}
