//! `metrics.jsonl`: one object a step, the run's record of numbers.
//!
//! Always valid JSON: a number that is not finite is written as null, whole numbers keep all their digits, and what
//! was not measured is absent, not 0.

use serde_json::{Map, Value};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::path::{Path, PathBuf};

/// Named numbers of one step, in the order they were set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row(pub Map<String, Value>);

impl Row {
    /// A row that begins with its step's number under `axis`.
    pub fn at(axis: &str, step: u64) -> Self {
        let mut row = Self::default();
        row.set_count(axis, step);
        row
    }

    /// Set a number; not finite is null.
    pub fn set(&mut self, name: impl Into<String>, value: f64) {
        self.0.insert(
            name.into(),
            serde_json::Number::from_f64(value).map_or(Value::Null, Value::Number),
        );
    }

    /// Set a number, if it was measured.
    pub fn set_some(&mut self, name: impl Into<String>, value: Option<f64>) {
        if let Some(value) = value {
            self.set(name, value);
        }
    }

    /// Set a whole number, all digits kept.
    pub fn set_count(&mut self, name: impl Into<String>, value: u64) {
        self.0.insert(name.into(), value.into());
    }

    /// A number, if it is there and finite.
    pub fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).and_then(Value::as_f64)
    }

    /// Every finite number, in order.
    pub fn numbers(&self) -> impl Iterator<Item = (&str, f64)> {
        self.0
            .iter()
            .filter_map(|(name, value)| Some((name.as_str(), value.as_f64()?)))
    }
}

/// Appends rows to `metrics.jsonl`.
pub struct Metrics {
    file: File,
}

impl Metrics {
    /// The file's name in a run's directory.
    pub const FILE: &str = "metrics.jsonl";

    /// `metrics.jsonl` in `dir`. See [`Self::at`].
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn open(dir: &Path, axis: &str, before: Option<u64>) -> io::Result<Self> {
        Self::at(&dir.join(Self::FILE), axis, before)
    }

    /// Start empty, or keep the rows whose `axis` is below `before` (a resumed run writes the others again).
    ///
    /// # Errors
    /// The file cannot be read or written.
    pub fn at(path: &Path, axis: &str, before: Option<u64>) -> io::Result<Self> {
        let keep = before.map_or(Ok(0), |before| kept_bytes(path, axis, before))?;
        let mut file = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(path)?;
        file.set_len(keep)?;
        file.seek(io::SeekFrom::End(0))?;
        Ok(Self { file })
    }

    /// Append one row; it is whole in the file when this returns.
    ///
    /// # Errors
    /// The disk refused.
    pub fn write(&mut self, row: &Row) -> io::Result<()> {
        let mut line = serde_json::to_vec(&row.0)?;
        line.push(b'\n');
        self.file.write_all(&line)
    }
}

/// Bytes up to the first row that is cut short or whose step is not below `before`.
fn kept_bytes(path: &Path, axis: &str, before: u64) -> io::Result<u64> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
        Err(e) => return Err(e),
    };
    let (mut reader, mut line, mut kept) = (BufReader::new(file), Vec::new(), 0);
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line)?;
        let step = serde_json::from_slice::<Value>(&line)
            .ok()
            .and_then(|row| row.get(axis)?.as_u64());
        if read == 0 || line.last() != Some(&b'\n') || step.is_none_or(|step| step >= before) {
            return Ok(kept);
        }
        kept += read as u64;
    }
}

/// Every whole row of a run's `metrics.jsonl`.
///
/// # Errors
/// The file cannot be read.
pub fn read(dir: &Path) -> io::Result<Vec<Row>> {
    read_counting(dir).map(|(rows, _)| rows)
}

/// Every whole row of a run's `metrics.jsonl`, and how many lines are none.
///
/// # Errors
/// The file cannot be read.
pub fn read_counting(dir: &Path) -> io::Result<(Vec<Row>, usize)> {
    let path: PathBuf = dir.join(Metrics::FILE);
    let bytes = std::fs::read(path)?;
    let lines = bytes.split(|byte| *byte == b'\n');
    let (mut rows, mut num_torn) = (Vec::new(), 0);
    for line in lines.filter(|line| !line.trim_ascii().is_empty()) {
        match serde_json::from_slice(line) {
            Ok(row) => rows.push(Row(row)),
            Err(_) => num_torn += 1,
        }
    }
    Ok((rows, num_torn))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn m09_a_number_that_is_not_finite_is_null_and_a_whole_one_keeps_its_digits() {
        let mut row = Row::at("rollout/step", 3);
        row.set("train/loss", f64::NAN);
        row.set("train/grad_norm", f64::INFINITY);
        row.set_count("seed", u64::MAX);
        row.set_some("eval/arith", None);
        let text = serde_json::to_string(&row.0).unwrap();
        assert_eq!(
            text,
            r#"{"rollout/step":3,"train/loss":null,"train/grad_norm":null,"seed":18446744073709551615}"#
        );
        assert_eq!(
            row.numbers().map(|(name, _)| name).collect::<Vec<_>>(),
            ["rollout/step", "seed"]
        );
    }

    #[test]
    fn a_resumed_run_keeps_the_rows_before_its_checkpoint_and_no_torn_one() {
        let dir = tempfile::tempdir().unwrap();
        let mut metrics = Metrics::open(dir.path(), "rollout/step", None).unwrap();
        for step in 0..5 {
            metrics.write(&Row::at("rollout/step", step)).unwrap();
        }
        metrics.file.write_all(b"{\"rollout/step\":5").unwrap();
        let mut resumed = Metrics::open(dir.path(), "rollout/step", Some(3)).unwrap();
        resumed.write(&Row::at("rollout/step", 3)).unwrap();
        let steps: Vec<_> = read(dir.path())
            .unwrap()
            .iter()
            .map(|row| row.get("rollout/step").unwrap() as u64)
            .collect();
        assert_eq!(steps, [0, 1, 2, 3]);
        drop(Metrics::open(dir.path(), "rollout/step", Some(100)).unwrap());
        assert_eq!(read(dir.path()).unwrap().len(), 4);
        drop(Metrics::open(dir.path(), "rollout/step", None).unwrap());
        assert!(read(dir.path()).unwrap().is_empty());
    }
}
