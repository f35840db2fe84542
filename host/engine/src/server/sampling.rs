//! `sampling_params` as clients write them → [`Params`], checked, in SGLang's words.
//!
//! Every name SGLang knows is known here. What the embedded engine cannot do is refused by name; what nobody
//! knows is refused too.

use super::refusal::Refusal;
use crate::request::Params;
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// One value or a list of them.
#[derive(Clone, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum OneOrMany<T> {
    One(T),
    Many(Vec<T>),
}

impl<T> OneOrMany<T> {
    pub(super) fn into_vec(self) -> Vec<T> {
        match self {
            Self::One(one) => vec![one],
            Self::Many(many) => many,
        }
    }
}

/// A seed in either of the two ranges that 64 bits have.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum Seed {
    Signed(i64),
    Unsigned(u64),
}

impl Seed {
    fn bits(self) -> u64 {
        match self {
            Self::Signed(s) => s as u64,
            Self::Unsigned(u) => u,
        }
    }
}

/// The object as it is written.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct SamplingBody {
    #[serde(default = "default_length")]
    pub(super) max_new_tokens: Option<i64>,
    pub(super) stop: Option<OneOrMany<String>>,
    pub(super) stop_token_ids: Option<Vec<i64>>,
    pub(super) stop_regex: Option<Value>,
    pub(super) temperature: Option<f64>,
    pub(super) top_p: Option<f64>,
    pub(super) top_k: Option<i64>,
    pub(super) min_p: Option<f64>,
    pub(super) frequency_penalty: Option<f64>,
    pub(super) presence_penalty: Option<f64>,
    pub(super) repetition_penalty: Option<f64>,
    pub(super) min_new_tokens: Option<i64>,
    pub(super) n: Option<i64>,
    pub(super) beam_width: Option<i64>,
    pub(super) json_schema: Option<Value>,
    pub(super) regex: Option<Value>,
    pub(super) ebnf: Option<Value>,
    pub(super) structural_tag: Option<Value>,
    pub(super) ignore_eos: Option<bool>,
    pub(super) skip_special_tokens: Option<bool>,
    pub(super) spaces_between_special_tokens: Option<bool>,
    pub(super) no_stop_trim: Option<bool>,
    pub(super) stream_interval: Option<i64>,
    pub(super) logit_bias: Option<BTreeMap<String, f32>>,
    pub(super) sampling_seed: Option<Seed>,
    pub(super) custom_params: Option<Value>,
    pub(super) watermark: Option<Value>,
}

/// 128 where nothing is said; `null` means what fits.
fn default_length() -> Option<i64> {
    Some(128)
}

impl SamplingBody {
    /// As read from a request; `null` and nothing are the defaults.
    pub(super) fn read(value: Option<Value>) -> Result<Self, Refusal> {
        match value {
            None | Some(Value::Null) => Ok(Self {
                max_new_tokens: default_length(),
                ..Self::default()
            }),
            Some(value) => serde_json::from_value(value).map_err(|e| Refusal::Text(e.to_string())),
        }
    }

