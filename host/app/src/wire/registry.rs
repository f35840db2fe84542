//! Components in an OCI registry, as the CNCF's artefact format for WebAssembly has them: a config that lists imports
//! and exports, and one layer of type `application/wasm`.
//!
//! What is pulled is checked against its digest before it is written; a tag may move, a digest cannot. No TLS in this
//! build: registries are reached by `http`, as on this machine or through a proxy on it.

use crate::config::Problem;
use crate::error::{Failure, Result};
use reqwest::{Client, Method, Response, StatusCode};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::fmt::Write;

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.wasm.config.v0+json";
const LAYER: &str = "application/wasm";
/// Bytes of a component that are accepted.
const MAX_BYTES: u64 = 256 << 20;

/// `registry:port/name:tag` or `registry:port/name@sha256:…`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    registry: String,
    name: String,
    /// Tag or digest.
    version: String,
}

impl Reference {
    /// Read one.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(text: &str) -> Result<Self> {
        let parts = || {
            let (registry, rest) = text
                .strip_prefix("http://")
                .unwrap_or(text)
                .split_once('/')?;
            let (name, version) = rest.split_once('@').or_else(|| rest.rsplit_once(':'))?;
            let is_name =
                |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || "-_./".contains(c);
            let fits = !name.is_empty() && name.chars().all(is_name) && !version.is_empty();
            fits.then(|| Self {
                registry: registry.into(),
                name: name.into(),
                version: version.into(),
            })
        };
        parts().ok_or_else(|| {
            Problem::new(format!("`{text}` names nothing in a registry"))
                .help("write HOST:PORT/NAME:TAG or HOST:PORT/NAME@sha256:DIGEST")
                .into()
        })
    }

    fn url(&self, rest: &str) -> String {
        format!("http://{}/v2/{}/{rest}", self.registry, self.name)
    }

    /// The same name, pinned.
    fn pinned(&self, digest: &str) -> String {
        format!("{}/{}@{digest}", self.registry, self.name)
    }
}

/// `sha256:` and the digest of `bytes`.
fn digest(bytes: &[u8]) -> String {
    let mut text = String::from("sha256:");
    for byte in Sha256::digest(bytes) {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

fn client() -> Result<Client> {
    Client::builder()
        .no_proxy()
        .build()
        .map_err(|e| Failure::run(e.to_string()))
}

/// No answer at all.
fn unheard(what: &str, error: &reqwest::Error) -> Failure {
    if !error.is_connect() {
        return Failure::run(format!("{what}: {error}"));
    }
    let at = error.url().and_then(|url| {
        let host = url.host_str()?;
        Some(format!("{host}:{}", url.port_or_known_default()?))
    });
    Failure::run(format!(
        "{what}: no registry answers at {}",
        at.unwrap_or_default()
    ))
    .help("start it, or name another: HOST:PORT/NAME:TAG; it is asked by http, not https")
}

async fn send(building: reqwest::RequestBuilder, what: &str) -> Result<Response> {
    let answer = building.send().await.map_err(|e| unheard(what, &e))?;
    if answer.status().is_success() {
        return Ok(answer);
    }
    let status = answer.status();
    let said = answer.text().await.unwrap_or_default();
    let said: String = said.chars().take(300).collect();
    Err(Failure::run(format!(
        "{what}: the registry answered {status}: {said}"
    )))
}

/// Put a component there; answers with the reference that pins it.
///
/// # Errors
/// The registry does not take it.
pub async fn push(
    to: &Reference,
    component: Vec<u8>,
    imports: &[String],
    exports: &[String],
) -> Result<String> {
    let client = client()?;
    let (layer, size) = (digest(&component), component.len());
    let config = json!({
        "created": "1970-01-01T00:00:00Z",
        "architecture": "wasm",
        "os": "wasip2",
        "layerDigests": [layer],
        "component": { "imports": imports, "exports": exports },
    })
    .to_string()
    .into_bytes();
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "artifactType": CONFIG,
        "config": { "mediaType": CONFIG, "digest": digest(&config), "size": config.len() },
        "layers": [{ "mediaType": LAYER, "digest": layer, "size": size }],
    })
    .to_string()
    .into_bytes();
    blob(&client, to, config).await?;
    blob(&client, to, component).await?;
    let pinned = digest(&manifest);
    let version = if to.version.starts_with("sha256:") {
        &pinned
    } else {
        &to.version
    };
    let put = client
        .put(to.url(&format!("manifests/{version}")))
        .header("content-type", MANIFEST)
        .body(manifest);
    send(put, "push").await?;
    Ok(to.pinned(&pinned))
}

