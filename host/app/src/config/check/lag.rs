//! Tokens that are older than the weights they train.

use super::Check;
use crate::config::Verb;

impl Check<'_> {
    /// Rules of a run whose tokens may be older than the weights they train.
    pub(super) fn lag(&mut self) {
        let c = &self.said.config;
        if self.verb != Verb::Run {
            return;
        }
        let lag = c.rollout.max_lag.unwrap_or(0);
        let a = &c.algorithm;
        let said = |flag: Option<bool>| flag.unwrap_or(false);
        let corrected = said(a.use_tis) || said(a.use_rs) || said(a.use_rollout_logprobs);
        if lag > 0 && !corrected && !said(a.allow_uncorrected_lag) {
            self.refuse(
                "rollout.max_lag",
                format!("`rollout.max_lag` is {lag}, and nothing corrects for tokens that older weights sampled"),
                "add `use_tis = true` to [algorithm] (or `use_rs`, or `use_rollout_logprobs`); `allow_uncorrected_lag = true` does without",
            );
        }
        if lag == 0 {
            self.useless(
                "algorithm.allow_uncorrected_lag",
                "no token is older than the weights it trains",
                "leave it out, or raise `rollout.max_lag`",
            );
            if said(c.rollout.fully_async) {
                self.refuse(
                    "rollout.fully_async",
                    "sampling that never pauses gives tokens of older weights, and `rollout.max_lag` is 0",
                    "add `max_lag = 1` or more to [rollout]",
                );
            }
        }
        if !said(c.rollout.fully_async) {
            let why = "weights never change under a running request";
            for key in ["rollout.pause_generation_mode", "rollout.mask_offpolicy"] {
                self.useless(key, why, "add `fully_async = true`");
            }
        } else {
            self.useless(
                "rollout.over_sampling_batch_size",
                "sampling never pauses",
                "`fully_async` draws ahead by itself; leave it out",
            );
        }
        if c.rollout.overlong_buffer_len.is_none() {
            self.useless(
                "rollout.overlong_penalty_factor",
                "no response is penalised for its length",
                "add `overlong_buffer_len`",
            );
        }
        let response = c.rollout.max_response_len.unwrap_or(256);
        if let Some(buffer) = c.rollout.overlong_buffer_len.filter(|b| *b > response) {
            self.refuse(
                "rollout.overlong_buffer_len",
                format!("a buffer of {buffer} tokens is longer than a response of {response}"),
                "it is the last part of `max_response_len`",
            );
        }
        let groups = c.rollout.batch_size.unwrap_or(16);
        if let Some(over) = c.rollout.over_sampling_batch_size.filter(|n| *n < groups) {
            self.refuse(
                "rollout.over_sampling_batch_size",
                format!("a round of {over} prompts is smaller than a step of {groups}"),
                "it must be at least `batch_size`",
            );
        }
    }
}
