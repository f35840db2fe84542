//! Layers put together: the last setting of a key wins, and is remembered with its origin.

use super::layer::{Origin, Setting, insert};
use super::problem::{Place, Problem};
use super::sections::RunConfig;
use serde::Deserialize;
use std::collections::BTreeMap;
use toml::{Table, Value};

/// A recipe and who said each of its values.
#[derive(Clone, Debug, Default)]
pub struct Resolved {
    /// What was said, all layers together.
    pub config: RunConfig,
    /// Who said it, by `section.key`.
    pub origins: BTreeMap<String, Origin>,
}

/// Put settings together, lowest layer first.
///
/// # Errors
/// Only a bug can make values that were each right alone wrong together; it is reported like any problem.
pub fn merge(settings: Vec<Setting>) -> Result<Resolved, Problem> {
    let mut last: BTreeMap<String, (Value, Origin)> = BTreeMap::new();
    for Setting { key, value, origin } in settings {
        match value {
            Some(value) => {
                last.insert(key, (value, origin));
            }
            None => {
                last.remove(&key);
            }
        }
    }
    let mut table = Table::new();
    let mut origins = BTreeMap::new();
    for (key, (value, origin)) in last {
        insert(&mut table, &key, value);
        origins.insert(key, origin);
    }
    let config =
        RunConfig::deserialize(Value::Table(table)).map_err(|e| Problem::new(e.message()))?;
    Ok(Resolved { config, origins })
}

impl Resolved {
    /// Whether somebody said `key`.
    pub fn says(&self, key: &str) -> bool {
        self.origins.contains_key(key)
    }

    /// Where `key` was said, for a diagnostic.
    pub fn place(&self, key: &str) -> Option<Place> {
        self.origins.get(key).map(Origin::place)
    }

    /// The recipe as TOML, with who said each value.
    pub fn to_toml(&self, provenance: bool) -> String {
        let mut sections: BTreeMap<&str, Vec<(String, &String)>> = BTreeMap::new();
        let values = Value::try_from(&self.config).unwrap_or_else(|_| Value::Table(Table::new()));
        for key in self.origins.keys() {
            let (section, name) = split(key);
            let Some(value) = lookup(&values, key) else {
                continue;
            };
            let name = if is_bare(name) {
                name.to_owned()
            } else {
                format!("{name:?}")
            };
            sections
                .entry(section)
                .or_default()
                .push((format!("{name} = {value}"), key));
        }
        let mut text = String::new();
        for (section, lines) in sections {
            if !section.is_empty() {
                text.push_str(&format!("\n[{section}]\n"));
            }
            let width = lines
                .iter()
                .map(|(line, _)| line.len())
                .filter(|n| *n < 60)
                .max()
                .unwrap_or(0);
            for (line, key) in lines {
                match self.origins.get(key) {
                    Some(origin) if provenance => {
                        text.push_str(&format!("{line:width$}  # {}\n", origin.describe()))
                    }
                    _ => text.push_str(&format!("{line}\n")),
                }
            }
        }
        text.trim_start().to_owned()
    }
}

/// A key's table and its name there. Names of the user's own may hold dots.
fn split(key: &str) -> (&str, &str) {
    match key.strip_prefix("eval.prompt_data.") {
        Some(name) => ("eval.prompt_data", name),
        None => key.rsplit_once('.').unwrap_or(("", key)),
    }
}

fn lookup<'a>(values: &'a Value, key: &str) -> Option<&'a Value> {
    let (section, name) = split(key);
    let table = section
        .split('.')
        .filter(|part| !part.is_empty())
        .try_fold(values, |value, part| value.get(part))?;
    table.get(name)
}

fn is_bare(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-')
}

#[cfg(test)]
mod tests {
    use super::super::layer::{from_file, from_sets};
    use super::*;

    fn file(text: &str) -> Vec<Setting> {
        let (settings, problems) = from_file("x.toml", text);
        assert!(problems.is_empty(), "{problems:?}");
        settings
    }

    fn sets(text: &[&str]) -> Vec<Setting> {
        from_sets(&text.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()).0
    }

    #[test]
    fn a_later_layer_wins_key_by_key() {
        let all = [
            file("seed = 1\n[train]\nlr = 1e-3\nclip_grad = 0.5\n"),
            file("[train]\nlr = 2e-3\n[rollout]\nmax_lag = 1\n"),
            sets(&["train.clip_grad=0.25", "rollout.max_lag=null"]),
        ];
        let resolved = merge(all.concat()).unwrap();
        assert_eq!(resolved.config.seed, Some(1));
        assert_eq!(resolved.config.train.lr, Some(2e-3));
        assert_eq!(resolved.config.train.clip_grad, Some(0.25));
        assert_eq!(resolved.config.rollout.max_lag, None);
        assert_eq!(resolved.origins["train.lr"].describe(), "x.toml:2");
        assert!(!resolved.says("rollout.max_lag"));
    }

    #[test]
    fn n01_a_file_may_set_false_what_was_true_below() {
        let resolved = merge(
            [
                file("[data]\nshuffle = true\n"),
                file("[data]\nshuffle = false\n"),
            ]
            .concat(),
        )
        .unwrap();
        assert_eq!(resolved.config.data.shuffle, Some(false));
    }

    #[test]
    fn n04_what_was_taken_back_stays_so_when_it_is_written_and_read_again() {
        let layers = [
            file("[rollout]\nmax_lag = 1\n"),
            sets(&["rollout.max_lag=null"]),
        ];
        let resolved = merge(layers.concat()).unwrap();
        let again = merge(file(&resolved.to_toml(true))).unwrap();
        assert_eq!(again.config.rollout.max_lag, None);
        assert!(!again.says("rollout.max_lag"));
    }

    #[test]
    fn merging_is_associative() {
        let layers = [
            file("seed = 1\n[train]\nlr = 1.0\n"),
            sets(&["seed=2", "train.lr=null"]),
            sets(&["train.lr=3"]),
        ];
        let flat = merge(layers.concat()).unwrap();
        // Merging the upper two first and then the lowest below them gives the same.
        let upper = merge([layers[1].clone(), layers[2].clone()].concat()).unwrap();
        let upper = file(&upper.to_toml(false));
        assert_eq!(
            merge([layers[0].clone(), upper].concat()).unwrap().config,
            flat.config
        );
    }

    #[test]
    fn what_was_resolved_is_read_back_as_it_was() {
        let text = "seed = 7\n[eval.prompt_data]\n\"a.b\" = \"x.jsonl\"\n[rollout]\nstop = [\"\\n\", \"é\"]\n\
                    [data.apply_chat_template_kwargs]\nenable_thinking = false\ndeep = { x = 1 }\n";
        let resolved = merge(file(text)).unwrap();
        assert_eq!(resolved.config.eval.prompt_data["a.b"].path, "x.jsonl");
        let again = merge(file(&resolved.to_toml(true))).unwrap();
        assert_eq!(again.config, resolved.config);
    }
}
