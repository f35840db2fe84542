//! The exact words of what the program refuses. Failure is a first contact too.
//!
//! Each test runs the real binary in an empty directory. `cargo insta review` blesses a change.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

/// What stderr says, with the directory and the machine taken out. The exit code is in the first line.
fn says(dir: &Path, args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_slime-host"));
    command
        .args(args)
        .current_dir(dir)
        .env("NO_COLOR", "1")
        .env_remove("RUST_LOG");
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stderr).unwrap();
    let text = text
        .replace(&dir.display().to_string(), "DIR")
        .replace(env!("CARGO_MANIFEST_DIR"), "APP");
    format!(
        "exit code {}\n{}",
        output.status.code().unwrap_or(-1),
        text.trim_end()
    )
}

fn write(dir: &Path, name: &str, text: impl AsRef<[u8]>) {
    std::fs::write(dir.join(name), text).unwrap();
}

/// A directory with the built-in model's files, and no weights.
fn model(dir: &Path, name: &str) -> std::path::PathBuf {
    let path = dir.join(name);
    std::fs::create_dir(&path).unwrap();
    for (file, bytes) in slime_model::families::demo::files().unwrap().iter() {
        std::fs::write(path.join(file), bytes).unwrap();
    }
    path
}

/// Weights of zeros for it.
fn with_weights(path: &Path) {
    let spec = slime_model::families::demo::spec();
    let files = slime_model::families::demo::files().unwrap();
    slime_model::hf::save_dir(
        path,
        &spec,
        &files,
        slime_model::hf::Dtype::F32,
        u64::MAX,
        |param| Ok::<_, slime_model::Error>(vec![0.0; param.len()]),
    )
    .unwrap();
}

#[test]
fn unknown_flags() {
    let dir = tempfile::tempdir().unwrap();
    let line = "run plugins/arith --rollout-batchsize 8 --use-wandb --lr 1e-5 --frobnicate --sglang-router-ip 127.0.0.1";
    insta::assert_snapshot!(says(dir.path(), &line.split(' ').collect::<Vec<_>>()));
}

#[test]
fn unknown_keys_and_wrong_values_of_every_layer_at_once() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "run.toml",
        "seed = \"seven\"\n\n[train]\nlearning_rat = 1e-5\nlr_decay_style = \"cosin\"\n\n[rolout]\nbatch_size = 8\n",
    );
    insta::assert_snapshot!(says(
        dir.path(),
        &[
            "config",
            "show",
            "-c",
            "run.toml",
            "--set",
            "rollout.max_lags=1",
            "--lr",
            "fast"
        ]
    ));
}

#[test]
fn options_without_effect_and_contradictions_at_once() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "run.toml",
        "[model]\nbuiltin = \"tiny\"\n[algorithm]\nkl_loss_coef = 0.1\neps_clip_c = 0.5\n[rollout]\nbatch_size = 4\nn_samples_per_prompt = 3\n\
         max_refills = 2\n[train]\nglobal_batch_size = 5\nsequence_parallel = true\n",
    );
    insta::assert_snapshot!(says(
        dir.path(),
        &["config", "check", "x.wasm", "-c", "run.toml"]
    ));
}

#[test]
fn servers_that_cannot_be_launched_and_options_without_servers() {
    let dir = tempfile::tempdir().unwrap();
    let launched = "config check x.wasm --set model.builtin=tiny --num-rollout 1 --rollout-num-engines 2 --sglang-port 3 --set rollout.base_gpu_id=1 --set rollout.engine_start_timeout=soon";
    let none = "config check x.wasm --set model.builtin=tiny --num-rollout 1 --sglang-mem-fraction-static 0.3 --update-weight-transport delta";
    let found = [
        (launched, "--port cannot be handed to a launched server"),
        (
            launched,
            "a launched server needs the model as an HF directory",
        ),
        (launched, "`rollout.base_gpu_id` has no effect"),
        (launched, "`rollout.engine_start_timeout`: "),
        (none, "`rollout.sglang_args` has no effect"),
        (none, "`rollout.update_weight_transport` has no effect"),
    ];
    for (line, expected) in found {
        let said = says(dir.path(), &line.split(' ').collect::<Vec<_>>());
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn a_recipe_that_names_no_model_no_plugin_and_no_length() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "run.toml", "[train]\nlr = 1e-5\n");
    insta::assert_snapshot!(says(dir.path(), &["run", "-c", "run.toml"]));
}

