//! What a rank writes: into a file of its own, and of the first rank also where the agent writes.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::fs::File;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};

/// Lines kept of each rank, to be shown if it fails.
const KEPT: usize = 15;

/// The end of what a rank wrote.
#[derive(Clone, Default)]
pub struct Tail(Arc<Mutex<VecDeque<String>>>);

impl Tail {
    fn keep(&self, bytes: &[u8]) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for line in String::from_utf8_lossy(bytes)
            .lines()
            .filter(|line| !line.trim().is_empty())
        {
            lines.push_back(line.to_owned());
        }
        while lines.len() > KEPT {
            lines.pop_front();
        }
    }

    /// The last lines.
    pub fn lines(&self) -> Vec<String> {
        let lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        lines.iter().cloned().collect()
    }
}

/// Where a rank's output goes.
#[derive(Clone)]
pub struct Log {
    /// Its file.
    pub path: PathBuf,
    /// Shown by the agent too.
    pub shown: bool,
    /// Its end.
    pub tail: Tail,
}

/// Copy `from` until it ends. What cannot be written is lost, and the rank goes on.
pub async fn copy(mut from: impl AsyncRead + Unpin, log: Log) {
    let mut file = File::options()
        .create(true)
        .append(true)
        .open(&log.path)
        .await
        .ok();
    let mut shown = log.shown.then(tokio::io::stderr);
    let mut bytes = vec![0; 1 << 14];
    while let Ok(n @ 1..) = from.read(&mut bytes).await {
        log.tail.keep(&bytes[..n]);
        if let Some(file) = &mut file {
            let _ = file.write_all(&bytes[..n]).await;
            // A log is read while its rank lives, and after the machine was switched off.
            let _ = file.flush().await;
        }
        if let Some(shown) = &mut shown {
            let _ = shown.write_all(&bytes[..n]).await;
            let _ = shown.flush().await;
        }
    }
}
