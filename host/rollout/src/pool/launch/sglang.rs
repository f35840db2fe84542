//! The command line of a stock SGLang server. What the user says goes through as it is; only where a server
//! listens and which model it loads are the host's.

use super::{ServerSpec, free_ports};
use crate::RolloutError;
use crate::pool::Address;
use std::net::{IpAddr, Ipv4Addr};
use std::path::{Path, PathBuf};

/// Flags that this program sets itself.
const OWNED: [(&str, &str); 8] = [
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

/// Servers of one kind.
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
        let name = |arg: &String| arg.split('=').next().unwrap_or_default().to_owned();
        let flags = args.iter().map(name);
        flags
            .filter_map(|flag| {
                let (_, reason) = OWNED.iter().find(|(owned, _)| *owned == flag)?;
                Some((flag, *reason))
            })
            .collect()
    }

    /// How each server is started; their logs go to `logs`, which is made.
    ///
    /// # Errors
    /// A flag that is the host's, no free port, or a directory that cannot be made.
    pub fn specs(&self, logs: &Path) -> Result<Vec<ServerSpec>, RolloutError> {
        let bad = |reason: String| RolloutError::Launch {
            server: format!("servers of {}", self.name),
            reason,
        };
        if let Some((flag, reason)) = Self::refused(&self.args).first() {
            return Err(bad(format!("{flag} cannot be handed through: {reason}")));
        }
        std::fs::create_dir_all(logs).map_err(|e| RolloutError::File {
            path: logs.to_path_buf(),
            reason: format!("logs cannot be kept here: {e}"),
        })?;
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let ports =
            free_ports(host, self.num_servers).map_err(|e| bad(format!("no free port: {e}")))?;
        let specs = ports.into_iter().enumerate().map(|(index, port)| {
            let name = format!("{}-{index}", self.name);
            ServerSpec {
                address: Address::new(&host.to_string(), port),
                argv: self.argv(&host.to_string(), port),
                env: self.env(index),
                log: logs.join(format!("{name}.log")),
                name,
            }
        });
        Ok(specs.collect())
    }

    fn argv(&self, host: &str, port: u16) -> Vec<String> {
        let says = |names: &[&str]| {
            let name = |arg: &String| arg.split('=').next().unwrap_or_default().to_owned();
            self.args
                .iter()
                .any(|arg| names.contains(&name(arg).as_str()))
        };
        let mut argv = self.command.clone();
        let mut add = |flag: &str, value: Option<String>| {
            argv.push(flag.to_owned());
            argv.extend(value);
        };
        add("--model-path", Some(self.model.display().to_string()));
        add("--host", Some(host.to_owned()));
        add("--port", Some(port.to_string()));
        if !says(&["--served-model-name"]) {
            add("--served-model-name", Some(self.name.clone()));
        }
        if let Some(gpus) = self.gpus_per_server
            && !says(&["--tp", "--tp-size", "--tensor-parallel-size"])
        {
            add("--tp-size", Some(gpus.to_string()));
        }
        if !says(&["--skip-server-warmup"]) {
            add("--skip-server-warmup", None);
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
        }
    }

    #[test]
    fn flags_go_through_as_they_were_said() {
        let logs = tempfile::tempdir().unwrap();
        let said = [
            "--mem-fraction-static",
            "0.3",
            "--some-flag-of-tomorrow",
            "-1",
            "x y",
        ];
        let specs = sglang(&said).specs(logs.path()).unwrap();
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
        let logs = tempfile::tempdir().unwrap();
        let specs = many.specs(logs.path()).unwrap();
        let gpus: Vec<&str> = specs.iter().map(|s| s.env[0].1.as_str()).collect();
        // G14: 8, 9, 10, not 10, 8, 9.
        assert_eq!(gpus, ["8,9,10,11", "12,13,14,15"]);
        assert!(specs[0].argv.windows(2).any(|w| w == ["--tp-size", "4"]));
        let own = Sglang {
            gpus_per_server: Some(4),
            ..sglang(&["--tp=2", "--pp-size", "2"])
        };
        let specs = own.specs(logs.path()).unwrap();
        assert!(!specs[0].argv.contains(&"--tp-size".to_owned()));
    }

    #[test]
    fn what_is_the_hosts_is_refused_with_the_way_to_say_it() {
        let logs = tempfile::tempdir().unwrap();
        let error = sglang(&["--port=30000"])
            .specs(logs.path())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("--port cannot be handed through: free ports are chosen"),
            "{error}"
        );
    }
}
