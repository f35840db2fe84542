//! Which ranks a node agent starts, found out from whoever started the agent.
//!
//! Two ways. A launcher that starts one agent a node is told how many ranks each has (`--nproc-per-node`, or torchrun's
//! `LOCAL_WORLD_SIZE` with `GROUP_RANK`); one that starts an agent a rank has said everything already, and its agent starts
//! that rank. The variables looked at, in this order:
//!
//! | | one agent a node | one agent a rank |
//! |---|---|---|
//! | which | `--node-rank`, `GROUP_RANK`, `SLURM_PROCID`, `OMPI_COMM_WORLD_RANK`, `PMI_RANK` | `RANK`, the last three |
//! | of how many | `--nnodes`, `GROUP_WORLD_SIZE`, `SLURM_STEP_NUM_TASKS`, `SLURM_NTASKS`, `OMPI_COMM_WORLD_SIZE`, `PMI_SIZE` | `WORLD_SIZE`, the last four |
//! | where rank 0 is | `MASTER_ADDR`, the first of `SLURM_STEP_NODELIST`, of `SLURM_JOB_NODELIST`; this machine if there is one node | the same |

use super::contract::{AGENT_STORE, RUN_ID, number};
use super::{Env, hosts};
use crate::config::Problem;
use std::ops::Range;

/// torchrun's port, where nothing says another.
const PORT: u16 = 29500;

/// What was asked for on the command line.
#[derive(Clone, Copy, Debug, Default)]
pub struct Asked {
    /// Ranks a node.
    pub nproc_per_node: Option<usize>,
    /// Nodes.
    pub nnodes: Option<usize>,
    /// This one.
    pub node_rank: Option<usize>,
}

/// A node's share of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// This node.
    pub rank: usize,
    /// Its ranks of the run.
    pub ranks: Range<usize>,
    /// `LOCAL_RANK` of the first of them.
    pub first_local: usize,
    /// Ranks on this node, also those that other agents start.
    pub local_size: usize,
    /// All ranks.
    pub size: usize,
    /// Where rank 0 listens.
    pub host: String,
    /// Where rank 0 listens.
    pub port: u16,
    /// Tells the ranks of this run from others.
    pub run: Option<String>,
    /// Which names said so.
    pub said_by: Vec<String>,
}

const WHICH: [&str; 3] = ["SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK"];
const OF: [&str; 4] = [
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
];
const LOCAL: [&str; 4] = [
    "LOCAL_RANK",
    "SLURM_LOCALID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MPI_LOCALRANKID",
];
const LOCAL_OF: [&str; 3] = [
    "LOCAL_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_SIZE",
    "MPI_LOCALNRANKS",
];

/// Numbers, and who said each.
struct Found<'a> {
    env: &'a Env,
    said_by: Vec<String>,
}

impl Found<'_> {
    fn number(
        &mut self,
        flag: Option<(usize, &str)>,
        names: &[&str],
    ) -> Result<Option<usize>, Problem> {
        if let Some((value, flag)) = flag {
            self.said_by.push(flag.into());
            return Ok(Some(value));
        }
        let Some((value, name)) = self.env.first(names) else {
            return Ok(None);
        };
        self.said_by.push(name.into());
        number(value, name).map(Some)
    }
}

