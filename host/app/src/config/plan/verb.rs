//! What is to be done, and which keys have an effect then.

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The whole loop.
    Run,
    /// Supervised fine-tuning.
    Sft,
    /// Rollouts only.
    Rollout,
    /// Training on recorded rollouts only.
    Train,
    /// Evaluation only.
    Eval,
}

impl Verb {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Run, Self::Sft, Self::Rollout, Self::Train, Self::Eval];

    /// As typed.
    pub fn name(self) -> &'static str {
        match self {
            Self::Run => "run",
            Self::Sft => "sft",
            Self::Rollout => "rollout",
            Self::Train => "train",
            Self::Eval => "eval",
        }
    }

    /// Whether a key has an effect. One without a section has one everywhere.
    pub fn reads(self, key: &str) -> bool {
        let section = key.split_once('.').map_or("", |(section, _)| section);
        (section.is_empty() || self.sections().contains(&section)) && !self.unread().contains(&key)
    }

    /// Sections whose keys have an effect.
    fn sections(self) -> &'static [&'static str] {
        match self {
            Self::Run => &[
                "run",
                "model",
                "data",
                "eval",
                "rollout",
                "algorithm",
                "train",
                "sft",
                "limits",
            ],
            Self::Sft => &["run", "model", "data", "train", "sft", "limits"],
            Self::Rollout => &["run", "model", "data", "rollout", "limits"],
            Self::Train => &["run", "model", "algorithm", "train"],
            Self::Eval => &[
                "run", "model", "data", "eval", "rollout", "limits", "grants",
            ],
        }
    }

    /// Keys of those sections that still have none.
    fn unread(self) -> &'static [&'static str] {
        match self {
            Self::Run => &[],
            Self::Sft => &[
                "run.shadow",
                "run.memoise",
                "run.gateway",
                "run.gateway_rewards",
                "run.num_rollout",
                "run.num_epoch",
                "model.ref_load",
                "model.teacher_load",
                "model.teacher_addrs",
                "model.judge_addrs",
                "data.verifier",
                "data.curriculum_target",
                "data.curriculum_rate",
            ],
            Self::Rollout => &[
                "data.curriculum_target",
                "data.curriculum_rate",
                "run.name",
                "run.save_interval",
                "run.keep_checkpoints",
                "model.ref_load",
                "model.teacher_load",
                "model.teacher_addrs",
                "rollout.max_lag",
                "rollout.fully_async",
                "rollout.pause_generation_mode",
                "rollout.mask_offpolicy",
                "rollout.mask_truncated",
                "rollout.overlong_buffer_len",
                "rollout.overlong_penalty_factor",
                "rollout.update_weight_disk_dir",
                "rollout.update_weight_transport",
                "rollout.update_weight_local_dir",
                "rollout.update_weight_dtype",
            ],
            Self::Train => &[
                "grants",
                "run.name",
                "run.plugins",
                "run.shadow",
                "run.memoise",
                "run.gateway",
                "run.gateway_rewards",
                "run.trusted_keys",
                "run.num_rollout",
                "run.num_epoch",
                "run.save_interval",
                "run.keep_checkpoints",
                "model.path",
                "model.builtin",
                "model.teacher_addrs",
                "model.judge_addrs",
            ],
            Self::Eval => &[
                "run.name",
                "run.num_rollout",
                "run.num_epoch",
                "run.save_interval",
                "run.keep_checkpoints",
                "model.ref_load",
                "model.teacher_load",
                "model.teacher_addrs",
                "eval.interval",
                "eval.skip_before_train",
                "data.curriculum_target",
                "data.curriculum_rate",
                "rollout.batch_size",
                "rollout.n_samples_per_prompt",
                "rollout.temperature",
                "rollout.max_lag",
                "rollout.fully_async",
                "rollout.pause_generation_mode",
                "rollout.over_sampling_batch_size",
                "rollout.mask_offpolicy",
                "rollout.mask_truncated",
                "rollout.overlong_buffer_len",
                "rollout.overlong_penalty_factor",
                "rollout.filter",
                "rollout.update_weight_disk_dir",
                "rollout.update_weight_transport",
                "rollout.update_weight_local_dir",
                "rollout.update_weight_dtype",
            ],
        }
    }
}
