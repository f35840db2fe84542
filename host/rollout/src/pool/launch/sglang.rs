//! The command line of a stock SGLang server. What the user says goes through as it is; only where a server
//! listens and which model it loads are the host's.

use super::{HeldPorts, ServerSpec};
use crate::RolloutError;
use crate::pool::{Address, Part, Seat};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

/// Flags that this program sets itself.
const OWNED: [(&str, &str); 10] = [
    (
        "--model-path",
        "the run's model is served; name another with --hf-checkpoint",
    ),
    (
        "--model",
        "the run's model is served; name another with --hf-checkpoint",
    ),
    ("--host", "servers of this program listen on the loopback"),
    ("--port", "free ports are chosen"),
    (
        "--disaggregation-mode",
        "give a group of servers its worker_type in a --sglang-config file",
    ),
    ("--disaggregation-bootstrap-port", "free ports are chosen"),
    (
        "--base-gpu-id",
        "use --rollout-num-gpus-per-engine and rollout.base_gpu_id",
    ),
    (
        "--nnodes",
        "a server of several machines is started by hand and attached with --rollout-external-engine-addrs",
    ),
    (
        "--node-rank",
        "a server of several machines is started by hand and attached with --rollout-external-engine-addrs",
    ),
    (
        "--dist-init-addr",
        "a server of several machines is started by hand and attached with --rollout-external-engine-addrs",
    ),
];

/// Servers that are alike.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sglang {
    /// What stands before the flags: `python3 -m sglang.launch_server`.
    pub command: Vec<String>,
    /// An HF directory.
    pub model: PathBuf,
    /// What the servers call the model.
    pub name: String,
    /// Flags, verbatim.
    pub args: Vec<String>,
    /// GPUs of one server. `None` leaves devices to the server.
    pub gpus_per_server: Option<u32>,
    /// The first server's first GPU.
    pub base_gpu: u32,
    /// How many servers.
    pub num_servers: usize,
    /// Which part of a request they do.
    pub part: Part,
}

impl Sglang {
    /// The command by which SGLang is started where nothing else is said.
    pub fn stock_command() -> Vec<String> {
        ["python3", "-m", "sglang.launch_server"]
            .map(String::from)
            .to_vec()
    }

    /// Flags among `args` that cannot be handed through, each with the reason.
    pub fn refused(args: &[String]) -> Vec<(String, &'static str)> {
        let flags = args.iter().map(|arg| name_of(arg));
        flags
            .filter_map(|flag| {
                let (_, reason) = OWNED.iter().find(|(owned, _)| *owned == flag)?;
                Some((flag.to_owned(), *reason))
            })
            .collect()
    }

    /// Ports that these servers need.
    pub fn num_ports(&self) -> usize {
        self.num_servers * self.ports_of_one()
    }

    /// A server that prefills is met at a second port.
    fn ports_of_one(&self) -> usize {
        match self.part {
            Part::Prefill => 2,
            Part::Whole | Part::Decode => 1,
        }
    }

    fn seat(&self, ports: &[u16]) -> Seat {
        Seat {
            address: Address::new(&HOST.to_string(), ports[0]),
            part: self.part,
            bootstrap_port: ports.get(1).copied(),
        }
    }

    fn argv(&self, ports: &[u16]) -> Vec<String> {
        let said = |names: &[&str]| {
            let at = self
                .args
                .iter()
                .position(|arg| names.contains(&name_of(arg)))?;
            let joined = self.args[at].split_once('=').map(|(_, value)| value);
            Some(joined.or(self.args.get(at + 1).map(String::as_str)))
        };
        let says = |names: &[&str]| said(names).is_some();
        let mut argv = self.command.clone();
        let mut add = |flag: &str, value: Option<String>| {
            argv.push(flag.to_owned());
            argv.extend(value);
        };
        add("--model-path", Some(self.model.display().to_string()));
        add("--host", Some(HOST.to_string()));
        add("--port", ports.first().map(u16::to_string));
        if !says(&["--served-model-name"]) {
            add("--served-model-name", Some(self.name.clone()));
        }
        if let Some(gpus) = self.gpus_per_server
            && !says(&["--tp", "--tp-size", "--tensor-parallel-size"])
        {
            // Stages share a server's GPUs too.
            let stages = said(&["--pp", "--pp-size", "--pipeline-parallel-size"]).flatten();
            let stages = stages.and_then(|n| n.parse::<u32>().ok()).unwrap_or(1);
            add("--tp-size", Some((gpus / stages.max(1)).to_string()));
        }
        if !says(&["--skip-server-warmup"]) {
            add("--skip-server-warmup", None);
        }
        match self.part {
            Part::Whole => {}
            Part::Prefill => add("--disaggregation-mode", Some("prefill".into())),
            Part::Decode => add("--disaggregation-mode", Some("decode".into())),
        }
        if let Some(port) = ports.get(1) {
            add("--disaggregation-bootstrap-port", Some(port.to_string()));
        }
        argv.extend(self.args.iter().cloned());
        argv
    }

    /// Each server sees its own GPUs only, numbered from 0.
    fn env(&self, index: usize) -> Vec<(String, String)> {
        let Some(gpus) = self.gpus_per_server else {
            return Vec::new();
        };
        let first = self.base_gpu + index as u32 * gpus;
        let ids: Vec<String> = (first..first + gpus).map(|id| id.to_string()).collect();
        vec![("CUDA_VISIBLE_DEVICES".into(), ids.join(","))]
    }
}

fn name_of(arg: &str) -> &str {
    arg.split('=').next().unwrap_or_default()
}

