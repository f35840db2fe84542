//! Ports nobody uses: the system picks them, and all of them are held until the last is picked.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};

/// `n` different free ports of `host`.
///
/// # Errors
/// The address is not this machine's, or it has no port left.
pub fn free_ports(host: IpAddr, n: usize) -> io::Result<Vec<u16>> {
    let held = (0..n).map(|_| TcpListener::bind(SocketAddr::new(host, 0)));
    let held = held.collect::<io::Result<Vec<_>>>()?;
    held.iter()
        .map(|listener| Ok(listener.local_addr()?.port()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::net::Ipv4Addr;

    #[test]
    fn g10_sixty_four_servers_started_at_once_get_sixty_four_ports() {
        let ports = free_ports(Ipv4Addr::LOCALHOST.into(), 64).unwrap();
        assert_eq!(ports.iter().collect::<BTreeSet<_>>().len(), 64);
        assert!(!ports.contains(&0));
        // They are free again: a server can take each.
        for port in ports {
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        }
    }
}
