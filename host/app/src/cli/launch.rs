//! `slime-host launch`: the node agent, and the hidden verb by which it becomes a rank.

use super::{Context, Outcome};
use crate::config::{Problem, units};
use crate::error::Result;
use crate::launch::Env;
use crate::launch::agent::{Agent, become_rank};
use crate::launch::node::{Asked, Node};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Which ranks, and what each of them runs.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Ranks this node starts; not needed where the launcher starts an agent for each
    #[arg(long, value_name = "N")]
    nproc_per_node: Option<usize>,
    /// Nodes; the launcher's number by default
    #[arg(long, value_name = "N")]
    nnodes: Option<usize>,
    /// This node; the launcher's number by default
    #[arg(long, value_name = "N")]
    node_rank: Option<usize>,
    /// Directory of the ranks' logs, `rank_N.log`
    #[arg(long, value_name = "DIR", default_value = "logs")]
    log_dir: PathBuf,
    /// Show the output of all ranks of this node, not only of rank 0
    #[arg(long)]
    show_all: bool,
    /// A rank without a sign of life for so long is lost [default: 5s]
    #[arg(long, value_name = "TIME")]
    peer_timeout: Option<String>,
    /// How long ranks may take to save and end after SIGTERM
    #[arg(long, value_name = "TIME", default_value = "60s")]
    grace: String,
    /// The program each rank runs, like `-- slime-host run …`
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

/// The rank to become.
#[derive(Debug, clap::Args)]
pub struct Rank {
    /// The agent's process id
    agent: u32,
    /// What to become
    #[arg(last = true, required = true)]
    command: Vec<OsString>,
}

fn time(text: &str, flag: &str) -> Result<Duration, Problem> {
    units::duration(text).map_err(|e| Problem::new(format!("{flag}: {e}")))
}

/// Do it, until all ranks of this node have ended.
///
/// # Errors
/// It is not said which ranks to start, or one cannot be started.
pub fn run(args: Args, context: &Context) -> Result<Outcome> {
    if let Some(timeout) = &args.peer_timeout {
        time(timeout, "--peer-timeout")?;
    }
    let asked = Asked {
        nproc_per_node: args.nproc_per_node,
        nnodes: args.nnodes,
        node_rank: args.node_rank,
    };
    let node = Node::find(asked, &Env::own())?;
    context
        .console
        .line(&format!("slime-host launch: {}", node.sentence()));
    let agent = Agent {
        node,
        command: args.command,
        logs: args.log_dir,
        show_all: args.show_all,
        grace: time(&args.grace, "--grace")?,
        peer_timeout: args.peer_timeout,
    };
    let code = super::block_on(agent.run(&context.console))??;
    Ok(Outcome::Code(code))
}

/// Become the rank.
///
/// # Errors
/// The agent is gone, or there is no such program.
pub fn rank(args: Rank) -> Result<Outcome> {
    match become_rank(args.agent, &args.command)? {}
}
