//! Writing model directories: all or nothing.
//!
//! Everything goes to a hidden directory beside the target, is synced, and gets its name by one rename. A reader sees
//! the old model or the new one, and a full disk leaves the old one.

use super::fp8::{self, Form};
use super::weights::INDEX;
use super::{Dtype, ModelFiles, Weights};
use crate::params::{ParamSpec, Part, params};
use crate::spec::ModelSpec;
use crate::{Error, Result};
use rayon::prelude::*;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Largest weight file unless told otherwise.
pub const DEFAULT_SHARD_BYTES: u64 = 5_000_000_000;

/// Write a whole model directory: `files` (with the dtype in `config.json` brought up to date) and the weights that
/// `read` gives, one parameter at a time and in canonical order. Tensors that the model's own directory keeps and the
/// network does not use are copied byte for byte. A model directory already there is replaced.
///
/// # Errors
/// The target holds something that is not a model's, a number does not fit `dtype`, the disk fails, or `read` does.
pub fn save_dir<E: From<Error>>(
    dir: &Path,
    spec: &ModelSpec,
    files: &ModelFiles,
    dtype: Dtype,
    shard_bytes: u64,
    read: impl FnMut(&ParamSpec) -> Result<Vec<f32>, E>,
) -> Result<(), E> {
    let staging = Staging::new(dir)?;
    for (name, bytes) in files.iter() {
        if name == "config.json" {
            staging.write(name, &config_with_dtype(files, bytes, dtype)?)?;
        } else {
            staging.write(name, bytes)?;
        }
    }
    let carried = files.carried_weights(spec)?;
    let shards = Shards::plan(spec, dtype.into(), shard_bytes, carried.as_ref())?;
    if shards.files.len() > 1 {
        staging.write(INDEX, format!("{:#}\n", shards.index()).as_bytes())?;
    }
    shards.write(&staging, spec, carried.as_ref(), read)?;
    Ok(staging.publish()?)
}

/// Write a directory with nothing but `*.safetensors`, which is what a server's weight update reads. A server that runs
/// the FP8 edition of a model is given those tensors in blocks.
///
/// # Errors
/// As [`save_dir`].
pub fn save_weights<E: From<Error>>(
    dir: &Path,
    spec: &ModelSpec,
    form: impl Into<Form>,
    shard_bytes: u64,
    read: impl FnMut(&ParamSpec) -> Result<Vec<f32>, E>,
) -> Result<(), E> {
    let staging = Staging::new(dir)?;
    Shards::plan(spec, form.into(), shard_bytes, None)?.write(&staging, spec, None, read)?;
    Ok(staging.publish()?)
}

/// The configuration byte for byte, unless it names another dtype. transformers 5 reads `dtype`, older ones
/// `torch_dtype`: where there is neither, both are written.
fn config_with_dtype(files: &ModelFiles, bytes: &[u8], dtype: Dtype) -> Result<Vec<u8>> {
    let Some(Value::Object(mut config)) = files.json("config.json")? else {
        return Ok(bytes.to_vec());
    };
    // What is written is whole, whatever it was read from.
    let was_quantised = config.shift_remove("quantization_config").is_some();
    let name = dtype.torch_name();
    let keys = ["dtype", "torch_dtype"];
    let present: Vec<&str> = keys
        .into_iter()
        .filter(|k| config.contains_key(*k))
        .collect();
    if !was_quantised && !present.is_empty() && present.iter().all(|k| config[*k] == name) {
        return Ok(bytes.to_vec());
    }
    for key in if present.is_empty() {
        keys.to_vec()
    } else {
        present
    } {
        config.insert(key.into(), name.into());
    }
    Ok(format!("{:#}\n", Value::Object(config)).into_bytes())
}

/// Which tensor goes into which file, and where.
struct Shards {
    form: Form,
    total_bytes: u64,
    files: Vec<Shard>,
    places: BTreeMap<String, Place>,
}

struct Shard {
    name: String,
    header: Vec<u8>,
}

#[derive(Clone, Copy)]
struct Place {
    shard: usize,
    offset: u64,
}

/// A tensor to be written.
struct Entry {
    name: String,
    dtype: String,
    shape: Vec<usize>,
    num_bytes: u64,
}

impl Entry {
    /// Bits of a number: `BF16`, `F8_E4M3`, `I64`; a `BOOL` takes a byte.
    fn width(&self) -> u32 {
        let digits = self.dtype.chars().skip_while(|c| !c.is_ascii_digit());
        let digits: String = digits.take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap_or(8)
    }
}

