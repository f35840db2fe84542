//! What contradicts itself among the options of off-policy correction, distillation and the critic.

use super::TrainConfig;
use crate::algo::Estimator;
use crate::algo::mismatch::{Level, Mode};

impl TrainConfig {
    /// Corrections between trainer and engine.
    pub(super) fn check_mismatch(&self, add: &mut impl FnMut(&'static str, String)) {
        let default = Self::default();
        let by_token = [
            ("tis_level", self.use_tis && self.tis_level == Level::Token),
            ("tis_mode", self.use_tis && self.tis_mode == Mode::Mask),
            ("rs_level", self.use_rs && self.rs_level == Level::Token),
        ];
        if self.advantage_estimator == Estimator::Gspo {
            for (key, _) in by_token.iter().filter(|(_, asked)| *asked) {
                let detail = "works token by token, and the ratio of advantage_estimator = gspo is the trajectory's; \
                              use the level sequence or geometric, and the mode truncate or icepop";
                add(key, detail.into());
            }
        }
        let asked = [
            ("use_tis", self.use_tis),
            ("use_rs", self.use_rs),
            ("rs_veto_threshold", self.rs_veto_threshold.is_some()),
        ];
        if self.use_rollout_logprobs {
            for (key, _) in asked.iter().filter(|(_, asked)| *asked) {
                let detail = "has no effect with use_rollout_logprobs: the old policy is then the engine's, and every ratio is 1";
                add(key, detail.into());
            }
        }
        if self.use_tis && !(self.tis_clip.is_finite() && self.tis_clip > self.tis_clip_low) {
            add(
                "tis_clip",
                format!(
                    "{} must be above tis_clip_low = {}",
                    self.tis_clip, self.tis_clip_low
                ),
            );
        }
        if self.use_rs && self.rs_clip_low.is_some_and(|low| low >= self.rs_clip) {
            add(
                "rs_clip_low",
                format!("must be below rs_clip = {}", self.rs_clip),
            );
        }
        if self.use_rs && self.rs_clip_low.is_none() && self.rs_clip <= 1.0 {
            let detail =
                "must be above 1, or rs_clip_low be given: the smallest ratio kept is one over it";
            add("rs_clip", detail.into());
        }
        if let Some(least) = self.rs_veto_threshold
            && !(least.is_finite() && least > 0.0 && least < 1.0)
        {
            add(
                "rs_veto_threshold",
                format!("{least} must lie between 0 and 1"),
            );
        }
        if self.use_tis && self.tis_batch_normalize && self.tis_level == Level::Geometric {
            let detail = "has no meaning with tis_level = geometric, whose weights are near 1 by themselves; remove it";
            add("tis_batch_normalize", detail.into());
        }
        let without_tis = [
            ("tis_clip", self.tis_clip != default.tis_clip),
            ("tis_clip_low", self.tis_clip_low != default.tis_clip_low),
            ("tis_level", self.tis_level != default.tis_level),
            ("tis_mode", self.tis_mode != default.tis_mode),
            ("tis_batch_normalize", self.tis_batch_normalize),
        ];
        let without_rs = [
            ("rs_level", self.rs_level != default.rs_level),
            ("rs_clip", self.rs_clip != default.rs_clip),
            ("rs_clip_low", self.rs_clip_low.is_some()),
        ];
        for (keys, on, switch) in [
            (&without_tis[..], self.use_tis, "use_tis"),
            (&without_rs[..], self.use_rs, "use_rs"),
            (
                &[("opsm_delta", self.opsm_delta != default.opsm_delta)][..],
                self.use_opsm,
                "use_opsm",
            ),
            (
                &[("opd_kl_coef", self.opd_kl_coef != default.opd_kl_coef)][..],
                self.use_opd,
                "use_opd",
            ),
        ] {
            for (key, _) in keys.iter().filter(|(_, said)| *said && !on) {
                let detail =
                    format!("has no effect without {switch}; set {switch} = true or remove it");
                add(key, detail);
            }
        }
    }

    pub(super) fn check_critic(&self, add: &mut impl FnMut(&'static str, String)) {
        if !(self.lambd.is_finite() && (0.0..=1.0).contains(&self.lambd)) {
            add("lambd", format!("{} must be from 0 to 1", self.lambd));
        }
        let default = Self::default();
        let said = [
            ("lambd", self.lambd != default.lambd),
            ("value_clip", self.value_clip != default.value_clip),
            ("num_critic_only_steps", self.num_critic_only_steps != 0),
            ("critic_lr", self.critic_lr.is_some()),
            (
                "critic_lr_warmup_iters",
                self.critic_lr_warmup_iters.is_some(),
            ),
        ];
        for (key, _) in said.iter().filter(|(_, said)| *said && !self.has_critic()) {
            let detail = "has no effect without a critic; only advantage_estimator = ppo has one";
            add(key, detail.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(config: &TrainConfig) -> Vec<&'static str> {
        let problems = config.validate().err().into_iter().flatten();
        problems.map(|p| p.key).collect()
    }

    #[test]
    fn an_option_without_its_switch_is_named_with_the_switch() {
        let config = TrainConfig {
            tis_level: Level::Sequence,
            rs_clip: 3.0,
            opsm_delta: 0.1,
            opd_kl_coef: 0.5,
            lambd: 0.9,
            ..TrainConfig::default()
        };
        assert_eq!(
            keys(&config),
            ["tis_level", "rs_clip", "opsm_delta", "opd_kl_coef", "lambd"]
        );
        let critic = TrainConfig {
            lambd: 0.9,
            advantage_estimator: Estimator::Ppo,
            ..TrainConfig::default()
        };
        assert_eq!(critic.validate(), Ok(()));
    }

    #[test]
    fn a_trajectorys_ratio_takes_no_correction_by_token() {
        let gspo = |tis_level, tis_mode| TrainConfig {
            advantage_estimator: Estimator::Gspo,
            use_tis: true,
            tis_level,
            tis_mode,
            ..TrainConfig::default()
        };
        assert_eq!(keys(&gspo(Level::Token, Mode::Truncate)), ["tis_level"]);
        assert_eq!(keys(&gspo(Level::Sequence, Mode::Mask)), ["tis_mode"]);
        assert_eq!(gspo(Level::Sequence, Mode::Truncate).validate(), Ok(()));
    }
}
