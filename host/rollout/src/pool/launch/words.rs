//! What a server said before it died, for the person who has to mend it.
//!
//! Flags are never modelled here, so an unknown one is reported in the server's own words.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

/// Bytes of a log that are looked at.
const LOOKED_AT: u64 = 64 << 10;
/// Lines shown where no single one tells.
const SHOWN: usize = 12;

/// The telling part of what was written to `log` from byte `start` on.
pub(super) fn last_words(log: &Path, start: u64) -> String {
    let text = tail(log, start).unwrap_or_else(|e| format!("its log cannot be read: {e}"));
    telling(&text)
}

fn tail(log: &Path, start: u64) -> std::io::Result<String> {
    let mut file = File::open(log)?;
    let end = file.metadata()?.len();
    file.seek(SeekFrom::Start(start.max(end.saturating_sub(LOOKED_AT))))?;
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// An argument parser's last word, else the last exception, else the last lines.
fn telling(text: &str) -> String {
    let lines: Vec<&str> = text
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty())
        .collect();
    let parser = |line: &&&str| line.contains(": error: ");
    // `ValueError: …`, `torch.OutOfMemoryError: …`: a dotted name at the line's start.
    let exception = |line: &&&str| {
        line.split_once(": ").is_some_and(|(name, _)| {
            let last = name.rsplit('.').next().unwrap_or_default();
            (last.ends_with("Error") || last.ends_with("Exception"))
                && name
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || c == '.' || c == '_')
        })
    };
    let found = lines
        .iter()
        .rev()
        .find(parser)
        .or_else(|| lines.iter().rev().find(exception));
    match found {
        Some(line) => (*line).to_owned(),
        None if lines.is_empty() => "it said nothing".to_owned(),
        None => lines[lines.len().saturating_sub(SHOWN)..].join("\n"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_flag_is_told_in_the_servers_words() {
        let text = "usage: launch_server.py [-h]\n  [--model-path MODEL_PATH]\n\
                    launch_server.py: error: unrecognized arguments: --mem-fracton 0.3\n";
        assert_eq!(
            telling(text),
            "launch_server.py: error: unrecognized arguments: --mem-fracton 0.3"
        );
    }

    #[test]
    fn the_last_exception_tells_more_than_the_lines_after_it() {
        let text = "Traceback (most recent call last):\n  File \"x\", line 1\n\
                    torch.OutOfMemoryError: CUDA out of memory.\n[2026-11-29] Child process died\n";
        assert_eq!(telling(text), "torch.OutOfMemoryError: CUDA out of memory.");
        assert_eq!(telling("\n"), "it said nothing");
        assert_eq!(telling("a\nKilled"), "a\nKilled");
    }
}
