//! `slime-host doctor`: what this machine has and lacks, each line with its cure.
//!
//! It changes nothing and starts nothing but the version commands of tools.

use super::Outcome;
use crate::error::Result;
use slime_kernels::cuda::{Cuda, library};
use slime_runtime::{LANGUAGE_TOOLS, LanguageTool};
use std::net::{TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// What to look at.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// SGLang servers to reach
    #[arg(long = "rollout-external-engine-addrs", value_name = "HOST:PORT", num_args = 1..)]
    servers: Vec<String>,
}

enum Health {
    Good,
    /// Something optional is absent.
    Absent,
    Bad,
}

struct Finding {
    health: Health,
    name: &'static str,
    text: String,
}

/// Do it. Exit code 1 if something needed is missing.
///
/// # Errors
/// Only if stdout is gone.
pub fn run(args: Args) -> Result<Outcome> {
    let mut findings = vec![
        cargo(),
        wasm_target(),
        languages(),
        programs(),
        cores(),
        memory(),
        disk(),
        loopback(),
        cuda(),
        python(),
    ];
    findings.extend(args.servers.iter().map(|server| reach(server)));
    let bad = findings.iter().any(|f| matches!(f.health, Health::Bad));
    let text: String = findings
        .iter()
        .map(|f| {
            let mark = match f.health {
                Health::Good => "✓",
                Health::Absent => "–",
                Health::Bad => "✗",
            };
            format!("{mark} {:<14} {}\n", f.name, f.text)
        })
        .collect();
    super::data(&text)?;
    Ok(if bad { Outcome::NotWell } else { Outcome::Done })
}

fn good(name: &'static str, text: impl Into<String>) -> Finding {
    Finding {
        health: Health::Good,
        name,
        text: text.into(),
    }
}

fn absent(name: &'static str, text: impl Into<String>) -> Finding {
    Finding {
        health: Health::Absent,
        name,
        text: text.into(),
    }
}

fn bad(name: &'static str, text: impl Into<String>) -> Finding {
    Finding {
        health: Health::Bad,
        name,
        text: text.into(),
    }
}

/// First line of a command's output.
fn first_line(program: &str, args: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .ok()
        .filter(|o| o.status.success())?;
    Some(
        String::from_utf8_lossy(&output.stdout)
            .lines()
            .next()?
            .trim()
            .to_owned(),
    )
}

fn cargo() -> Finding {
    match first_line("cargo", &["--version"]) {
        Some(version) => good("cargo", version),
        None => absent(
            "cargo",
            "not found: plugin folders cannot be built here, finished .wasm components run; cure: https://rustup.rs",
        ),
    }
}

fn wasm_target() -> Finding {
    let Some(sysroot) = first_line("rustc", &["--print", "sysroot"]) else {
        return absent(
            "wasm target",
            "no rustc: needed only to build plugin folders",
        );
    };
    if Path::new(&sysroot)
        .join("lib/rustlib/wasm32-wasip2")
        .is_dir()
    {
        good("wasm target", "wasm32-wasip2")
    } else {
        bad(
            "wasm target",
            "wasm32-wasip2 is missing: plugin folders cannot be built; cure: rustup target add wasm32-wasip2",
        )
    }
}

/// Plugins in other languages.
fn languages() -> Finding {
    let is_here = |tool: &&LanguageTool| tool.find().is_some();
    let (here, missing): (Vec<&LanguageTool>, Vec<&LanguageTool>) =
        LANGUAGE_TOOLS.iter().partition(is_here);
    let mut parts: Vec<String> = here
        .iter()
        .map(|tool| format!("{} by {}", tool.language, tool.names[0]))
        .collect();
    parts.extend(
        missing
            .iter()
            .map(|tool| format!("{} needs: {}", tool.language, tool.cure)),
    );
    match here.is_empty() {
        true => absent("languages", parts.join("; ")),
        false => good("languages", parts.join("; ")),
    }
}

/// Programs that the policy wrote.
fn programs() -> Finding {
    let dir = slime_runtime::code::default_dir();
    match dir.filter(|dir| dir.is_dir()) {
        Some(dir) => good("code_exec", format!("Python in {}", dir.display())),
        None => absent(
            "code_exec",
            "no Python for it: needed only by plugins that run programs, see `slime-host plugin python --help`",
        ),
    }
}

fn cores() -> Finding {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    good("cores", cores.to_string())
}

