//! Rows of a JSONL or parquet file as JSON objects, numbered as the file numbers them.

use super::PathSlice;
use crate::RolloutError;
use arrow_json::LineDelimitedWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use serde_json::{Map, Value};
use slime_core::json;
use std::fs;
use std::path::Path;

/// One row before its columns mean anything.
pub(super) struct Row {
    /// Counted from 0 over the whole file, so that a slice does not renumber.
    pub(super) row: u64,
    /// Line of a text file, from 1.
    pub(super) line: Option<u64>,
    pub(super) columns: Map<String, Value>,
}

/// The rows of the slice, in the file's order.
pub(super) fn read(slice: &PathSlice) -> Result<Vec<Row>, RolloutError> {
    let rows = match slice.path.extension().and_then(|e| e.to_str()) {
        Some("jsonl") => read_jsonl(slice)?,
        Some("parquet") => read_parquet(slice)?,
        _ => {
            return Err(file(
                &slice.path,
                "not a prompt file: the name must end in .jsonl or .parquet",
            ));
        }
    };
    if rows.is_empty() {
        return Err(RolloutError::NoRows {
            path: slice.path.clone(),
            detail: slice.detail(),
            what: "prompt",
        });
    }
    Ok(rows)
}

fn file(path: &Path, reason: impl ToString) -> RolloutError {
    RolloutError::File {
        path: path.to_path_buf(),
        reason: reason.to_string(),
    }
}

/// Lines end at `\n` and nowhere else: U+2028, U+0085 and U+000B are ordinary characters of a string.
fn read_jsonl(slice: &PathSlice) -> Result<Vec<Row>, RolloutError> {
    let path = &slice.path;
    let bytes = fs::read(path).map_err(|e| file(path, format!("cannot be read: {e}")))?;
    let bytes = bytes.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&bytes);
    let lines: Vec<(u64, &[u8])> = (1..)
        .zip(bytes.split(|&b| b == b'\n'))
        .filter(|(_, line)| !line.iter().all(u8::is_ascii_whitespace))
        .collect();
    slice
        .range(lines.len())
        .map(|row| {
            let (line, text) = lines[row];
            let bad = |reason: String| RolloutError::Row {
                path: path.clone(),
                row: row as u64,
                line: Some(line),
                reason,
            };
            let columns = json::object(text)
                .map_err(|what| bad(format!("{what}; each line must be one whole object")))?;
            Ok(Row {
                row: row as u64,
                line: Some(line),
                columns,
            })
        })
        .collect()
}

fn read_parquet(slice: &PathSlice) -> Result<Vec<Row>, RolloutError> {
    let path = &slice.path;
    let input = fs::File::open(path).map_err(|e| file(path, format!("cannot be read: {e}")))?;
    let bad =
        |e: &dyn std::fmt::Display| file(path, format!("is not a readable parquet file: {e}"));
    let builder = ParquetRecordBatchReaderBuilder::try_new(input).map_err(|e| bad(&e))?;
    let num_rows =
        usize::try_from(builder.metadata().file_metadata().num_rows()).map_err(|e| bad(&e))?;
    let names: Vec<String> = builder
        .schema()
        .fields()
        .iter()
        .map(|f| f.name().clone())
        .collect();
    let range = slice.range(num_rows);
    let batches = builder
        .with_offset(range.start)
        .with_limit(range.len())
        .build()
        .map_err(|e| bad(&e))?;

    let mut rows = Vec::with_capacity(range.len());
    for batch in batches {
        let batch = batch.map_err(|e| bad(&e))?;
        let mut json = LineDelimitedWriter::new(Vec::new());
        json.write(&batch)
            .and_then(|()| json.finish())
            .map_err(|e| bad(&e))?;
        for line in json
            .into_inner()
            .split(|&b| b == b'\n')
            .filter(|line| !line.is_empty())
        {
            let mut columns: Map<String, Value> =
                serde_json::from_slice(line).map_err(|e| bad(&e))?;
            // The writer leaves nulls out; a column that exists and is null is not a missing key.
            for name in &names {
                columns.entry(name.as_str()).or_insert(Value::Null);
            }
            let row = (range.start + rows.len()) as u64;
            rows.push(Row {
                row,
                line: None,
                columns,
            });
        }
    }
    Ok(rows)
}