    /// Check everything.
    pub(super) fn check(self, vocab: usize) -> Result<Params, Refusal> {
        self.refuse_unsupported()?;
        let defaults = Params::default();
        let mut params = Params {
            temperature: self.temperature.unwrap_or(1.0),
            top_p: self.top_p.unwrap_or(1.0),
            min_p: self.min_p.unwrap_or(0.0),
            frequency_penalty: self.frequency_penalty.unwrap_or(0.0),
            presence_penalty: self.presence_penalty.unwrap_or(0.0),
            repetition_penalty: self.repetition_penalty.unwrap_or(1.0),
            stop: self.stop.map(OneOrMany::into_vec).unwrap_or_default(),
            ignore_eos: self.ignore_eos.unwrap_or(false),
            skip_special_tokens: self.skip_special_tokens.unwrap_or(true),
            no_stop_trim: self.no_stop_trim.unwrap_or(false),
            seed: self.sampling_seed.map(Seed::bits),
            ..defaults
        };
        let Params {
            temperature,
            top_p,
            min_p,
            frequency_penalty,
            presence_penalty,
            repetition_penalty,
            ..
        } = params;
        let top_k = self.top_k.unwrap_or(-1);
        let max_new_tokens = self.max_new_tokens;
        let min_new_tokens = self.min_new_tokens.unwrap_or(0);
        let n = self.n.unwrap_or(1);
        // In SGLang's order and words.
        let checks = [
            (
                temperature.is_finite() && temperature >= 0.0,
                format!("temperature must be a non-negative finite number, got {temperature}."),
            ),
            (
                top_p > 0.0 && top_p <= 1.0,
                format!("top_p must be in (0, 1], got {top_p}."),
            ),
            (
                (0.0..=1.0).contains(&min_p),
                format!("min_p must be in [0, 1], got {min_p}."),
            ),
            (
                top_k == -1 || top_k >= 1,
                format!("top_k must be -1 (disable) or at least 1, got {top_k}."),
            ),
            (
                (-2.0..=2.0).contains(&frequency_penalty),
                format!("frequency_penalty must be in [-2, 2], got {frequency_penalty}."),
            ),
            (
                (-2.0..=2.0).contains(&presence_penalty),
                format!("presence_penalty must be in [-2, 2], got {presence_penalty}."),
            ),
            (
                repetition_penalty > 0.0 && repetition_penalty <= 2.0,
                format!(
                    "repetition_penalty must be in (0, 2] (1.0 = no penalty), got {repetition_penalty}."
                ),
            ),
            (
                max_new_tokens.is_none_or(|m| m >= 0),
                format!(
                    "max_new_tokens must be at least 0, got {}.",
                    max_new_tokens.unwrap_or(0)
                ),
            ),
            (
                min_new_tokens >= 0 && max_new_tokens.is_none_or(|m| min_new_tokens <= m),
                match max_new_tokens {
                    Some(m) => format!(
                        "min_new_tokens must be in [0, max_new_tokens({m})], got {min_new_tokens}."
                    ),
                    None => format!(
                        "min_new_tokens must be in [0, max_new_tokens], got {min_new_tokens}."
                    ),
                },
            ),
            (
                (1..=4096).contains(&n),
                format!("n must be in [1, 4096], got {n}."),
            ),
            (
                params.stop.iter().all(|s| !s.is_empty()),
                "stop must not hold an empty string.".to_owned(),
            ),
        ];
        if let Some((_, message)) = checks.into_iter().find(|(ok, _)| !ok) {
            return Err(Refusal::invalid(message));
        }
        params.max_new_tokens = max_new_tokens.map_or(usize::MAX, |m| m as usize);
        params.min_new_tokens = min_new_tokens as usize;
        params.n = n as usize;
        // Below SGLang's epsilon a temperature is greedy.
        params.top_k = if params.temperature < 1e-6 {
            1
        } else if top_k == -1 {
            usize::MAX
        } else {
            top_k as usize
        };
        if params.greedy() {
            params.temperature = 1.0;
        }
        for id in self.stop_token_ids.unwrap_or_default() {
            // An id that no token has is never sampled.
            params.stop_token_ids.extend(u32::try_from(id).ok());
        }
        for (key, bias) in self.logit_bias.unwrap_or_default() {
            let id = key
                .parse()
                .ok()
                .filter(|&id: &u32| (id as usize) < vocab && bias.is_finite());
            let Some(id) = id else {
                return Err(Refusal::invalid(format!(
                    "logit_bias must have keys in [0, {}] and finite values, got {key}: {bias}.",
                    vocab - 1
                )));
            };
            params.logit_bias.push((id, bias));
        }
        Ok(params)
    }

