//! A run's directory: which one, and whether it is this run's.

use crate::config::layer::from_file;
use crate::config::merge::merge;
use crate::config::plan::IS_LAYOUT;
use crate::config::{Problem, Problems, Resolved};
use crate::error::{Result, at_path};
use crate::wire::{Model, Plugins};
use sha2::{Digest, Sha256};
use slime_rollout::Identity;
use slime_trainer::checkpoint;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// The recipe as it was resolved.
pub const RESOLVED: &str = "resolved.toml";
/// The Data Buffer.
pub const DATABASE: &str = "run.db";
/// Checkpoints.
pub const CHECKPOINTS: &str = "checkpoints";
/// What launched servers wrote.
pub const SERVERS: &str = "servers";
/// The trained model.
pub const MODEL: &str = "model";

/// Keys that may differ when a run is continued: they change neither what is sampled nor what is learned. So do those of
/// the layout, [`IS_LAYOUT`].
const FREE: [&str; 26] = [
    "run.dir",
    "run.name",
    "run.num_rollout",
    "run.num_epoch",
    "run.save_interval",
    "run.keep_checkpoints",
    "run.plugins",
    "run.gateway",
    "rollout.concurrency",
    "rollout.external_engine_addrs",
    "rollout.router_addr",
    "rollout.num_engines",
    "rollout.sglang_config",
    "rollout.num_gpus",
    "rollout.sglang_args",
    "rollout.engine_command",
    "rollout.num_gpus_per_engine",
    "rollout.base_gpu_id",
    "rollout.engine_start_timeout",
    "rollout.stream",
    "rollout.update_weight_disk_dir",
    "rollout.update_weight_transport",
    "rollout.update_weight_local_dir",
    "rollout.update_weight_dtype",
    "rollout.pause_generation_mode",
    "limits.wall",
];

fn is_free(key: &str) -> bool {
    let layout = key.strip_prefix("train.");
    FREE.contains(&key) || layout.is_some_and(|key| IS_LAYOUT.contains(&key))
}

/// Where launched servers write, for a verb that may have no directory.
pub fn logs(dir: Option<&Path>) -> PathBuf {
    match dir {
        Some(dir) => dir.join(SERVERS),
        None => std::env::temp_dir().join(format!("slime-host-{}", std::process::id())),
    }
}

/// Where a new run goes: what was said, else the first free `runs/<name>-<seed>`.
///
/// # Errors
/// A directory that holds something else, or cannot be made.
pub fn fresh(said: Option<&Path>, name: &str, seed: u64) -> Result<PathBuf> {
    let dir = match said {
        Some(dir) => dir.to_path_buf(),
        None => {
            let first = Path::new("runs").join(format!("{name}-{seed}"));
            let more = (2..).map(|n| Path::new("runs").join(format!("{name}-{seed}-{n}")));
            std::iter::once(first)
                .chain(more)
                .find(|dir| !dir.exists())
                .unwrap_or_default()
        }
    };
    if holds_a_run(&dir) {
        let (what, cure) = match dir.join(DATABASE).exists() {
            true => (
                "a run already",
                "continue it with --resume, or choose another with --set run.dir=PATH",
            ),
            false => (
                "checkpoints already",
                "choose another with --set run.dir=PATH",
            ),
        };
        let problem = Problem::new(format!("{} holds {what}", dir.display()));
        return Err(problem.help(cure).into());
    }
    std::fs::create_dir_all(&dir).map_err(at_path(&dir))?;
    Ok(dir)
}

fn holds_a_run(dir: &Path) -> bool {
    dir.join(DATABASE).exists() || dir.join(CHECKPOINTS).exists()
}

/// Take back what a new run wrote before it was refused, so that the mended command finds its directory free. What was
/// learned, if anything, stays.
pub fn take_back(dir: &Path) {
    if checkpoint::steps(&dir.join(CHECKPOINTS)).is_ok_and(|steps| steps.is_empty()) {
        let beside = ["", "-wal", "-shm"].map(|end| format!("{DATABASE}{end}"));
        for file in beside.iter().map(String::as_str).chain([RESOLVED]) {
            let _ = std::fs::remove_file(dir.join(file));
        }
    }
}

