//! `http`: requests to the servers that the operator listed, compared literally.

use crate::bindings::http::{Header, Host, Request, Response};
use crate::bindings::types::{Error, ErrorCode};
use crate::context::Context;
use crate::host::outside;
use crate::services::{HttpError, HttpRequest};
use std::net::IpAddr;
use std::time::Duration;

const METHODS: [&str; 6] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"];
const MAX_HEADERS: usize = 64;

/// `scheme://host:port` of an address, the port always written, the host in lower case.
pub(crate) fn server(url: &str) -> Result<String, String> {
    let bad = |why: &str| Err(format!("`{url}`: {why}"));
    let Some((scheme, rest)) = url.split_once("://") else {
        return bad("give an address that begins with http:// or https://");
    };
    let scheme = scheme.to_ascii_lowercase();
    let default_port = match scheme.as_str() {
        "http" => 80,
        "https" => 443,
        _ => return bad("only http and https are spoken"),
    };
    let authority = &rest[..rest.find(['/', '?', '#']).unwrap_or(rest.len())];
    // What stands before an @ is a name and password, and a way to make one host look like another.
    if authority.contains(['@', '\\', ' ', '%']) || !authority.is_ascii() {
        return bad("the host may hold letters, digits, `.`, `-` and a port");
    }
    let (host, port) = if let Some(rest) = authority.strip_prefix('[') {
        let Some((host, port)) = rest.split_once(']') else {
            return bad("an IPv6 address ends with `]`");
        };
        (format!("[{host}]"), port.strip_prefix(':'))
    } else {
        match authority.split_once(':') {
            Some((host, port)) => (host.to_owned(), Some(port)),
            None => (authority.to_owned(), None),
        }
    };
    let port = match port {
        None => default_port,
        Some(text) => match text.parse::<u16>() {
            Ok(port) if port > 0 => port,
            _ => return bad("the port is no number from 1 to 65535"),
        },
    };
    if host.is_empty() {
        return bad("the host is missing");
    }
    Ok(format!("{scheme}://{}:{port}", host.to_ascii_lowercase()))
}

/// Whether the server is written as an address or as `localhost`: listing it so is naming where it leads.
fn is_literal(server: &str) -> bool {
    let host = server.split("://").nth(1).unwrap_or_default();
    let host = host.rsplit_once(':').map_or(host, |(host, _)| host);
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    bare.parse::<IpAddr>().is_ok() || host == "localhost"
}

impl Host for Context {
    async fn send(&mut self, request: Request) -> wasmtime::Result<Result<Response, Error>> {
        self.count_host_call()?;
        let asked = match server(&request.url) {
            Ok(asked) => asked,
            Err(reason) => return Ok(self.refuse(ErrorCode::InvalidInput, reason)),
        };
        let listed = &self.plugin.grants.http;
        if !listed.iter().any(|one| server(one).as_ref() == Ok(&asked)) {
            let message = format!("{asked} is not granted, but: {}", listed.join(", "));
            return Ok(self.refuse(ErrorCode::Denied, message));
        }
        if !METHODS.contains(&request.method.as_str()) || request.headers.len() > MAX_HEADERS {
            let message = format!(
                "the method is one of {}, with at most {MAX_HEADERS} headers",
                METHODS.join(", ")
            );
            return Ok(self.refuse(ErrorCode::InvalidInput, message));
        }
        let Some(http) = self.services.http.clone() else {
            return Ok(self.refuse(ErrorCode::Unavailable, "this host sends no requests"));
        };
        let most = self.plugin.limits.wall;
        let time_limit = match request.time_limit_ms {
            0 => most,
            ms => most.min(Duration::from_millis(ms.into())),
        };
        let request = HttpRequest {
            method: request.method,
            url: request.url,
            headers: request
                .headers
                .into_iter()
                .map(|header| (header.name, header.value))
                .collect(),
            body: request.body,
            time_limit,
            max_bytes: self.hostcall_bytes,
            may_be_private: is_literal(&asked),
        };
        let sent = outside(
            self.caller.clone(),
            async move { Ok(http.send(request).await) },
        );
        let answer = match sent.await {
            Ok(answer) => answer,
            Err(failure) => return Ok(self.refuse_live(&failure)),
        };
        match answer {
            Ok(response) => {
                self.check_outgoing(response.body.len())?;
                Ok(Ok(Response {
                    status: response.status,
                    headers: response
                        .headers
                        .into_iter()
                        .map(|(name, value)| Header { name, value })
                        .collect(),
                    body: response.body,
                }))
            }
            Err(failure) => {
                let code = match failure {
                    HttpError::Invalid(_) => ErrorCode::InvalidInput,
                    HttpError::Denied(_) => ErrorCode::Denied,
                    HttpError::TimedOut(_) => ErrorCode::TimedOut,
                    HttpError::TooLarge(_) => ErrorCode::LimitExceeded,
                    HttpError::Unavailable(_) => ErrorCode::Unavailable,
                };
                Ok(self.refuse(code, failure.to_string()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{is_literal, server};

    #[test]
    fn servers_are_compared_by_scheme_host_and_port() {
        for (url, wanted) in [
            ("https://Example.org/a?b#c", "https://example.org:443"),
            ("http://example.org:8080", "http://example.org:8080"),
            ("http://[::1]:9/x", "http://[::1]:9"),
            ("HTTP://a.b/http://c.d", "http://a.b:80"),
        ] {
            assert_eq!(server(url).unwrap(), wanted);
        }
        for url in [
            "example.org",
            "ftp://a",
            "http://listed@evil.org/",
            "http://listed.org\\@evil.org",
            "http://a:0",
            "http://a:99999",
            "http://",
            "http://e\u{301}.org",
            "http://a%2eb",
        ] {
            assert!(server(url).is_err(), "{url}");
        }
    }

    #[test]
    fn only_a_literal_address_may_be_private() {
        assert!(is_literal("http://127.0.0.1:8000"));
        assert!(is_literal("http://[::1]:8000"));
        assert!(is_literal("http://localhost:8000"));
        assert!(!is_literal("http://localhost.evil.org:80"));
        assert!(!is_literal("http://internal:80"));
    }
}
