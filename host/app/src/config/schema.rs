//! Which keys exist, and which one was probably meant.
//!
//! The list is read off [`RunConfig`] itself, so it cannot drift from what is deserialized.

use super::sections::RunConfig;
use serde_json::Value;
use std::sync::LazyLock;

/// Tables whose keys are the user's own: a value of `eval.prompt_data` is a leaf under any name.
const NAMED: [&str; 3] = ["eval.prompt_data", "data.sources", "model.judge_addrs"];
/// Tables that are one value as a whole.
const WHOLE: [&str; 2] = ["data.apply_chat_template_kwargs", "grants"];

/// Names from other programs, and the key that does the same here.
const ELSEWHERE: [(&str, &str); 8] = [
    ("learning_rate", "train.lr"),
    ("num_epochs", "run.num_epoch"),
    ("num_steps", "run.num_rollout"),
    ("group_size", "rollout.n_samples_per_prompt"),
    ("batch_size", "rollout.batch_size"),
    ("max_new_tokens", "rollout.max_response_len"),
    ("max_grad_norm", "train.clip_grad"),
    ("hf_checkpoint", "model.path"),
];

static KEYS: LazyLock<Vec<String>> = LazyLock::new(|| {
    let mut keys = Vec::new();
    if let Ok(tree) = serde_json::to_value(RunConfig::default()) {
        walk(&tree, "", &mut keys);
    }
    keys
});

fn walk(value: &Value, path: &str, keys: &mut Vec<String>) {
    match value {
        Value::Object(map) if !is_named(path) && !is_whole(path) => {
            for (key, value) in map {
                let path = if path.is_empty() {
                    key.clone()
                } else {
                    format!("{path}.{key}")
                };
                walk(value, &path, keys);
            }
        }
        _ => keys.push(path.to_owned()),
    }
}

/// Every key, as `section.key`, in the order of the sections.
pub fn keys() -> &'static [String] {
    &KEYS
}

/// Whether the table at `path` is one value.
pub fn is_whole(path: &str) -> bool {
    WHOLE.contains(&path) || is_named_leaf(path)
}

fn is_named_leaf(path: &str) -> bool {
    NAMED.iter().any(|table| {
        path.strip_prefix(table)
            .is_some_and(|rest| rest.len() > 1 && rest.starts_with('.'))
    })
}

fn is_named(path: &str) -> bool {
    NAMED.contains(&path)
}

/// Whether `path` names a value.
pub fn is_key(path: &str) -> bool {
    KEYS.iter().any(|key| key == path && !is_named(key)) || is_named_leaf(path)
}

/// Whether `path` names a table of values.
pub fn is_section(path: &str) -> bool {
    is_named(path)
        || KEYS.iter().any(|key| {
            key.strip_prefix(path)
                .is_some_and(|rest| rest.starts_with('.'))
        })
}

/// The key that was probably meant: a near name in the same section, the same name in another, or a near name anywhere.
pub fn suggest(path: &str) -> Option<&'static str> {
    let (section, name) = path.rsplit_once('.').unwrap_or(("", path));
    let siblings = KEYS
        .iter()
        .filter(|key| key.rsplit_once('.').map_or("", |(s, _)| s) == section);
    let near = nearest(
        name,
        siblings.map(|key| {
            (
                key.rsplit_once('.').map_or(key.as_str(), |(_, n)| n),
                key.as_str(),
            )
        }),
    );
    near.or_else(|| {
        KEYS.iter()
            .find(|key| key.rsplit_once('.').is_some_and(|(_, n)| n == name))
            .map(String::as_str)
    })
    .or_else(|| nearest(name, ELSEWHERE.into_iter()))
    .or_else(|| {
        nearest(
            name,
            KEYS.iter().map(|key| {
                (
                    key.rsplit_once('.').map_or(key.as_str(), |(_, n)| n),
                    key.as_str(),
                )
            }),
        )
    })
    .or_else(|| nearest(path, KEYS.iter().map(|key| (key.as_str(), key.as_str()))))
}

/// The section that was probably meant.
pub fn suggest_section(name: &str) -> Option<&'static str> {
    nearest(
        name,
        KEYS.iter().filter_map(|key| {
            let (section, _) = key.split_once('.')?;
            Some((section, section))
        }),
    )
}

/// The candidate whose name is close enough to `word` to be what was meant.
pub fn nearest<'a>(
    word: &str,
    candidates: impl Iterator<Item = (&'a str, &'a str)>,
) -> Option<&'a str> {
    candidates
        .map(|(name, whole)| {
            (
                strsim::jaro_winkler(word, name),
                strsim::damerau_levenshtein(word, name),
                whole,
            )
        })
        .filter(|(score, edits, _)| *score > 0.9 || *edits <= 2.min(word.len() / 3))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, _, whole)| whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn n03_a_misspelt_key_names_the_one_that_was_meant() {
        assert_eq!(suggest("train.learning_rat"), Some("train.lr"));
        assert_eq!(
            suggest("train.lr_warmup_iter"),
            Some("train.lr_warmup_iters")
        );
        assert_eq!(
            suggest("rollout.n_sample_per_prompt"),
            Some("rollout.n_samples_per_prompt")
        );
        assert_eq!(suggest("rollout.lr"), Some("train.lr"));
        assert_eq!(suggest("sed"), Some("seed"));
    }

    #[test]
    fn keys_of_the_users_own_are_known_by_their_table() {
        assert!(is_key("eval.prompt_data.aime") && !is_key("eval.prompt_data"));
        assert!(is_key("seed") && is_key("train.lr") && !is_key("train") && is_section("train"));
        assert!(
            is_key("data.apply_chat_template_kwargs")
                && !is_section("data.apply_chat_template_kwargs")
        );
    }
}
