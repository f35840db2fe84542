//! SGLang's HTTP API over an [`EngineHandle`]: one function a path, JSON as the real server answers it.
//!
//! It holds no state of its own and decides nothing about tokens. Paths and methods are one table, from which
//! both the router and `/openapi.json` are made. Read `generate.rs` first; `refusal.rs` has the error shapes.

mod answer;
mod chat;
mod completions;
mod control;
mod epoch;
mod generate;
mod info;
mod openai;
mod refusal;
mod sampling;
mod sse;

use crate::engine::EngineHandle;
use crate::{Error, Result};
use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::routing::{MethodRouter, get, post};
use axum::serve::ListenerExt;
use refusal::Refusal;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

/// Largest body: a batch of long prompts as text or ids.
const MAX_BODY_BYTES: usize = 256 << 20;
/// How long open answers may take once the server was told to end.
const GRACE: Duration = Duration::from_secs(5);

type Route = MethodRouter<EngineHandle>;

/// Every path, its methods and its function.
fn table() -> Vec<(&'static str, &'static [&'static str], Route)> {
    const GET: &[&str] = &["get"];
    const POST: &[&str] = &["post"];
    const BOTH: &[&str] = &["get", "post"];
    vec![
        ("/health", GET, get(info::health)),
        ("/health_generate", GET, get(info::health_generate)),
        ("/ping", GET, get(info::health)),
        ("/ready", GET, get(info::ready)),
        ("/model_info", GET, get(info::model_info)),
        ("/get_model_info", GET, get(info::model_info)),
        ("/server_info", GET, get(info::server_info)),
        ("/get_server_info", GET, get(info::server_info)),
        ("/get_weight_version", GET, get(info::weight_version)),
        ("/v1/models", GET, get(info::models)),
        ("/v1/loads", GET, get(info::loads)),
        ("/metrics", GET, get(info::metrics)),
        ("/openapi.json", GET, get(info::openapi)),
        ("/generate", POST, post(generate::generate)),
        ("/v1/chat/completions", POST, post(chat::chat)),
        ("/v1/completions", POST, post(completions::completions)),
        ("/v1/tokenize", POST, post(openai::tokenize)),
        ("/v1/detokenize", POST, post(openai::detokenize)),
        (
            "/flush_cache",
            BOTH,
            get(control::flush_cache).post(control::flush_cache),
        ),
        ("/abort_request", POST, post(control::abort)),
        ("/pause_generation", POST, post(control::pause)),
        ("/continue_generation", POST, post(control::resume)),
        (
            "/update_weights_from_disk",
            POST,
            post(control::update_weights_from_disk),
        ),
        (
            "/update_weight_version",
            POST,
            post(control::update_weight_version),
        ),
        ("/weights_checker", POST, post(control::weights_checker)),
        (
            "/get_weights_by_name",
            POST,
            post(control::get_weights_by_name),
        ),
    ]
}

fn router(engine: EngineHandle) -> Router {
    let mut router = Router::new();
    for (path, _, route) in table() {
        router = router.route(path, route);
    }
    router
        .method_not_allowed_fallback(|| async {
            Refusal::Detail(StatusCode::METHOD_NOT_ALLOWED, "Method Not Allowed")
        })
        .fallback(|| async { Refusal::Detail(StatusCode::NOT_FOUND, "Not Found") })
        .layer(axum::middleware::from_fn_with_state(
            epoch::Newest::default(),
            epoch::refuse_older,
        ))
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(engine)
}

/// A server that listens. Dropping it leaves it running; [`ServerHandle::shutdown`] ends it.
pub struct ServerHandle {
    /// Where it listens, the real port included.
    pub addr: SocketAddr,
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

impl ServerHandle {
    /// `http://host:port`.
    pub fn url(&self) -> String {
        // An IPv6 address is printed in its brackets.
        format!("http://{}", self.addr)
    }

    /// Accept nothing more; open answers get a few seconds to end.
    pub async fn shutdown(self) {
        let Self { stop, mut task, .. } = self;
        let _ = stop.send(());
        if tokio::time::timeout(GRACE, &mut task).await.is_err() {
            task.abort();
        }
    }

    /// Returns when the server has ended by itself.
    ///
    /// # Errors
    /// The listener failed.
    pub async fn wait(self) -> Result<()> {
        let Self { stop, task, .. } = self;
        let ended = task.await.map_err(|_| Error::Stopped)?;
        drop(stop);
        ended.map_err(|source| Error::Io {
            what: "serving HTTP".into(),
            source,
        })
    }
}

/// Serve the engine over HTTP. Port 0 takes a free one; [`ServerHandle::addr`] says which.
///
/// # Errors
/// The address cannot be bound; a port in use is named.
pub async fn serve(engine: EngineHandle, addr: SocketAddr) -> Result<ServerHandle> {
    let listener = TcpListener::bind(addr)
        .await
        .map_err(|source| match source.kind() {
            std::io::ErrorKind::AddrInUse => Error::PortInUse {
                host: addr.ip().to_string(),
                port: addr.port(),
            },
            _ => Error::Io {
                what: format!("listening on {addr}"),
                source,
            },
        })?;
    let addr = listener.local_addr().map_err(|source| Error::Io {
        what: "asking for the port".into(),
        source,
    })?;
    // A streamed token is a small packet that must not wait for the next one.
    let listener = listener.tap_io(|connection| {
        let _ = connection.set_nodelay(true);
    });
    let (stop, stopped) = oneshot::channel::<()>();
    let app = router(engine);
    let task = tokio::spawn(async move {
        let stopped = async move {
            // A handle that was dropped asks for nothing.
            if stopped.await.is_err() {
                std::future::pending::<()>().await;
            }
        };
        axum::serve(listener, app)
            .with_graceful_shutdown(stopped)
            .await
    });
    Ok(ServerHandle { addr, stop, task })
}
