//! Abort, pause, cache and weights.

use super::refusal::{Refusal, read};
use crate::engine::EngineHandle;
use crate::scheduler::PauseMode;
use axum::Json;
use axum::body::Bytes;
use axum::extract::{Query, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use std::path::Path;
use std::time::{Duration, Instant};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AbortBody {
    rid: Option<String>,
    abort_all: bool,
}

/// 200 whether or not there is such a request.
pub(super) async fn abort(
    State(engine): State<EngineHandle>,
    body: Bytes,
) -> Result<StatusCode, Refusal> {
    let body: AbortBody = read(&body)?;
    if body.abort_all {
        engine.abort_all();
    } else if let Some(rid) = body.rid {
        engine.abort(&rid);
    }
    Ok(StatusCode::OK)
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PauseBody {
    mode: Option<String>,
}

pub(super) async fn pause(
    State(engine): State<EngineHandle>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body: PauseBody = read(&body)?;
    let mode = match body.mode.as_deref() {
        None | Some("abort") => PauseMode::Abort,
        Some("retract") => PauseMode::Retract,
        Some("in_place") => PauseMode::InPlace,
        Some(other) => {
            let message =
                format!("mode is \"{other}\": give \"abort\", \"retract\" or \"in_place\".");
            return Err(Refusal::invalid(message));
        }
    };
    engine.pause(mode).await?;
    Ok(Json(
        json!({"message": "Generation paused successfully.", "status": "ok"}),
    ))
}

pub(super) async fn resume(State(engine): State<EngineHandle>) -> Result<Json<Value>, Refusal> {
    engine.resume().await?;
    Ok(Json(
        json!({"message": "Generation continued successfully.", "status": "ok"}),
    ))
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct FlushQuery {
    /// Seconds to wait until nothing runs.
    timeout: Option<f64>,
}

pub(super) async fn flush_cache(
    State(engine): State<EngineHandle>,
    Query(query): Query<FlushQuery>,
) -> Result<Response, Refusal> {
    let patience = Duration::try_from_secs_f64(query.timeout.unwrap_or(0.0)).unwrap_or_default();
    let since = Instant::now();
    loop {
        if engine.flush_cache().await? {
            return Ok("Cache flushed.\n".into_response());
        }
        if since.elapsed() >= patience {
            return Ok((StatusCode::BAD_REQUEST, "Flush cache failed.\n").into_response());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[derive(Debug, Deserialize)]
struct UpdateBody {
    model_path: String,
    weight_version: Option<String>,
    load_format: Option<String>,
    #[serde(default = "yes")]
    flush_cache: bool,
    #[serde(default)]
    abort_all_requests: bool,
}

fn yes() -> bool {
    true
}

/// Fields that steer CUDA graphs and memory are ignored: there are none here.
pub(super) async fn update_weights_from_disk(
    State(engine): State<EngineHandle>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body: UpdateBody = read(&body)?;
    if let Some(format) = body
        .load_format
        .as_deref()
        .filter(|f| !matches!(*f, "auto" | "safetensors"))
    {
        let message = format!(
            "load_format is \"{format}\": the embedded engine reads \"safetensors\" (or \"auto\")."
        );
        return Err(Refusal::Weights(message));
    }
    let version = body.weight_version.clone();
    let held = engine
        .update_weights_from_disk(
            Path::new(&body.model_path),
            version,
            body.flush_cache,
            body.abort_all_requests,
        )
        .await?;
    let mut message = "Succeeded to update model weights.".to_owned();
    if let Some(version) = body.weight_version {
        message.push_str(&format!(" Weight version updated to {version}."));
    }
    Ok(Json(
        json!({"success": true, "message": message, "num_paused_requests": held}),
    ))
}

#[derive(Debug, Deserialize)]
struct VersionBody {
    new_version: String,
    #[serde(default = "yes")]
    abort_all_requests: bool,
}

/// SGLang's default ends every request under way; say `"abort_all_requests": false` to keep them.
pub(super) async fn update_weight_version(
    State(engine): State<EngineHandle>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body: VersionBody = read(&body)?;
    let version = body.new_version;
    engine
        .update_weight_version(version.clone(), body.abort_all_requests)
        .await?;
    let message = format!("Weight version updated to {version}");
    Ok(Json(
        json!({"success": true, "message": message, "new_version": version}),
    ))
}

#[derive(Debug, Deserialize)]
struct CheckerBody {
    action: String,
}

pub(super) async fn weights_checker(
    State(engine): State<EngineHandle>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body: CheckerBody = read(&body)?;
    if body.action != "checksum" {
        let message = format!(
            "action is \"{}\": the embedded engine knows \"checksum\".",
            body.action
        );
        return Err(Refusal::Weights(message));
    }
    let sums = engine.checksums().await?;
    let all = sums
        .iter()
        .fold(0u64, |hash, (_, sum)| crate::random::word(hash, *sum));
    let checksums: Map<String, Value> = sums
        .into_iter()
        .map(|(name, sum)| (name, format!("{sum:016x}").into()))
        .collect();
    let rank = json!({"checksums": checksums, "per_gpu_checksum": format!("{all:016x}"), "parallelism_info": []});
    Ok(Json(
        json!({"success": true, "message": "Success.", "ranks": [rank]}),
    ))
}

#[derive(Debug, Deserialize)]
struct TensorBody {
    name: String,
    #[serde(default = "hundred")]
    truncate_size: usize,
}

fn hundred() -> usize {
    100
}

/// Names are those of the files: nothing is fused here.
pub(super) async fn get_weights_by_name(
    State(engine): State<EngineHandle>,
    body: Bytes,
) -> Result<Json<Value>, Refusal> {
    let body: TensorBody = read(&body)?;
    let Some((values, width)) = engine.tensor(&body.name, body.truncate_size).await? else {
        return Err(Refusal::invalid("Get parameter by name failed"));
    };
    Ok(Json(match width {
        1 => Value::from(values),
        _ => Value::from_iter(values.chunks(width).map(<[f32]>::to_vec)),
    }))
}
