//! One server's processes: a group of their own, so that all of them end together.
//!
//! A server spawns children, and a host may die by `kill -9`. Beside every group stands a guard: a shell
//! that waits on a pipe from the host. When the pipe closes without a word, the host is gone and the guard
//! ends the group. Read `mod.rs` for who starts them again.

use super::ServerSpec;
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::io;
use std::process::Stdio;
use std::time::Duration;
use tokio::io::AsyncWriteExt;
use tokio::process::{Child, Command};

/// Waits for the host's last word; without one, ends the group whose number it was given.
const GUARD: &str =
    r#"read -r word || { kill -TERM "-$1"; sleep 5; kill -KILL "-$1"; } 2>/dev/null; exit 0"#;

/// The processes of one server.
pub(super) struct Group {
    child: Child,
    guard: Child,
    id: Option<Pid>,
    /// Where in the log this start begins.
    pub(super) log_start: u64,
}

impl Group {
    /// Start a server.
    pub(super) fn spawn(spec: &ServerSpec) -> io::Result<Self> {
        let log = File::options().create(true).append(true).open(&spec.log)?;
        let log_start = log.metadata()?.len();
        let (program, args) = spec
            .argv
            .split_first()
            .ok_or_else(|| io::Error::other("the command is empty"))?;
        let mut child = Command::new(program)
            .args(args)
            .envs(spec.env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .kill_on_drop(true)
            .spawn()?;
        let number = child.id().unwrap_or_default();
        let guard = Command::new("sh")
            .args(["-c", GUARD, "guard", &number.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        let guard = match guard {
            Ok(guard) => guard,
            Err(error) => {
                child.start_kill()?;
                return Err(error);
            }
        };
        Ok(Self {
            child,
            guard,
            id: i32::try_from(number).ok().and_then(Pid::from_raw),
            log_start,
        })
    }

    /// Process id of the server's first process.
    pub(super) fn pid(&self) -> Option<u32> {
        self.child.id()
    }

    /// Wait until the first process ends, and say how it did.
    pub(super) async fn ended(&mut self) -> String {
        match self.child.wait().await {
            Ok(status) => status.to_string(),
            Err(error) => format!("it cannot be waited for: {error}"),
        }
    }

    /// End every process of the group: ask, wait for `grace`, then kill.
    pub(super) async fn end(mut self, grace: Duration) {
        if !grace.is_zero() {
            self.signal(Signal::TERM);
            let _ = tokio::time::timeout(grace, self.child.wait()).await;
        }
        self.signal(Signal::KILL);
        let _ = self.child.wait().await;
        // The guard has nothing left to guard.
        if let Some(mut word) = self.guard.stdin.take() {
            let _ = word.write_all(b"ended\n").await;
        }
        let _ = self.guard.wait().await;
    }

    /// What a host that is killed does.
    #[cfg(test)]
    pub(super) fn hang_up(&mut self) {
        drop(self.guard.stdin.take());
    }

    fn signal(&self, signal: Signal) {
        // An empty group is no error worth telling.
        if let Some(id) = self.id {
            let _ = kill_process_group(id, signal);
        }
    }
}