/// Keep what verbs other than `run` write out of a run's directory: its metrics would be lost.
///
/// # Errors
/// A run is there.
pub fn no_run_at(dir: &Path) -> Result<(), Problem> {
    match holds_a_run(dir) {
        true => Err(Problem::new(format!(
            "{} holds a run, whose metrics.jsonl would be lost",
            dir.display()
        ))
        .help("choose another directory")),
        false => Ok(()),
    }
}

/// The run to continue: what was said, else the newest under `runs/`.
///
/// # Errors
/// There is none.
pub fn to_resume(said: Option<&Path>) -> Result<PathBuf, Problem> {
    newest_with(DATABASE, said)
}

/// The fine-tuning to continue: what was said, else the newest under `runs/`.
///
/// # Errors
/// There is none.
pub fn fine_tuning_to_resume(said: Option<&Path>) -> Result<PathBuf, Problem> {
    let dir = newest_with(CHECKPOINTS, said)?;
    match dir.join(DATABASE).exists() {
        false => Ok(dir),
        true => Err(
            Problem::new(format!("{} holds a run of `slime-host run`", dir.display()))
                .help("continue it with `slime-host run --resume`, or name the fine-tuning: --set run.dir=PATH"),
        ),
    }
}

/// The directory that was said, or the newest under `runs/`, with `file` in it.
fn newest_with(file: &str, said: Option<&Path>) -> Result<PathBuf, Problem> {
    if let Some(dir) = said {
        return match dir.join(file).exists() {
            true => Ok(dir.into()),
            false if holds_a_run(dir) => Err(Problem::new(format!(
                "{} holds checkpoints, and no {file}: what was sampled is gone",
                dir.display()
            ))
            .help("put it back, or begin a new run: --set run.dir=PATH")),
            false => Err(
                Problem::new(format!("there is no run in {}", dir.display()))
                    .help("start it without --resume"),
            ),
        };
    }
    let runs = std::fs::read_dir("runs")
        .into_iter()
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()));
    let newest = runs
        .filter_map(|dir| {
            Some((
                std::fs::metadata(dir.join(file)).ok()?.modified().ok()?,
                dir,
            ))
        })
        .max()
        .map(|(_, dir)| dir);
    newest.ok_or_else(|| {
        Problem::new("there is no run to continue under runs/").help("name it: --set run.dir=PATH")
    })
}

/// The recipe a run began with, by the name `base`.
pub fn recipe(dir: &Path) -> Option<String> {
    std::fs::read_to_string(dir.join(RESOLVED)).ok()
}

/// Keep the recipe that a run begins with.
///
/// # Errors
/// The disk refused.
pub fn write_recipe(dir: &Path, said: &Resolved) -> Result<()> {
    let (path, half) = (dir.join(RESOLVED), dir.join("resolved.toml.writing"));
    std::fs::write(&half, said.to_toml(true)).map_err(at_path(&half))?;
    std::fs::rename(&half, &path).map_err(at_path(&path))
}

/// Refuse to continue a run under another recipe; every key that differs is named.
///
/// # Errors
/// One problem a key.
pub fn same_recipe(dir: &Path, now: &Resolved) -> Result<(), Problems> {
    let Some(text) = recipe(dir) else {
        return Ok(());
    };
    let (settings, _) = from_file(RESOLVED, &text);
    let Ok(then) = merge(settings) else {
        return Ok(());
    };
    let (then, now_values) = (values(&then), values(now));
    let keys: std::collections::BTreeSet<&String> = then.keys().chain(now_values.keys()).collect();
    let said = |value: Option<&String>| value.map_or("not said".to_owned(), Clone::clone);
    let problems: Vec<Problem> = keys
        .into_iter()
        .filter(|key| !is_free(key) && then.get(*key) != now_values.get(*key))
        .map(|key| {
            let (then, now_value) = (said(then.get(key)), said(now_values.get(key)));
            Problem::new(format!(
                "`{key}` is {now_value} now, and was {then} when the run in {} began",
                dir.display()
            ))
            .help("take it back, or start a new run with another run.dir")
            .at(now.place(key))
        })
        .collect();
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Problems(problems))
    }
}

