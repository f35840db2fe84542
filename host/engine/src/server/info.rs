//! What the server is and how it does: health, model, load, metrics.

use super::answer::now;
use super::generate::begin;
use super::table;
use crate::engine::{EngineHandle, Job};
use crate::request::{Params, Wanted};
use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use serde_json::{Map, Value, json};
use std::time::Duration;

/// A step may be long; an engine that takes longer than this is not healthy.
const PATIENCE: Duration = Duration::from_secs(20);

/// Alive: the scheduler answers. During a pause too, so that a publish does not look like a death.
pub(super) async fn health(State(engine): State<EngineHandle>) -> StatusCode {
    match tokio::time::timeout(PATIENCE, engine.ping()).await {
        Ok(Ok(())) => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// A token can be sampled.
pub(super) async fn health_generate(State(engine): State<EngineHandle>) -> StatusCode {
    if engine.inner.metrics.paused() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    let params = Params {
        max_new_tokens: 1,
        top_k: 1,
        ignore_eos: true,
        ..Params::default()
    };
    let job = Job {
        rid: None,
        prompt: vec![0],
        params,
        wanted: Wanted::default(),
        stream: false,
    };
    let Ok(mut generations) = begin(&engine, job) else {
        return StatusCode::SERVICE_UNAVAILABLE;
    };
    match tokio::time::timeout(PATIENCE, generations.swap_remove(0).complete()).await {
        Ok(Ok(g)) if g.tokens.len() == 1 => StatusCode::OK,
        _ => StatusCode::SERVICE_UNAVAILABLE,
    }
}

/// Would take a request now. Answers at once.
pub(super) async fn ready(State(engine): State<EngineHandle>) -> StatusCode {
    if engine.inner.metrics.paused() || engine.ping().await.is_err() {
        return StatusCode::SERVICE_UNAVAILABLE;
    }
    StatusCode::OK
}

fn model_path(engine: &EngineHandle) -> String {
    engine
        .inner
        .model_path
        .lock()
        .map(|p| p.display().to_string())
        .unwrap_or_default()
}

pub(super) async fn model_info(State(engine): State<EngineHandle>) -> Json<Value> {
    let config = &engine.inner.config;
    Json(json!({
        "model_path": model_path(&engine),
        "served_model_name": config.served_model_name,
        "tokenizer_path": config.model_path.display().to_string(),
        "is_generation": true,
        "weight_version": engine.weight_version(),
        "load_format": "safetensors",
        "tool_call_parser": null,
        "disaggregation_mode": "null",
        "model_type": engine.inner.model_type,
    }))
}

pub(super) async fn weight_version(State(engine): State<EngineHandle>) -> Json<Value> {
    Json(json!({"weight_version": engine.weight_version()}))
}

pub(super) async fn server_info(State(engine): State<EngineHandle>) -> Json<Value> {
    let (inner, config) = (&engine.inner, &engine.inner.config);
    Json(json!({
        "model_path": model_path(&engine),
        "tokenizer_path": config.model_path.display().to_string(),
        "served_model_name": config.served_model_name,
        "weight_version": config.weight_version,
        "context_length": inner.context_length,
        "dtype": "float32",
        "tp_size": 1,
        "dp_size": 1,
        "pp_size": 1,
        "page_size": inner.block_tokens,
        "max_total_tokens": inner.metrics.max_total_tokens(),
        "max_running_requests": config.max_running_requests,
        "chunked_prefill_size": config.chunked_prefill_size,
        "schedule_policy": "fcfs",
        "random_seed": config.seed,
        "enable_metrics": true,
        "internal_states": [{
            "last_gen_throughput": inner.metrics.gen_throughput(),
            "weight_version": engine.weight_version(),
        }],
        "version": env!("CARGO_PKG_VERSION"),
        "frontend": "slime-engine",
    }))
}

pub(super) async fn models(State(engine): State<EngineHandle>) -> Json<Value> {
    let name = &engine.inner.config.served_model_name;
    Json(json!({"object": "list", "data": [{
        "id": name,
        "object": "model",
        "created": now() as u64,
        "owned_by": "slime-host",
        "root": name,
        "parent": null,
        "max_model_len": engine.inner.context_length,
    }]}))
}

pub(super) async fn loads(State(engine): State<EngineHandle>) -> Json<Value> {
    let m = &engine.inner.metrics;
    let (running, waiting, paused) = (m.num_running(), m.num_waiting(), m.paused());
    Json(json!({"version": env!("CARGO_PKG_VERSION"), "loads": [{
        "dp_rank": 0,
        "num_running_reqs": running,
        "num_waiting_reqs": waiting,
        "num_used_tokens": m.used_tokens(),
        "max_total_num_tokens": m.max_total_tokens(),
        "token_usage": m.token_usage(),
        "gen_throughput": m.gen_throughput(),
        "cache_hit_rate": m.cache_hit_rate(),
        "queues": {"waiting": waiting, "grammar": 0, "paused": if paused { running } else { 0 }, "retracted": 0},
    }]}))
}

pub(super) async fn metrics(State(engine): State<EngineHandle>) -> impl IntoResponse {
    let text = engine
        .inner
        .metrics
        .prometheus(&engine.inner.config.served_model_name);
    (
        [(
            header::CONTENT_TYPE,
            "text/plain; version=0.0.4; charset=utf-8",
        )],
        text,
    )
}

/// Paths and methods: enough to probe what the server can do.
pub(super) async fn openapi() -> Json<Value> {
    let paths: Map<String, Value> = table()
        .into_iter()
        .map(|(path, methods, _)| {
            let methods: Map<String, Value> = methods
                .iter()
                .map(|m| {
                    (
                        (*m).to_owned(),
                        json!({"responses": {"200": {"description": "OK"}}}),
                    )
                })
                .collect();
            (path.to_owned(), methods.into())
        })
        .collect();
    let info = json!({"title": "slime-engine", "version": env!("CARGO_PKG_VERSION")});
    Json(json!({"openapi": "3.1.0", "info": info, "paths": paths}))
}