async fn blob(client: &Client, to: &Reference, bytes: Vec<u8>) -> Result<()> {
    let digest = digest(&bytes);
    let there = client
        .request(Method::HEAD, to.url(&format!("blobs/{digest}")))
        .send()
        .await
        .map_err(|e| unheard("push", &e))?;
    if there.status() == StatusCode::OK {
        return Ok(());
    }
    let begun = send(client.post(to.url("blobs/uploads/")), "push").await?;
    let location = begun
        .headers()
        .get("location")
        .and_then(|v| v.to_str().ok());
    let Some(location) = location else {
        return Err(Failure::run(
            "push: the registry said no place to upload to",
        ));
    };
    let base = if location.starts_with('/') {
        format!("http://{}{location}", to.registry)
    } else {
        location.to_owned()
    };
    let joint = if base.contains('?') { '&' } else { '?' };
    let put = client
        .put(format!("{base}{joint}digest={digest}"))
        .header("content-type", "application/octet-stream")
        .body(bytes);
    send(put, "push").await?;
    Ok(())
}

/// Get a component, checked against every digest on the way; answers with it and the reference that pins it.
///
/// # Errors
/// There is none, it is no component, or its bytes are not those of its digest.
pub async fn pull(from: &Reference) -> Result<(Vec<u8>, String)> {
    let client = client()?;
    let asked = client
        .get(from.url(&format!("manifests/{}", from.version)))
        .header("accept", MANIFEST);
    let manifest = body(send(asked, "pull").await?, 1 << 20).await?;
    let found = digest(&manifest);
    if from.version.starts_with("sha256:") && from.version != found {
        return Err(changed("manifest", &from.version, &found));
    }
    let manifest: Value = serde_json::from_slice(&manifest)
        .map_err(|e| Failure::run(format!("pull: the manifest is no JSON: {e}")))?;
    let layers = manifest["layers"].as_array().map_or(&[][..], Vec::as_slice);
    let [layer] = layers else {
        let count = layers.len();
        return Err(Failure::run(format!(
            "pull: {count} layers; a component is one"
        )));
    };
    if layer["mediaType"] != LAYER {
        return Err(Failure::run(format!(
            "pull: its layer is {}, not {LAYER}",
            layer["mediaType"]
        )));
    }
    let wanted = layer["digest"].as_str().unwrap_or_default();
    let asked = client.get(from.url(&format!("blobs/{wanted}")));
    let component = body(send(asked, "pull").await?, MAX_BYTES).await?;
    if digest(&component) != wanted {
        return Err(changed("component", wanted, &digest(&component)));
    }
    Ok((component, from.pinned(&found)))
}

fn changed(what: &str, wanted: &str, found: &str) -> Failure {
    Failure::run(format!(
        "pull: the {what} was changed: its digest is {found}, wanted is {wanted}"
    ))
}

async fn body(mut answer: Response, most: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    while let Some(chunk) = answer
        .chunk()
        .await
        .map_err(|e| Failure::run(format!("pull: {e}")))?
    {
        bytes.extend_from_slice(&chunk);
        if bytes.len() as u64 > most {
            return Err(Failure::run(format!("pull: more than {most} bytes")));
        }
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_are_read_and_pinned() {
        let tagged = Reference::parse("127.0.0.1:5000/plugins/math:0.1.0").unwrap();
        assert_eq!(tagged.url("x"), "http://127.0.0.1:5000/v2/plugins/math/x");
        assert_eq!(tagged.version, "0.1.0");
        let pinned = Reference::parse(&tagged.pinned("sha256:ab")).unwrap();
        assert_eq!(
            (pinned.name.as_str(), pinned.version.as_str()),
            ("plugins/math", "sha256:ab")
        );
        for text in ["math", "host/math", "host/Math:1", "host/math:", "host/:1"] {
            assert!(Reference::parse(text).is_err(), "{text}");
        }
    }
}
