//! A child process runs steps until it is killed; another one resumes. However often that happens, the
//! steps train what an uninterrupted run trains.

use super::*;
use crate::seed::SplitMix64;
use std::process::{Command, Stdio};
use std::time::Duration;

const DIR: &str = "SLIME_ROLLOUT_KILL_TEST_DIR";
const STEPS: u64 = 12;
const GROUPS: usize = 3;
const KILLS: usize = 12;

/// The last step whose weights are saved; a rename makes a new one appear whole.
fn checkpoint(dir: &Path) -> Option<u64> {
    std::fs::read_to_string(dir.join("checkpoint"))
        .ok()?
        .parse()
        .ok()
}

fn save(dir: &Path, step: u64) {
    std::fs::write(dir.join("checkpoint.writing"), step.to_string()).unwrap();
    std::fs::rename(dir.join("checkpoint.writing"), dir.join("checkpoint")).unwrap();
}

/// A run with a checkpoint every second step.
fn run(dir: &Path) {
    let path = dir.join("run.db");
    let begun = path.exists();
    let buffer = match Buffer::open(
        &path,
        &identity("a"),
        if begun { Start::Resume } else { Start::Fresh },
        0,
    ) {
        Ok(buffer) => buffer,
        Err(RolloutError::RunExists { .. }) => unreachable!("a database that exists is resumed"),
        Err(error) => panic!("{error}"),
    };
    let first = checkpoint(dir).map_or(0, |step| step + 1);
    buffer
        .resume_at(Step(first), WeightVersion(first + 1))
        .unwrap();
    for s in first..STEPS {
        let served = WeightVersion(s + 1);
        loop {
            let missing = buffer.missing(Step(s), GROUPS, served).unwrap();
            if missing == 0 {
                break;
            }
            let claims = buffer.claim(Step(s), missing).unwrap();
            // Later draws finish first, and every seventh is dull.
            for claim in claims.iter().rev() {
                let group = sample(&buffer, claim, served.0);
                if claim.draw % 7 == 3 {
                    buffer.discard(claim, &group, "dull").unwrap();
                } else {
                    buffer.keep(claim, &group).unwrap();
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        buffer.take(Step(s), GROUPS, served).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        if s % 2 == 1 {
            save(dir, s);
        }
        buffer.trained(Step(s)).unwrap();
    }
}

/// Not a test by itself: what the child does.
#[test]
fn child() {
    if let Ok(dir) = std::env::var(DIR) {
        run(Path::new(&dir));
    }
}

fn trained(dir: &Path) -> Vec<Vec<Group>> {
    let buffer = open(&dir.join("run.db"), Start::Resume, 0);
    let balance = buffer.balance().unwrap();
    assert!(balance.holds(), "{balance:?}");
    assert_eq!(balance.trained, STEPS * GROUPS as u64);
    (0..STEPS)
        .map(|s| buffer.groups_of(Step(s)).unwrap())
        .collect()
}

#[test]
fn i07_a_run_that_is_killed_at_any_instant_trains_what_it_would_have() {
    let straight = tempfile::tempdir().unwrap();
    run(straight.path());
    let killed = tempfile::tempdir().unwrap();
    let spawn = || {
        let mut child = Command::new(std::env::current_exe().unwrap());
        child
            .args(["--exact", "buffer::tests::kill::child"])
            .env(DIR, killed.path());
        child
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut rng = SplitMix64::new(4);
    for _ in 0..KILLS {
        let mut child = spawn();
        std::thread::sleep(Duration::from_millis(rng.below(120)));
        child.kill().unwrap();
        child.wait().unwrap();
    }
    assert!(spawn().wait().unwrap().success());
    assert_eq!(trained(killed.path()), trained(straight.path()));
}
