//! Ports nobody uses: the system picks them, and all of them are held until the last is picked, or for longer.

use crate::lock;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::Mutex;

/// Ports that are kept from everybody until their servers start: addresses may be told before.
#[derive(Debug)]
pub struct HeldPorts {
    numbers: Vec<u16>,
    listeners: Mutex<Vec<TcpListener>>,
}

impl HeldPorts {
    /// Hold `n` different free ports of `host`.
    ///
    /// # Errors
    /// The address is not this machine's, or it has no port left.
    pub fn hold(host: IpAddr, n: usize) -> io::Result<Self> {
        let held = (0..n).map(|_| TcpListener::bind(SocketAddr::new(host, 0)));
        let held = held.collect::<io::Result<Vec<_>>>()?;
        let numbers = held
            .iter()
            .map(|listener| Ok(listener.local_addr()?.port()))
            .collect::<io::Result<_>>()?;
        Ok(Self {
            numbers,
            listeners: Mutex::new(held),
        })
    }

    /// The ports.
    pub fn numbers(&self) -> &[u16] {
        &self.numbers
    }

    /// Let servers take them.
    pub fn release(&self) {
        lock(&self.listeners).clear();
    }
}

/// `n` different free ports of `host`.
///
/// # Errors
/// The address is not this machine's, or it has no port left.
pub fn free_ports(host: IpAddr, n: usize) -> io::Result<Vec<u16>> {
    Ok(HeldPorts::hold(host, n)?.numbers)
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

    #[test]
    fn a_held_port_is_nobodys_until_it_is_released() {
        let held = HeldPorts::hold(Ipv4Addr::LOCALHOST.into(), 1).unwrap();
        let address = (Ipv4Addr::LOCALHOST, held.numbers()[0]);
        assert!(TcpListener::bind(address).is_err());
        held.release();
        TcpListener::bind(address).unwrap();
    }
}
