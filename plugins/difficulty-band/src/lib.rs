//! Keeps groups that are neither too easy nor too hard: a mean reward from 0.2 to 0.8, or as the prompt's metadata
//! says in `band`, for example `[0.1, 0.5]`.

use slime_sdk_filter::{Decision, Error, Filter, Group, export};

const BAND: (f64, f64) = (0.2, 0.8);

/// Neither too easy nor too hard.
pub struct DifficultyBand;

impl Filter for DifficultyBand {
    fn decide(group: Group) -> Result<Decision, Error> {
        let rewards: Vec<f64> = group.rewards().into_iter().flatten().collect();
        if rewards.is_empty() {
            return Ok(Decision::Drop("unscored".into()));
        }
        let said = group.get(0).and_then(|item| item.metadata("band"));
        let (low, high) = match said {
            Some(json) => band(&json).ok_or_else(|| {
                Error::invalid_input(format!("metadata.band is {json}; write [low, high]"))
            })?,
            None => BAND,
        };
        let mean = rewards.iter().sum::<f64>() / rewards.len() as f64;
        Ok(if mean < low {
            Decision::Drop("too-hard".into())
        } else if mean > high {
            Decision::Drop("too-easy".into())
        } else {
            Decision::Keep
        })
    }
}

/// `[low, high]`.
fn band(json: &str) -> Option<(f64, f64)> {
    let inner = json.trim().strip_prefix('[')?.strip_suffix(']')?;
    let (low, high) = inner.split_once(',')?;
    let (low, high) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
    (low <= high).then_some((low, high))
}

export!(DifficultyBand);

#[cfg(test)]
mod tests {
    use super::*;
    use slime_sdk_filter::Finished;

    fn decide(rewards: &[f64], said: Option<&str>) -> Result<Decision, Error> {
        let item = match said {
            Some(json) => Finished::default().with_metadata("band", json),
            None => Finished::default(),
        };
        DifficultyBand::decide(Group::new(rewards.iter().map(|r| (item.clone(), Some(*r)))))
    }

    #[test]
    fn groups_outside_the_band_are_dropped_by_name() {
        let dropped = |reason: &str| Ok(Decision::Drop(reason.into()));
        assert_eq!(decide(&[1.0, 0.0], None), Ok(Decision::Keep));
        assert_eq!(decide(&[0.0, 0.0], None), dropped("too-hard"));
        assert_eq!(decide(&[1.0, 1.0], None), dropped("too-easy"));
        assert_eq!(decide(&[1.0, 1.0], Some("[0, 1]")), Ok(Decision::Keep));
        assert!(decide(&[1.0], Some("[1]")).is_err());
    }
}