impl Shards {
    /// Tensors fill shards in the model's order, those that are only kept at the end; inside a file they lie as HF's writer
    /// puts them, the widest numbers first, so that each is aligned, and by name.
    fn plan(
        spec: &ModelSpec,
        form: Form,
        shard_bytes: u64,
        carried: Option<&Weights>,
    ) -> Result<Self> {
        let own = params(spec).into_iter().flat_map(|param| {
            let dtype = dtype_of(&param, form.dtype);
            let parts = param.parts.into_iter();
            parts
                .flat_map(|part| entries_of(part, dtype, &form))
                .collect::<Vec<_>>()
        });
        let mut entries: Vec<Entry> = own.collect();
        for (name, dtype, shape) in carried.map(|w| w.carried(spec)).unwrap_or_default() {
            let num_bytes = carried.map_or(Ok(0), |w| w.num_bytes(&name))?;
            entries.push(Entry {
                name,
                dtype,
                shape,
                num_bytes,
            });
        }
        let mut groups: Vec<Vec<Entry>> = vec![Vec::new()];
        let mut filled = 0;
        for entry in entries {
            if filled > 0 && filled + entry.num_bytes > shard_bytes {
                groups.push(Vec::new());
                filled = 0;
            }
            filled += entry.num_bytes;
            groups.last_mut().expect("never empty").push(entry);
        }
        let mut shards = Self {
            form,
            total_bytes: 0,
            files: Vec::new(),
            places: BTreeMap::new(),
        };
        let total = groups.len();
        for (shard, mut entries) in groups.into_iter().enumerate() {
            entries.sort_by(|a, b| (b.width(), &a.name).cmp(&(a.width(), &b.name)));
            let mut header = Map::from_iter([("__metadata__".into(), json!({"format": "pt"}))]);
            let mut offset = 0u64;
            for entry in entries {
                let end = offset + entry.num_bytes;
                let value = json!({"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [offset, end]});
                header.insert(entry.name.clone(), value);
                shards.places.insert(entry.name, Place { shard, offset });
                offset = end;
            }
            shards.total_bytes += offset;
            let mut header = Value::Object(header).to_string().into_bytes();
            header.resize(header.len().next_multiple_of(8), b' ');
            let name = match total {
                1 => "model.safetensors".into(),
                _ => format!("model-{:05}-of-{total:05}.safetensors", shard + 1),
            };
            let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
            bytes.append(&mut header);
            shards.files.push(Shard {
                name,
                header: bytes,
            });
        }
        for place in shards.places.values_mut() {
            place.offset += shards.files[place.shard].header.len() as u64;
        }
        Ok(shards)
    }

    fn index(&self) -> Value {
        let map: Map<String, Value> = self
            .places
            .iter()
            .map(|(name, p)| (name.clone(), self.files[p.shard].name.clone().into()))
            .collect();
        json!({"metadata": {"total_size": self.total_bytes}, "weight_map": map})
    }

    fn write<E: From<Error>>(
        &self,
        staging: &Staging,
        spec: &ModelSpec,
        carried: Option<&Weights>,
        mut read: impl FnMut(&ParamSpec) -> Result<Vec<f32>, E>,
    ) -> Result<(), E> {
        let mut open = Vec::with_capacity(self.files.len());
        for shard in &self.files {
            let path = staging.path(&shard.name);
            let mut file = File::create(&path).map_err(Error::io(&path))?;
            file.write_all(&shard.header).map_err(Error::io(&path))?;
            open.push((file, path));
        }
        for param in params(spec) {
            let data = read(&param)?;
            if data.len() != param.len() {
                let (name, rows, cols) = (&param.name, param.rows, param.cols);
                let detail = format!(
                    "{name}: expected {rows} × {cols} numbers, was given {}",
                    data.len()
                );
                return Err(Error::Input(detail).into());
            }
            let mut rest = data.as_slice();
            for part in &param.parts {
                let (numbers, after) = rest.split_at(part.len());
                rest = after;
                let name = &part.name;
                if fp8::grid(&part.shape).is_some() && self.form.blocks.contains(name) {
                    let (bytes, scales) = fp8::encode(name, numbers, part.shape[1])?;
                    self.put(&open, name, &bytes)?;
                    self.put(&open, &fp8::scales_of(name), bytemuck::cast_slice(&scales))?;
                } else {
                    let dtype = dtype_of(&param, self.form.dtype);
                    self.put_numbers(&open, name, numbers, dtype)?;
                }
            }
        }
        if let Some(weights) = carried {
            for (name, ..) in weights.carried(spec) {
                self.put(&open, &name, &weights.bytes_of(&name)?)?;
            }
        }
        for (file, path) in open {
            file.sync_all().map_err(Error::io(path))?;
        }
        Ok(())
    }

    fn put(&self, open: &[(File, PathBuf)], name: &str, bytes: &[u8]) -> Result<()> {
        let place = self.places[name];
        let (file, path) = &open[place.shard];
        file.write_all_at(bytes, place.offset)
            .map_err(Error::io(path))
    }

    /// On all cores: one alone rounded and wrote 1 GB a second into a tmpfs that takes more than twice that.
    fn put_numbers(
        &self,
        open: &[(File, PathBuf)],
        name: &str,
        numbers: &[f32],
        dtype: Dtype,
    ) -> Result<()> {
        let place = self.places[name];
        let (file, path) = &open[place.shard];
        let chunks = numbers.par_chunks(CHUNK).enumerate();
        chunks.try_for_each(|(index, chunk)| {
            let mut bytes = Vec::with_capacity(chunk.len() * dtype.bytes());
            dtype.encode(chunk, &mut bytes).map_err(|x| {
                let detail = format!("{name}: {x} does not fit {dtype:?}; save as bf16 or f32");
                Error::Input(detail)
            })?;
            let at = place.offset + (index * CHUNK * dtype.bytes()) as u64;
            file.write_all_at(&bytes, at).map_err(Error::io(path))
        })
    }
}

/// Numbers that one task turns into bytes and writes.
const CHUNK: usize = 1 << 19;

/// A tensor as it is stored, with its scales if it is in blocks.
fn entries_of(part: Part, dtype: Dtype, form: &Form) -> Vec<Entry> {
    let grid = fp8::grid(&part.shape).filter(|_| form.blocks.contains(&part.name));
    let Some([down, across]) = grid else {
        return vec![Entry {
            num_bytes: (part.len() * dtype.bytes()) as u64,
            name: part.name,
            dtype: dtype.safetensors_name().into(),
            shape: part.shape,
        }];
    };
    let scales = Entry {
        name: fp8::scales_of(&part.name),
        dtype: Dtype::F32.safetensors_name().into(),
        shape: vec![down, across],
        num_bytes: (4 * down * across) as u64,
    };
    let bytes = Entry {
        num_bytes: part.len() as u64,
        name: part.name,
        dtype: fp8::NAME.into(),
        shape: part.shape,
    };
    vec![bytes, scales]
}

/// What a parameter is stored as in a model of `dtype`.
pub fn dtype_of(param: &ParamSpec, dtype: Dtype) -> Dtype {
    if param.kind.is_f32() {
        Dtype::F32
    } else {
        dtype
    }
}

/// A hidden directory that becomes `target`, or vanishes.
struct Staging {
    target: PathBuf,
    dir: PathBuf,
    old: PathBuf,
}

impl Staging {
    fn new(target: &Path) -> Result<Self> {
        let Some(name) = target.file_name() else {
            return Err(Error::file(
                target,
                "cannot be replaced; give a directory name to write to",
            ));
        };
        refuse_foreign_files(target)?;
        let beside =
            |suffix: &str| target.with_file_name(format!(".{}.{suffix}", name.to_string_lossy()));
        let staging = Self {
            target: target.to_owned(),
            dir: beside("partial"),
            old: beside("old"),
        };
        if staging.dir.exists() {
            fs::remove_dir_all(&staging.dir).map_err(Error::io(&staging.dir))?;
        }
        fs::create_dir_all(&staging.dir).map_err(Error::io(&staging.dir))?;
        Ok(staging)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let path = self.path(name);
        let write = |path: &Path| {
            let mut file = File::create(path)?;
            file.write_all(bytes)?;
            file.sync_all()
        };
        write(&path).map_err(Error::io(path))
    }

    fn publish(self) -> Result<()> {
        sync_dir(&self.dir)?;
        if self.target.exists() {
            if self.old.exists() {
                fs::remove_dir_all(&self.old).map_err(Error::io(&self.old))?;
            }
            fs::rename(&self.target, &self.old).map_err(Error::io(&self.target))?;
        }
        fs::rename(&self.dir, &self.target).map_err(Error::io(&self.target))?;
        if let Some(parent) = self.target.parent().filter(|p| !p.as_os_str().is_empty()) {
            sync_dir(parent)?;
        }
        if self.old.exists() {
            fs::remove_dir_all(&self.old).map_err(Error::io(&self.old))?;
        }
        Ok(())
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if self.dir.exists() && fs::remove_dir_all(&self.dir).is_err() {
            tracing::warn!(dir = %self.dir.display(), "an unfinished export could not be removed");
        }
    }
}

fn sync_dir(dir: &Path) -> Result<()> {
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(Error::io(dir))
}

/// Replacing a directory deletes what is in it, so only a model's own files may be there.
fn refuse_foreign_files(dir: &Path) -> Result<()> {
    if !dir.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(dir).map_err(Error::io(dir))? {
        let name = entry
            .map_err(Error::io(dir))?
            .file_name()
            .to_string_lossy()
            .into_owned();
        if !(name.ends_with(".safetensors")
            || name == INDEX
            || ModelFiles::NAMES.contains(&name.as_str()))
        {
            return Err(Error::file(
                dir,
                format!(
                    "holds {name}, which saving a model would delete; choose another directory"
                ),
            ));
        }
    }
    Ok(())
}
