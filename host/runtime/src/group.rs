//! The ports of plugins that read a whole group: group verifiers, filters, shapers.

use crate::bindings::filter::exports::slime::plugin::filtering;
use crate::bindings::types::Error;
use crate::bindings::verdicts::Verdict;
use crate::call::{self, Ended, Job};
use crate::context::Context;
use crate::host::clip;
use crate::host::groups::Shown;
use crate::plugin::Loaded;
use crate::verifier;
use slime_core::ports::{
    BoxFuture, Decision, Filter, GroupAnswer, GroupRequest, GroupVerifier, Shaper,
};
use slime_core::{Accounting, Outcome};
use std::sync::Arc;
use wasmtime::Store;

/// Bytes of a filter's reason that are kept; they become part of a metric's name.
const REASON_BYTES: usize = 128;

pub(crate) struct ComponentGroup(pub(crate) Arc<Loaded>);

impl ComponentGroup {
    async fn ask<J: Job>(&self, job: J, seed: u64) -> Ended<J::Answer> {
        call::dispatch(&self.0, job, seed, self.0.limits.wall).await
    }
}

/// A guest's list must have an entry a rollout: it is never stretched, cut or shared out.
fn check_length(what: &str, found: usize, wanted: usize) -> Result<(), Outcome> {
    if found == wanted {
        return Ok(());
    }
    Err(Outcome::Error(format!(
        "the plugin gave {found} {what} for a group of {wanted}"
    )))
}

fn flat<T>(ended: Ended<Result<T, Error>>) -> (Result<T, Outcome>, Accounting) {
    let answer = match ended.answer {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(call::of_guest(&error, &[])),
        Err(outcome) => Err(outcome),
    };
    (answer, ended.cost)
}

impl GroupVerifier for ComponentGroup {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn score_group(&self, group: GroupRequest) -> BoxFuture<'_, (Vec<Outcome>, Accounting)> {
        Box::pin(async move {
            let (size, seed) = (group.rollouts.len(), group.seed);
            let (answer, cost) = flat(self.ask(ScoreGroup(group), seed).await);
            let answer = answer
                .and_then(|scores| check_length("verdicts", scores.len(), size).map(|()| scores));
            let outcomes = match answer {
                Ok(scores) => scores
                    .into_iter()
                    .map(|score| match score {
                        Ok(verdict) => verifier::check(&self.0, verdict),
                        Err(error) => call::of_guest(&error, &[]),
                    })
                    .collect(),
                Err(outcome) => vec![outcome; size],
            };
            (outcomes, cost)
        })
    }
}

impl Filter for ComponentGroup {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn decide(&self, group: GroupRequest) -> BoxFuture<'_, GroupAnswer<Decision>> {
        Box::pin(async move {
            let seed = group.seed;
            let (answer, cost) = flat(self.ask(Decide(group), seed).await);
            let answer = answer.map(|decision| match decision {
                filtering::Decision::Keep => Decision::Keep,
                filtering::Decision::Drop(reason) => {
                    Decision::Drop(clip(&reason, REASON_BYTES).to_owned())
                }
            });
            GroupAnswer { answer, cost }
        })
    }
}

impl Shaper for ComponentGroup {
    fn name(&self) -> &str {
        &self.0.name
    }

    fn shape(&self, group: GroupRequest) -> BoxFuture<'_, GroupAnswer<Vec<Option<f64>>>> {
        Box::pin(async move {
            let seed = group.seed;
            let raw: Vec<Option<f64>> = group.rollouts.iter().map(|(_, o)| o.reward()).collect();
            let (answer, cost) = flat(self.ask(Shape(group), seed).await);
            let answer = answer.and_then(|shaped| check_shaped(&raw, shaped));
            GroupAnswer { answer, cost }
        })
    }
}

fn check_shaped(
    raw: &[Option<f64>],
    shaped: Vec<Option<f64>>,
) -> Result<Vec<Option<f64>>, Outcome> {
    check_length("rewards", shaped.len(), raw.len())?;
    for (index, (before, after)) in raw.iter().zip(&shaped).enumerate() {
        let wrong = match (before, after) {
            (Some(_), Some(reward)) if reward.is_finite() => continue,
            (None, None) => continue,
            (Some(_), Some(reward)) => format!("is {reward}"),
            (Some(_), None) => "is missing, though the rollout was scored".into(),
            (None, Some(_)) => "is there, though the rollout was not scored".into(),
        };
        return Err(Outcome::InvalidReward(format!(
            "the shaped reward of rollout {index} {wrong}"
        )));
    }
    Ok(shaped)
}

macro_rules! group_job {
    ($job:ident, $world:ident, $interface:ident, $call:ident, $answer:ty) => {
        struct $job(GroupRequest);

        impl Job for $job {
            type Answer = Result<$answer, Error>;

            async fn run(
                self,
                plugin: &Loaded,
                store: &mut Store<Context>,
            ) -> wasmtime::Result<Self::Answer> {
                let Some(world) = &plugin.worlds.$world else {
                    return Err(wasmtime::Error::msg("the component lacks this world"));
                };
                let bindings = world.instantiate_async(&mut *store).await?;
                let group = store.data_mut().table.push(Shown(Arc::new(self.0)))?;
                bindings.$interface().$call(store, group).await
            }
        }
    };
}

group_job!(
    ScoreGroup,
    group_verifier,
    slime_plugin_group_verification,
    call_score,
    Vec<Result<Verdict, Error>>
);
group_job!(
    Decide,
    filter,
    slime_plugin_filtering,
    call_decide,
    filtering::Decision
);
group_job!(
    Shape,
    shaper,
    slime_plugin_shaping,
    call_shape,
    Vec<Option<f64>>
);

#[cfg(test)]
mod tests {
    use super::check_shaped;

    #[test]
    fn shaped_rewards_stand_exactly_where_the_raw_ones_do() {
        let raw = [Some(0.0), None];
        assert!(check_shaped(&raw, vec![Some(-0.5), None]).is_ok());
        for (shaped, reason) in [
            (vec![Some(1.0)], "1 rewards for a group of 2"),
            (vec![None, None], "rollout 0 is missing"),
            (vec![Some(1.0), Some(1.0)], "rollout 1 is there"),
            (vec![Some(f64::NAN), None], "rollout 0 is NaN"),
        ] {
            let outcome = check_shaped(&raw, shaped).unwrap_err();
            assert!(outcome.detail().contains(reason), "{outcome}");
        }
    }
}