impl Node {
    /// What `asked` and `env` say.
    ///
    /// # Errors
    /// Something is missing or contradicts the rest.
    pub fn find(asked: Asked, env: &Env) -> Result<Self, Problem> {
        let mut found = Found {
            env,
            said_by: Vec::new(),
        };
        // An agent a rank is told a local rank; without one, torchrun's names can only mean the node's.
        let by_node = env.get("GROUP_RANK").is_some() && env.get("LOCAL_RANK").is_none();
        let per_node = match asked.nproc_per_node {
            Some(n) => found.number(Some((n, "--nproc-per-node")), &[])?,
            None if by_node => found.number(None, &["LOCAL_WORLD_SIZE"])?,
            None => None,
        };
        let (rank, ranks, first_local, local_size, size) = match per_node {
            Some(0) => {
                return Err(
                    Problem::new("a node of 0 ranks").help("give --nproc-per-node 1 or more")
                );
            }
            Some(each) => {
                let which: Vec<&str> = ["GROUP_RANK"].into_iter().chain(WHICH).collect();
                let of: Vec<&str> = ["GROUP_WORLD_SIZE"].into_iter().chain(OF).collect();
                let node = found.number(asked.node_rank.map(|n| (n, "--node-rank")), &which)?;
                let nodes = found.number(asked.nnodes.map(|n| (n, "--nnodes")), &of)?;
                let nodes = match (node, nodes) {
                    (_, Some(nodes)) => nodes,
                    (None | Some(0), None) => 1,
                    (Some(node), None) => {
                        return Err(Problem::new(format!(
                            "this is node {node}, and of how many is not said"
                        ))
                        .help("give --nnodes N"));
                    }
                };
                let node = match (node, nodes) {
                    (Some(node), _) => node,
                    (None, 1) => 0,
                    (None, _) => {
                        return Err(Problem::new(format!(
                            "there are {nodes} nodes, and which this one is is not said"
                        ))
                        .help("give --node-rank, or start it with srun, mpirun or torchrun"));
                    }
                };
                if node >= nodes {
                    return Err(
                        Problem::new(format!("node {node} of {nodes}")).help("nodes count from 0")
                    );
                }
                (node, node * each..(node + 1) * each, 0, each, nodes * each)
            }
            None => {
                let which: Vec<&str> = ["RANK"].into_iter().chain(WHICH).collect();
                let of: Vec<&str> = ["WORLD_SIZE"].into_iter().chain(OF).collect();
                let rank = found.number(None, &which)?.ok_or_else(|| {
                    Problem::new("neither a launcher's variables nor --nproc-per-node say which ranks to start")
                        .help("on one machine: --nproc-per-node N; on several, start it with srun, mpirun, torchrun or Ray")
                })?;
                let size = found.number(None, &of)?.unwrap_or(rank + 1);
                let local = found.number(None, &LOCAL)?.unwrap_or(0);
                let local_size = found.number(None, &LOCAL_OF)?.unwrap_or(local + 1);
                let node = env.first(&["GROUP_RANK", "SLURM_NODEID", "OMPI_COMM_WORLD_NODE_RANK"]);
                let node = node.map_or(Ok(0), |(value, name)| number(value, name))?;
                if rank >= size {
                    return Err(
                        Problem::new(format!("rank {rank} of {size}")).help("ranks count from 0")
                    );
                }
                (node, rank..rank + 1, local, local_size, size)
            }
        };
        let (host, host_by) =
            match env.first(&["MASTER_ADDR", "SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"]) {
                Some((host, "MASTER_ADDR")) => (Some(host.to_owned()), "MASTER_ADDR"),
                Some((list, name)) => (hosts::first(list), name),
                None if ranks.len() == size || local_size == size => {
                    (Some("127.0.0.1".into()), "all ranks are here")
                }
                None => (None, ""),
            };
        let host = host.ok_or_else(|| {
            Problem::new("it is not said on which machine rank 0 is")
                .help("set MASTER_ADDR to its name or address")
        })?;
        found.said_by.push(host_by.into());
        let port = match env.get("MASTER_PORT") {
            Some(port) => {
                number(port, "MASTER_PORT")? as u16
                    + u16::from(env.get(AGENT_STORE) == Some("True"))
            }
            // Jobs that share a machine do not share the port.
            None => {
                PORT + env
                    .get("SLURM_JOB_ID")
                    .and_then(|id| id.parse::<u64>().ok())
                    .unwrap_or(0) as u16
                    % 1000
            }
        };
        let run = env
            .first(&[RUN_ID, "TORCHELASTIC_RUN_ID"])
            .map(|(run, _)| run.to_owned());
        let step = || {
            let (job, step) = (
                env.get("SLURM_JOB_ID")?,
                env.get("SLURM_STEP_ID").unwrap_or("0"),
            );
            Some(format!("slurm-{job}.{step}"))
        };
        Ok(Self {
            rank,
            ranks,
            first_local,
            local_size,
            size,
            host,
            port,
            run: run.or_else(step),
            said_by: found.said_by,
        })
    }

    /// What a rank is told.
    pub fn variables(&self, rank: usize) -> Vec<(&'static str, String)> {
        let local = self.first_local + rank - self.ranks.start;
        let mut all = vec![
            ("RANK", rank.to_string()),
            ("WORLD_SIZE", self.size.to_string()),
            ("LOCAL_RANK", local.to_string()),
            ("LOCAL_WORLD_SIZE", self.local_size.to_string()),
            ("GROUP_RANK", self.rank.to_string()),
            ("MASTER_ADDR", self.host.clone()),
            ("MASTER_PORT", self.port.to_string()),
        ];
        all.extend(self.run.clone().map(|run| (RUN_ID, run)));
        all
    }

