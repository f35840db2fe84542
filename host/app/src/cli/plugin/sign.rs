//! `slime-host plugin keygen` and `plugin sign`.

use super::super::Outcome;
use crate::config::Problem;
use crate::error::{Failure, Result, at_path};
use slime_runtime::trust::{SecretKey, signature_file};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Make a key; nobody else may read its file.
///
/// # Errors
/// The file is there already, or cannot be written.
pub fn keygen(file: &Path) -> Result<Outcome> {
    let key = SecretKey::generate().map_err(|e| Failure::run(format!("no randomness: {e}")))?;
    let mut options = std::fs::OpenOptions::new();
    let mut written = options
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .map_err(at_path(file))?;
    written
        .write_all(key.to_text().as_bytes())
        .map_err(at_path(file))?;
    super::super::data(&format!("{}\n", key.public()))
}

/// Add a signature to the file beside the component.
///
/// # Errors
/// The component or the key cannot be read.
pub fn sign(component: &Path, key: &Path) -> Result<Outcome> {
    if component.is_dir() {
        let folder = component.display();
        let problem = Problem::new(format!("{folder} is a folder; a component is signed"));
        let help = format!(
            "write: slime-host plugin sign \"$(slime-host plugin build {folder})\" --key {}",
            key.display()
        );
        return Err(problem.help(help).into());
    }
    let bytes = std::fs::read(component).map_err(at_path(component))?;
    let text = std::fs::read_to_string(key).map_err(at_path(key))?;
    let key = SecretKey::parse(&text).map_err(|e| {
        Problem::new(format!("{}: {e}", key.display())).help("name the secret key's file")
    })?;
    let file = signature_file(component);
    let line = key.sign(&bytes);
    let mut lines = std::fs::read_to_string(&file).unwrap_or_default();
    if !lines.contains(line.trim()) {
        lines.push_str(&line);
    }
    std::fs::write(&file, lines).map_err(at_path(&file))?;
    super::super::data(&format!("{}\n", file.display()))
}
