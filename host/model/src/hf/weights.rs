//! Reading safetensors: one file or shards with an index, one tensor in memory at a time.
//!
//! Tensors are read, not mapped: a file that another process truncates is then an error and not a dead process.

use super::{Dtype, fp8};
use crate::params::{ParamKind, ParamSpec, Part, params};
use crate::spec::ModelSpec;
use crate::{Error, Result};
use safetensors::tensor::Metadata;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

pub(super) const INDEX: &str = "model.safetensors.index.json";

/// The weight files of a model directory, opened and checked but not read.
#[derive(Debug)]
pub struct Weights {
    dir: PathBuf,
    files: Vec<String>,
    tensors: BTreeMap<String, Stored>,
}

/// Where a tensor lies.
#[derive(Clone, Debug)]
struct Stored {
    file: usize,
    dtype: String,
    shape: Vec<usize>,
    start: u64,
    num_bytes: u64,
}

impl Stored {
    fn dtype(&self) -> Option<Dtype> {
        Dtype::ALL
            .into_iter()
            .find(|d| d.safetensors_name() == self.dtype)
    }

    fn numbers(&self, bytes: &[u8], out: &mut Vec<f32>) {
        self.dtype().unwrap_or(Dtype::F32).decode(bytes, out);
    }

    fn is_blocks(&self) -> bool {
        self.dtype == fp8::NAME
    }
}

impl Weights {
    /// The weights in `dir`: `model.safetensors`, else the shards of the index, else every `*.safetensors`.
    ///
    /// # Errors
    /// There are none, a shard is missing, or a file is damaged.
    pub fn open(dir: &Path) -> Result<Self> {
        let mut weights = Self {
            dir: dir.to_owned(),
            files: find(dir)?,
            tensors: BTreeMap::new(),
        };
        let mut problems = Vec::new();
        for file in 0..weights.files.len() {
            if let Err(detail) = weights.read_header(file) {
                problems.push(format!("{}: {detail}", weights.files[file]));
            }
        }
        if problems.is_empty() {
            Ok(weights)
        } else {
            Err(Error::Weights {
                dir: weights.dir,
                problems,
            })
        }
    }

    /// The directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// The format of the first tensor; exports keep it unless told otherwise.
    pub fn dtype(&self) -> Option<Dtype> {
        self.tensors.values().find_map(Stored::dtype)
    }

    /// Every parameter of `spec`, in canonical order, one at a time: `each` gets its elements, `[rows × cols]`.
    ///
    /// # Errors
    /// All that does not fit `spec`, at once and before anything is read; or a read fails; or `each` does.
    pub fn load_params<E: From<Error>>(
        &self,
        spec: &ModelSpec,
        mut each: impl FnMut(&ParamSpec, Vec<f32>) -> Result<(), E>,
    ) -> Result<(), E> {
        let params = params(spec);
        self.check(spec, &params)?;
        let mut open = BTreeMap::new();
        for param in &params {
            let mut data = Vec::with_capacity(param.len());
            for part in &param.parts {
                let stored = &self.tensors[&part.name];
                let bytes = self.read(stored, &mut open)?;
                if stored.is_blocks() {
                    let scales = self.stored(&fp8::scales_of(&part.name))?;
                    let mut factors = Vec::new();
                    let read = self.read(scales, &mut open)?;
                    scales.numbers(&read, &mut factors);
                    let cols = part.shape.last().copied().unwrap_or(1);
                    fp8::decode(&bytes, &factors, cols, &mut data);
                } else {
                    stored.numbers(&bytes, &mut data);
                }
            }
            each(param, data)?;
        }
        Ok(())
    }

    /// Names of the tensors stored in blocks of 8 bits.
    pub fn blocks(&self) -> BTreeSet<String> {
        let blocks = self.tensors.iter().filter(|(_, stored)| stored.is_blocks());
        blocks.map(|(name, _)| name.clone()).collect()
    }

    /// Name, dtype as safetensors writes it, and shape of every tensor that `spec` keeps and does not use, by name.
    pub fn carried(&self, spec: &ModelSpec) -> Vec<(String, String, Vec<usize>)> {
        self.tensors
            .iter()
            .filter(|(name, _)| spec.carries(name))
            .map(|(name, stored)| (name.clone(), stored.dtype.clone(), stored.shape.clone()))
            .collect()
    }

