//! `GET /server_info`, `/get_server_info` on older servers: the resolved arguments, flat, about 400 of them.

use crate::pool::server::{CallError, Server};
use serde_json::{Map, Value};

/// A server's arguments and version. Every member differs by version, so none is required.
#[derive(Clone, Debug, Default)]
pub struct ServerInfo(pub Map<String, Value>);

impl ServerInfo {
    /// The SGLang version it claims.
    pub fn version(&self) -> Option<&str> {
        self.0.get("version")?.as_str()
    }

    /// Requests it runs at once.
    pub fn max_running_requests(&self) -> Option<u64> {
        self.0.get("max_running_requests")?.as_u64()
    }

    /// Tensor-parallel ranks.
    pub fn tp_size(&self) -> u64 {
        self.0.get("tp_size").and_then(Value::as_u64).unwrap_or(1)
    }

    /// Data-parallel ranks.
    pub fn dp_size(&self) -> u64 {
        self.0.get("dp_size").and_then(Value::as_u64).unwrap_or(1)
    }

    /// The type its weights are held in, where it says: `float32`, `bfloat16`, `auto`, …
    pub fn dtype(&self) -> Option<&str> {
        self.0.get("dtype")?.as_str()
    }

    /// Tokens of the longest context, where it was limited.
    pub fn context_length(&self) -> Option<u64> {
        self.0.get("context_length")?.as_u64()
    }

    /// Tokens that its cache holds: a longer context cannot be sampled, whatever the model allows.
    pub fn max_total_tokens(&self) -> Option<u64> {
        self.0
            .get("max_total_tokens")
            .or_else(|| self.0.get("max_total_num_tokens"))?
            .as_u64()
    }
}

/// Ask.
///
/// # Errors
/// The server cannot be reached or answers nonsense.
pub async fn server_info(server: &Server) -> Result<ServerInfo, CallError> {
    server
        .get_json(&["/server_info", "/get_server_info"])
        .await
        .map(ServerInfo)
}