#[test]
fn a_missing_plugin_and_a_row_without_its_key_at_once() {
    let dir = tempfile::tempdir().unwrap();
    write(
        dir.path(),
        "prompts.jsonl",
        "{\"input\": \"1+1=\", \"answer\": \"2\"}\n{\"question\": \"1+2=\", \"answer\": \"3\"}\n",
    );
    let line = "rollout nowhere.wasm --out r.jsonl --set model.builtin=tiny --prompt-data prompts.jsonl --label-key answer";
    insta::assert_snapshot!(says(dir.path(), &line.split(' ').collect::<Vec<_>>()));
}

#[test]
fn an_empty_data_set_and_a_file_that_is_no_component() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "prompts.jsonl", "\n");
    write(dir.path(), "core.wasm", b"\0asm\x01\0\0\0");
    let line =
        "rollout core.wasm --out r.jsonl --set model.builtin=tiny --prompt-data prompts.jsonl";
    insta::assert_snapshot!(says(dir.path(), &line.split(' ').collect::<Vec<_>>()));
}

#[test]
fn a_component_of_another_world() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "empty.wasm", b"\0asm\x0d\0\x01\0");
    insta::assert_snapshot!(says(dir.path(), &["plugin", "check", "empty.wasm"]));
}

#[test]
fn a_model_without_a_tokenizer() {
    let dir = tempfile::tempdir().unwrap();
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/llama-tiny-tied");
    std::fs::create_dir(dir.path().join("model")).unwrap();
    for file in ["config.json", "model.safetensors"] {
        std::fs::copy(golden.join(file), dir.path().join("model").join(file)).unwrap();
    }
    insta::assert_snapshot!(says(
        dir.path(),
        &["serve", "--model", "model", "--port", "0"]
    ));
}

#[test]
fn a_model_without_weights() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path(), "model");
    insta::assert_snapshot!(says(
        dir.path(),
        &["serve", "--model", "model", "--port", "0"]
    ));
}

#[test]
fn a_port_in_use() {
    let dir = tempfile::tempdir().unwrap();
    with_weights(&model(dir.path(), "model"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let serve = ["serve", "--model", "model", "--port", &port, "--host"];
    let said = says(dir.path(), &[&serve[..], &["localhost"]].concat());
    insta::assert_snapshot!(said.replace(&port, "PORT"));
}

#[test]
fn a_host_that_has_no_address() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path(), "model");
    let said = says(
        dir.path(),
        &["serve", "--model", "model", "--host", "no such name"],
    );
    assert!(said.contains("`--host no such name`: "), "{said}");
    assert!(said.contains("127.0.0.1 for itself alone"), "{said}");
}

#[test]
fn a_line_that_is_no_token_sequence() {
    let dir = tempfile::tempdir().unwrap();
    model(dir.path(), "model");
    write(
        dir.path(),
        "in.jsonl",
        "{\"tokens\": [1, 2]}\n{\"tokens\": []}\n{\"token\": [1]}\n",
    );
    insta::assert_snapshot!(says(
        dir.path(),
        &[
            "logprobs",
            "--model",
            "model",
            "--input",
            "in.jsonl",
            "--output",
            "out.jsonl"
        ]
    ));
}

#[test]
fn nothing_to_continue() {
    let dir = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(says(dir.path(), &["run", "--resume"]));
}

