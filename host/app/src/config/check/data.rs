//! Where prompts come from, and options of prompts and evaluation that would change nothing.

use super::Check;
use crate::config::Verb;
use crate::config::eval_set::Share;
use crate::config::layer::Origin;
use crate::config::sections::Filter;

impl Check<'_> {
    pub(super) fn sources(&mut self) {
        let c = &self.said.config;
        if c.data.prompt_data.is_some() && !c.data.sources.is_empty() {
            self.refuse(
                "data.prompt_data",
                "`data.prompt_data` and `data.sources` both say where prompts come from",
                "make `prompt_data` one of the sources",
            );
        }
        for (name, set) in &c.data.sources {
            if let Some(weight) = set.own.weight.filter(|w| !(w.is_finite() && *w > 0.0)) {
                let key = format!("data.sources.{name}");
                self.refuse(
                    &key,
                    format!("the weight of source `{name}` is {weight}"),
                    "it must be more than 0; leave the source out to draw nothing from it",
                );
            }
            self.source(name, &set.own);
        }
        for (name, set) in &c.eval.prompt_data {
            let key = format!("eval.prompt_data.{name}");
            let own = &set.own;
            if own.temperature.is_some_and(|t| t.is_nan() || t < 0.0) {
                self.refuse(
                    &key,
                    format!("the temperature of data set `{name}` is below 0"),
                    "0 is greedy",
                );
            }
            if own.top_p.is_some_and(|p| !(p > 0.0 && p <= 1.0)) {
                self.refuse(
                    &key,
                    format!("top_p of data set `{name}` is not a mass"),
                    "it must be more than 0 and at most 1",
                );
            }
            if own.n_samples_per_prompt == Some(0) || own.max_response_len == Some(0) {
                self.refuse(
                    &key,
                    format!("data set `{name}` asks for nothing"),
                    "counts must be 1 or more",
                );
            }
        }
    }

    /// One of several sources: what it sets must have an effect.
    fn source(&mut self, name: &str, own: &Share) {
        let key = format!("data.sources.{name}");
        let (file, made) = match own.plugin {
            Some(_) => (false, true),
            None => (true, false),
        };
        if made && (own.input_key.is_some() || own.label_key.is_some()) {
            let what = format!("source `{name}` is a plugin's and has no columns");
            self.refuse(&key, what, "leave `input_key` and `label_key` out");
        }
        if file && own.difficulty.is_some() {
            let what = format!("source `{name}` is a file, and `difficulty` has no effect");
            self.refuse(
                &key,
                what,
                "leave it out, or name a `plugin` instead of a `path`",
            );
        }
        if own.difficulty.is_some_and(|d| !(0.0..=1.0).contains(&d)) {
            let what = format!("the difficulty of source `{name}` is out of range");
            self.refuse(&key, what, "it must be from 0 (easiest) to 1 (hardest)");
        }
    }

    pub(super) fn without_effect(&mut self) {
        // A file may say how many checkpoints `run` keeps.
        let kept = "run.keep_checkpoints";
        let by_hand = self
            .said
            .origins
            .get(kept)
            .is_some_and(|origin| !matches!(origin, Origin::File { .. }));
        if self.verb == Verb::Sft && by_hand && !self.said.says("run.save_interval") {
            let why = "fine-tuning writes no checkpoints";
            self.useless(kept, why, "add --save-interval N");
        }
        let c = &self.said.config;
        let has_prompts = c.data.prompt_data.is_some() || !c.data.sources.is_empty();
        if !has_prompts {
            let has_file = !c.eval.prompt_data.is_empty() || c.sft.data.is_some();
            let why = "prompts come from a plugin, not from a file";
            for key in ["input_key", "label_key", "metadata_key", "tool_key"] {
                if !has_file {
                    self.useless(&format!("data.{key}"), why, "add `data.prompt_data`");
                }
            }
            self.useless("data.shuffle", why, "add `data.prompt_data`");
            if c.data.apply_chat_template != Some(true) && !has_file {
                self.useless(
                    "data.system_prompt",
                    "text prompts are no conversations",
                    "add `apply_chat_template = true`",
                );
            }
        }
        let has_made = !has_prompts || c.data.sources.values().any(|s| s.own.plugin.is_some());
        if !has_made {
            for key in ["data.difficulty", "data.curriculum_target"] {
                self.useless(key, "prompts come from files", "leave it out");
            }
        }
        if c.data.curriculum_target.is_none() {
            self.useless(
                "data.curriculum_rate",
                "the difficulty of prompts stays as it is",
                "add `curriculum_target`, the mean reward to aim at",
            );
        }
        if c.eval.interval.is_none() && self.verb == Verb::Run {
            let keys: Vec<String> = self
                .said
                .origins
                .keys()
                .filter(|k| k.starts_with("eval."))
                .cloned()
                .collect();
            for key in keys {
                self.useless(&key, "nothing is evaluated", "add `eval.interval`");
            }
        }
        if !c.eval.prompt_data.is_empty() {
            self.useless(
                "eval.num_prompts",
                "held-out prompts come from files",
                "slice the file: FILE@[0:64]",
            );
        } else {
            for key in ["eval.input_key", "eval.label_key"] {
                self.useless(
                    key,
                    "held-out prompts come from a plugin",
                    "add `eval.prompt_data`",
                );
            }
        }
        if c.rollout.filter.unwrap_or_default() == Filter::All {
            self.useless(
                "rollout.max_refills",
                "no group is left out",
                "add `filter = \"nonzero-std\"`",
            );
        }
        if self.verb == Verb::Run && c.sft.num_steps.is_none() {
            let keys: Vec<String> = self
                .said
                .origins
                .keys()
                .filter(|k| k.starts_with("sft."))
                .cloned()
                .collect();
            for key in keys {
                self.useless(
                    &key,
                    "there is no supervised warm-up",
                    "add `sft.num_steps`",
                );
            }
        }
    }
}