    fn refuse_unsupported(&self) -> Result<(), Refusal> {
        let given = |v: &Option<Value>| match v {
            None | Some(Value::Null) => false,
            Some(Value::String(s)) => !s.is_empty(),
            Some(Value::Array(a)) => !a.is_empty(),
            Some(Value::Object(o)) => !o.is_empty(),
            Some(_) => true,
        };
        let names = [
            ("json_schema", given(&self.json_schema)),
            ("regex", given(&self.regex)),
            ("ebnf", given(&self.ebnf)),
            ("structural_tag", given(&self.structural_tag)),
            ("stop_regex", given(&self.stop_regex)),
            ("custom_params", given(&self.custom_params)),
            ("watermark", given(&self.watermark)),
            ("beam_width", self.beam_width.is_some_and(|b| b != 1)),
            (
                "spaces_between_special_tokens",
                self.spaces_between_special_tokens == Some(false),
            ),
            (
                "stream_interval",
                self.stream_interval.is_some_and(|i| i != 1),
            ),
        ];
        match names.iter().find(|(_, given)| *given) {
            Some((name, _)) => Err(unsupported(name)),
            None => Ok(()),
        }
    }
}

/// What only SGLang can do.
pub(super) fn unsupported(name: &str) -> Refusal {
    Refusal::invalid(format!(
        "{name} is not supported by the embedded engine: leave it out, or serve the model with SGLang."
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn check(value: Value) -> Result<Params, Refusal> {
        SamplingBody::read(Some(value))?.check(100)
    }

    fn message(value: Value) -> String {
        match check(value) {
            Err(Refusal::Object(_, m) | Refusal::Text(m)) => m,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn defaults_are_sglangs() {
        let p = SamplingBody::read(None)
            .and_then(|b| b.check(100))
            .expect("valid");
        assert_eq!(
            (p.max_new_tokens, p.temperature, p.top_k, p.top_p),
            (128, 1.0, usize::MAX, 1.0)
        );
        let p = check(json!({"max_new_tokens": null, "temperature": null, "stop": "a"}))
            .expect("valid");
        assert_eq!(
            (p.max_new_tokens, p.temperature, p.stop),
            (usize::MAX, 1.0, vec!["a".to_owned()])
        );
        assert_eq!(
            check(json!({"sampling_seed": -1})).expect("valid").seed,
            Some(u64::MAX)
        );
        assert_eq!(
            check(json!({"sampling_seed": u64::MAX}))
                .expect("valid")
                .seed,
            Some(u64::MAX)
        );
    }

    #[test]
    fn greedy_is_temperature_zero_or_top_k_one() {
        for greedy in [
            json!({"temperature": 0, "top_k": 5}),
            json!({"top_k": 1, "temperature": 3.0}),
        ] {
            let p = check(greedy).expect("valid");
            assert!(p.greedy() && p.temperature == 1.0);
        }
    }

    #[test]
    fn what_is_out_of_range_unknown_or_unsupported_is_named() {
        for (key, value) in [
            ("temperature", json!(-1)),
            ("top_p", json!(0)),
            ("top_p", json!(1.5)),
            ("top_k", json!(0)),
            ("top_k", json!(-2)),
            ("min_p", json!(2)),
            ("max_new_tokens", json!(-1)),
            ("min_new_tokens", json!(129)),
            ("n", json!(0)),
            ("stop", json!("")),
            ("repetition_penalty", json!(0)),
            ("logit_bias", json!({"100": 1.0})),
            ("json_schema", json!("{}")),
            ("beam_width", json!(4)),
        ] {
            assert!(
                message(json!({key: value})).contains(key),
                "{key}: {}",
                message(json!({key: value}))
            );
        }
        assert!(
            message(json!({"bogus": 1}))
                .starts_with("unknown field `bogus`, expected one of `max_new_tokens`")
        );
        assert!(matches!(check(json!({"bogus": 1})), Err(Refusal::Text(_))));
        assert!(check(json!({"json_schema": null, "regex": "", "beam_width": 1})).is_ok());
    }
}
