//! A node agent: starts its node's ranks, and sees that none of them outlives the others or the agent.
//!
//! Each rank has a process group of its own and dies with the agent (`PR_SET_PDEATHSIG`), the agent asks its ranks to end
//! when its own parent dies. The first rank that ends with another code than 0 ends the others, and its code is the agent's.
//! It restarts nothing: that is for whoever sees the other nodes too.

use super::node::Node;
use super::output::{self, Log, Tail};
use crate::error::{Failure, Result, at_path};
use crate::job::stop::SAME;
use crate::telemetry::Console;
use rustix::process::{Pid, Signal, getppid, kill_process_group, set_parent_process_death_signal};
use std::ffi::OsString;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// How long ranks may take to end after one of them has failed.
const AFTER_FAILURE: Duration = Duration::from_secs(5);

/// The hidden verb that becomes a rank.
pub const BODY: &str = "launch-rank";

/// How a node's ranks are started.
pub struct Agent {
    /// Which ones.
    pub node: Node,
    /// What each runs.
    pub command: Vec<OsString>,
    /// Their logs.
    pub logs: PathBuf,
    /// All ranks' output is shown, not only rank 0's.
    pub show_all: bool,
    /// How long ranks that were asked to end may take.
    pub grace: Duration,
    /// Handed on to the ranks.
    pub peer_timeout: Option<String>,
}

/// A rank and what it wrote.
struct Started {
    rank: usize,
    group: Pid,
    log: Log,
}

/// What happens to an agent.
enum Event {
    Ended(usize, std::io::Result<ExitStatus>),
    Asked(Signal),
}

/// A signal's default, in a shell's numbers.
fn code(status: ExitStatus) -> u8 {
    let code = status.code().or_else(|| status.signal().map(|n| 128 + n));
    code.unwrap_or(1).clamp(0, 255) as u8
}

/// Become the rank `command`, unless the agent is gone already. Returns only what went wrong.
///
/// # Errors
/// The agent is gone, or there is no such program.
pub fn become_rank(agent: u32, command: &[OsString]) -> Result<std::convert::Infallible> {
    let tied = set_parent_process_death_signal(Some(Signal::KILL));
    tied.map_err(|e| Failure::run(format!("a rank cannot be tied to its agent: {e}")))?;
    // It may have died before the tie was made.
    if getppid().map(|pid| pid.as_raw_nonzero().get()) != Some(agent.cast_signed()) {
        return Err(Failure::run("the agent of this rank is gone"));
    }
    let (program, arguments) = command
        .split_first()
        .ok_or_else(|| Failure::run("there is no command to run as a rank"))?;
    let error = std::process::Command::new(program).args(arguments).exec();
    Err(
        Failure::run(format!("{}: {error}", Path::new(program).display()))
            .help("what follows `--` is the program each rank runs, like `slime-host run …`"),
    )
}