    /// Bytes of a tensor.
    pub(super) fn num_bytes(&self, name: &str) -> Result<u64> {
        Ok(self.stored(name)?.num_bytes)
    }

    fn stored(&self, name: &str) -> Result<&Stored> {
        self.tensors.get(name).ok_or_else(|| Error::Weights {
            dir: self.dir.clone(),
            problems: vec![format!("{name} is missing")],
        })
    }

    /// A tensor's bytes as they are stored.
    ///
    /// # Errors
    /// There is no such tensor, or it cannot be read.
    pub fn bytes_of(&self, name: &str) -> Result<Vec<u8>> {
        self.read(self.stored(name)?, &mut BTreeMap::new())
    }

    fn check(&self, spec: &ModelSpec, params: &[ParamSpec]) -> Result<()> {
        let mut problems = Vec::new();
        let wanted: BTreeMap<&str, &Part> = params
            .iter()
            .flat_map(|p| &p.parts)
            .map(|part| (part.name.as_str(), part))
            .collect();
        for (name, part) in &wanted {
            match self.tensors.get(*name) {
                None => problems.push(format!("{name} is missing; expected {:?}", part.shape)),
                Some(found) if found.shape != part.shape => problems.push(format!(
                    "{name}: expected {:?}, found {:?} in {}",
                    part.shape, found.shape, self.files[found.file]
                )),
                Some(found) if found.is_blocks() => problems.extend(self.check_scales(part)),
                Some(found) if found.dtype().is_none() => problems.push(format!(
                    "{name}: has dtype {} in {}; expected F32, F16, BF16 or F8_E4M3",
                    found.dtype, self.files[found.file]
                )),
                Some(_) => {}
            }
        }
        for (name, found) in &self.tensors {
            // Old exports carry the rotary frequencies, which follow from the configuration.
            if wanted.contains_key(name.as_str())
                || self.are_scales(name)
                || name.ends_with(".rotary_emb.inv_freq")
                || spec.carries(name)
            {
                continue;
            }
            if spec.tied && spec.family.names(ParamKind::Head).contains(name) {
                problems.extend(self.check_tied_head(name, spec)?);
            } else {
                problems.push(format!(
                    "{name} {:?} in {} is not part of the model",
                    found.shape, self.files[found.file]
                ));
            }
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(Error::Weights {
                dir: self.dir.clone(),
                problems,
            })
        }
    }

    /// What is wrong with the scales of a tensor in blocks.
    fn check_scales(&self, part: &Part) -> Option<String> {
        let (name, scales) = (&part.name, fp8::scales_of(&part.name));
        let Some(grid) = fp8::grid(&part.shape) else {
            return Some(format!(
                "{name} is {}, which only a matrix can be",
                fp8::NAME
            ));
        };
        match self.tensors.get(&scales) {
            Some(found) if found.shape == grid && found.dtype().is_some() => None,
            Some(found) => Some(format!(
                "{scales}: expected a number for each of {grid:?} blocks of 128 x 128, found {} {:?}",
                found.dtype, found.shape
            )),
            None => Some(format!("{scales} is missing, and {name} is {}", fp8::NAME)),
        }
    }

    /// Does `name` hold the scales of a tensor in blocks?
    fn are_scales(&self, name: &str) -> bool {
        let of = name.strip_suffix(&fp8::scales_of(""));
        of.and_then(|of| self.tensors.get(of))
            .is_some_and(Stored::is_blocks)
    }

    /// A stored head beside tied embeddings is redundant, and harmless only if it is the embedding.
    fn check_tied_head(&self, head: &str, spec: &ModelSpec) -> Result<Option<String>> {
        let names = spec.family.names(ParamKind::Embedding);
        let embedding = &names[0];
        let (Some(a), Some(b)) = (self.tensors.get(head), self.tensors.get(embedding)) else {
            return Ok(None);
        };
        let mut open = BTreeMap::new();
        let same = a.shape == b.shape
            && a.dtype == b.dtype
            && self.read(a, &mut open)? == self.read(b, &mut open)?;
        Ok((!same).then(|| {
            format!("{head} differs from {embedding}, but config.json says tie_word_embeddings = true; set it to false")
        }))
    }

