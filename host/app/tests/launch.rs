//! The node agent as a process: what its ranks are told, and that none of them outlives the others, the agent or its parent.

#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

/// An agent whose environment says nothing but `env`.
fn agent(dir: &Path, env: &[(&str, &str)], flags: &[&str], script: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slime-host"));
    command
        .current_dir(dir)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap())
        .envs(env.iter().copied())
        .arg("launch")
        .args(flags)
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn log(dir: &Path, rank: usize) -> String {
    std::fs::read_to_string(dir.join(format!("logs/rank_{rank}.log"))).unwrap_or_default()
}

/// Wait for what other processes do.
fn until(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(process: &Child, name: &str) {
    let id = process.id().to_string();
    let sent = Command::new("kill")
        .args([&format!("-{name}"), &id])
        .status();
    assert!(sent.unwrap().success());
}

/// The process ids that ranks wrote into their logs.
fn ranks_of(dir: &Path, count: usize) -> Vec<u32> {
    let pid = |rank| {
        log(dir, rank)
            .lines()
            .find_map(|line| line.strip_prefix("pid ")?.parse().ok())
    };
    let all = || (0..count).map(pid).collect::<Option<Vec<u32>>>();
    until("every rank has begun", || all().is_some());
    all().unwrap()
}

/// A zombie that nobody waits for has ended too.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    stat.is_ok_and(|stat| {
        !stat
            .rsplit(')')
            .next()
            .unwrap_or_default()
            .trim_start()
            .starts_with('Z')
    })
}

#[test]
fn every_rank_gets_torchrun_s_variables_and_a_log_of_its_own() {
    let dir = tempfile::tempdir().unwrap();
    let script = "echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK $MASTER_ADDR:$MASTER_PORT";
    let slurm = [
        ("SLURM_PROCID", "1"),
        ("SLURM_STEP_NUM_TASKS", "2"),
        ("SLURM_STEP_NODELIST", "gpu[7-8]"),
    ];
    let output = agent(dir.path(), &slurm, &["--nproc-per-node", "2"], script)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert_eq!(
        words(&output).lines().next().unwrap(),
        "slime-host launch: node 1: ranks 2-3 of 4, meeting at gpu7:29500 (said by --nproc-per-node, SLURM_PROCID, SLURM_STEP_NUM_TASKS, SLURM_STEP_NODELIST)"
    );
    assert_eq!(log(dir.path(), 2), "2/4 0/2 1 gpu7:29500\n");
    assert_eq!(log(dir.path(), 3), "3/4 1/2 1 gpu7:29500\n");
    assert!(
        !words(&output).contains("2/4"),
        "only rank 0 is shown: {}",
        words(&output)
    );
}

#[test]
fn the_first_rank_that_fails_ends_the_others_and_its_code_is_the_agent_s() {
    let dir = tempfile::tempdir().unwrap();
    // Rank 0 does not listen to a polite request, and rank 1 fails only once rank 0 is past listening.
    let script = "echo pid $$; \
        if [ $RANK = 1 ]; then until [ -e deaf ]; do sleep 0.02; done; echo the reason; exit 7; fi; \
        trap '' TERM; : > deaf; sleep 60 & wait; sleep 60";
    let began = Instant::now();
    let output = agent(dir.path(), &[], &["--nproc-per-node", "2"], script)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(7));
    assert!(
        began.elapsed() < Duration::from_secs(15),
        "{:?}",
        began.elapsed()
    );
    let said = words(&output);
    assert!(
        said.contains("rank 1 ended with code 7") && said.contains("rank 1: the reason"),
        "{said}"
    );
    assert!(!lives(ranks_of(dir.path(), 2)[0]));
}

#[test]
fn ranks_die_with_their_agent_and_the_agent_with_its_parent() {
    let dir = tempfile::tempdir().unwrap();
    let script = "echo pid $$; sleep 60";
    let mut killed = agent(dir.path(), &[], &["--nproc-per-node", "2"], script)
        .spawn()
        .unwrap();
    let ranks = ranks_of(dir.path(), 2);
    assert!(ranks.iter().all(|&pid| lives(pid)));
    signal(&killed, "KILL");
    killed.wait().unwrap();
    until("the ranks have ended", || {
        !ranks.iter().any(|&pid| lives(pid))
    });

    let dir = tempfile::tempdir().unwrap();
    let binary = env!("CARGO_BIN_EXE_slime-host");
    let line =
        format!("{binary} launch --nproc-per-node 1 -- sh -c '{script}' & echo agent $!; wait");
    let mut parent = Command::new("sh")
        .args(["-c", &line])
        .current_dir(dir.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let ranks = ranks_of(dir.path(), 1);
    signal(&parent, "KILL");
    parent.wait().unwrap();
    until("the rank has ended", || !lives(ranks[0]));
}

#[test]
fn a_request_to_end_reaches_every_rank_which_may_save_first() {
    let dir = tempfile::tempdir().unwrap();
    let script =
        "trap 'sleep 0.3; echo saved; exit 130' TERM; echo pid $$; while :; do sleep 0.05; done";
    let mut asked = agent(dir.path(), &[], &["--nproc-per-node", "2"], script)
        .spawn()
        .unwrap();
    ranks_of(dir.path(), 2);
    signal(&asked, "TERM");
    assert_eq!(asked.wait().unwrap().code(), Some(130));
    for rank in 0..2 {
        assert!(
            log(dir.path(), rank).contains("saved"),
            "rank {rank}: {}",
            log(dir.path(), rank)
        );
    }
}

#[test]
fn what_cannot_be_started_is_one_clear_error() {
    let dir = tempfile::tempdir().unwrap();
    let nothing = agent(dir.path(), &[], &[], "true").output().unwrap();
    assert_eq!(nothing.status.code(), Some(2));
    assert!(
        words(&nothing).contains("--nproc-per-node"),
        "{}",
        words(&nothing)
    );
    let mut missing = Command::new(env!("CARGO_BIN_EXE_slime-host"));
    let missing = missing
        .current_dir(dir.path())
        .args(["launch", "--nproc-per-node", "1", "--", "no-such-program"])
        .output()
        .unwrap();
    assert_eq!(missing.status.code(), Some(1));
    assert!(
        words(&missing).contains("no-such-program: No such file"),
        "{}",
        words(&missing)
    );
}
