//! A connection to one rank: written by whoever has something to say, read by one thread.

use super::rendezvous::Timing;
use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Mutex, PoisonError, TryLockError};

/// A connection.
pub(super) struct Link {
    pub(super) stream: TcpStream,
    /// Where the other end is.
    pub(super) address: SocketAddr,
    /// Held while a frame is written, so that frames do not mix.
    writing: Mutex<()>,
}

impl Link {
    /// Of a connection whose ends know each other; from now on neither waits longer than a peer may be silent.
    pub(super) fn new(stream: TcpStream, timing: Timing) -> io::Result<Self> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(timing.silence))?;
        stream.set_write_timeout(Some(timing.silence))?;
        Ok(Self {
            address: stream.peer_addr()?,
            stream,
            writing: Mutex::new(()),
        })
    }

    pub(super) fn write(&self, bytes: &[u8]) -> io::Result<()> {
        let _held = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        (&self.stream).write_all(bytes)
    }

    /// Write unless somebody else does. A failure is found out by whoever reads.
    pub(super) fn write_if_free(&self, bytes: &[u8]) {
        let _held = match self.writing.try_lock() {
            Ok(held) => held,
            Err(TryLockError::Poisoned(held)) => held.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        let _ = (&self.stream).write_all(bytes);
    }
}
