//! The WASI that a guest meets: no files, environment, network, time or chance, unless granted.
//!
//! Toolchains import much of WASI that plugins never use, so it is linked and empty. Clocks are virtual and random
//! numbers follow from the call's seed; with those, same input and seed give the same result.

use crate::Grants;
use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use wasmtime_wasi::cli::{IsTerminal, StdoutStream};
use wasmtime_wasi::p2::{OutputStream, Pollable, StreamError, StreamResult};
use wasmtime_wasi::{FsPerms, HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxBuilder};

/// Bytes of a guest's stderr that are kept, to explain a trap.
const STDERR_BYTES: usize = 2048;
/// Bytes of randomness a guest may ask for at once.
const RANDOM_BYTES: u64 = 1 << 20;

/// Build the context of one call. A granted directory that has gone since the plugin was loaded is left out.
pub(crate) fn wasi(grants: &Grants, seed: u64, stderr: &Tail) -> WasiCtx {
    let mut wasi = builder(grants, seed);
    wasi.stderr(stderr.clone());
    wasi.build()
}

/// The same, for more to be put in.
pub(crate) fn builder(grants: &Grants, seed: u64) -> WasiCtxBuilder {
    let mut wasi = WasiCtxBuilder::new();
    wasi.allow_tcp(false)
        .allow_udp(false)
        .allow_ip_name_lookup(false);
    wasi.max_random_size(RANDOM_BYTES);
    if !grants.clock {
        let clock = VirtualClock::default();
        wasi.wall_clock(clock.clone()).monotonic_clock(clock);
    }
    if !grants.random {
        wasi.secure_random(SeededRandom(seed))
            .insecure_random(SeededRandom(!seed))
            .insecure_random_seed(seed.into());
    }
    for (key, value) in &grants.env {
        wasi.env(key, value);
    }
    for (guest, host) in &grants.files {
        if let Err(error) = wasi.preopened_dir(host, guest, FsPerms::ReadOnly) {
            tracing::warn!(guest, host = %host.display(), %error, "a granted directory cannot be opened");
        }
    }
    wasi
}

/// Why the granted directories cannot be handed out.
pub(crate) fn check_files(grants: &Grants) -> Result<(), String> {
    for (guest, host) in &grants.files {
        if !host.is_dir() {
            return Err(format!(
                "cannot grant files {guest} = {}: it is no directory",
                host.display()
            ));
        }
    }
    Ok(())
}

/// A clock that starts at the same instant in every call and advances by a millisecond each time it is read, so
/// that a guest waiting for time to pass gets on.
#[derive(Clone, Default)]
struct VirtualClock(Arc<AtomicU64>);

/// 2024-01-01, so that nothing a guest checks has expired or not begun.
const EPOCH: Duration = Duration::from_secs(1_704_067_200);

impl VirtualClock {
    fn next(&self) -> Duration {
        Duration::from_millis(self.0.fetch_add(1, Relaxed))
    }
}

impl HostWallClock for VirtualClock {
    fn resolution(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn now(&self) -> Duration {
        EPOCH + self.next()
    }
}

impl HostMonotonicClock for VirtualClock {
    fn resolution(&self) -> u64 {
        1_000_000
    }

    fn now(&self) -> u64 {
        u64::try_from(self.next().as_nanos()).unwrap_or(u64::MAX)
    }
}

/// SplitMix64. It seeds hash maps and shuffles in guests; nothing here is secret.
struct SeededRandom(u64);

impl rand_core::TryRng for SeededRandom {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok((self.try_next_u64()? >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        Ok(crate::seed::scramble(self.0))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            let word = self.try_next_u64()?.to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        Ok(())
    }
}

/// The first bytes written to a stream; the rest is dropped, so that a guest that prints much goes on.
#[derive(Clone, Default)]
pub(crate) struct Tail(Arc<Mutex<Vec<u8>>>);

impl Tail {
    /// What was written, as one line.
    pub(crate) fn line(&self) -> String {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&bytes);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

impl IsTerminal for Tail {
    fn is_terminal(&self) -> bool {
        false
    }
}

impl StdoutStream for Tail {
    fn async_stream(&self) -> Box<dyn tokio::io::AsyncWrite + Send + Sync> {
        Box::new(tokio::io::sink())
    }

    fn p2_stream(&self) -> Box<dyn OutputStream> {
        Box::new(self.clone())
    }
}

#[wasmtime_wasi::async_trait]
impl Pollable for Tail {
    async fn ready(&mut self) {}
}

impl OutputStream for Tail {
    fn write(&mut self, bytes: bytes::Bytes) -> StreamResult<()> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let room = STDERR_BYTES.saturating_sub(kept.len()).min(bytes.len());
        kept.extend_from_slice(&bytes[..room]);
        Ok(())
    }

    fn flush(&mut self) -> StreamResult<()> {
        Ok(())
    }

    fn check_write(&mut self) -> Result<usize, StreamError> {
        Ok(64 * 1024)
    }
}
