//! Finding the CUDA libraries where they really are: a toolkit, the system, or a Python environment.
//!
//! Each library is opened by absolute path first, so that cudarc's later `dlopen` of its bare name meets the copy already
//! loaded. Nothing is linked: a machine without CUDA runs the same binary.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// One library and where it was found.
#[derive(Clone, Debug)]
pub struct Found {
    /// What it is for, in a word.
    pub name: &'static str,
    /// Where it was opened from; `None` if it is nowhere.
    pub path: Option<PathBuf>,
}

/// File names in the order they are tried, most specific first.
const WANTED: [(&str, &[&str]); 4] = [
    ("driver", &["libcuda.so.1"]),
    (
        "nvrtc-builtins",
        &[
            "libnvrtc-builtins.so.13.0",
            "libnvrtc-builtins.so.13",
            "libnvrtc-builtins.so",
        ],
    ),
    ("nvrtc", &["libnvrtc.so.13", "libnvrtc.so"]),
    ("cublasLt", &["libcublasLt.so.13", "libcublasLt.so"]),
];

/// Open every library once and say where each was found.
pub fn discover() -> &'static [Found] {
    static FOUND: OnceLock<Vec<Found>> = OnceLock::new();
    FOUND.get_or_init(|| {
        let folders = folders();
        WANTED
            .iter()
            .map(|(name, files)| Found {
                name,
                path: open(&folders, files),
            })
            .collect()
    })
}

fn open(folders: &[PathBuf], files: &[&str]) -> Option<PathBuf> {
    for file in files {
        for path in folders
            .iter()
            .map(|folder| folder.join(file))
            .filter(|path| path.exists())
        {
            if load(&path) {
                return Some(path);
            }
        }
        // The loader's own search path comes last, so that a named environment wins over the system.
        if load(Path::new(file)) {
            return Some(PathBuf::from(file));
        }
    }
    None
}

fn load(path: &Path) -> bool {
    // SAFETY: NVIDIA's libraries run no initialiser that depends on our state; the handle is leaked, so no code
    // of theirs is unmapped while in use.
    match unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_GLOBAL) } {
        Ok(library) => {
            std::mem::forget(library);
            true
        }
        Err(_) => false,
    }
}

/// Where libraries may be, besides the loader's own search path.
pub(super) fn folders() -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for name in ["CUDA_HOME", "CUDA_PATH"] {
        if let Some(home) = std::env::var_os(name) {
            folders.push(Path::new(&home).join("lib64"));
        }
    }
    for name in ["VIRTUAL_ENV", "CONDA_PREFIX"] {
        if let Some(home) = std::env::var_os(name) {
            python_folders(&Path::new(&home).join("lib"), &mut folders);
        }
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    for bin in std::env::split_paths(&path).filter(|bin| bin.join("python3").exists()) {
        python_folders(&bin.join("../lib"), &mut folders);
    }
    if let Some(home) = std::env::var_os("HOME") {
        python_folders(&Path::new(&home).join(".local/lib"), &mut folders);
    }
    folders.push(PathBuf::from("/usr/local/cuda/lib64"));
    for lib in ["/usr/local/lib", "/usr/lib"] {
        python_folders(Path::new(lib), &mut folders);
    }
    folders
}

/// `lib/python3.X/{site,dist}-packages/nvidia/<wheel>/lib`.
fn python_folders(lib: &Path, folders: &mut Vec<PathBuf>) {
    for python in children(lib).filter(|p| {
        p.file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with("python3"))
    }) {
        for site in ["site-packages", "dist-packages"] {
            folders.extend(
                children(&python.join(site).join("nvidia"))
                    .map(|wheel| wheel.join("lib"))
                    .filter(|p| p.is_dir()),
            );
        }
    }
}

/// Sorted, so that two runs find the same copy.
fn children(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .collect();
    paths.sort();
    paths.into_iter()
}
