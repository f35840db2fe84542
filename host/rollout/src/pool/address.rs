//! Where a server listens, written so that it can stand in a URL.

use crate::RolloutError;
use std::fmt;
use std::net::Ipv6Addr;

/// `http://host:port` of a server.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Address(String);

impl Address {
    /// From a host name or address and a port. An IPv6 address gets its brackets.
    pub fn new(host: &str, port: u16) -> Self {
        let bare = host.trim_start_matches('[').trim_end_matches(']');
        if bare.parse::<Ipv6Addr>().is_ok() {
            Self(format!("http://[{bare}]:{port}"))
        } else {
            Self(format!("http://{host}:{port}"))
        }
    }

    /// From `host:port`, `[v6]:port` or `http://host:port`.
    ///
    /// # Errors
    /// No port, a path, or https (traffic inside a pool is plain).
    pub fn parse(text: &str) -> Result<Self, RolloutError> {
        let bad = |reason: &str| RolloutError::Config {
            what: format!("engine address `{text}`"),
            reason: format!("{reason}; write host:port, like 127.0.0.1:30000 or [fd00::1]:30000"),
        };
        if text.starts_with("https://") {
            return Err(bad("https is not spoken inside a pool"));
        }
        if text.contains(',') {
            return Err(bad("several addresses are separated by spaces"));
        }
        let rest = text
            .strip_prefix("http://")
            .unwrap_or(text)
            .trim_end_matches('/');
        let (host, port) = rest.rsplit_once(':').ok_or_else(|| bad("it has no port"))?;
        let port = port
            .parse()
            .map_err(|_| bad("its port is not a number from 0 to 65535"))?;
        if host.is_empty() || host.contains('/') {
            return Err(bad("it has no host, or a path"));
        }
        if host.contains(':') && !host.starts_with('[') {
            return Err(bad("an IPv6 host needs brackets"));
        }
        Ok(Self::new(host, port))
    }

    /// `host:port`.
    pub(crate) fn authority(&self) -> &str {
        self.0.trim_start_matches("http://")
    }

    /// The address with a path.
    pub(crate) fn url(&self, path: &str) -> String {
        format!("{}{path}", self.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn g06_an_ipv6_host_gets_its_brackets() {
        assert_eq!(
            Address::new("fd00::1", 80).to_string(),
            "http://[fd00::1]:80"
        );
        assert_eq!(
            Address::new("[fd00::1]", 80).to_string(),
            "http://[fd00::1]:80"
        );
        assert_eq!(
            Address::parse("[fd00::1]:80").unwrap().url("/x"),
            "http://[fd00::1]:80/x"
        );
        assert_eq!(
            Address::parse("http://node-3:30000/").unwrap().to_string(),
            "http://node-3:30000"
        );
        assert_eq!(
            Address::parse("127.0.0.1:1").unwrap(),
            Address::new("127.0.0.1", 1)
        );
    }

    #[test]
    fn what_is_not_an_address_is_refused_with_its_cure() {
        for text in [
            "localhost",
            "https://a:1",
            "a:b",
            ":1",
            "a/b:1",
            "fd00::1:80",
            "a:70000",
        ] {
            let message = Address::parse(text).unwrap_err().to_string();
            assert!(message.contains("host:port"), "{message}");
        }
    }
}
