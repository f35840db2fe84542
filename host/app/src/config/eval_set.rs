//! One data set by name: a path, or a table with a path and settings of its own.
//!
//! ```toml
//! [data.sources]
//! gsm8k = "gsm8k/train.jsonl"
//! dapo = { path = "dapo.jsonl", weight = 3, input_key = "prompt", verifier = "math" }
//! sums = { plugin = "arith", difficulty = 0.5 }
//!
//! [eval.prompt_data]
//! gsm8k = "gsm8k.jsonl"
//! aime = { path = "aime.jsonl", n_samples_per_prompt = 16, temperature = 1.0 }
//! ```

use serde::de::{DeserializeOwned, Error};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use toml::Value;

/// A data set, as said. What is not said is as in its section.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DataSet<T> {
    /// JSONL or parquet, with an optional slice. Empty where a plugin makes the prompts up.
    pub path: String,
    /// The rest.
    pub own: T,
}

/// A held-out data set.
pub type EvalSet = DataSet<OwnSettings>;
/// A data set to train on, beside others.
pub type SourceSet = DataSet<Share>;

/// What a data set to train on may set for itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Share {
    /// How often it is drawn from, against the others. Default 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// The source plugin that makes its prompts up, instead of a `path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub plugin: Option<String>,
    /// How hard that plugin's prompts are, or where a curriculum begins.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difficulty: Option<f64>,
    /// The plugin that scores its rollouts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verifier: Option<String>,
    /// Column of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_key: Option<String>,
    /// Column of the gold answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_key: Option<String>,
}

/// What a held-out data set may set for itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct OwnSettings {
    /// Rollouts of one prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub n_samples_per_prompt: Option<u32>,
    /// The plugin that scores its rollouts.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verifier: Option<String>,
    /// 0 is greedy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// Nucleus mass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// Tokens kept; -1 keeps all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// Tokens of one rollout's response, what tools answer included.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_response_len: Option<u32>,
    /// Strings that end a turn.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stop: Option<Vec<String>>,
    /// Column of the prompt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_key: Option<String>,
    /// Column of the gold answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub label_key: Option<String>,
}

impl<'de, T: DeserializeOwned + Default> Deserialize<'de> for DataSet<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut table = match Value::deserialize(deserializer)? {
            Value::String(path) => {
                return Ok(Self {
                    path,
                    own: T::default(),
                });
            }
            Value::Table(table) => table,
            other => {
                return Err(D::Error::custom(format!(
                    "expected a path or a table with one, found {other}"
                )));
            }
        };
        let path = match table.remove("path") {
            Some(Value::String(_)) if table.contains_key("plugin") => {
                return Err(D::Error::custom(
                    "`path` and `plugin` both say where prompts come from; keep one",
                ));
            }
            Some(Value::String(path)) => path,
            // A data set that no plugin may fill refuses the key below.
            None if table.contains_key("plugin") => String::new(),
            _ => return Err(D::Error::custom("the data set has no `path`")),
        };
        let own = Value::Table(table).try_into();
        let own = own.map_err(|e: toml::de::Error| D::Error::custom(e.message()))?;
        Ok(Self { path, own })
    }
}