fn values(resolved: &Resolved) -> std::collections::BTreeMap<String, String> {
    let text = resolved.to_toml(false);
    let (settings, _) = from_file(RESOLVED, &text);
    settings
        .into_iter()
        .filter_map(|s| Some((s.key, s.value?.to_string())))
        .collect()
}

/// What makes this run this run.
pub fn identity(said: &Resolved, model: &Model, plugins: &Plugins) -> Identity {
    let mut text = String::new();
    for (key, value) in values(said).iter().filter(|(key, _)| !is_free(key)) {
        let _ = writeln!(text, "{key} = {value}");
    }
    let mut summary = format!("model {} ({})", model.name(), model.size());
    for (name, digest) in &plugins.digests {
        let _ = write!(
            summary,
            ", plugin {name} {}",
            digest.get(..19).unwrap_or(digest)
        );
    }
    let shape = checkpoint::identity::Identity::of(&model.spec, &slime_model::params(&model.spec));
    let _ = writeln!(text, "{summary} {shape}");
    let digest = Sha256::digest(text.as_bytes())
        .iter()
        .fold(String::new(), |mut hex, byte| {
            let _ = write!(hex, "{byte:02x}");
            hex
        });
    Identity { digest, summary }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resolved(text: &str) -> Resolved {
        merge(from_file("r.toml", text).0).unwrap()
    }

    #[test]
    fn a_run_is_not_continued_under_another_recipe() {
        let dir = tempfile::tempdir().unwrap();
        let began = resolved("seed = 1\n[train]\nlr = 1e-3\n[run]\nnum_rollout = 5\n");
        std::fs::write(dir.path().join(RESOLVED), began.to_toml(true)).unwrap();
        assert!(
            same_recipe(
                dir.path(),
                &resolved("seed = 1\n[train]\nlr = 1e-3\n[run]\nnum_rollout = 9\n")
            )
            .is_ok()
        );
        let other_layout = "seed = 1\n[train]\nlr = 1e-3\ndata_parallel_size = 2\n";
        assert!(same_recipe(dir.path(), &resolved(other_layout)).is_ok());
        let problems = same_recipe(dir.path(), &resolved("[train]\nlr = 1e-4\n"))
            .unwrap_err()
            .0;
        let messages: Vec<String> = problems
            .iter()
            .map(|p| p.message.replace(&dir.path().display().to_string(), "DIR"))
            .collect();
        assert_eq!(
            messages,
            [
                "`seed` is not said now, and was 1 when the run in DIR began",
                "`train.lr` is 0.0001 now, and was 0.001 when the run in DIR began",
            ]
        );
    }

    #[test]
    fn a_directory_with_a_run_is_not_used_for_another() {
        let dir = tempfile::tempdir().unwrap();
        assert!(fresh(Some(dir.path()), "x", 1).is_ok());
        assert!(no_run_at(dir.path()).is_ok());
        assert!(to_resume(Some(dir.path())).is_err());
        std::fs::write(dir.path().join(DATABASE), "").unwrap();
        assert!(fresh(Some(dir.path()), "x", 1).is_err());
        assert!(no_run_at(dir.path()).is_err());
        assert!(to_resume(Some(dir.path())).is_ok());
        // Refused before anything was learned: the directory is free again.
        take_back(dir.path());
        assert!(fresh(Some(dir.path()), "x", 1).is_ok());
        // Checkpoints without a database: neither advice may lead to the other.
        std::fs::create_dir(dir.path().join(CHECKPOINTS)).unwrap();
        let problem = to_resume(Some(dir.path())).unwrap_err().to_string();
        assert!(problem.contains("no run.db"), "{problem}");
        let again = fresh(Some(dir.path()), "x", 1).unwrap_err().to_string();
        assert!(again.contains("holds checkpoints"), "{again}");
    }
}
