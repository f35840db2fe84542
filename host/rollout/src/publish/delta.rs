//! Only what changed between two versions: the exclusive or of their bytes, packed.
//!
//! A small step leaves most numbers of 16 bits as they were, so the difference is mostly zeros. Bytes of one place in
//! a number are put side by side before packing, because it is the low ones that change. Every tensor carries the
//! checksum of what must come out; anything else is an error, and the reader falls back to the whole version. The
//! file is `u64` length of a JSON header, the header, then the packed tensors in its order.

use super::check::{Manifest, Tensor, element_bytes};
use crate::RolloutError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::path::Path;

const FORMAT: &str = "slime-delta-1";
/// Fast: what is packed is nearly all zeros.
const LEVEL: i32 = 1;

#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    tensors: Vec<Packed>,
}

#[derive(Serialize, Deserialize)]
struct Packed {
    name: String,
    num_bytes: u64,
    packed_bytes: u64,
    sha256: String,
}

/// What a delta saves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaSize {
    /// Bytes of the delta.
    pub packed_bytes: u64,
    /// Bytes of the whole version.
    pub num_bytes: u64,
}

/// Write what turns `base` into `next` to `out`.
///
/// # Errors
/// The two hold other tensors, or a disk refuses.
pub fn encode(base: &Manifest, next: &Manifest, out: &Path) -> Result<DeltaSize, RolloutError> {
    let bad = |e: io::Error| failed(out, &e);
    let before: BTreeMap<&str, &Tensor> = by_name(base);
    let mut header = Header {
        format: FORMAT.into(),
        tensors: Vec::new(),
    };
    let body = out.with_extension("body");
    let mut packed = BufWriter::new(File::create(&body).map_err(bad)?);
    for tensor in next.in_order() {
        let other = before
            .get(tensor.name.as_str())
            .filter(|other| (&other.dtype, &other.shape) == (&tensor.dtype, &tensor.shape));
        let other = other.ok_or_else(|| {
            failed(
                out,
                &io::Error::other(format!("`{}` is not in the version before", tensor.name)),
            )
        })?;
        let new = read(tensor).map_err(bad)?;
        let old = read(other).map_err(bad)?;
        let planes = planes(&new, &old, width(tensor));
        let bytes = zstd::bulk::compress(&planes, LEVEL).map_err(bad)?;
        packed.write_all(&bytes).map_err(bad)?;
        header.tensors.push(Packed {
            name: tensor.name.clone(),
            num_bytes: tensor.num_bytes(),
            packed_bytes: bytes.len() as u64,
            sha256: hex(&new),
        });
    }
    packed.flush().map_err(bad)?;
    let write = || -> io::Result<u64> {
        let header = serde_json::to_vec(&header)?;
        let half = out.with_extension("writing");
        let mut file = File::create(&half)?;
        file.write_all(&(header.len() as u64).to_le_bytes())?;
        file.write_all(&header)?;
        let copied = io::copy(&mut File::open(&body)?, &mut file)?;
        file.sync_all()?;
        std::fs::remove_file(&body)?;
        std::fs::rename(&half, out)?;
        Ok(8 + header.len() as u64 + copied)
    };
    Ok(DeltaSize {
        packed_bytes: write().map_err(bad)?,
        num_bytes: next.num_bytes(),
    })
}

