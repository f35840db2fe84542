//! What contradicts itself in a training configuration: values out of range, and options without effect.

use super::TrainConfig;
use crate::algo::Estimator;
use crate::algo::kl::KlKind;
use crate::algo::weights::Aggregation;
use crate::optim::schedule::DecayStyle;
use serde::Serialize;
use slime_model::layers::Recompute;
use std::fmt;

/// One thing that is wrong with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The option to change.
    pub key: &'static str,
    /// What is wrong, and the cure.
    pub detail: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.detail)
    }
}

impl TrainConfig {
    /// Everything that is wrong, at once: values out of range, and options that would have no effect.
    ///
    /// # Errors
    /// One problem for each.
    pub fn validate(&self) -> Result<(), Vec<Problem>> {
        let mut found = Vec::new();
        let mut add = |key, detail: String| found.push(Problem { key, detail });
        self.check_ranges(&mut add);
        self.check_algorithm(&mut add);
        self.check_mismatch(&mut add);
        self.check_critic(&mut add);
        self.check_kl(&mut add);
        self.check_schedule(&mut add);
        if found.is_empty() { Ok(()) } else { Err(found) }
    }

    fn check_ranges(&self, add: &mut impl FnMut(&'static str, String)) {
        let positive = [
            ("rollout_temperature", self.rollout_temperature),
            ("adam_eps", self.adam_eps),
            ("gamma", self.gamma),
            ("value_clip", self.value_clip),
            ("rs_clip", self.rs_clip),
        ];
        for (key, value) in positive {
            if !(value.is_finite() && value > 0.0) {
                add(key, format!("{value} must be a number above 0"));
            }
        }
        let not_negative = [
            ("eps_clip", self.eps_clip),
            ("eps_clip_high", self.clip_high()),
            ("entropy_coef", self.entropy_coef),
            ("lr", self.lr),
            ("min_lr", self.min_lr),
            ("lr_warmup_init", self.lr_warmup_init),
            ("weight_decay", self.weight_decay),
            ("clip_grad", self.clip_grad),
            ("tis_clip_low", self.tis_clip_low),
            ("opd_kl_coef", self.opd_kl_coef),
            ("opsm_delta", self.opsm_delta),
            ("rs_clip_low", self.rs_clip_low.unwrap_or(0.0)),
            ("critic_lr", self.critic_lr.unwrap_or(0.0)),
        ];
        for (key, value) in not_negative {
            if !(value.is_finite() && value >= 0.0) {
                add(key, format!("{value} must be a number of at least 0"));
            }
        }
        for (key, value) in [
            ("adam_beta1", self.adam_beta1),
            ("adam_beta2", self.adam_beta2),
        ] {
            if !(0.0..1.0).contains(&value) {
                add(key, format!("{value} must be at least 0 and below 1"));
            }
        }
        if let Some(c) = self.eps_clip_c
            && !(c.is_finite() && c > 1.0)
        {
            add(
                "eps_clip_c",
                format!("{c} must be above 1: the dual clip bounds a ratio from above"),
            );
        }
        let counts = [
            ("max_tokens_per_gpu", Some(self.max_tokens_per_gpu)),
            ("global_batch_size", self.global_batch_size),
            ("num_steps_per_rollout", self.num_steps_per_rollout),
            ("log_probs_chunk_size", self.log_probs_chunk_size),
            ("loss_constant_length", self.loss_constant_length),
        ];
        for (key, _) in counts.iter().filter(|(_, count)| *count == Some(0)) {
            add(key, "must be at least 1".into());
        }
        if self.global_batch_size.is_some() && self.num_steps_per_rollout.is_some() {
            let detail = "has no effect beside global_batch_size; give one of them";
            add("num_steps_per_rollout", detail.into());
        }
        if self.recompute_num_layers.is_some() && self.recompute_granularity == Recompute::None {
            let detail =
                "has no effect with recompute_granularity = none; choose selective, mlp or full";
            add("recompute_num_layers", detail.into());
        }
    }

    fn check_algorithm(&self, add: &mut impl FnMut(&'static str, String)) {
        if self.use_routing_replay && self.use_rollout_routing_replay {
            let detail = "has no effect beside use_rollout_routing_replay; give one of them";
            add("use_routing_replay", detail.into());
        }
        if self.use_routing_replay && self.use_rollout_logprobs {
            let detail = "has no effect with use_rollout_logprobs, which leaves out the pass whose experts it would replay";
            add("use_routing_replay", detail.into());
        }
        let estimator = self.advantage_estimator;
        let name = serde_name(&estimator);
        if self.disable_grpo_std_normalization && !estimator.has_std() {
            let detail = format!(
                "has no effect with advantage_estimator = {name}, which does not divide by the std"
            );
            add("disable_grpo_std_normalization", detail);
        }
        if self.grpo_std.is_some() && self.disable_grpo_std_normalization {
            let detail = "has no effect beside disable_grpo_std_normalization; keep one of them";
            add("grpo_std", detail.into());
        }
        if self.grpo_std.is_some() && !estimator.has_std() {
            let detail = format!(
                "has no effect with advantage_estimator = {name}, which does not divide by the std"
            );
            add("grpo_std", detail);
        }
        if self.disable_rewards_normalization && !estimator.is_group_relative() {
            let detail = format!(
                "has no effect with advantage_estimator = {name}, which takes rewards as they are"
            );
            add("disable_rewards_normalization", detail);
        }
        if estimator.is_whitened() && !self.normalize_advantages {
            add(
                "normalize_advantages",
                format!("advantage_estimator = {name} requires it; set it to true"),
            );
        }
        if self.gamma != 1.0 && !estimator.has_discount() {
            add(
                "gamma",
                format!(
                    "has no effect with advantage_estimator = {name}; only reinforce_plus_plus and ppo discount"
                ),
            );
        }
        if self.eps_clip_c.is_some() && estimator == Estimator::Cispo {
            add(
                "eps_clip_c",
                "has no effect with advantage_estimator = cispo; remove it".into(),
            );
        }
        match (self.loss_aggregation, self.loss_constant_length) {
            (Aggregation::ConstantLength, None) => {
                let detail = "loss_aggregation = constant-length needs it; rollout_max_response_len is the usual value";
                add("loss_constant_length", detail.into());
            }
            (other, Some(_)) if other != Aggregation::ConstantLength => {
                let detail = format!(
                    "has no effect with loss_aggregation = {}",
                    serde_name(&other)
                );
                add("loss_constant_length", detail);
            }
            _ => {}
        }
    }

    fn check_kl(&self, add: &mut impl FnMut(&'static str, String)) {
        for (key, value) in [
            ("kl_coef", self.kl_coef),
            ("kl_loss_coef", self.kl_loss_coef),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                add(key, format!("{value} must be a number of at least 0"));
            }
        }
        if self.kl_coef != 0.0 && self.use_kl_loss {
            let detail = "KL is either in the reward (kl_coef) or in the loss (use_kl_loss), not in both; choose one";
            add("kl_coef", detail.into());
        }
        if self.kl_loss_coef != 0.0 && !self.use_kl_loss {
            add(
                "kl_loss_coef",
                "has no effect without use_kl_loss; set use_kl_loss = true".into(),
            );
        }
        let is_k1 = self.use_kl_loss && self.kl_kind() == KlKind::K1;
        if is_k1 && self.kl_loss_coef != 0.0 && !self.use_unbiased_kl {
            let detail = "k1 alone cannot be minimised in the loss, its gradient is 0 in expectation; use k3 or low_var_kl, or set use_unbiased_kl = true";
            add("kl_loss_type", detail.into());
        }
        if self.kl_loss_type.is_some() && self.needs_reference().is_none() {
            add(
                "kl_loss_type",
                "has no effect without use_kl_loss or kl_coef; remove it".into(),
            );
        }
        if self.use_unbiased_kl && !self.use_kl_loss {
            add(
                "use_unbiased_kl",
                "has no effect without use_kl_loss; remove it".into(),
            );
        }
    }

    fn check_schedule(&self, add: &mut impl FnMut(&'static str, String)) {
        let style = serde_name(&self.lr_decay_style);
        if self.lr_decay_style == DecayStyle::Constant {
            if self.lr_decay_iters.is_some() {
                add(
                    "lr_decay_iters",
                    "has no effect with lr_decay_style = constant".into(),
                );
            }
            if self.min_lr != 0.0 {
                add(
                    "min_lr",
                    "has no effect with lr_decay_style = constant".into(),
                );
            }
        } else if let Some(decay) = self.lr_decay_iters {
            if decay <= self.lr_warmup_iters {
                let detail = format!(
                    "{decay} must be above lr_warmup_iters = {}",
                    self.lr_warmup_iters
                );
                add("lr_decay_iters", detail);
            }
        } else {
            let detail = format!(
                "lr_decay_style = {style} needs it: the number of train steps after which min_lr is reached"
            );
            add("lr_decay_iters", detail);
        }
        if self.min_lr > self.lr {
            add(
                "min_lr",
                format!("{} must not be above lr = {}", self.min_lr, self.lr),
            );
        }
        if self.lr_warmup_init != 0.0 && self.lr_warmup_iters == 0 {
            add(
                "lr_warmup_init",
                "has no effect without lr_warmup_iters".into(),
            );
        }
        match (self.lr_decay_style, self.lr_wsd_decay_iters) {
            (DecayStyle::Wsd, None) => {
                let detail = "lr_decay_style = WSD needs it: the length of the last phase";
                add("lr_wsd_decay_iters", detail.into());
            }
            (DecayStyle::Wsd, Some(phase)) => {
                let room = self
                    .lr_decay_iters
                    .unwrap_or(0)
                    .saturating_sub(self.lr_warmup_iters);
                if phase == 0 || phase > room {
                    let detail = format!(
                        "{phase} must be at least 1 and fit between warm-up and lr_decay_iters ({room} steps)"
                    );
                    add("lr_wsd_decay_iters", detail);
                }
            }
            (_, Some(_)) => {
                let detail = format!(
                    "has no effect with lr_decay_style = {style}; only WSD has a last phase"
                );
                add("lr_wsd_decay_iters", detail);
            }
            _ => {}
        }
    }
}

/// A value's name in files.
fn serde_name<T: Serialize>(value: &T) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        other => format!("{other:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(config: &TrainConfig) -> Vec<&'static str> {
        config
            .validate()
            .err()
            .into_iter()
            .flatten()
            .map(|p| p.key)
            .collect()
    }

    #[test]
    fn the_defaults_are_valid_and_survive_a_file() {
        let config = TrainConfig::default();
        assert_eq!(config.validate(), Ok(()));
        let text = serde_json::to_string(&config).unwrap();
        assert_eq!(serde_json::from_str::<TrainConfig>(&text).unwrap(), config);
        assert!(serde_json::from_str::<TrainConfig>(r#"{"eps_clp": 0.1}"#).is_err());
    }

    #[test]
    fn every_problem_is_reported_at_once() {
        let config = TrainConfig {
            lr: f64::NAN,
            eps_clip_c: Some(1.0),
            kl_loss_coef: 0.1,
            loss_constant_length: Some(9),
            gamma: 0.9,
            lr_wsd_decay_iters: Some(2),
            ..TrainConfig::default()
        };
        let keys = keys(&config);
        for key in [
            "lr",
            "eps_clip_c",
            "kl_loss_coef",
            "loss_constant_length",
            "gamma",
            "lr_wsd_decay_iters",
        ] {
            assert!(keys.contains(&key), "{key} is not in {keys:?}");
        }
    }

    #[test]
    fn k1_in_the_loss_is_refused_and_measured_only_it_is_not() {
        let mut config = TrainConfig {
            use_kl_loss: true,
            kl_loss_type: Some(KlKind::K1),
            kl_loss_coef: 0.01,
            ..TrainConfig::default()
        };
        assert_eq!(keys(&config), ["kl_loss_type"]);
        config.kl_loss_coef = 0.0;
        assert_eq!(config.validate(), Ok(()));
    }

    #[test]
    fn kl_defaults_to_k3_in_the_loss_and_k1_in_the_reward() {
        let loss = TrainConfig {
            use_kl_loss: true,
            ..TrainConfig::default()
        };
        assert_eq!(loss.kl_kind(), KlKind::K3);
        let reward = TrainConfig {
            kl_coef: 0.1,
            ..TrainConfig::default()
        };
        assert_eq!(
            (reward.kl_kind(), reward.needs_reference()),
            (KlKind::K1, Some("kl_coef"))
        );
    }
}
