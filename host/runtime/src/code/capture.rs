//! An output that keeps its first bytes, and ends the program that writes more.

use std::sync::{Arc, Mutex, PoisonError};
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};

#[derive(Clone)]
pub(super) struct Capture(Arc<Mutex<Kept>>);

struct Kept {
    bytes: Vec<u8>,
    most: usize,
    flooded: bool,
}

impl Capture {
    pub(super) fn new(most: u64) -> Self {
        Self(Arc::new(Mutex::new(Kept {
            bytes: Vec::new(),
            most: usize::try_from(most).unwrap_or(usize::MAX),
            flooded: false,
        })))
    }

    /// What was kept, and whether there was more.
    pub(super) fn take(&self) -> (Vec<u8>, bool) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut kept.bytes), kept.flooded)
    }
}

impl IsTerminal for Capture {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Capture {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Capture {
    async fn ready(&mut self) {}
}

impl OutputStream for Capture {
    fn write(&mut self, bytes: bytes::Bytes) -> StreamResult<()> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = (kept.most - kept.bytes.len()).min(bytes.len());
        kept.bytes.extend_from_slice(&bytes[..room]);
        if room < bytes.len() {
            kept.flooded = true;
            return Err(StreamError::Trap(wasmtime::Error::msg("output limit")));
        }
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> Result<usize, StreamError> {
        Ok(64 * 1024)
    }
}