/// Write `base` with `delta` applied into the directory `into`, file by file as `base` has them.
///
/// # Errors
/// A delta of other tensors, one that is damaged, or whose result has another checksum; a disk that refuses. `into`
/// then holds nothing that may be used.
pub fn apply(base: &Manifest, delta: &Path, into: &Path) -> Result<(), RolloutError> {
    let bad = |e: io::Error| failed(delta, &e);
    let mut file = File::open(delta).map_err(bad)?;
    let mut len = [0; 8];
    file.read_exact(&mut len).map_err(bad)?;
    let len = u64::from_le_bytes(len);
    if len > file.metadata().map_err(bad)?.len() {
        return Err(bad(io::Error::other("it is cut short")));
    }
    let mut text = vec![0; len as usize];
    file.read_exact(&mut text).map_err(bad)?;
    let header: Header = serde_json::from_slice(&text).map_err(|e| bad(e.into()))?;
    if header.format != FORMAT {
        return Err(bad(io::Error::other(format!(
            "it is `{}`, not {FORMAT}",
            header.format
        ))));
    }
    let before = by_name(base);
    if before.len() != header.tensors.len() {
        return Err(bad(io::Error::other("it is of another model")));
    }
    std::fs::create_dir_all(into).map_err(bad)?;
    let mut outputs: BTreeMap<&Path, File> = BTreeMap::new();
    for packed in &header.tensors {
        let Some(tensor) = before
            .get(packed.name.as_str())
            .filter(|t| t.num_bytes() == packed.num_bytes)
        else {
            return Err(bad(io::Error::other(format!(
                "`{}` is of another model",
                packed.name
            ))));
        };
        let mut bytes = vec![0; packed.packed_bytes as usize];
        file.read_exact(&mut bytes).map_err(bad)?;
        let planes = zstd::bulk::decompress(&bytes, packed.num_bytes as usize).map_err(bad)?;
        let mut data = read(tensor).map_err(bad)?;
        apply_planes(&mut data, &planes, width(tensor));
        if hex(&data) != packed.sha256 {
            return Err(bad(io::Error::other(format!(
                "`{}` comes out with another checksum",
                packed.name
            ))));
        }
        let output = match outputs.entry(&tensor.file) {
            std::collections::btree_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::btree_map::Entry::Vacant(entry) => {
                entry.insert(with_header(&tensor.file, into).map_err(bad)?)
            }
        };
        output.seek(SeekFrom::Start(tensor.start)).map_err(bad)?;
        output.write_all(&data).map_err(bad)?;
    }
    for output in outputs.into_values() {
        output.sync_all().map_err(bad)?;
    }
    Ok(())
}

/// A new file that begins as `source` does: with its header.
fn with_header(source: &Path, into: &Path) -> io::Result<File> {
    let name = source
        .file_name()
        .ok_or_else(|| io::Error::other("a file without a name"))?;
    let mut from = File::open(source)?;
    let mut len = [0; 8];
    from.read_exact(&mut len)?;
    let mut out = File::create(into.join(name))?;
    out.write_all(&len)?;
    io::copy(&mut from.take(u64::from_le_bytes(len)), &mut out)?;
    Ok(out)
}

fn by_name(manifest: &Manifest) -> BTreeMap<&str, &Tensor> {
    manifest
        .in_order()
        .iter()
        .map(|t| (t.name.as_str(), t))
        .collect()
}

fn width(tensor: &Tensor) -> usize {
    element_bytes(&tensor.dtype).unwrap_or(1) as usize
}

