//! C: bindings made here, compiled by zig to a core module, and made a component here; zig is all that is needed.

use super::tool::LanguageTool;
use super::{Job, tool, wit};
use crate::RuntimeError;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use wit_bindgen_core::Files;

pub(super) const TOOL: LanguageTool = LanguageTool {
    language: "C",
    names: &["zig", "python-zig"],
    cure: "pip install ziglang==0.17.1",
};
const HEADER: &str = include_str!("../../../../sdk/c/slime_plugin.h");
pub(super) const VERIFIER: &str = include_str!("../../../../sdk/c/slime_verifier.c");

pub(super) fn build(job: &Job<'_>) -> Result<(), RuntimeError> {
    let zig = TOOL.find_for(job)?;
    let failed = |reason: String| RuntimeError::BuildFailed {
        folder: job.folder.into(),
        output: reason,
    };
    let mut sources = bindings(job).map_err(failed)?;
    job.put("c/slime_plugin.h", HEADER)?;
    job.put(
        "c/slime_manifest.h",
        &format!(
            "#define SLIME_PLUGIN_NAME {:?}\n#define SLIME_PLUGIN_VERSION {:?}\n",
            job.manifest.name, job.manifest.version
        ),
    )?;
    let own = job.folder.join(&job.manifest.source);
    let text = std::fs::read_to_string(&own).map_err(|source| RuntimeError::Read {
        path: own.clone(),
        source,
    })?;
    // A plugin that implements the generated exports itself does without the SDK's.
    if text.contains("\"slime_plugin.h\"") && job.manifest.worlds.iter().any(|w| w == "verifier") {
        sources.push(job.put("c/slime_verifier.c", VERIFIER)?);
    }
    sources.push(own);
    let module = tool::absolute(&job.place.join("c").join("core.wasm"));
    let mut arguments: Vec<OsString> = [
        "cc",
        "-target",
        "wasm32-wasi",
        "-mexec-model=reactor",
        "-Os",
        "-Wno-unused-command-line-argument",
        // The linker's own choice is 16 MiB, which every fresh instance would hold.
        "-Wl,-z,stack-size=262144",
    ]
    .map(OsString::from)
    .to_vec();
    arguments.push("-I".into());
    arguments.push(tool::absolute(&job.place.join("c")).into());
    arguments.extend(sources.iter().map(|path| tool::absolute(path).into()));
    arguments.push("-o".into());
    arguments.push(module.clone().into());
    tool::run(job, &zig, arguments)?;
    let component = component(&module).map_err(failed)?;
    std::fs::write(job.component, component).map_err(|source| RuntimeError::Read {
        path: job.component.into(),
        source,
    })
}

/// Write the bindings and return what is to be compiled and linked.
fn bindings(job: &Job<'_>) -> Result<Vec<PathBuf>, String> {
    let text = |error: &dyn std::fmt::Display| format!("{error:#}");
    let mut resolve = wit_parser::Resolve::default();
    let (package, _) = resolve
        .push_dir(job.place.join("wit"))
        .map_err(|error| format!("{error:#}"))?;
    let world = resolve
        .select_world(&[package], Some(wit::WORLD))
        .map_err(|error| format!("{error:#}"))?;
    let mut files = Files::default();
    wit_bindgen_c::Opts::default()
        .build()
        .generate(&mut resolve, world, &mut files)
        .map_err(|error| format!("{error:#}"))?;
    let dir = job.place.join("c");
    std::fs::create_dir_all(&dir).map_err(|error| text(&error))?;
    let mut sources = Vec::new();
    for (name, contents) in files.iter() {
        let path = dir.join(name);
        std::fs::write(&path, contents).map_err(|error| text(&error))?;
        if name.ends_with(".c") || name.ends_with(".o") {
            sources.push(path);
        }
    }
    Ok(sources)
}

/// Wrap a core module; what it uses of WASI's first preview goes through the adapter.
fn component(module: &Path) -> Result<Vec<u8>, String> {
    let core = std::fs::read(module).map_err(|error| error.to_string())?;
    let encode = || {
        wit_component::ComponentEncoder::default()
            .validate(true)
            .module(&core)?
            .adapter(
                wasi_preview1_component_adapter_provider::WASI_SNAPSHOT_PREVIEW1_ADAPTER_NAME,
                wasi_preview1_component_adapter_provider::WASI_SNAPSHOT_PREVIEW1_REACTOR_ADAPTER,
            )?
            .encode()
    };
    encode().map_err(|error| format!("{error:#}"))
}