/// Whether each line is refused with exit code 2 and these words.
fn refuses(dir: &Path, found: &[(&str, &str)]) {
    for (line, expected) in found {
        let said = says(dir, &line.split(' ').collect::<Vec<_>>());
        let words = said.split_whitespace().filter(|word| *word != "│");
        let flat = words.collect::<Vec<_>>().join(" ");
        assert!(
            flat.starts_with("exit code 2 ") && flat.contains(expected),
            "{line}: {said}"
        );
        assert!(!flat.contains("problems; nothing"), "{line}: {said}");
    }
}

#[test]
fn what_is_read_is_not_written_over_and_a_mistake_leaves_an_older_result() {
    let dir = tempfile::tempdir().unwrap();
    let row = "{\"prompt\": \"1+1=\", \"response\": \"2\", \"label\": \"2\"}\n";
    let tokens = "{\"tokens\": [1, 2]}\n";
    write(dir.path(), "rows.jsonl", row);
    write(dir.path(), "tokens.jsonl", tokens);
    write(dir.path(), "older.jsonl", "kept");
    write(dir.path(), "empty.jsonl", "\n");
    write(dir.path(), "empty.wasm", b"\0asm\x0d\0\x01\0");
    let found = [
        (
            "score empty.wasm --input rows.jsonl --output ./rows.jsonl",
            "which would be lost",
        ),
        (
            "logprobs --model m --input tokens.jsonl --output tokens.jsonl",
            "which would be lost",
        ),
        (
            "score empty.wasm --input empty.jsonl --output older.jsonl",
            "empty.jsonl has no rows",
        ),
        (
            "score empty.wasm --input rows.jsonl --output older.jsonl",
            "empty cannot be loaded",
        ),
        (
            "logprobs --model m --input empty.jsonl --output older.jsonl",
            "empty.jsonl has no lines",
        ),
    ];
    refuses(dir.path(), &found);
    for (name, text) in [
        ("rows.jsonl", row),
        ("tokens.jsonl", tokens),
        ("older.jsonl", "kept"),
    ] {
        assert_eq!(
            std::fs::read_to_string(dir.path().join(name)).unwrap(),
            text,
            "{name}"
        );
    }
}

#[test]
fn a_name_that_stands_for_nothing_or_for_something_else_is_told_with_the_cure() {
    let dir = tempfile::tempdir().unwrap();
    let prose = "this is no TOML at all\n".repeat(9);
    write(dir.path(), "run.toml", prose);
    write(dir.path(), "x.wasm", "");
    std::fs::create_dir_all(dir.path().join("old/checkpoints")).unwrap();
    std::fs::create_dir(dir.path().join("folder")).unwrap();
    let found = [
        ("plugin build nope", "there is no plugin at nope"),
        ("plugin build x.wasm", "x.wasm is a file"),
        ("plugin test nope", "there is no plugin at nope"),
        ("plugin sign folder --key k", "folder is a folder"),
        (
            "run run.toml --num-rollout 1",
            "run.toml is a recipe, and stands where plugins are named help: write: -c run.toml",
        ),
        (
            "config check x.wasm -c run.toml",
            "exit code 2 × run.toml is not valid TOML",
        ),
        (
            "plugin check 127.0.0.1:5000/plugins/math:0.1.0",
            "pinned by digest, because a tag moves",
        ),
        ("inspect old", "there is no run at old"),
        ("inspect old --mask 3", "there is no run at old"),
        (
            "eval x.wasm --set model.builtin=tiny --set run.dir=old",
            "old holds a run, whose metrics.jsonl would be lost",
        ),
        (
            "run x.wasm --set model.builtin=tiny --num-rollout 0",
            "exit code 2 × `run.num_rollout` is 0",
        ),
    ];
    refuses(dir.path(), &found);
}

