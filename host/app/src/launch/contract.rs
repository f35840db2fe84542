//! What a rank is told: torchrun's environment variables.
//!
//! | variable | says |
//! |---|---|
//! | `RANK`, `WORLD_SIZE` | which rank this process is, and of how many |
//! | `MASTER_ADDR`, `MASTER_PORT` | where rank 0 listens |
//! | `TORCHELASTIC_USE_AGENT_STORE` | `True`: torchrun's agent has that port itself, so rank 0 takes the next one |
//! | `SLIME_RUN_ID`, else `TORCHELASTIC_RUN_ID` | ranks of another run are refused |
//! | `SLIME_PEER_TIMEOUT` | a rank without a sign of life for so long is lost |

use super::Env;
use crate::config::{Problem, units};
use slime_kernels::comm::tcp::{Rendezvous, Timing};
use std::time::Duration;

/// Without a sign of life, until a rank counts as lost.
pub const PEER_TIMEOUT: Duration = Duration::from_secs(5);
/// How long ranks that live wait for each other, until the recipe is known.
const PATIENCE: Duration = Duration::from_secs(600);

/// Its name, for the launcher to hand on.
pub const RUN_ID: &str = "SLIME_RUN_ID";
/// Its name, for the launcher to hand on.
pub const TIMEOUT: &str = "SLIME_PEER_TIMEOUT";
/// torchrun's word for a port that is taken.
pub const AGENT_STORE: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// A number from a variable.
///
/// # Errors
/// It is none.
pub fn number(value: &str, name: &str) -> Result<usize, Problem> {
    value.parse().map_err(|_| {
        Problem::new(format!("{name} is `{value}`, which is no number"))
            .help("let torchrun, srun, mpirun or `slime-host launch` set it")
    })
}

/// Where and as what this process meets the others; `None` where it is alone.
///
/// # Errors
/// Variables that contradict each other, or are missing.
pub fn rendezvous(env: &Env) -> Result<Option<(Rendezvous, Timing)>, Problem> {
    let Some(size) = env.get("WORLD_SIZE") else {
        return Ok(None);
    };
    let size = number(size, "WORLD_SIZE")?;
    if size <= 1 {
        return Ok(None);
    }
    let missing = |name: &str| {
        Problem::new(format!("WORLD_SIZE is {size}, and {name} is not set"))
            .help("start the ranks with `slime-host launch`, torchrun or another launcher that sets it; or unset WORLD_SIZE")
    };
    let rank = env.get("RANK").ok_or_else(|| missing("RANK"))?;
    let rank = number(rank, "RANK")?;
    if rank >= size {
        return Err(
            Problem::new(format!("RANK is {rank} and WORLD_SIZE {size}"))
                .help("ranks count from 0"),
        );
    }
    let host = env
        .get("MASTER_ADDR")
        .ok_or_else(|| missing("MASTER_ADDR"))?;
    let port = env
        .get("MASTER_PORT")
        .ok_or_else(|| missing("MASTER_PORT"))?;
    let mut port = number(port, "MASTER_PORT")? as u16;
    if env.get(AGENT_STORE) == Some("True") {
        port += 1;
    }
    let run = env
        .first(&[RUN_ID, "TORCHELASTIC_RUN_ID"])
        .map_or("-", |(run, _)| run);
    let silence = match env.get(TIMEOUT) {
        Some(text) => units::duration(text).map_err(|e| Problem::new(format!("{TIMEOUT}: {e}")))?,
        None => PEER_TIMEOUT,
    };
    let at = Rendezvous {
        rank,
        size,
        host: host.into(),
        port,
        run: run.split_whitespace().collect::<Vec<_>>().join("_"),
    };
    Ok(Some((at, Timing::new(silence, PATIENCE))))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::launch) fn env(pairs: &[(&str, &str)]) -> Env {
        Env(pairs
            .iter()
            .map(|(k, v)| ((*k).into(), (*v).into()))
            .collect())
    }

    #[test]
    fn a_process_alone_meets_nobody() {
        assert_eq!(rendezvous(&env(&[])).unwrap(), None);
        assert_eq!(
            rendezvous(&env(&[("WORLD_SIZE", "1"), ("RANK", "0")])).unwrap(),
            None
        );
    }

    #[test]
    fn torchrun_s_variables_say_where_to_meet() {
        let mut said = vec![
            ("WORLD_SIZE", "4"),
            ("RANK", "3"),
            ("MASTER_ADDR", "node1"),
            ("MASTER_PORT", "29500"),
        ];
        let (at, timing) = rendezvous(&env(&said)).unwrap().unwrap();
        assert_eq!(
            (at.rank, at.size, at.host.as_str(), at.port),
            (3, 4, "node1", 29500)
        );
        assert_eq!((at.run.as_str(), timing.silence), ("-", PEER_TIMEOUT));
        // The agent listens on the port itself.
        said.extend([
            (AGENT_STORE, "True"),
            ("TORCHELASTIC_RUN_ID", "job 7"),
            (TIMEOUT, "2s"),
        ]);
        let (at, timing) = rendezvous(&env(&said)).unwrap().unwrap();
        assert_eq!(
            (at.port, at.run.as_str(), timing.silence),
            (29501, "job_7", Duration::from_secs(2))
        );
    }

    #[test]
    fn what_is_missing_or_wrong_is_named() {
        let error = |said: &[(&str, &str)]| rendezvous(&env(said)).unwrap_err().message;
        assert_eq!(
            error(&[("WORLD_SIZE", "2")]),
            "WORLD_SIZE is 2, and RANK is not set"
        );
        assert_eq!(
            error(&[("WORLD_SIZE", "two")]),
            "WORLD_SIZE is `two`, which is no number"
        );
        assert_eq!(
            error(&[("WORLD_SIZE", "2"), ("RANK", "2")]),
            "RANK is 2 and WORLD_SIZE 2"
        );
    }
}
