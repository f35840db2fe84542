//! Requests of plugins. The host is resolved once and what it resolved to is connected to, so that an answer of the
//! name server cannot lead elsewhere the second time; private addresses are refused unless the operator wrote them.

use slime_core::ports::BoxFuture;
use slime_runtime::{Http, HttpError, HttpRequest, HttpResponse};
use std::net::{IpAddr, SocketAddr};

/// Sends the requests of all plugins.
#[derive(Clone, Copy, Debug)]
pub struct Client;

impl Http for Client {
    fn send(&self, request: HttpRequest) -> BoxFuture<'_, Result<HttpResponse, HttpError>> {
        Box::pin(async move {
            let limit = request.time_limit;
            tokio::time::timeout(limit, send(request))
                .await
                .unwrap_or_else(|_| {
                    let ms = limit.as_millis();
                    Err(HttpError::TimedOut(format!("no whole answer in {ms} ms")))
                })
        })
    }
}

async fn send(request: HttpRequest) -> Result<HttpResponse, HttpError> {
    let invalid = |e: &dyn std::fmt::Display| HttpError::Invalid(format!("{}: {e}", request.url));
    let url = reqwest::Url::parse(&request.url).map_err(|e| invalid(&e))?;
    if url.scheme() != "http" {
        return Err(HttpError::Unavailable(
            "this build speaks no TLS; put a proxy that does on this machine, and have its http:// address granted"
                .into(),
        ));
    }
    let host = url.host_str().unwrap_or_default().to_owned();
    let port = url.port_or_known_default().unwrap_or(80);
    let bare = host
        .trim_start_matches('[')
        .trim_end_matches(']')
        .to_owned();
    let resolved: Vec<SocketAddr> = tokio::net::lookup_host((bare.as_str(), port))
        .await
        .map_err(|e| HttpError::Unavailable(format!("{host} has no address: {e}")))?
        .collect();
    if let Some(private) = resolved.iter().find(|at| is_private(at.ip()))
        && !request.may_be_private
    {
        return Err(HttpError::Denied(format!(
            "{host} leads to {}, an address of this network; grant that address itself if it is meant",
            private.ip()
        )));
    }
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .no_proxy()
        .resolve_to_addrs(&host, &resolved)
        .build()
        .map_err(|e| HttpError::Unavailable(e.to_string()))?;
    let method = reqwest::Method::from_bytes(request.method.as_bytes()).map_err(|e| invalid(&e))?;
    let mut building = client.request(method, url);
    for (name, value) in &request.headers {
        building = building.header(name, value);
    }
    let mut answer = building
        .body(request.body)
        .send()
        .await
        .map_err(|e| HttpError::Unavailable(e.without_url().to_string()))?;
    let headers = answer.headers().iter();
    let headers = headers
        .map(|(name, value)| {
            let value = String::from_utf8_lossy(value.as_bytes()).into_owned();
            (name.as_str().to_owned(), value)
        })
        .collect();
    let mut body = Vec::new();
    while let Some(chunk) = answer
        .chunk()
        .await
        .map_err(|e| HttpError::Unavailable(e.without_url().to_string()))?
    {
        if (body.len() + chunk.len()) as u64 > request.max_bytes {
            let most = request.max_bytes;
            return Err(HttpError::TooLarge(format!(
                "the answer has more than {most} bytes"
            )));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(HttpResponse {
        status: answer.status().as_u16(),
        headers,
        body,
    })
}

/// Whether an address leads into this machine or its network.
fn is_private(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            v4.is_loopback()
                || v4.is_private()
                || v4.is_link_local()
                || v4.is_unspecified()
                || v4.is_broadcast()
                || v4.is_multicast()
                // Shared space of carriers, 100.64.0.0/10.
                || (v4.octets()[0] == 100 && v4.octets()[1] & 0xc0 == 64)
                || v4.octets()[0] == 0
        }
        IpAddr::V6(v6) => match v6.to_ipv4_mapped() {
            Some(v4) => is_private(IpAddr::V4(v4)),
            None => {
                v6.is_loopback()
                    || v6.is_unspecified()
                    || v6.is_multicast()
                    || v6.is_unique_local()
                    || v6.is_unicast_link_local()
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::{Duration, Instant};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    fn asked(url: String) -> HttpRequest {
        HttpRequest {
            method: "POST".into(),
            url,
            headers: vec![("x-one".into(), "1".into())],
            body: b"hello".to_vec(),
            time_limit: Duration::from_secs(5),
            max_bytes: 1000,
            may_be_private: true,
        }
    }

    /// Answers every connection with `answer`, byte for byte.
    async fn server(answer: &'static str) -> u16 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                let mut read = [0; 4096];
                let _ = socket.read(&mut read).await;
                let _ = socket.write_all(answer.as_bytes()).await;
            }
        });
        port
    }

    #[tokio::test]
    async fn an_answer_comes_back_whole_and_redirects_are_not_followed() {
        let port = server(
            "HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 2\r\n\r\nok",
        )
        .await;
        let answer = Client
            .send(asked(format!("http://127.0.0.1:{port}/x")))
            .await
            .unwrap();
        assert_eq!((answer.status, answer.body.as_slice()), (302, &b"ok"[..]));
        assert!(
            answer
                .headers
                .contains(&("location".into(), "http://127.0.0.1:1/".into()))
        );
    }

    #[tokio::test]
    async fn a_name_that_leads_into_this_network_is_refused() {
        let mut request = asked("http://localhost:9/".into());
        request.may_be_private = false;
        let error = Client.send(request).await.unwrap_err();
        assert!(
            matches!(&error, HttpError::Denied(why) if why.contains("localhost leads to")),
            "{error}"
        );
    }

    #[tokio::test]
    async fn slow_large_and_broken_answers_are_told_apart() {
        let silent = server("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n").await;
        let mut request = asked(format!("http://127.0.0.1:{silent}/"));
        request.time_limit = Duration::from_millis(100);
        let start = Instant::now();
        let error = Client.send(request).await.unwrap_err();
        assert!(
            matches!(error, HttpError::TimedOut(_) | HttpError::Unavailable(_)),
            "{error}"
        );
        assert!(start.elapsed() < Duration::from_secs(2));
        let large = server("HTTP/1.1 200 OK\r\ncontent-length: 12\r\n\r\nhello, world").await;
        let mut request = asked(format!("http://127.0.0.1:{large}/"));
        request.max_bytes = 5;
        let error = Client.send(request).await.unwrap_err();
        assert!(matches!(error, HttpError::TooLarge(_)), "{error}");
        let error = Client
            .send(asked("https://example.org/".into()))
            .await
            .unwrap_err();
        assert!(error.to_string().contains("no TLS"), "{error}");
    }

    #[test]
    fn private_addresses_are_known_in_every_spelling() {
        for text in [
            "127.0.0.1",
            "10.1.2.3",
            "192.168.0.1",
            "172.16.9.9",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "::1",
            "fe80::1",
            "fd00::1",
            "::ffff:127.0.0.1",
        ] {
            assert!(is_private(text.parse().unwrap()), "{text}");
        }
        for text in ["93.184.216.34", "100.128.0.1", "2606:2800:220:1::1"] {
            assert!(!is_private(text.parse().unwrap()), "{text}");
        }
    }
}