impl Agent {
    /// Run the ranks until all have ended → the exit code.
    ///
    /// # Errors
    /// A rank cannot be started.
    pub async fn run(self, console: &Console) -> Result<u8> {
        // A parent's death would otherwise leave ranks that nobody can find any more.
        set_parent_process_death_signal(Some(Signal::TERM))
            .map_err(|e| Failure::run(format!("the agent cannot be tied to its parent: {e}")))?;
        std::fs::create_dir_all(&self.logs).map_err(at_path(&self.logs))?;
        let (sender, mut events) = mpsc::unbounded_channel();
        listen(&sender)?;
        let mut ranks: Vec<Started> = Vec::new();
        for rank in self.node.ranks.clone() {
            match self.start(rank, sender.clone()) {
                Ok(started) => ranks.push(started),
                Err(error) => {
                    kill(&ranks, Signal::KILL);
                    return Err(error);
                }
            }
        }
        let (mut left, mut code) = (ranks.len(), None);
        let mut asked: Option<tokio::time::Instant> = None;
        let mut deadline: Option<tokio::time::Instant> = None;
        while left > 0 {
            let over = async {
                match deadline {
                    Some(at) => tokio::time::sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            let event = tokio::select! {
                event = events.recv() => event,
                () = over => {
                    kill(&ranks, Signal::KILL);
                    deadline = None;
                    continue;
                }
            };
            match event {
                Some(Event::Ended(rank, status)) => {
                    left -= 1;
                    let status = status.map_err(|e| Failure::run(format!("rank {rank}: {e}")))?;
                    if code.is_none() && !status.success() {
                        let first = self::code(status);
                        code = Some(first);
                        self.tell(&ranks, rank, first, console);
                        kill(&ranks, Signal::TERM);
                        deadline = Some(tokio::time::Instant::now() + AFTER_FAILURE);
                    }
                }
                Some(Event::Asked(signal)) => {
                    let stops = [Signal::TERM, Signal::INT, Signal::HUP].contains(&signal);
                    let again = stops && asked.is_some_and(|first| first.elapsed() > SAME);
                    if !stops || asked.is_none() || again {
                        kill(&ranks, if again { Signal::KILL } else { signal });
                    }
                    if stops {
                        let now = tokio::time::Instant::now();
                        asked.get_or_insert(now);
                        deadline.get_or_insert(now + self.grace);
                    }
                }
                None => break,
            }
        }
        Ok(code.unwrap_or(0))
    }

    fn start(&self, rank: usize, sender: mpsc::UnboundedSender<Event>) -> Result<Started> {
        let program = std::env::current_exe().map_err(at_path(Path::new("slime-host")))?;
        let mut command = Command::new(&program);
        command
            .arg(BODY)
            .arg(std::process::id().to_string())
            .arg("--")
            .args(&self.command)
            .env_remove(super::contract::AGENT_STORE)
            .envs(self.node.variables(rank))
            .envs(
                self.peer_timeout
                    .iter()
                    .map(|t| (super::contract::TIMEOUT, t)),
            )
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(at_path(&program))?;
        let log = Log {
            path: self.logs.join(format!("rank_{rank}.log")),
            shown: self.show_all || rank == 0,
            tail: Tail::default(),
        };
        let group = child.id().and_then(|id| Pid::from_raw(id.cast_signed()));
        let group = group.ok_or_else(|| Failure::run(format!("rank {rank} ended as it began")))?;
        let copies = [
            child
                .stdout
                .take()
                .map(|from| tokio::spawn(output::copy(from, log.clone()))),
            child
                .stderr
                .take()
                .map(|from| tokio::spawn(output::copy(from, log.clone()))),
        ];
        tokio::spawn(wait(rank, child, copies, sender));
        Ok(Started { rank, group, log })
    }

    fn tell(&self, ranks: &[Started], rank: usize, code: u8, console: &Console) {
        console.line(&format!("slime-host launch: rank {rank} ended with code {code}; the others of this node are ended"));
        if let Some(started) = ranks.iter().find(|r| r.rank == rank && !r.log.shown) {
            for line in started.log.tail.lines() {
                console.line(&format!("  rank {rank}: {line}"));
            }
            console.line(&format!("  all of it is in {}", started.log.path.display()));
        }
    }
}

/// A rank's end, once all it wrote is kept; what its own children still write is not waited for.
async fn wait(
    rank: usize,
    mut child: Child,
    copies: [Option<tokio::task::JoinHandle<()>>; 2],
    sender: mpsc::UnboundedSender<Event>,
) {
    let status = child.wait().await;
    for copy in copies.into_iter().flatten() {
        let _ = tokio::time::timeout(Duration::from_millis(500), copy).await;
    }
    let _ = sender.send(Event::Ended(rank, status));
}

/// Hear what the agent is asked.
fn listen(sender: &mpsc::UnboundedSender<Event>) -> Result<()> {
    for (kind, asked) in [
        (SignalKind::terminate(), Signal::TERM),
        (SignalKind::interrupt(), Signal::INT),
        (SignalKind::hangup(), Signal::HUP),
        (SignalKind::user_defined1(), Signal::USR1),
        (SignalKind::user_defined2(), Signal::USR2),
    ] {
        let mut signals =
            signal(kind).map_err(|e| Failure::run(format!("signals cannot be heard: {e}")))?;
        let sender = sender.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                if sender.send(Event::Asked(asked)).is_err() {
                    return;
                }
            }
        });
    }
    Ok(())
}

fn kill(ranks: &[Started], signal: Signal) {
    for rank in ranks {
        // A group that has ended needs no signal.
        let _ = kill_process_group(rank.group, signal);
    }
}
