//! Weights in shared memory, described by a pickle of a few kilobytes whatever their size.
//!
//! A bucket is a file under `/dev/shm`: 64 bytes that start with a reference count, then the tensors one after
//! the other. Every reader gets a name of its own for the same bytes, because a server unlinks the name it was
//! given. Only servers of this host can read it.

use super::check::{Manifest, Tensor};
use super::pickle::Pickle;
use crate::RolloutError;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Where PyTorch looks for shared memory by name.
pub(super) const SHARED_MEMORY: &str = "/dev/shm";
/// What PyTorch keeps before the data.
const HEADER_BYTES: usize = 64;

/// Some tensors of a version in one shared file.
#[derive(Debug)]
pub(crate) struct Bucket {
    root: PathBuf,
    name: String,
    tensors: Vec<Tensor>,
    num_bytes: u64,
    names_given: AtomicU64,
}

impl Bucket {
    /// Put the tensors of `manifest` into buckets of about `limit` bytes under `root`, in the files' order.
    ///
    /// # Errors
    /// A type that a server has no name for, or a disk that refuses.
    pub(super) fn fill(
        root: &Path,
        name: &str,
        manifest: &Manifest,
        limit: u64,
    ) -> Result<Vec<Self>, RolloutError> {
        let groups = groups(manifest, limit)?.into_iter().enumerate();
        groups
            .map(|(number, tensors)| {
                let bucket = Self {
                    root: root.to_path_buf(),
                    name: format!("{name}-{number}"),
                    tensors: tensors.to_vec(),
                    num_bytes: tensors.iter().map(Tensor::num_bytes).sum(),
                    names_given: AtomicU64::new(0),
                };
                bucket.write().map_err(|e| RolloutError::File {
                    path: bucket.path(&bucket.name),
                    reason: format!("weights cannot be put into shared memory: {e}"),
                })?;
                Ok(bucket)
            })
            .collect()
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    fn write(&self) -> io::Result<()> {
        let mut out = File::create(self.path(&self.name))?;
        let mut header = [0; HEADER_BYTES];
        header[0] = 1;
        out.write_all(&header)?;
        copy(&self.tensors, &mut out)
    }

    /// A request body's payload for one reader: the pickle that names a fresh link to the bucket.
    ///
    /// # Errors
    /// The link cannot be made.
    pub(super) fn payload(&self) -> io::Result<Vec<u8>> {
        let link = self.link(self.names_given.fetch_add(1, Ordering::Relaxed));
        std::fs::hard_link(self.path(&self.name), self.path(&link))?;
        Ok(describe(&link, self.num_bytes, &self.tensors))
    }

    fn link(&self, number: u64) -> String {
        format!("{}.{number}", self.name)
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        // A reader that died has not removed its name.
        for number in 0..self.names_given.load(Ordering::Relaxed) {
            let _ = std::fs::remove_file(self.path(&self.link(number)));
        }
        let _ = std::fs::remove_file(self.path(&self.name));
    }
}

/// The tensors of `manifest` in the files' order, in runs of about `limit` bytes.
///
/// # Errors
/// A type that a server has no name for.
pub(super) fn groups(manifest: &Manifest, limit: u64) -> Result<Vec<&[Tensor]>, RolloutError> {
    let all = manifest.in_order();
    if let Some(tensor) = all.iter().find(|t| torch_dtype(&t.dtype).is_none()) {
        return Err(RolloutError::File {
            path: tensor.file.clone(),
            reason: format!(
                "tensor `{}` is {}; servers are sent F32, BF16, F16 and F8_E4M3",
                tensor.name, tensor.dtype
            ),
        });
    }
    let (mut groups, mut begin, mut num_bytes) = (Vec::new(), 0, 0);
    for (index, tensor) in all.iter().enumerate() {
        if index > begin && num_bytes + tensor.num_bytes() > limit {
            groups.push(&all[begin..index]);
            (begin, num_bytes) = (index, 0);
        }
        num_bytes += tensor.num_bytes();
    }
    groups.extend(all.get(begin..).filter(|last| !last.is_empty()));
    Ok(groups)
}

/// Append the bytes of `tensors` to `out`.
pub(super) fn copy(tensors: &[Tensor], out: &mut impl Write) -> io::Result<()> {
    let mut open: Option<(&Path, File)> = None;
    for tensor in tensors {
        let file = match &mut open {
            Some((path, file)) if *path == tensor.file => file,
            _ => {
                &mut open
                    .insert((tensor.file.as_path(), File::open(&tensor.file)?))
                    .1
            }
        };
        file.seek(SeekFrom::Start(tensor.start))?;
        if io::copy(&mut file.take(tensor.num_bytes()), out)? != tensor.num_bytes() {
            let what = format!("tensor `{}` is cut short", tensor.name);
            return Err(io::Error::other(what));
        }
    }
    Ok(())
}

pub(super) fn torch_dtype(safetensors: &str) -> Option<&'static str> {
    Some(match safetensors {
        "F32" => "float32",
        "BF16" => "bfloat16",
        "F16" => "float16",
        "F8_E4M3" => "float8_e4m3fn",
        _ => return None,
    })
}

/// `{"flattened_tensor": uint8[num_bytes] in shared memory, "metadata": [FlattenedTensorMetadata …]}`.
pub(super) fn describe(link: &str, num_bytes: u64, tensors: &[Tensor]) -> Vec<u8> {
    const REDUCTIONS: &str = "torch.multiprocessing.reductions";
    let mut p = Pickle::new();
    p.op(b"}(").text("flattened_tensor");
    p.global(REDUCTIONS, "rebuild_tensor").call(|p| {
        p.global("torch", "Tensor");
        p.global(REDUCTIONS, "rebuild_typed_storage").call(|p| {
            p.global(REDUCTIONS, "rebuild_storage_filename").call(|p| {
                // No manager named: the server starts one of its own.
                p.global("torch.storage", "UntypedStorage");
                p.short_bytes(b"")
                    .short_bytes(format!("/{link}").as_bytes());
                p.int(num_bytes);
            });
            p.global("torch", "uint8");
        });
        // Offset, size, stride, requires_grad.
        p.tuple(|p| {
            p.int(0);
            p.tuple(|p| _ = p.int(num_bytes));
            p.tuple(|p| _ = p.int(1));
            p.op(&[0x89]);
        });
    });
    p.text("metadata").op(b"](");
    let mut start = 0;
    for tensor in tensors {
        let end = start + tensor.num_bytes();
        p.global(
            "sglang.srt.weight_sync.tensor_bucket",
            "FlattenedTensorMetadata",
        );
        p.op(b")\x81}(");
        p.text("name").text(&tensor.name).text("shape");
        p.tuple(|p| tensor.shape.iter().for_each(|&n| _ = p.int(n)));
        p.text("dtype");
        p.global("torch", torch_dtype(&tensor.dtype).unwrap_or_default());
        p.text("start_idx").int(start).text("end_idx").int(end);
        p.text("numel").int(end - start).op(b"ub");
        start = end;
    }
    p.op(b"eu");
    p.stop()
}