impl<T: Serialize + Default + PartialEq> Serialize for DataSet<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if self.own == T::default() {
            return self.path.serialize(serializer);
        }
        let own = Value::try_from(&self.own).map_err(serde::ser::Error::custom)?;
        let mut table = toml::Table::new();
        if !self.path.is_empty() {
            table.insert("path".into(), self.path.clone().into());
        }
        if let Value::Table(own) = own {
            table.extend(own);
        }
        table.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::super::layer::{from_file, from_sets};
    use super::super::merge::merge;
    use super::super::plan::{Plan, Prompts, Verb};

    const BASE: &str = "[model]\nbuiltin = \"tiny\"\n[run]\nnum_rollout = 2\nplugins = [\"p\"]\n[rollout]\nstop = [\"END\"]\n\
                        [eval]\ninterval = 1\nn_samples_per_prompt = 4\ntemperature = 0.5\n[eval.prompt_data]\n";

    fn said(more: &str) -> (super::super::Resolved, Vec<String>) {
        let (settings, problems) = from_file("r.toml", &format!("{BASE}{more}"));
        let problems = problems.iter().map(ToString::to_string).collect();
        (merge(settings).unwrap(), problems)
    }

    #[test]
    fn n07_every_default_reaches_every_data_set_unless_it_says_otherwise() {
        let (said, problems) = said(
            "plain = \"a.jsonl\"\naime = { path = \"b.jsonl\", n_samples_per_prompt = 16, temperature = 1.0, label_key = \"gold\" }\n",
        );
        assert_eq!(problems, Vec::<String>::new());
        let eval = Plan::new(&said, Verb::Run).unwrap().eval.unwrap();
        let [aime, plain] = &eval.sets[..] else {
            panic!("two data sets")
        };
        assert_eq!(
            (
                aime.name.as_str(),
                aime.n_samples_per_prompt,
                aime.sampling.temperature
            ),
            ("aime", 16, 1.0)
        );
        assert_eq!(
            (plain.n_samples_per_prompt, plain.sampling.temperature),
            (4, 0.5)
        );
        assert_eq!(
            (
                aime.data.label_key.as_deref(),
                plain.data.label_key.as_deref()
            ),
            (Some("gold"), None)
        );
        for set in [aime, plain] {
            assert_eq!(set.sampling.stop, ["END"], "stop strings too");
            assert_eq!(set.sampling.max_response_len, 256);
        }
        let again = merge(from_file("resolved.toml", &said.to_toml(true)).0).unwrap();
        assert_eq!(again.config, said.config);
    }

    #[test]
    fn a_wrong_key_or_type_of_a_data_set_is_named() {
        let (_, problems) = said(
            "a = { path = \"a.jsonl\", temprature = 1.0 }\nb = { temperature = 1.0 }\nc = 3\n",
        );
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[0].contains("temprature"), "{problems:?}");
        assert!(problems[1].contains("no `path`"), "{problems:?}");
        let (settings, wrong) =
            from_sets(&["eval.prompt_data.x={path = \"y\", top_p = 0.9}".to_owned()]);
        assert!(wrong.is_empty());
        assert_eq!(
            merge(settings).unwrap().config.eval.prompt_data["x"]
                .own
                .top_p,
            Some(0.9)
        );
    }

    #[test]
    fn sources_are_mixed_by_their_weights() {
        let base = BASE.replace(
            "[eval.prompt_data]\n",
            "[data]\ninput_key = \"question\"\n[data.sources]\n",
        );
        let plan = |more: &str| {
            let (settings, problems) = from_file("r.toml", &format!("{base}{more}"));
            assert!(problems.is_empty(), "{problems:?}");
            Plan::new(&merge(settings).unwrap(), Verb::Run)
        };
        let mix = plan(
            "a = \"a.jsonl\"\nb = { path = \"b.jsonl\", weight = 3, input_key = \"prompt\" }\n",
        )
        .unwrap()
        .mix;
        let told: Vec<_> = mix
            .iter()
            .map(|m| match &m.prompts {
                Prompts::File(data) => (m.name.as_str(), m.weight, data.input_key.as_str()),
                Prompts::Plugin { .. } => panic!("no plugin is named"),
            })
            .collect();
        assert_eq!(told, [("a", 1.0, "question"), ("b", 3.0, "prompt")]);
        let mix = plan(
            "a = { path = \"a.jsonl\", verifier = \"math\" }\nb = { plugin = \"arith\", difficulty = 0.5 }\n",
        )
        .unwrap()
        .mix;
        assert_eq!(mix[0].verifier.as_deref(), Some("math"));
        let arith = Prompts::Plugin {
            plugin: "arith".into(),
            difficulty: 0.5,
        };
        assert_eq!((&mix[1].prompts, &mix[1].verifier), (&arith, &None));
        let problems = plan("a = { path = \"a.jsonl\", weight = 0.0 }\n")
            .unwrap_err()
            .0;
        assert!(problems[0].to_string().contains("weight"), "{problems:?}");
    }
}
