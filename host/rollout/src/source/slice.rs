//! `path@[a:b]`: a file and the rows of it that count, with Python's slice meaning.

use crate::RolloutError;
use std::ops::Range;
use std::path::PathBuf;

/// A prompt file and which of its rows count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathSlice {
    /// The file.
    pub path: PathBuf,
    /// First row; negative counts from the end.
    pub start: Option<i64>,
    /// First row that no longer counts; negative counts from the end.
    pub end: Option<i64>,
}

impl PathSlice {
    /// Read `path`, `path@[a:b]`, `path@[a:]`, `path@[:b]`.
    ///
    /// # Errors
    /// A suffix that opens with `@[` and is not a slice.
    pub fn parse(text: &str) -> Result<Self, RolloutError> {
        let whole = || Self {
            path: PathBuf::from(text),
            start: None,
            end: None,
        };
        let Some((path, rest)) = text.rsplit_once("@[") else {
            return Ok(whole());
        };
        let Some(inner) = rest.strip_suffix(']') else {
            return Ok(whole());
        };
        let bad = || RolloutError::Config {
            what: text.to_owned(),
            reason: format!(
                "`@[{inner}]` is not a slice; write `@[a:b]` with whole numbers, either of which may be left out"
            ),
        };
        let (start, end) = inner.split_once(':').ok_or_else(bad)?;
        let bound = |text: &str| match text.trim() {
            "" => Ok(None),
            number => number.parse().map(Some).map_err(|_| bad()),
        };
        Ok(Self {
            path: PathBuf::from(path),
            start: bound(start)?,
            end: bound(end)?,
        })
    }

    /// Which of `len` rows count.
    pub fn range(&self, len: usize) -> Range<usize> {
        let place = |bound: Option<i64>, default: usize| match bound {
            None => default,
            Some(b) if b < 0 => {
                len.saturating_sub(usize::try_from(b.unsigned_abs()).unwrap_or(usize::MAX))
            }
            Some(b) => usize::try_from(b).unwrap_or(usize::MAX).min(len),
        };
        let start = place(self.start, 0);
        start..place(self.end, len).max(start)
    }

    /// The slice in words, for an error about it; empty for a whole file.
    pub(crate) fn detail(&self) -> String {
        if self.start.is_none() && self.end.is_none() {
            return String::new();
        }
        let show = |b: Option<i64>| b.map(|b| b.to_string()).unwrap_or_default();
        format!(" in the slice [{}:{}]", show(self.start), show(self.end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(text: &str, len: usize) -> Vec<usize> {
        PathSlice::parse(text).unwrap().range(len).collect()
    }

    #[test]
    fn n06_slices_mean_what_python_means() {
        assert_eq!(rows("d.jsonl@[-3:]", 10), [7, 8, 9]);
        assert_eq!(rows("d.jsonl@[2:5]", 10), [2, 3, 4]);
        assert_eq!(rows("d.jsonl@[:-8]", 10), [0, 1]);
        assert_eq!(rows("d.jsonl@[:2]", 10), [0, 1]);
        assert_eq!(rows("d.jsonl@[8:99]", 10), [8, 9]);
        assert_eq!(rows("d.jsonl@[-99:1]", 10), [0]);
        assert_eq!(rows("d.jsonl@[5:2]", 10), Vec::<usize>::new());
        assert_eq!(rows("d.jsonl@[:]", 3), [0, 1, 2]);
        assert_eq!(rows("d.jsonl", 2), [0, 1]);
    }

    #[test]
    fn a_path_may_hold_an_at_sign() {
        let whole = PathSlice::parse("me@home/d.jsonl").unwrap();
        assert_eq!(
            (whole.path, whole.start),
            (PathBuf::from("me@home/d.jsonl"), None)
        );
        let sliced = PathSlice::parse("me@home/d.jsonl@[1:]").unwrap();
        assert_eq!(
            (sliced.path, sliced.start),
            (PathBuf::from("me@home/d.jsonl"), Some(1))
        );
    }

    #[test]
    fn what_is_not_a_slice_is_refused_with_its_cure() {
        for text in ["d.jsonl@[a:b]", "d.jsonl@[3]", "d.jsonl@[1:2:3]"] {
            let message = PathSlice::parse(text).unwrap_err().to_string();
            assert!(message.contains("@[a:b]"), "{message}");
        }
    }
}