    fn read(&self, stored: &Stored, open: &mut BTreeMap<usize, File>) -> Result<Vec<u8>> {
        let path = self.dir.join(&self.files[stored.file]);
        let file = match open.entry(stored.file) {
            std::collections::btree_map::Entry::Occupied(e) => e.into_mut(),
            std::collections::btree_map::Entry::Vacant(e) => {
                e.insert(File::open(&path).map_err(Error::io(&path))?)
            }
        };
        let mut bytes = vec![0; stored.num_bytes as usize];
        file.seek(SeekFrom::Start(stored.start))
            .map_err(Error::io(&path))?;
        file.read_exact(&mut bytes).map_err(Error::io(&path))?;
        Ok(bytes)
    }

    fn read_header(&mut self, file: usize) -> Result<(), String> {
        let path = self.dir.join(&self.files[file]);
        let words = |e: std::io::Error| match e.kind() {
            std::io::ErrorKind::NotFound => {
                format!("is listed in {INDEX}, but missing; copy it beside the others")
            }
            std::io::ErrorKind::UnexpectedEof => {
                "is too short to be a safetensors file; copy it again".into()
            }
            _ => e.to_string(),
        };
        let mut reader = File::open(&path).map_err(words)?;
        let num_bytes = reader.metadata().map_err(words)?.len();
        let mut size = [0; 8];
        reader.read_exact(&mut size).map_err(words)?;
        let header_bytes = u64::from_le_bytes(size);
        if header_bytes > num_bytes.saturating_sub(8) {
            return Err(format!(
                "has {num_bytes} bytes, but its header alone would take {header_bytes}: truncated, or not safetensors; copy it again"
            ));
        }
        let mut header = vec![0; header_bytes as usize];
        reader.read_exact(&mut header).map_err(words)?;
        let header: Metadata = serde_json::from_slice(&header)
            .map_err(|e| format!("its safetensors header is damaged ({e}); copy it again"))?;
        let needed = 8 + header_bytes + header.data_len() as u64;
        if needed != num_bytes {
            return Err(format!(
                "has {num_bytes} bytes, but its header describes {needed}: truncated; copy it again"
            ));
        }
        for (name, info) in header.tensors() {
            let stored = Stored {
                file,
                dtype: format!("{:?}", info.dtype),
                shape: info.shape.clone(),
                start: 8 + header_bytes + info.data_offsets.0 as u64,
                num_bytes: (info.data_offsets.1 - info.data_offsets.0) as u64,
            };
            if let Some(other) = self.tensors.insert(name.clone(), stored) {
                return Err(format!(
                    "{name} is also in {}; remove the file that is left over",
                    self.files[other.file]
                ));
            }
        }
        Ok(())
    }
}

/// Names of the weight files in `dir`.
fn find(dir: &Path) -> Result<Vec<String>> {
    if dir.join("model.safetensors").is_file() {
        return Ok(vec!["model.safetensors".into()]);
    }
    let index = dir.join(INDEX);
    if index.is_file() {
        let bytes = std::fs::read(&index).map_err(Error::io(&index))?;
        let json: Value = serde_json::from_slice(&bytes)
            .map_err(|e| Error::file(&index, format!("is not valid JSON: {e}")))?;
        let Some(map) = json["weight_map"].as_object() else {
            return Err(Error::file(
                &index,
                "has no weight_map; copy it again from where the model came from",
            ));
        };
        let files: BTreeSet<&str> = map.values().filter_map(Value::as_str).collect();
        return Ok(files.into_iter().map(str::to_owned).collect());
    }
    let mut files = Vec::new();
    let mut other = None;
    for entry in std::fs::read_dir(dir).map_err(Error::io(dir))? {
        let name = entry
            .map_err(Error::io(dir))?
            .file_name()
            .to_string_lossy()
            .into_owned();
        if name.ends_with(".safetensors") {
            files.push(name);
        } else if [".bin", ".pt", ".pth", ".gguf"]
            .iter()
            .any(|end| name.ends_with(end))
        {
            other = Some(name);
        }
    }
    files.sort();
    match (files.is_empty(), other) {
        (false, _) => Ok(files),
        (true, Some(name)) if name.ends_with(".gguf") => Err(Error::file(
            dir,
            format!("holds no *.safetensors, but {name}; import it: slime-host convert {name} DIR"),
        )),
        (true, Some(name)) => Err(Error::file(
            dir,
            format!(
                "holds no *.safetensors, but {name}; write them with transformers: \
                 AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR)"
            ),
        )),
        (true, None) => Err(Error::file(
            dir,
            "holds no *.safetensors; a model directory has model.safetensors or its shards",
        )),
    }
}
