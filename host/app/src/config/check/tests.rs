//! What is refused, and what is not.

use super::*;
use crate::config::layer::from_file;
use crate::config::merge::merge;

/// A recipe that is right, and more lines.
fn problems(more: &str) -> Vec<String> {
    let base = "[model]\nbuiltin = \"tiny\"\n[run]\nnum_rollout = 2\nplugins = [\"p\"]\n";
    let (settings, wrong) = from_file("r.toml", &format!("{base}{more}"));
    if !wrong.is_empty() {
        return wrong.iter().map(ToString::to_string).collect();
    }
    let said = merge(settings).unwrap();
    let found = Plan::new(&said, Verb::Run).err().map(|p| p.0);
    found
        .unwrap_or_default()
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn the_base_of_these_tests_is_right() {
    assert_eq!(problems(""), Vec::<String>::new());
}

#[test]
fn n10_training_on_older_tokens_asks_for_a_correction_or_for_doing_without_by_name() {
    let lag = "[rollout]\nmax_lag = 2\n[algorithm]\n";
    let found = problems(lag);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("nothing corrects for tokens that older weights sampled"));
    for cure in [
        "use_tis",
        "use_rs",
        "use_rollout_logprobs",
        "allow_uncorrected_lag",
    ] {
        assert_eq!(
            problems(&format!("{lag}{cure} = true\n")),
            Vec::<String>::new(),
            "{cure}"
        );
    }
    let found = problems("[algorithm]\nallow_uncorrected_lag = true\n");
    assert!(found[0].contains("no effect"), "{found:?}");
}

#[test]
fn c06_c19_a_group_of_one_is_refused_with_every_group_relative_estimator() {
    for estimator in ["grpo", "gspo", "cispo", "rloo", "max_rl"] {
        let found = problems(&format!(
            "[rollout]\nn_samples_per_prompt = 1\n[algorithm]\nadvantage_estimator = \"{estimator}\"\n"
        ));
        assert_eq!(found, ["a group of one has no baseline"], "{estimator}");
    }
    let taken_as_they_are = problems(
        "[rollout]\nn_samples_per_prompt = 1\n[algorithm]\ndisable_rewards_normalization = true\n",
    );
    assert_eq!(taken_as_they_are, Vec::<String>::new());
    for (estimator, whiten) in [("ppo", false), ("reinforce_plus_plus", true)] {
        let found = problems(&format!(
            "[rollout]\nn_samples_per_prompt = 1\n[algorithm]\nadvantage_estimator = \"{estimator}\"\nnormalize_advantages = {whiten}\n"
        ));
        assert_eq!(found, Vec::<String>::new(), "{estimator}");
    }
}

#[test]
fn e04_n08_numbers_that_cannot_be_meant_are_refused() {
    for line in [
        "[rollout]\ntemperature = 0.0\n",
        "[rollout]\ntemperature = -1.0\n",
        "[rollout]\ntemperature = nan\n",
        "[rollout]\ntop_p = 0.0\n",
        "[algorithm]\neps_clip_c = 1.0\n",
        "[algorithm]\neps_clip = inf\n",
        "[train]\nclip_grad = -1.0\n",
        "[limits]\nwall = \"0s\"\n",
        "[limits]\nwall = \"inf\"\n",
    ] {
        assert_eq!(problems(line).len(), 1, "{line}: {:?}", problems(line));
    }
    assert_eq!(
        problems("[eval]\ninterval = 1\ntemperature = 0.0\n"),
        Vec::<String>::new(),
        "greedy evaluation is no training"
    );
}

#[test]
fn evaluation_samples_as_rollouts_do_unless_it_is_told_otherwise() {
    let of = |more: &str| {
        let recipe = format!(
            "[model]\nbuiltin = \"tiny\"\n[run]\nnum_rollout = 2\nplugins = [\"p\"]\n[rollout]\ntemperature = 0.7\n[eval]\ninterval = 1\n{more}"
        );
        let said = merge(from_file("r.toml", &recipe).0).unwrap();
        let plan = Plan::new(&said, Verb::Run).unwrap();
        plan.eval.unwrap().sampling.temperature
    };
    assert_eq!(of(""), 0.7);
    assert_eq!(of("temperature = 0.0\n"), 0.0);
}

#[test]
fn n12_options_that_would_change_nothing_are_refused() {
    for line in [
        "[algorithm]\ntis_clip = 3.0\n",
        "[algorithm]\nkl_loss_coef = 0.1\n",
        "[algorithm]\nlambd = 0.9\n",
        "[rollout]\npause_generation_mode = \"abort\"\n",
        "[rollout]\nmask_offpolicy = true\n",
        "[rollout]\ndisable_cuda_graph = true\n",
        "[rollout]\ncuda_graph_max_bs = 8\n",
        "[rollout]\noverlong_penalty_factor = 2.0\n",
        "[model]\nteacher_load = \"t\"\n",
    ] {
        let line = line.replace("[model]\n", "");
        let found = if line.starts_with("teacher") {
            let base = "[model]\nbuiltin = \"tiny\"\nteacher_load = \"t\"\n[run]\nnum_rollout = 2\nplugins = [\"p\"]\n";
            let said = merge(from_file("r.toml", base).0).unwrap();
            let found = Plan::new(&said, Verb::Run)
                .err()
                .map(|p| p.0)
                .unwrap_or_default();
            found.iter().map(ToString::to_string).collect()
        } else {
            problems(&line)
        };
        assert_eq!(found.len(), 1, "{line}: {found:?}");
        assert!(found[0].contains("no effect"), "{found:?}");
    }
}

#[test]
fn sampling_that_never_pauses_needs_room_for_lag() {
    let found = problems("[rollout]\nfully_async = true\n");
    assert!(found[0].contains("`rollout.max_lag` is 0"), "{found:?}");
    let right = "[rollout]\nfully_async = true\nmax_lag = 2\npause_generation_mode = \"in_place\"\n[algorithm]\nuse_tis = true\n";
    assert_eq!(problems(right), Vec::<String>::new());
    let stock = right.replace("fully", "external_engine_addrs = [\"a:1\"]\nfully");
    let found = problems(&stock);
    assert!(found[0].contains("cannot flush its cache"), "{found:?}");
    let found = problems("[rollout]\nover_sampling_batch_size = 3\n");
    assert!(found[0].contains("smaller than a step of 16"), "{found:?}");
}

#[test]
fn a_run_that_ends_before_the_learning_rate_has_risen_is_told_so_in_the_words_of_who_asked() {
    let decays = "[train]\nlr_decay_style = \"linear\"\nlr_warmup_iters = 3\n";
    let found = problems(decays);
    assert_eq!(
        found,
        [
            "the run has 2 train steps, and in the first 3 the learning rate still rises (`train.lr_warmup_iters`)"
        ]
    );
    let said = problems(&format!("{decays}lr_decay_iters = 2\n"));
    assert_eq!(
        said,
        ["`train.lr_decay_iters`: 2 must be above lr_warmup_iters = 3"]
    );
}
