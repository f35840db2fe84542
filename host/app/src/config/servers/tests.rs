//! From a file's text to the servers that follow, and to what is wrong with it.

use super::*;
use crate::config::Plan;
use crate::config::layer::from_file;
use crate::config::merge::merge;
use miette::Diagnostic;
use slime_rollout::pool::launch::{Sglang, hold_ports, specs};

/// The plan of a recipe with a file of servers, or each problem with its place in the text.
fn plan(yaml: &str, more: &str) -> Result<LaunchPlan, Vec<String>> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("servers.yaml");
    std::fs::write(&file, yaml).unwrap();
    let recipe = format!(
        "[model]\npath = \"/models/q\"\n[run]\nnum_rollout = 2\nplugins = [\"p\"]\n[rollout]\nsglang_config = {:?}\n{more}",
        file.display()
    );
    let (settings, wrong) = from_file("r.toml", &recipe);
    assert!(wrong.is_empty(), "{wrong:?}");
    let plan = Plan::new(&merge(settings).unwrap(), Verb::Run);
    let told = |problem: &Problem| {
        let label = problem.labels().and_then(|mut labels| labels.next());
        let place = label.map(|label| {
            let source = problem.source_code().unwrap();
            let read = source.read_span(label.inner(), 0, 0).unwrap();
            let line = read.line() + 1;
            format!("{line}: {}", String::from_utf8_lossy(read.data()).trim())
        });
        let help = problem.help.as_deref().unwrap_or("NO CURE");
        format!("{} [{}] {help}", problem.message, place.unwrap_or_default())
    };
    match plan {
        Ok(plan) => Ok(plan.rollout.launch.unwrap()),
        Err(problems) => Err(problems.0.iter().map(told).collect()),
    }
}

/// Each server's GPUs, name and flags after the host's own.
fn lines(plan: &LaunchPlan) -> Vec<String> {
    let groups = plan.models.iter().flat_map(|model| {
        model.groups.iter().map(|group| Sglang {
            command: plan.command.clone(),
            model: model.path.clone(),
            name: model.name.clone(),
            args: group.args.clone(),
            gpus_per_server: group.gpus_per_server,
            base_gpu: group.base_gpu,
            num_servers: group.num_servers,
            part: group.part,
        })
    });
    let groups: Vec<Sglang> = groups.collect();
    let logs = tempfile::tempdir().unwrap();
    let ports = hold_ports(&groups).unwrap();
    let specs = specs(&groups, ports.numbers(), logs.path()).unwrap();
    let line = specs.iter().map(|spec| {
        let mut words = spec.argv.clone();
        // Ports are the system's to choose.
        for flag in ["--port", "--disaggregation-bootstrap-port"] {
            if let Some(at) = words.iter().position(|word| word == flag) {
                words[at + 1].parse::<u16>().unwrap();
                words[at + 1] = "PORT".into();
            }
        }
        let gpus = spec.env.first().map_or("-", |(_, value)| value);
        format!("{} on {gpus}: {}", spec.name, words.join(" "))
    });
    line.collect()
}

const TWO_MODELS: &str = "\
sglang:
  - name: actor
    num_gpus_per_engine: 2
    overrides: {mem_fraction_static: 0.70}
    server_groups:
      - worker_type: regular
        num_gpus: 4
        overrides:
          mem_fraction_static: 0.80
          enable_metrics: false
          cuda-graph-bs: [1, 2, 4]
      - {worker_type: placeholder, num_gpus: 2}
      - worker_type: regular
        num_gpus: 1
        num_gpus_per_engine: 1
  - name: judge
    model_path: /models/judge
    engine_groups:
      - {worker_type: regular, num_gpus: 1, num_gpus_per_engine: 1, overrides: {dtype: bfloat16}}
";

