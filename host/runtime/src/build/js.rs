//! JavaScript: componentize-qjs puts QuickJS and the plugin into one component.

use super::tool::LanguageTool;
use super::{Job, tool, wit};
use crate::RuntimeError;
use std::ffi::OsString;

pub(super) const TOOL: LanguageTool = LanguageTool {
    language: "JavaScript",
    names: &["componentize-qjs"],
    cure: "npm install --global componentize-qjs@0.4.5",
};
pub(super) const SDK: &str = include_str!("../../../../sdk/js/slime-plugin.js");

pub(super) fn build(job: &Job<'_>) -> Result<(), RuntimeError> {
    let componentize = TOOL.find_for(job)?;
    let source = job.folder.join(&job.manifest.source);
    let text = std::fs::read_to_string(&source).map_err(|error| RuntimeError::Read {
        path: source.clone(),
        source: error,
    })?;
    // One file: the tool resolves no packages, and the plugin's own text must see the SDK's names.
    let manifest = format!(
        "const NAME = {:?};\nconst VERSION = {:?};\n",
        job.manifest.name, job.manifest.version
    );
    let own: Vec<&str> = text
        .lines()
        .map(|line| if is_sdk_import(line) { "" } else { line })
        .collect();
    let script = job.put(
        "js/plugin.js",
        &format!("{manifest}{SDK}\n{}\n", own.join("\n")),
    )?;
    let arguments: Vec<OsString> = vec![
        "--wit".into(),
        tool::absolute(&job.place.join("wit")).into(),
        "--js".into(),
        tool::absolute(&script).into(),
        "--world".into(),
        wit::WORLD.into(),
        "--sync".into(),
        "--output".into(),
        tool::absolute(job.component).into(),
    ];
    tool::run(job, &componentize, arguments)
}

/// `import … from "slime-plugin"`, on one line.
fn is_sdk_import(line: &str) -> bool {
    let line = line.trim().trim_end_matches(';');
    line.starts_with("import ")
        && ["\"slime-plugin\"", "'slime-plugin'"]
            .iter()
            .any(|name| line.ends_with(name))
}
