//! The machine's own Python in a process of its own. NO SANDBOX: the program may read files and reach the network.
//!
//! For machines that cannot hold the interpreter in WebAssembly, and for programs that need what it lacks. Time,
//! memory and output are bounded; the environment is empty and the directory a fresh one. That is all.

use super::{CodeExec, Ending, Program, Ran};
use slime_core::ports::BoxFuture;
use std::process::Stdio;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;

/// Runs `python3` without a sandbox.
#[derive(Clone, Debug)]
pub struct Subprocess {
    /// The interpreter's name or path.
    pub interpreter: String,
}

impl CodeExec for Subprocess {
    fn describe(&self) -> String {
        format!("{} as a process, UNSANDBOXED", self.interpreter)
    }

    fn run(&self, program: Program) -> BoxFuture<'_, Result<Ran, String>> {
        Box::pin(async move { self.run_one(program).await })
    }
}

/// Kills the whole process group when it goes, so that no child of the program stays.
struct Group(Option<rustix::process::Pid>);

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = self.0 {
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Subprocess {
    async fn run_one(&self, program: Program) -> Result<Ran, String> {
        let folder = tempfile::tempdir().map_err(|error| format!("no directory: {error}"))?;
        let file = folder.path().join("program.py");
        std::fs::write(&file, &program.source).map_err(|error| error.to_string())?;
        let seconds = program.cpu.as_secs_f64().ceil() as u64;
        let script = format!(
            "ulimit -t {seconds}; ulimit -v {}; ulimit -c 0; exec \"$0\" -I \"$1\"",
            program.memory_bytes / 1024
        );
        let mut child = Command::new("sh")
            .arg("-c")
            .arg(script)
            .arg(&self.interpreter)
            .arg(&file)
            .current_dir(folder.path())
            .env_clear()
            .env("PATH", "/usr/local/bin:/usr/bin:/bin")
            .env("HOME", folder.path())
            .process_group(0)
            .kill_on_drop(true)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{} cannot start: {error}", self.interpreter))?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = Group(id.and_then(rustix::process::Pid::from_raw));
        let start = Instant::now();
        let (mut input, output, errors) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let Some(mut input) = input.take() {
                // A program that reads nothing closes the pipe.
                let _ = input.write_all(&program.stdin).await;
            }
        };
        let most = program.output_bytes;
        let work = async {
            let ((), out, err) = tokio::join!(feed, read(output, most), read(errors, most));
            (out, err)
        };
        let ended = tokio::time::timeout(program.cpu + Duration::from_millis(200), async {
            let (out, err) = work.await;
            // A flooding program is not waited for.
            let status = if out.1 || err.1 {
                None
            } else {
                child.wait().await.ok()
            };
            (status, out, err)
        })
        .await;
        drop(group);
        let (ending, exit_code, stdout, stderr) = match ended {
            Err(_elapsed) => (Ending::TimedOut, -1, Vec::new(), Vec::new()),
            Ok((_, (out, out_flooded), (err, err_flooded))) if out_flooded || err_flooded => {
                (Ending::OutputLimit, -1, out, err)
            }
            Ok((status, (out, _), (err, _))) => {
                let code = status.and_then(|status| status.code());
                let ending = match code {
                    Some(0) => Ending::Finished,
                    Some(_) if String::from_utf8_lossy(&err).contains("MemoryError") => {
                        Ending::OutOfMemory
                    }
                    Some(_) => Ending::Failed,
                    None if start.elapsed() >= program.cpu => Ending::TimedOut,
                    None => Ending::Crashed,
                };
                (ending, code.unwrap_or(-1), out, err)
            }
        };
        Ok(Ran {
            ending,
            exit_code,
            stdout,
            stderr,
            cpu: start.elapsed(),
            peak_memory_bytes: 0,
        })
    }
}

/// The first `most` bytes, and whether there was more.
async fn read(from: Option<impl tokio::io::AsyncRead + Unpin>, most: u64) -> (Vec<u8>, bool) {
    let mut bytes = Vec::new();
    let Some(from) = from else {
        return (bytes, false);
    };
    let mut limited = from.take(most + 1);
    let _ = limited.read_to_end(&mut bytes).await;
    let flooded = bytes.len() as u64 > most;
    bytes.truncate(usize::try_from(most).unwrap_or(usize::MAX));
    (bytes, flooded)
}