#[test]
fn an_input_that_cannot_be_used_is_told_by_name_with_exit_code_2() {
    let dir = tempfile::tempdir().unwrap();
    with_weights(&model(dir.path(), "model"));
    write(
        dir.path(),
        "tokens.jsonl",
        "{\"tokens\": [1]}\n\n{\"tokens\": [1, 99999]}\n",
    );
    write(dir.path(), "x.wasm", "");
    write(dir.path(), "short.gguf", "GGUF");
    write(dir.path(), "q.json", "{");
    write(
        dir.path(),
        "large.toml",
        "[rollout]\nbatch_size = 99999999999999999999\n",
    );
    write(
        dir.path(),
        "grants.toml",
        "[grants.x]\nhttp = [\"notaurl\"]\n",
    );
    std::fs::create_dir(dir.path().join("run")).unwrap();
    write(
        dir.path(),
        "run/metrics.jsonl",
        "{\"rollout/step\": 0, \"rollout/reward\": 1.0}\n{\"rollo",
    );
    let found = [
        (
            "logprobs --model model --input tokens.jsonl --output o",
            "tokens.jsonl: line 3: token id 99999 lies beyond",
        ),
        (
            "logprobs --model model --input tokens.jsonl --output o --max-tokens-per-gpu 0",
            "--max-tokens-per-gpu 0 leaves no room",
        ),
        (
            "logprobs --model model --input nope --output o",
            "typing error",
        ),
        (
            "score x.wasm --input nope --output o --set seed=x",
            "--set seed=x: the seed is no whole number",
        ),
        ("convert nope.gguf o", "typing error in the path"),
        (
            "convert short.gguf o",
            "the file ends too early help: give a whole",
        ),
        (
            "plan --model q.json",
            "exit code 2 × q.json is not valid JSON",
        ),
        (
            "config show -c large.toml",
            "large.toml: 99999999999999999999 is too large a number",
        ),
        (
            "config check x.wasm -c grants.toml --set model.builtin=tiny --num-rollout 1",
            "grants.x.http: `notaurl`: give an address",
        ),
        (
            "plugin check x.wasm --grant http=notaurl",
            "begins with http://",
        ),
        ("plugin test x.wasm", "its cases are not named"),
        ("inspect run/metrics.jsonl", "give the run's directory: run"),
    ];
    refuses(dir.path(), &found);
    let said = says(dir.path(), &["inspect", "run"]);
    assert!(said.contains("1 of 2 lines in run/metrics.jsonl"), "{said}");
}

#[test]
fn a_plan_of_nothing_is_refused_flag_by_flag_and_defaults_fit_the_model() {
    let dir = tempfile::tempdir().unwrap();
    let golden =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/models/llama-tiny-tied");
    let golden = golden.display().to_string();
    let plan = ["plan", "--model", &golden, "--gpus"];
    let wrong = [
        "0,2",
        "--sequences",
        "0",
        "--top",
        "0",
        "--layout",
        "tp2,tp4",
    ];
    let said = says(dir.path(), &[&plan[..], &wrong].concat());
    for flag in ["--gpus 0", "--sequences 0", "--top 0", "`tp` is said twice"] {
        assert!(said.contains(flag), "{flag}: {said}");
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_slime-host"));
    let output = command.args(plan).arg("2").output().unwrap();
    let table = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && !table.contains("-0.0"),
        "{table}"
    );
}

#[test]
fn a_start_that_failed_leaves_no_directory_and_takes_no_name() {
    let dir = tempfile::tempdir().unwrap();
    for line in [
        "run nope.wasm --num-rollout 1",
        "run nope.wasm --num-rollout 1 --save mine",
    ] {
        let said = says(dir.path(), &line.split(' ').collect::<Vec<_>>());
        assert!(said.contains("there is no plugin at nope.wasm"), "{said}");
    }
    let left = std::fs::read_dir(dir.path().join("runs")).unwrap().count();
    assert_eq!((left, dir.path().join("mine").exists()), (0, false));
}

#[test]
fn rollouts_that_could_not_be_written_are_not_sampled() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), "file", "");
    let line = "rollout x.wasm --set model.builtin=tiny --num-rollout 1 --out file/r.jsonl";
    let said = says(dir.path(), &line.split(' ').collect::<Vec<_>>());
    assert!(
        said.starts_with("exit code 1") && said.contains("move it, or name another path"),
        "{said}"
    );
}