/// Where servers of this program listen.
const HOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// Ports for every server of `groups`, held until they are started.
///
/// # Errors
/// The machine has none left.
pub fn hold_ports(groups: &[Sglang]) -> Result<HeldPorts, RolloutError> {
    let n = groups.iter().map(Sglang::num_ports).sum();
    HeldPorts::hold(HOST, n).map_err(|e| RolloutError::Launch {
        server: "servers".into(),
        reason: format!("no free port: {e}"),
    })
}

/// Each group's share of the ports that [`hold_ports`] gave, cut by server.
fn shares<'a>(
    groups: &'a [Sglang],
    ports: &'a [u16],
) -> impl Iterator<Item = (&'a Sglang, Vec<&'a [u16]>)> {
    let mut rest = ports;
    groups.iter().map(move |group| {
        let (own, others) = rest.split_at(group.num_ports().min(rest.len()));
        rest = others;
        (group, own.chunks_exact(group.ports_of_one()).collect())
    })
}

/// The places of each group's servers at the ports that [`hold_ports`] gave.
pub fn seats(groups: &[Sglang], ports: &[u16]) -> Vec<Vec<Seat>> {
    let shares = shares(groups, ports);
    shares
        .map(|(group, ports)| ports.iter().map(|ports| group.seat(ports)).collect())
        .collect()
}

/// How each server of `groups` is started, in their order; their logs go to `logs`, which is made. Servers of one name
/// are numbered together.
///
/// # Errors
/// A flag that is the host's, or a directory that cannot be made.
pub fn specs(
    groups: &[Sglang],
    ports: &[u16],
    logs: &Path,
) -> Result<Vec<ServerSpec>, RolloutError> {
    for group in groups {
        if let Some((flag, reason)) = Sglang::refused(&group.args).first() {
            return Err(RolloutError::Launch {
                server: format!("servers of {}", group.name),
                reason: format!("{flag} cannot be handed through: {reason}"),
            });
        }
    }
    std::fs::create_dir_all(logs).map_err(|e| RolloutError::File {
        path: logs.to_path_buf(),
        reason: format!("logs cannot be kept here: {e}"),
    })?;
    let mut specs: Vec<ServerSpec> = Vec::new();
    let mut numbers: BTreeMap<String, usize> = BTreeMap::new();
    for (group, ports) in shares(groups, ports) {
        let kind = match group.part {
            Part::Whole => group.name.clone(),
            Part::Prefill => format!("{}-prefill", group.name),
            Part::Decode => format!("{}-decode", group.name),
        };
        for (index, ports) in ports.into_iter().enumerate() {
            let number = numbers.entry(kind.clone()).or_default();
            let name = format!("{kind}-{number}");
            *number += 1;
            specs.push(ServerSpec {
                argv: group.argv(ports),
                env: group.env(index),
                log: logs.join(format!("{name}.log")),
                address: group.seat(ports).address,
                name,
            });
        }
    }
    Ok(specs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sglang(args: &[&str]) -> Sglang {
        Sglang {
            command: Sglang::stock_command(),
            model: "/models/q".into(),
            name: "policy".into(),
            args: args.iter().map(|s| (*s).to_owned()).collect(),
            gpus_per_server: None,
            base_gpu: 0,
            num_servers: 2,
            part: Part::Whole,
        }
    }

    fn specs(groups: &[Sglang]) -> Result<Vec<ServerSpec>, RolloutError> {
        let logs = tempfile::tempdir().unwrap();
        let ports = hold_ports(groups)?;
        super::specs(groups, ports.numbers(), logs.path())
    }

    #[test]
    fn flags_go_through_as_they_were_said() {
        let said = [
            "--mem-fraction-static",
            "0.3",
            "--some-flag-of-tomorrow",
            "-1",
            "x y",
        ];
        let specs = specs(&[sglang(&said)]).unwrap();
        assert_eq!(specs.len(), 2);
        assert_ne!(specs[0].address, specs[1].address);
        for spec in &specs {
            assert_eq!(spec.argv[..3], Sglang::stock_command());
            assert_eq!(spec.argv[spec.argv.len() - 5..], said);
            assert!(spec.env.is_empty() && !spec.argv.contains(&"--tp-size".to_owned()));
        }
        assert_eq!(specs[1].name, "policy-1");
    }

    #[test]
    fn g14_servers_share_gpus_out_in_order_of_number() {
        let many = Sglang {
            gpus_per_server: Some(4),
            base_gpu: 8,
            ..sglang(&[])
        };
        let many = specs(&[many]).unwrap();
        let gpus: Vec<&str> = many.iter().map(|s| s.env[0].1.as_str()).collect();
        // G14: 8, 9, 10, not 10, 8, 9.
        assert_eq!(gpus, ["8,9,10,11", "12,13,14,15"]);
        assert!(many[0].argv.windows(2).any(|w| w == ["--tp-size", "4"]));
        let own = Sglang {
            gpus_per_server: Some(4),
            ..sglang(&["--tp=2", "--pp-size", "2"])
        };
        assert!(
            !specs(&[own]).unwrap()[0]
                .argv
                .contains(&"--tp-size".to_owned())
        );
        let staged = Sglang {
            gpus_per_server: Some(4),
            ..sglang(&["--pp-size", "2"])
        };
        let staged = specs(&[staged]).unwrap();
        assert!(staged[0].argv.windows(2).any(|w| w == ["--tp-size", "2"]));
    }

    #[test]
    fn what_is_the_hosts_is_refused_with_the_way_to_say_it() {
        let error = specs(&[sglang(&["--port=30000"])]).unwrap_err().to_string();
        assert!(
            error.contains("--port cannot be handed through: free ports are chosen"),
            "{error}"
        );
    }
}