#[test]
fn a_file_becomes_exactly_these_command_lines() {
    let more = "num_gpus = 8\nbase_gpu_id = 8\nsglang_args = [\"--mem-fraction-static\", \"0.6\", \"--enable-metrics\"]\n[grants.g]\nmodels = [\"judge\"]\n";
    let plan = plan(TWO_MODELS, more).unwrap();
    let head = |model: &str, name: &str, tp: u32| {
        format!(
            "python3 -m sglang.launch_server --model-path {model} --host 127.0.0.1 --port PORT --served-model-name {name} --tp-size {tp} --skip-server-warmup"
        )
    };
    let (actor, judge) = (
        head("/models/q", "actor", 2),
        head("/models/judge", "judge", 1),
    );
    let small = head("/models/q", "actor", 1);
    assert_eq!(
        lines(&plan),
        [
            format!("actor-0 on 8,9: {actor} --mem-fraction-static 0.80 --cuda-graph-bs 1 2 4"),
            format!("actor-1 on 10,11: {actor} --mem-fraction-static 0.80 --cuda-graph-bs 1 2 4"),
            format!("actor-2 on 14: {small} --enable-metrics --mem-fraction-static 0.70"),
            format!(
                "judge-0 on 15: {judge} --mem-fraction-static 0.6 --enable-metrics --dtype bfloat16"
            ),
        ]
    );
    let usages: Vec<Usage> = plan.models.iter().map(|model| model.usage).collect();
    assert_eq!(usages, [Usage::Policy, Usage::Judge]);
}

#[test]
fn prefill_and_decode_servers_are_told_their_part_and_where_they_meet() {
    let yaml = "\
sglang:
  - name: actor
    server_groups:
      - {worker_type: prefill, num_gpus: 2, num_gpus_per_engine: 1, overrides: {disaggregation_transfer_backend: nixl}}
      - {worker_type: decode, num_gpus: 2, num_gpus_per_engine: 2}
";
    let lines = lines(&plan(yaml, "").unwrap());
    let ends = [
        "--disaggregation-mode prefill --disaggregation-bootstrap-port PORT --disaggregation-transfer-backend nixl",
        "--disaggregation-mode prefill --disaggregation-bootstrap-port PORT --disaggregation-transfer-backend nixl",
        "--tp-size 2 --skip-server-warmup --disaggregation-mode decode",
    ];
    let starts = [
        "actor-prefill-0 on 0:",
        "actor-prefill-1 on 1:",
        "actor-decode-0 on 2,3:",
    ];
    assert_eq!(lines.len(), 3);
    for (line, (start, end)) in lines.iter().zip(starts.iter().zip(ends)) {
        assert!(line.starts_with(start) && line.ends_with(end), "{line}");
    }
}

#[test]
fn a_model_called_teacher_is_distilled_from() {
    let yaml = "\
sglang:
  - {name: actor, server_groups: [{worker_type: regular, num_gpus: 1}]}
  - {name: teacher, model_path: /t, server_groups: [{worker_type: regular, num_gpus: 1}]}
";
    let plan = plan(yaml, "[algorithm]\nuse_opd = true\n").unwrap();
    assert_eq!(plan.models[1].usage, Usage::Teacher);
}

