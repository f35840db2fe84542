//! A server's flags from three mouths: `--sglang-*` for all servers, a model's overrides, a group's overrides.
//!
//! The nearest wins, flag by flag. Values are words, handed on as they were said; nothing here knows what a flag means.

use super::yaml::{Key, Node, Value};
use slime_rollout::pool::launch::Sglang;

/// A flag and what stands behind it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flag {
    /// `--mem-fraction-static`.
    pub name: String,
    /// The words that say it, its name among them. `None` takes the flag back.
    pub words: Option<Vec<String>>,
}

impl Flag {
    /// `mem_fraction_static: 0.8` of a file. `true` is the flag alone, `false` and nothing take it back, a list is
    /// several words, a mapping is one word of JSON.
    pub fn from_yaml(key: &Key, value: &Node) -> Self {
        let name = format!("--{}", key.name.trim_start_matches('-').replace('_', "-"));
        let mut words = vec![name.clone()];
        let words = match (value.as_bool(), &value.value) {
            (Some(false), _) => None,
            _ if value.is_null() => None,
            (Some(true), _) => Some(words),
            (None, Value::Text { text, .. }) => {
                words.push(text.clone());
                Some(words)
            }
            (None, Value::List(items)) => {
                words.extend(items.iter().map(word));
                Some(words)
            }
            (None, Value::Map(_)) => {
                words.push(value.to_json().to_string());
                Some(words)
            }
        };
        Self { name, words }
    }

    /// Why it is not the user's to say, if it is not.
    pub fn is_the_hosts(&self) -> Option<&'static str> {
        let refused = Sglang::refused(std::slice::from_ref(&self.name));
        refused.first().map(|(_, reason)| *reason)
    }
}

fn word(node: &Node) -> String {
    match node.as_text() {
        Some(text) => text.to_owned(),
        None => node.to_json().to_string(),
    }
}

/// A command line's words, cut before each flag. Words before the first belong to no flag and stay first.
fn cut(words: &[String]) -> Vec<Flag> {
    let mut flags: Vec<Flag> = Vec::new();
    for word in words {
        match flags.last_mut() {
            Some(Flag {
                words: Some(words), ..
            }) if !word.starts_with("--") => words.push(word.clone()),
            _ => flags.push(Flag {
                name: word.split('=').next().unwrap_or_default().to_owned(),
                words: Some(vec![word.clone()]),
            }),
        }
    }
    flags
}

/// The words of all layers, furthest first. A flag of a nearer layer takes the place of a further one's.
pub fn merge(global: &[String], nearer: [&[Flag]; 2]) -> Vec<String> {
    let mut flags = cut(global);
    for layer in nearer {
        flags.retain(|flag| !layer.iter().any(|other| other.name == flag.name));
        flags.extend(layer.iter().cloned());
    }
    flags
        .into_iter()
        .filter_map(|flag| flag.words)
        .flatten()
        .collect()
}

#[cfg(test)]
mod tests {
    use super::super::yaml::parse;
    use super::*;

    fn flags(text: &str) -> Vec<Flag> {
        let Value::Map(pairs) = parse(text).unwrap().unwrap().value else {
            panic!("{text}");
        };
        let flags = pairs.iter().map(|(key, value)| Flag::from_yaml(key, value));
        flags.collect()
    }

    #[test]
    fn the_nearest_layer_says_a_flag_and_the_rest_stays_as_it_was() {
        let line = "--mem-fraction-static 0.60 --enable-metrics --x=1 --lora-paths a b --n -1";
        let global: Vec<String> = line.split(' ').map(str::to_owned).collect();
        let model =
            flags("{x: 2, mem_fraction_static: 0.70, json_model_override_args: {a: [1, b]}}");
        let group = flags(
            "{enable-metrics: false, mem_fraction_static: 0.80, lora_paths: [c], n: ~, disable-radix-cache: true}",
        );
        assert_eq!(merge(&global, [&[], &[]]), global);
        assert_eq!(
            merge(&global, [&model, &group]),
            [
                "--x",
                "2",
                "--json-model-override-args",
                r#"{"a":[1,"b"]}"#,
                "--mem-fraction-static",
                "0.80",
                "--lora-paths",
                "c",
                "--disable-radix-cache"
            ]
        );
    }
}
