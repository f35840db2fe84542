//! Who samples.

use super::Check;
use crate::config::{Device, servers, units};
use slime_rollout::pool::PauseMode;
use slime_rollout::pool::launch::Sglang;
use slime_rollout::publish::Transport;

impl Check<'_> {
    pub(super) fn servers(&mut self) {
        let (model, r) = (&self.said.config.model, &self.said.config.rollout);
        let attached = r
            .external_engine_addrs
            .as_ref()
            .is_some_and(|all| !all.is_empty());
        let launches = servers::asked(self.said);
        if !launches {
            for key in [
                "sglang_args",
                "engine_command",
                "num_gpus_per_engine",
                "base_gpu_id",
                "engine_start_timeout",
            ] {
                let why = "no server is launched";
                self.useless(
                    &format!("rollout.{key}"),
                    why,
                    "add --rollout-num-engines N, or --sglang-config FILE",
                );
            }
            if !attached {
                if r.update_weight_transport != Some(Transport::Disk) {
                    let why = "the embedded engine is in this process";
                    let help = "leave it out; `disk` writes every version to a directory too";
                    self.useless("rollout.update_weight_transport", why, help);
                }
                for key in ["update_weight_dtype", "router_addr", "stream"] {
                    let why = "the embedded engine reads weights and requests by itself";
                    let help = "add `num_engines`, `sglang_config` or `external_engine_addrs`";
                    self.useless(&format!("rollout.{key}"), why, help);
                }
            }
        } else if model.path.is_none() {
            let asking = ["sglang_config", "num_gpus", "num_engines"];
            let asking = asking.map(|key| format!("rollout.{key}"));
            let key = asking.iter().find(|key| self.said.says(key));
            self.refuse(
                key.map_or("rollout.num_engines", String::as_str),
                "a launched server needs the model as an HF directory",
                "name one with --hf-checkpoint DIR",
            );
        }
        for key in ["disable_cuda_graph", "cuda_graph_max_bs"] {
            let key = format!("rollout.{key}");
            if launches || attached {
                let why = "no embedded engine samples";
                let help = "leave it out; a launched server has flags of its own, like --sglang-disable-cuda-graph";
                self.useless(&key, why, help);
            } else if model.device.unwrap_or_default() == Device::Cpu {
                self.useless(
                    &key,
                    "the CPU has no graphs",
                    "leave it out, or add `model.device = \"cuda\"`",
                );
            }
        }
        if r.disable_cuda_graph == Some(true) {
            let help = "keep one of the two";
            self.useless(
                "rollout.cuda_graph_max_bs",
                "`rollout.disable_cuda_graph` is set",
                help,
            );
        }
        if r.pause_generation_mode == Some(PauseMode::InPlace) && (attached || launches) {
            self.refuse(
                "rollout.pause_generation_mode",
                "a stock SGLang server cannot flush its cache while requests are frozen in it, and refuses the new weights",
                "use `retract` or `abort`",
            );
        }
        if r.update_weight_transport != Some(Transport::Delta) {
            let help = "add `update_weight_transport = \"delta\"`";
            self.useless("rollout.update_weight_local_dir", "no copy is kept", help);
        }
        self.counts_of_servers();
        let has_gpus =
            r.num_gpus_per_engine.is_some() || r.num_gpus.is_some() || r.sglang_config.is_some();
        if !has_gpus && launches {
            let help = "add `num_gpus_per_engine`";
            self.useless("rollout.base_gpu_id", "servers are given no GPUs", help);
        }
        if r.engine_command.as_ref().is_some_and(Vec::is_empty) {
            let help = "give a program and its first words, like [\"python3\", \"-m\", \"sglang.launch_server\"]";
            self.refuse(
                "rollout.engine_command",
                "`rollout.engine_command` is empty",
                help,
            );
        }
        if let Some(text) = &r.engine_start_timeout {
            self.parse("rollout.engine_start_timeout", units::duration(text));
        }
        for (flag, reason) in Sglang::refused(r.sglang_args.as_deref().unwrap_or_default()) {
            let message = format!("{flag} cannot be handed to a launched server");
            self.refuse("rollout.sglang_args", message, reason);
        }
    }

    /// How many servers, of how many GPUs: said once, or the same twice.
    fn counts_of_servers(&mut self) {
        let r = &self.said.config.rollout;
        if r.sglang_config.is_some() && r.num_engines.is_some() {
            self.refuse(
                "rollout.num_engines",
                "`rollout.sglang_config` says how many servers there are",
                "leave `num_engines` out",
            );
            return;
        }
        let (Some(gpus), None) = (r.num_gpus, &r.sglang_config) else {
            return;
        };
        let per_engine = r.num_gpus_per_engine.unwrap_or(1).max(1);
        if !gpus.is_multiple_of(per_engine) {
            let what = format!("{gpus} GPUs cannot be shared out to servers of {per_engine}");
            let help =
                format!("choose a multiple of {per_engine}, or another `num_gpus_per_engine`");
            self.refuse("rollout.num_gpus", what, help);
        } else if let Some(engines) = r.num_engines.filter(|n| *n != gpus / per_engine) {
            let what = format!("{engines} servers of {per_engine} GPUs do not use {gpus} GPUs");
            self.refuse(
                "rollout.num_gpus",
                what,
                "leave `num_engines` or `num_gpus` out",
            );
        }
    }
}
