//! Rollout records as files: JSONL for `train`, `replay` and people, parquet for everything else.
//!
//! A file appears whole or not at all.

use crate::{RolloutError, WholeFile};
use arrow_json::ReaderBuilder;
use arrow_schema::{DataType, Field, Schema};
use parquet::arrow::ArrowWriter;
use parquet::basic::{Compression, ZstdLevel};
use parquet::file::properties::WriterProperties;
use serde_json::Value;
use slime_core::{RolloutRecord, json};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;

/// Records encoded at a time.
const BATCH: usize = 256;

fn bad(path: &Path, reason: impl ToString) -> RolloutError {
    RolloutError::File {
        path: path.to_path_buf(),
        reason: reason.to_string(),
    }
}

fn whole(
    path: &Path,
    write: impl FnOnce(&mut WholeFile) -> Result<(), String>,
) -> Result<(), RolloutError> {
    let run = || {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(|e| e.to_string())?;
        }
        let mut out = WholeFile::create(path).map_err(|e| e.to_string())?;
        write(&mut out)?;
        out.finish().map_err(|e| e.to_string())
    };
    run().map_err(|reason| bad(path, format!("cannot be written: {reason}")))
}

/// One record a line.
///
/// # Errors
/// The file cannot be written.
pub fn write_jsonl(path: &Path, records: &[RolloutRecord]) -> Result<(), RolloutError> {
    whole(path, |out| {
        for record in records {
            serde_json::to_writer(&mut *out, record).map_err(|e| e.to_string())?;
            out.write_all(b"\n").map_err(|e| e.to_string())?;
        }
        Ok(())
    })
}

/// Read a JSONL file of records and check every one of them.
///
/// # Errors
/// The first line that is not a valid record, by number.
pub fn read_records(path: &Path) -> Result<Vec<RolloutRecord>, RolloutError> {
    let bytes = std::fs::read(path).map_err(|e| bad(path, format!("cannot be read: {e}")))?;
    let lines = (1..)
        .zip(bytes.split(|&b| b == b'\n'))
        .filter(|(_, line)| !line.trim_ascii().is_empty());
    let records = lines.enumerate().map(|(row, (line, text))| {
        let wrong = |reason| RolloutError::Row {
            path: path.to_path_buf(),
            row: row as u64,
            line: Some(line),
            reason,
        };
        let record: RolloutRecord =
            json::object(text).map_err(|what| wrong(format!("is not a rollout record: {what}")))?;
        record.validate().map_err(wrong)?;
        Ok::<_, RolloutError>(record)
    });
    let records = records.collect::<Result<Vec<_>, _>>()?;
    if records.is_empty() {
        return Err(RolloutError::NoRows {
            path: path.to_path_buf(),
            detail: String::new(),
            what: "rollout record",
        });
    }
    Ok(records)
}

fn schema() -> Schema {
    let list = |name: &str, item: DataType| {
        Field::new_list(name, Field::new_list_field(item, false), false)
    };
    let plain = |name: &str, kind: DataType, nullable: bool| Field::new(name, kind, nullable);
    Schema::new(vec![
        plain("step", DataType::UInt64, false),
        plain("group_id", DataType::UInt64, false),
        plain("rollout_id", DataType::UInt64, false),
        plain("index", DataType::UInt32, false),
        list("tokens", DataType::UInt32),
        plain("response_length", DataType::UInt64, false),
        list("loss_mask", DataType::UInt8),
        list("rollout_log_probs", DataType::Float32),
        plain("reward", DataType::Float64, true),
        plain("outcome", DataType::Utf8, false),
        plain("finish_reason", DataType::Utf8, true),
        list("weight_versions", DataType::UInt64),
        plain("label", DataType::Utf8, true),
        // Its members differ from row to row, so it is JSON text.
        plain("metadata", DataType::Utf8, false),
    ])
}

/// The same columns as parquet; `metadata` is JSON text.
///
/// # Errors
/// The file cannot be written.
pub fn write_parquet(path: &Path, records: &[RolloutRecord]) -> Result<(), RolloutError> {
    let schema = Arc::new(schema());
    whole(path, |out| {
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .build();
        let mut writer = ArrowWriter::try_new(out, Arc::clone(&schema), Some(properties))
            .map_err(|e| e.to_string())?;
        for batch in records.chunks(BATCH) {
            let rows = batch.iter().map(|record| {
                let mut row = serde_json::to_value(record)?;
                row["metadata"] = Value::String(row["metadata"].to_string());
                Ok(row)
            });
            let rows = rows
                .collect::<serde_json::Result<Vec<Value>>>()
                .map_err(|e| e.to_string())?;
            let mut decoder = ReaderBuilder::new(Arc::clone(&schema))
                .build_decoder()
                .map_err(|e| e.to_string())?;
            decoder.serialize(&rows).map_err(|e| e.to_string())?;
            if let Some(batch) = decoder.flush().map_err(|e| e.to_string())? {
                writer.write(&batch).map_err(|e| e.to_string())?;
            }
        }
        writer.close().map(drop).map_err(|e| e.to_string())
    })
}
