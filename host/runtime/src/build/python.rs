//! Python: componentize-py puts CPython, the plugin and everything it imports into one component.

use super::tool::LanguageTool;
use super::{Job, tool, wit};
use crate::RuntimeError;

pub(super) const TOOL: LanguageTool = LanguageTool {
    language: "Python",
    names: &["componentize-py"],
    cure: "pip install componentize-py==0.25.1",
};
pub(super) const SDK: &str = include_str!("../../../../sdk/python/slime_plugin.py");

pub(super) fn build(job: &Job<'_>) -> Result<(), RuntimeError> {
    let componentize = TOOL.find_for(job)?;
    job.put("python/slime_plugin.py", SDK)?;
    job.put(
        "python/slime_manifest.py",
        &format!(
            "NAME = {:?}\nVERSION = {:?}\n",
            job.manifest.name, job.manifest.version
        ),
    )?;
    let module = job.manifest.source.with_extension("");
    let module = module.to_string_lossy().replace('/', ".");
    let place = tool::absolute(job.place);
    let world = format!("slime:build/{}", wit::WORLD);
    let path = |name: &str| place.join(name).into_os_string();
    run(
        job,
        &componentize,
        vec![
            "-d".into(),
            path("wit"),
            "-w".into(),
            world.into(),
            "componentize".into(),
            module.into(),
            "-p".into(),
            ".".into(),
            "-p".into(),
            path("python"),
            "-o".into(),
            tool::absolute(job.component).into_os_string(),
        ],
    )
}

fn run(
    job: &Job<'_>,
    tool: &std::path::Path,
    arguments: Vec<std::ffi::OsString>,
) -> Result<(), RuntimeError> {
    tool::run(job, tool, arguments)
}