#[test]
fn every_bad_file_gets_one_error_with_its_line_and_its_cure() {
    let group = "{worker_type: regular, num_gpus: 2}";
    let actor = |rest: &str| format!("sglang:\n  - name: actor\n{rest}");
    let groups = |groups: &str| actor(&format!("    server_groups: [{groups}]\n"));
    let table: Vec<(String, &str, &str)> = vec![
        (
            actor("    server_gruops: []\n"),
            "",
            "unknown key `server_gruops` of a model [3: server_gruops] did you mean `server_groups`?",
        ),
        (
            groups("{worker_type: regular, num_gpus: 2, mem_fraction_static: 0.8}"),
            "",
            "unknown key `mem_fraction_static` of a group of servers [3: mem_fraction_static] the keys of a group of servers are worker_type, num_gpus, num_gpus_per_engine, overrides; a server's flag belongs in `overrides`",
        ),
        (
            "models: []\n".into(),
            "",
            "unknown key `models` of the file [1: models] the keys of the file are sglang",
        ),
        (
            "".into(),
            "",
            "FILE says nothing [1: ] write `sglang:` and below it one `- name: …` for each model",
        ),
        ("sglang: [\n".into(), "", "FILE is not valid YAML"),
        (
            groups("{worker_type: regular, num_gpus: 0}"),
            "",
            "`num_gpus` is 0 [3: 0] it must be 1 or more; leave out a group without GPUs",
        ),
        (
            groups("{worker_type: regular}"),
            "",
            "a group of servers has no GPUs [3: worker_type] add `num_gpus: N`",
        ),
        (
            groups("{num_gpus: 2}"),
            "",
            "a group of servers does not say what its servers do [3: num_gpus] add `worker_type: regular`",
        ),
        (
            groups("{worker_type: decoder, num_gpus: 2}"),
            "",
            "`worker_type` is `decoder` [3: decoder] did you mean `decode`?",
        ),
        (
            groups("{worker_type: encoder, num_gpus: 2}"),
            "",
            "servers that only encode images are not launched here [3: encoder] use `regular`, whose servers encode for themselves",
        ),
        (
            actor("    server_groups: []\n"),
            "",
            "`server_groups` is empty [3: server_groups] list the groups of servers",
        ),
        (
            actor(
                "    update_weights: yes\n    server_groups: [{worker_type: regular, num_gpus: 2}]\n",
            ),
            "",
            "`update_weights`: expected true or false, found `yes` [3: yes] write true or false",
        ),
        (
            actor("    model_path: x\n"),
            "",
            "the model `actor` has no servers [2: actor] add `server_groups:` with `- {worker_type: regular, num_gpus: N}`",
        ),
        (
            format!(
                "sglang:\n  - {{name: a, server_groups: [{group}]}}\n  - {{name: a, server_groups: [{group}]}}\n"
            ),
            "",
            "two models are called `a` [3: a] give each a name of its own",
        ),
        (
            format!(
                "sglang:\n  - {{name: a, server_groups: [{group}]}}\n  - {{name: b, server_groups: [{group}]}}\n"
            ),
            "[grants.g]\nmodels = [\"b\"]\n",
            "`b` would be trained too, and `a` is the policy [3: b] add `update_weights: false` to the one whose weights stay as they are",
        ),
        (
            format!(
                "sglang:\n  - {{name: a, server_groups: [{group}]}}\n  - {{name: b, update_weights: false, server_groups: [{group}]}}\n"
            ),
            "",
            "nobody asks `b` [3: b] add `models = [\"b\"]` to the [grants.PLUGIN] of a judge, or take it out",
        ),
        (
            format!(
                "sglang:\n  - {{name: a, model_path: /other, update_weights: true, server_groups: [{group}]}}\n"
            ),
            "",
            "`a` is the policy and is served from another directory than --hf-checkpoint [2: /other] leave `model_path` out, or add `update_weights: false` if it is not trained",
        ),
        (
            format!("sglang:\n  - {{name: b, model_path: /other, server_groups: [{group}]}}\n"),
            "[grants.g]\nmodels = [\"b\"]\n",
            "FILE: no model is the policy [2: b] leave `model_path` and `update_weights` out of the one that is trained",
        ),
        (
            groups("{worker_type: regular, num_gpus: 3, num_gpus_per_engine: 2}"),
            "",
            "3 GPUs cannot be shared out to servers of 2 [3: 3] make `num_gpus` a multiple of 2, or set the group's `num_gpus_per_engine`",
        ),
        (
            groups(group),
            "num_gpus = 8\n",
            "FILE has groups of 2 GPUs in all, and `rollout.num_gpus` is 8 [8: 8] set --rollout-num-gpus 2, or change the groups; a placeholder fills what others use",
        ),
        (
            groups("{worker_type: placeholder, num_gpus: 2}"),
            "",
            "no server samples for `actor` [2: actor] give it a group that is no placeholder",
        ),
        (
            groups("{worker_type: prefill, num_gpus: 2}"),
            "",
            "`actor` has prefill servers, and none to decode [2: actor] a request passes through one of each: add a group of the other kind, or use `regular`",
        ),
        (
            groups("{worker_type: prefill, num_gpus: 1}, {worker_type: decode, num_gpus: 1}"),
            "router_addr = \"a:1\"\n",
            "pairs of prefill and decode servers are picked here, not by a router [2: actor] leave `rollout.router_addr` out, or use `regular`",
        ),
        (
            groups("{worker_type: prefill, num_gpus: 1}, {worker_type: decode, num_gpus: 1}"),
            "fully_async = true\nmax_lag = 1\n[algorithm]\nuse_tis = true\n",
            "a decode server that is paused goes on from the old weights' keys and values afterwards [2: actor] set `rollout.pause_generation_mode = \"abort\"`: requests then begin again from their tokens",
        ),
        (
            format!(
                "sglang:\n  - {{name: a, server_groups: [{group}]}}\n  - {{name: b, model_path: /b, server_groups: [{{worker_type: prefill, num_gpus: 1}}, {{worker_type: decode, num_gpus: 1}}]}}\n"
            ),
            "[grants.g]\nmodels = [\"b\"]\n",
            "`b` is not the policy and has servers of two kinds [3: b] only the policy's requests pass through pairs: use `regular`",
        ),
        (
            groups("{worker_type: prefill, num_gpus: 1}, {worker_type: decode, num_gpus: 1}"),
            "[algorithm]\nuse_rollout_routing_replay = true\n",
            "a decode server has not seen the prompt and cannot tell which experts its tokens went to [2: actor] leave `use_rollout_routing_replay` out, or use `regular`",
        ),
        (
            groups("{worker_type: regular, num_gpus: 2, overrides: {model_path: /x}}"),
            "",
            "--model-path cannot be overridden [3: model_path] write `model_path` beside the model's `name`: all of its servers hold one",
        ),
        (
            groups("{worker_type: regular, num_gpus: 2, overrides: {port: 1}}"),
            "",
            "--port cannot be overridden [3: port] free ports are chosen",
        ),
        (
            groups("{worker_type: regular, num_gpus: 2, overrides: {a-b: 1, a_b: 2}}"),
            "",
            "--a-b is said twice [3: a_b] `-` and `_` are the same in a flag; keep one",
        ),
        (
            groups(group),
            "num_engines = 2\n",
            "`rollout.sglang_config` says how many servers there are [8: 2] leave `num_engines` out",
        ),
    ];
    for (yaml, more, expected) in table {
        let found = plan(&yaml, more).expect_err(&yaml);
        assert_eq!(found.len(), 1, "{yaml}{found:#?}");
        // The file's path is the test's own.
        let (file, after) = (
            expected.starts_with("FILE"),
            expected.trim_start_matches("FILE"),
        );
        match file {
            true => assert!(found[0].contains(after), "{found:?}\n{expected}"),
            false => assert_eq!(found[0], expected),
        }
    }
}

#[test]
fn the_file_in_configs_is_right() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/servers.yaml");
    let yaml = std::fs::read_to_string(path).unwrap();
    let plan = plan(&yaml, "num_gpus = 8\n[grants.g]\nmodels = [\"judge\"]\n").unwrap();
    let gpus = lines(&plan);
    let gpus: Vec<&str> = gpus
        .iter()
        .map(|line| line.split(':').next().unwrap())
        .collect();
    assert_eq!(
        gpus,
        [
            "actor-0 on 0",
            "actor-1 on 1",
            "actor-2 on 2,3",
            "judge-0 on 6,7"
        ]
    );
}