/// A number of `/proc/meminfo`, in bytes.
fn meminfo(key: &str) -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| {
        line.strip_prefix(key)
            .is_some_and(|rest| rest.starts_with(':'))
    })?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}

fn memory() -> Finding {
    let (Some(total), Some(free)) = (meminfo("MemTotal"), meminfo("MemAvailable")) else {
        return absent("memory", "this system does not say how much there is");
    };
    let gib = |bytes: u64| bytes as f64 / f64::from(1 << 30);
    // fp32 weights, gradients and two moments are 16 bytes a parameter.
    let text = format!(
        "{:.1} GiB free of {:.1}: room to train about {:.0} M parameters in f32",
        gib(free),
        gib(total),
        free as f64 / 20e6
    );
    good("memory", text)
}

fn disk() -> Finding {
    let Some(line) = Command::new("df")
        .args(["-Pk", "."])
        .output()
        .ok()
        .and_then(|o| {
            String::from_utf8_lossy(&o.stdout)
                .lines()
                .nth(1)
                .map(str::to_owned)
        })
    else {
        return absent("disk", "df is not here to say how much is free");
    };
    let free_gib = line
        .split_whitespace()
        .nth(3)
        .and_then(|kib| kib.parse::<f64>().ok())
        .unwrap_or(0.0)
        / f64::from(1 << 20);
    if free_gib < 2.0 {
        bad(
            "disk",
            format!(
                "{free_gib:.1} GiB free here: a run keeps checkpoints of 12 bytes a parameter; cure: free some, or --set run.dir=PATH"
            ),
        )
    } else {
        good("disk", format!("{free_gib:.0} GiB free here"))
    }
}

fn loopback() -> Finding {
    match TcpListener::bind("127.0.0.1:0") {
        Ok(_) => good("loopback", "the embedded engine can listen"),
        Err(e) => bad(
            "loopback",
            format!("127.0.0.1 cannot be listened on ({e}): the embedded engine needs it"),
        ),
    }
}

/// The driver and the libraries that kernels and matrix products need, each where it was found.
fn cuda() -> Finding {
    let found = library::discover();
    let place = |name: &str| found.iter().find(|f| f.name == name)?.path.as_deref();
    let Some(driver) = place("driver") else {
        return absent("CUDA", "no NVIDIA driver: everything runs on the CPU");
    };
    let missing: Vec<&str> = found
        .iter()
        .filter(|f| f.path.is_none())
        .map(|f| f.name)
        .collect();
    if !missing.is_empty() {
        return bad(
            "CUDA",
            format!(
                "driver at {}, but {} was found nowhere; cure: install the CUDA 13 toolkit, or `pip install nvidia-cublas nvidia-cuda-nvrtc` and set VIRTUAL_ENV",
                driver.display(),
                missing.join(" and ")
            ),
        );
    }
    match Cuda::open(0).and_then(|cuda| cuda.name()) {
        Ok(name) => {
            let places = found
                .iter()
                .filter_map(|f| Some(format!("{} {}", f.name, f.path.as_deref()?.display())));
            let places: Vec<String> = places.collect();
            good("CUDA", format!("{name}; {}", places.join(", ")))
        }
        Err(e) => bad(
            "CUDA",
            format!("{e}; cure: check the driver with `nvidia-smi`, it must be 580 or newer"),
        ),
    }
}

fn python() -> Finding {
    let Some(python) = first_line("python3", &["--version"]) else {
        return absent("SGLang", "no python3: the embedded engine serves");
    };
    match first_line(
        "python3",
        &[
            "-c",
            "import importlib.metadata as m; print(m.version('sglang'))",
        ],
    ) {
        Some(version) => good(
            "SGLang",
            format!("{version} in {python}: a run starts servers with --rollout-num-engines N"),
        ),
        None => absent(
            "SGLang",
            format!("not installed in {python}: the embedded engine serves"),
        ),
    }
}

fn reach(server: &str) -> Finding {
    let address = server.trim_start_matches("http://").trim_end_matches('/');
    let resolved = address
        .to_socket_addrs()
        .ok()
        .and_then(|mut all| all.next());
    match resolved.map(|address| TcpStream::connect_timeout(&address, Duration::from_secs(2))) {
        Some(Ok(_)) => good("server", format!("{address} answers")),
        Some(Err(e)) => bad(
            "server",
            format!("{address}: {e}; cure: start it, or correct the address"),
        ),
        None => bad(
            "server",
            format!("{address} is no address; cure: write HOST:PORT"),
        ),
    }
}
