//! `POST /get_weights_by_name`: the first values of a tensor as the server holds it. A name it does not know is
//! refused (400), and names are the server's own: fused projections have others than the files.

use crate::pool::server::{CallError, Server};
use serde_json::{Value, json};

/// The first `len` values of `name` along its first axis; `None` where the server does not know the tensor or the
/// endpoint.
///
/// # Errors
/// The server cannot be reached or answers nonsense.
pub async fn get_weights_by_name(
    server: &Server,
    name: &str,
    len: usize,
) -> Result<Option<Vec<f64>>, CallError> {
    let body = json!({ "name": name, "truncate_size": len });
    match server
        .post_json::<Value>("/get_weights_by_name", &body, server.quick())
        .await
    {
        Ok(value) => {
            let mut values = Vec::new();
            flatten(&value, &mut values);
            Ok((!values.is_empty()).then_some(values))
        }
        Err(CallError::Status {
            status: 400 | 404 | 405,
            ..
        }) => Ok(None),
        Err(error) => Err(error),
    }
}

fn flatten(value: &Value, into: &mut Vec<f64>) {
    match value {
        Value::Array(items) => items.iter().for_each(|item| flatten(item, into)),
        other => into.extend(other.as_f64()),
    }
}
