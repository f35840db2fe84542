//! Instructions that can be checked (IFEval, arXiv:2311.07911): how long, how often, which format. No label: what is
//! asked stands in the metadata, as the published rows have it, `instruction_id_list` and `kwargs` side by side.
//!
//! Reward 1 where every instruction is followed; with `"partial": true`, the part that is. An instruction that this
//! plugin cannot check makes the row invalid rather than the answer wrong. `checks` knows the instructions.
#![forbid(unsafe_code)]

mod checks;
mod text;

use serde_json::{Map, Value};
use slime_sdk_verifier::{Error, Finished, Verdict, Verifier, export};

/// Checks instructions.
pub struct IfEval;

impl Verifier for IfEval {
    fn score(item: Finished) -> Result<Verdict, Error> {
        let member = |name: &str| -> Result<Value, Error> {
            let text = item.metadata(name).unwrap_or_else(|| "null".into());
            serde_json::from_str(&text)
                .map_err(|error| Error::invalid_gold(format!("{name}: {error}")))
        };
        let Value::Array(ids) = member("instruction_id_list")? else {
            return Err(Error::invalid_gold(
                "the metadata has no list `instruction_id_list`",
            ));
        };
        let arguments = match member("kwargs")? {
            Value::Array(list) => list,
            _ => Vec::new(),
        };
        if ids.is_empty() {
            return Err(Error::invalid_gold("`instruction_id_list` is empty"));
        }
        let response = item.response();
        let empty = Map::new();
        let mut followed = 0;
        for (index, id) in ids.iter().enumerate() {
            let id = id.as_str().unwrap_or_default();
            let arguments = arguments.get(index).and_then(Value::as_object);
            let holds = checks::holds(id, arguments.unwrap_or(&empty), &response)
                .map_err(|reason| Error::invalid_gold(format!("`{id}`: {reason}")))?;
            // As published: an empty response follows nothing.
            followed += usize::from(holds && !response.trim().is_empty());
        }
        let part = followed as f64 / ids.len() as f64;
        let partial = item.metadata("partial").as_deref() == Some("true");
        let reward = if partial {
            part
        } else {
            f64::from(followed == ids.len())
        };
        Ok(Verdict::reward(reward).with_metric("followed_frac", part))
    }
}

export!(IfEval);

#[cfg(test)]
mod tests {
    use super::*;

    fn score(ids: &str, kwargs: &str, response: &str) -> Result<f64, Error> {
        let item = Finished::new("", response)
            .with_metadata("instruction_id_list", ids)
            .with_metadata("kwargs", kwargs)
            .with_metadata("partial", "true");
        IfEval::score(item).map(|verdict| verdict.reward)
    }

    #[test]
    fn the_part_of_the_instructions_that_is_followed_is_the_reward() {
        let ids = r#"["punctuation:no_comma", "startend:quotation"]"#;
        assert_eq!(score(ids, "[{}, {}]", "\"fine\""), Ok(1.0));
        assert_eq!(score(ids, "[{}, {}]", "fine"), Ok(0.5));
        assert_eq!(score(ids, "[{}, {}]", "a, b"), Ok(0.0));
        assert_eq!(score(ids, "[{}, {}]", "  "), Ok(0.0));
    }

    #[test]
    fn what_cannot_be_checked_is_the_rows_fault_and_not_the_answers() {
        assert!(score(r#"["keywords:rhyme"]"#, "[{}]", "x").is_err());
        assert!(score(r#"["keywords:existence"]"#, "[{}]", "x").is_err());
        assert!(
            score(
                r#"["language:response_language"]"#,
                r#"[{"language": "fi"}]"#,
                "x"
            )
            .is_err()
        );
        assert!(score("[]", "[]", "x").is_err());
        assert!(IfEval::score(Finished::new("", "x")).is_err());
    }
}