fn read(tensor: &Tensor) -> io::Result<Vec<u8>> {
    let mut file = File::open(&tensor.file)?;
    file.seek(SeekFrom::Start(tensor.start))?;
    let mut bytes = vec![0; tensor.num_bytes() as usize];
    file.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// `a ^ b`, first the first byte of every number, then the second.
fn planes(a: &[u8], b: &[u8], width: usize) -> Vec<u8> {
    let count = a.len() / width;
    let mut out = vec![0; a.len()];
    for (place, plane) in out.chunks_exact_mut(count.max(1)).enumerate() {
        for (i, byte) in plane.iter_mut().enumerate() {
            *byte = a[i * width + place] ^ b[i * width + place];
        }
    }
    out
}

fn apply_planes(data: &mut [u8], planes: &[u8], width: usize) {
    let count = data.len() / width;
    for (place, plane) in planes.chunks_exact(count.max(1)).enumerate() {
        for (i, byte) in plane.iter().enumerate() {
            data[i * width + place] ^= byte;
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect()
}

fn failed(path: &Path, error: &io::Error) -> RolloutError {
    RolloutError::File {
        path: path.to_path_buf(),
        reason: format!("this delta cannot be used: {error}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;
    use std::path::PathBuf;

    /// A directory with one bf16 tensor of these values and one f32 tensor.
    fn version(root: &Path, name: &str, values: &[f32]) -> PathBuf {
        let data: Vec<u8> = values
            .iter()
            .flat_map(|&x| bf16::from_f32(x).to_le_bytes())
            .collect();
        let n = values.len();
        let header = format!(
            r#"{{"a":{{"dtype":"BF16","shape":[{n}],"data_offsets":[0,{}]}},"b":{{"dtype":"F32","shape":[2],"data_offsets":[{},{}]}}}}"#,
            2 * n,
            2 * n,
            2 * n + 8
        );
        let dir = root.join(name);
        std::fs::create_dir(&dir).unwrap();
        let bytes = [
            &(header.len() as u64).to_le_bytes()[..],
            header.as_bytes(),
            &data,
            &values[0].to_le_bytes(),
            &[0; 4],
        ]
        .concat();
        std::fs::write(dir.join("model.safetensors"), bytes).unwrap();
        dir
    }

    #[test]
    fn a_small_step_is_a_small_delta_and_comes_out_bit_for_bit() {
        let root = tempfile::tempdir().unwrap();
        let old: Vec<f32> = (0..50_000)
            .map(|i| ((i * 7919) % 1000) as f32 * 1e-4 - 0.05)
            .collect();
        // As Adam at a learning rate of 1e-6 moves them: few cross a step of bf16.
        let new: Vec<f32> = old
            .iter()
            .enumerate()
            .map(|(i, x)| x + if i % 2 == 0 { 1e-6 } else { -1e-6 })
            .collect();
        let (a, b) = (
            version(root.path(), "a", &old),
            version(root.path(), "b", &new),
        );
        let (base, next) = (Manifest::read(&a).unwrap(), Manifest::read(&b).unwrap());
        let delta = root.path().join("delta.bin");
        let size = encode(&base, &next, &delta).unwrap();
        assert_eq!(size.num_bytes, 100_008);
        assert!(size.packed_bytes * 4 < size.num_bytes, "{size:?}");
        assert_eq!(std::fs::metadata(&delta).unwrap().len(), size.packed_bytes);
        let into = root.path().join("c");
        apply(&base, &delta, &into).unwrap();
        let file = |dir: &Path| std::fs::read(dir.join("model.safetensors")).unwrap();
        assert_eq!(file(&into), file(&b));
        assert_ne!(file(&into), file(&a));
    }

    #[test]
    fn a_delta_on_other_weights_or_with_damage_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let a = Manifest::read(&version(root.path(), "a", &[1.0, 2.0, 3.0])).unwrap();
        let b = Manifest::read(&version(root.path(), "b", &[1.0, 2.5, 3.0])).unwrap();
        let other = Manifest::read(&version(root.path(), "o", &[9.0, 2.0, 3.0])).unwrap();
        let longer = Manifest::read(&version(root.path(), "l", &[1.0, 2.0, 3.0, 4.0])).unwrap();
        let delta = root.path().join("delta.bin");
        encode(&a, &b, &delta).unwrap();
        let error = |base: &Manifest, delta: &Path| {
            apply(base, delta, &root.path().join("out"))
                .unwrap_err()
                .to_string()
        };
        assert!(error(&other, &delta).contains("another checksum"));
        assert!(error(&longer, &delta).contains("another model"));
        assert!(encode(&a, &longer, &root.path().join("x")).is_err());
        let mut bytes = std::fs::read(&delta).unwrap();
        bytes.truncate(bytes.len() - 3);
        std::fs::write(&delta, &bytes).unwrap();
        assert!(error(&a, &delta).contains("cannot be used"));
    }
}
