//! CUDA text to machine code, by NVRTC at run time, kept on disk.
//!
//! The cache's key is everything that decides the result: source, options and compiler version. It needs no driver, so
//! every kernel is compiled in tests on machines without a GPU.

use crate::{Error, Result};
use cudarc::nvrtc::{result, sys};
use sha2::{Digest, Sha256};
use std::ffi::{CStr, CString};
use std::path::PathBuf;

/// Bf16 and warp arithmetic that every kernel starts from.
const PRELUDE: &str = include_str!("prelude.cuh");

/// Text that some kernels start from after the prelude.
#[derive(Clone, Copy, Debug)]
pub struct Header {
    /// The file below `kernels/src`.
    pub file: &'static str,
    /// CUDA text.
    pub text: &'static str,
}

/// One kernel file and how to specialise it.
#[derive(Clone, Debug)]
pub struct Source {
    /// The file below `kernels/src`, without its ending.
    pub name: &'static str,
    /// CUDA text without the prelude and headers.
    pub text: &'static str,
    /// What it starts from, in order.
    pub headers: &'static [Header],
    /// `NAME=value` macros.
    pub defines: Vec<String>,
}

/// Compile for an architecture such as `sm_90a`, or take the cubin from the cache.
///
/// # Errors
/// No NVRTC on this machine, or a kernel that does not compile (with the compiler's log).
pub fn cubin(source: &Source, arch: &str) -> Result<Vec<u8>> {
    if super::library::discover()
        .iter()
        .any(|found| found.name == "nvrtc" && found.path.is_none())
    {
        return Err(Error::Device {
            library: "nvrtc",
            detail: "libnvrtc was not found; install the CUDA toolkit or `pip install nvidia-cuda-nvrtc`".into(),
        });
    }
    let text = match std::env::var_os("SLIME_KERNEL_DIR") {
        None => {
            let headers: String = source.headers.iter().map(|header| header.text).collect();
            format!("{PRELUDE}{headers}{}", source.text)
        }
        Some(folder) => overridden(&PathBuf::from(folder), source)?,
    };
    let mut options = vec![
        format!("--gpu-architecture={arch}"),
        "--std=c++17".into(),
        "-default-device".into(),
    ];
    options.extend(source.defines.iter().map(|d| format!("-D{d}")));

    let path = cache_path(&text, &options);
    if let Some(cached) = path.as_ref().and_then(|p| std::fs::read(p).ok()) {
        return Ok(cached);
    }
    let cubin = compile(source.name, &text, &options)?;
    if let Some(path) = path {
        store(&path, &cubin);
    }
    Ok(cubin)
}

/// The text below `folder` instead of the one built in, so that a kernel is tried without building the program.
fn overridden(folder: &std::path::Path, source: &Source) -> Result<String> {
    let read = |file: String| {
        let path = folder.join(file);
        std::fs::read_to_string(&path).map_err(|e| Error::Device {
            library: "nvrtc",
            detail: format!("SLIME_KERNEL_DIR: {}: {e}", path.display()),
        })
    };
    let mut text = read("cuda/prelude.cuh".into())?;
    for header in source.headers {
        text += &read(header.file.into())?;
    }
    Ok(text + &read(format!("{}.cu", source.name))?)
}

fn compile(name: &str, text: &str, options: &[String]) -> Result<Vec<u8>> {
    let error = |detail: String| Error::Device {
        library: "nvrtc",
        detail: format!("kernel {name}: {detail}"),
    };
    let text = CString::new(text).map_err(|_| error("the source holds a NUL byte".into()))?;
    let file = CString::new(format!("{}.cu", name.replace('/', "_")))
        .map_err(|_| error("the name holds a NUL byte".into()))?;
    let program =
        result::create_program(&text, Some(&file)).map_err(|e| error(format!("{e:?}")))?;
    // SAFETY: `program` was created above and is destroyed once, at the end of this function's only live path.
    unsafe {
        let compiled = result::compile_program(program, options);
        let log = result::get_program_log(program)
            .map(|log| CStr::from_ptr(log.as_ptr()).to_string_lossy().into_owned())
            .unwrap_or_default();
        let out = match compiled {
            Err(e) => Err(error(format!("{e:?}\n{log}"))),
            Ok(()) => {
                let mut size = 0;
                sys::nvrtcGetCUBINSize(program, &mut size)
                    .result()
                    .map(|()| vec![0u8; size])
                    .and_then(|mut cubin| {
                        sys::nvrtcGetCUBIN(program, cubin.as_mut_ptr().cast())
                            .result()
                            .map(|()| cubin)
                    })
                    .map_err(|e| error(format!("{e:?}")))
            }
        };
        result::destroy_program(program).map_err(|e| error(format!("{e:?}")))?;
        out
    }
}

/// Where compiled kernels and timed choices are kept.
pub(super) fn cache_folder() -> Option<PathBuf> {
    std::env::var_os("XDG_CACHE_HOME")
        .map(PathBuf::from)
        .or_else(|| std::env::var_os("HOME").map(|home| PathBuf::from(home).join(".cache")))
        .map(|root| root.join("slime-host"))
}

fn cache_path(text: &str, options: &[String]) -> Option<PathBuf> {
    let root = cache_folder()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: two live integers to write to.
    unsafe { sys::nvrtcVersion(&mut major, &mut minor) };
    let mut hash = Sha256::new();
    hash.update(text);
    for option in options {
        hash.update(option);
        hash.update([0]);
    }
    hash.update(format!("{major}.{minor}"));
    let key: String = hash
        .finalize()
        .iter()
        .take(16)
        .map(|b| format!("{b:02x}"))
        .collect();
    Some(root.join("cubin").join(key))
}

/// A cache that cannot be written only costs time, so its errors are not errors.
pub(super) fn store(path: &std::path::Path, content: &[u8]) {
    let Some(folder) = path.parent() else { return };
    let part = path.with_extension(format!("{}.part", std::process::id()));
    if std::fs::create_dir_all(folder).is_ok() && std::fs::write(&part, content).is_ok() {
        let _ = std::fs::rename(&part, path);
    }
}