    /// In one line: what was found out, and from whom.
    pub fn sentence(&self) -> String {
        let ranks = match self.ranks.len() {
            1 => format!("rank {}", self.ranks.start),
            _ => format!("ranks {}-{}", self.ranks.start, self.ranks.end - 1),
        };
        format!(
            "node {}: {ranks} of {}, meeting at {}:{} (said by {})",
            self.rank,
            self.size,
            self.host,
            self.port,
            self.said_by.join(", ")
        )
    }
}

#[cfg(test)]
mod tests {
    use super::super::contract::tests::env;
    use super::*;

    fn per_node(n: usize) -> Asked {
        Asked {
            nproc_per_node: Some(n),
            ..Asked::default()
        }
    }

    #[test]
    fn on_one_machine_a_number_of_ranks_is_enough() {
        let node = Node::find(per_node(4), &env(&[])).unwrap();
        assert_eq!(
            (node.ranks.clone(), node.size, node.local_size),
            (0..4, 4, 4)
        );
        assert_eq!(
            node.sentence(),
            "node 0: ranks 0-3 of 4, meeting at 127.0.0.1:29500 (said by --nproc-per-node, all ranks are here)"
        );
    }

    #[test]
    fn slurm_s_agent_on_each_node_starts_its_share() {
        let said = [
            ("SLURM_PROCID", "1"),
            ("SLURM_STEP_NUM_TASKS", "2"),
            ("SLURM_NTASKS", "9"),
            ("SLURM_STEP_NODELIST", "node[3,5]"),
            ("SLURM_JOB_NODELIST", "node[1-5]"),
            ("SLURM_JOB_ID", "1234"),
            ("SLURM_STEP_ID", "3"),
        ];
        let node = Node::find(per_node(2), &env(&said)).unwrap();
        assert_eq!((node.rank, node.ranks.clone(), node.size), (1, 2..4, 4));
        assert_eq!(
            (node.host.as_str(), node.port, node.run.as_deref()),
            ("node3", 29734, Some("slurm-1234.3"))
        );
        let told = node.variables(3);
        for (name, value) in [
            ("RANK", "3"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("GROUP_RANK", "1"),
        ] {
            assert!(told.contains(&(name, value.into())), "{name} in {told:?}");
        }
    }

    #[test]
    fn an_agent_a_rank_starts_that_rank_whoever_said_it() {
        let torchrun = [
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("LOCAL_RANK", "1"),
            ("LOCAL_WORLD_SIZE", "4"),
            ("GROUP_RANK", "1"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "1000"),
            ("TORCHELASTIC_USE_AGENT_STORE", "True"),
        ];
        let openmpi = [
            ("OMPI_COMM_WORLD_RANK", "5"),
            ("OMPI_COMM_WORLD_SIZE", "8"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "1"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("MASTER_ADDR", "a"),
            ("MASTER_PORT", "1001"),
        ];
        let slurm = [
            ("SLURM_PROCID", "5"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_LOCALID", "1"),
            ("SLURM_JOB_NODELIST", "a,b"),
            ("MASTER_PORT", "1001"),
        ];
        for said in [&torchrun[..], &openmpi, &slurm] {
            let node = Node::find(Asked::default(), &env(said)).unwrap();
            assert_eq!(
                (node.ranks.clone(), node.size, node.first_local),
                (5..6, 8, 1),
                "{said:?}"
            );
            assert_eq!((node.host.as_str(), node.port), ("a", 1001), "{said:?}");
        }
    }

    #[test]
    fn torchrun_s_names_for_a_node_start_all_its_ranks() {
        let said = [
            ("GROUP_RANK", "1"),
            ("GROUP_WORLD_SIZE", "3"),
            ("LOCAL_WORLD_SIZE", "2"),
            ("MASTER_ADDR", "a"),
        ];
        let node = Node::find(Asked::default(), &env(&said)).unwrap();
        assert_eq!((node.ranks, node.size), (2..4, 6));
    }

    #[test]
    fn what_is_not_said_is_asked_for() {
        let error =
            |asked, said: &[(&str, &str)]| Node::find(asked, &env(said)).unwrap_err().message;
        assert!(error(Asked::default(), &[]).contains("--nproc-per-node"));
        let nodes = Asked {
            nnodes: Some(2),
            ..per_node(1)
        };
        assert_eq!(
            error(nodes, &[]),
            "there are 2 nodes, and which this one is is not said"
        );
        let second = Asked {
            node_rank: Some(1),
            ..nodes
        };
        assert_eq!(
            error(second, &[]),
            "it is not said on which machine rank 0 is"
        );
    }
}
