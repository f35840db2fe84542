//! Before the first step: does the verifier give the gold answer its best reward, and an empty one less?
//!
//! A wrong label column or a verifier for another format costs a night otherwise. It warns and refuses nothing: a
//! verifier may know better than this check what a right answer looks like.

use super::RunScoring;
use slime_core::ports::{ScoreRequest, Source, Verifier};
use slime_core::{Outcome, Prompt, PromptBody};
use std::collections::BTreeMap;

/// Prompts that are tried on one verifier.
const PROMPTS: usize = 8;
/// Prompts that are drawn for it: a source of small weight comes seldom.
const DRAWS: u64 = 64;

/// Warnings, in sentences; none where all is well. Judges are not asked: a model's opinion is no gold answer's test.
pub async fn dry_run(scoring: &RunScoring, source: &dyn Source, seed: u64) -> Vec<String> {
    let mut prompts: BTreeMap<&str, (&dyn Verifier, Vec<Prompt>)> = BTreeMap::new();
    let draws = match scoring.ranges.len() {
        1 => PROMPTS as u64,
        _ => DRAWS,
    };
    for index in 0..draws.min(source.len().unwrap_or(draws)) {
        let Ok(prompt) = source.draw(index, seed).await else {
            return Vec::new();
        };
        if let Some(verifier) = scoring.training.verifier(&prompt.id.source) {
            let none = || (&**verifier, Vec::new());
            let (_, own) = prompts.entry(verifier.name()).or_insert_with(none);
            if own.len() < PROMPTS {
                own.push(prompt);
            }
        }
    }
    let mut warnings = Vec::new();
    for (name, (verifier, prompts)) in prompts {
        if let Some(range) = scoring.ranges.get(name) {
            warnings.extend(try_out(verifier, *range, &prompts, seed).await);
        }
    }
    warnings
}

async fn try_out(
    verifier: &dyn Verifier,
    (worst, best): (f64, f64),
    prompts: &[Prompt],
    seed: u64,
) -> Vec<String> {
    let (mut tried, mut right, mut empty) = (0u64, 0u64, 0u64);
    let (mut unusable, mut first) = (Vec::new(), None);
    for prompt in prompts {
        let Some(label) = prompt.label.clone() else {
            continue;
        };
        tried += 1;
        let mut golds = Vec::new();
        for response in [label.clone(), format!("\\boxed{{{label}}}")] {
            golds.push(verifier.score(asked(prompt, response, seed)).await.outcome);
        }
        if golds.iter().any(|gold| gold.reward() == Some(best)) {
            right += 1;
        } else if let Some(Outcome::InvalidGold(reason)) = golds.first() {
            unusable.push(reason.clone());
        } else {
            first.get_or_insert((label, golds[0].to_string()));
        }
        let nothing = verifier.score(asked(prompt, String::new(), seed)).await;
        empty += u64::from(nothing.outcome.reward() == Some(best) && worst < best);
    }
    let (name, mut warnings) = (verifier.name(), Vec::new());
    if let Some(reason) = unusable.first() {
        warnings.push(format!(
            "dry run: {name} cannot use {} of {tried} labels: {reason}",
            unusable.len()
        ));
    }
    if let (0, Some((label, outcome))) = (right, first) {
        warnings.push(format!(
            "dry run: {name} gives none of {tried} gold answers its best reward, {best} (the label `{label}` as an \
             answer: {outcome}); is the label column right, and does the verifier know its format?"
        ));
    }
    if empty > 0 {
        warnings.push(format!(
            "dry run: {name} gives an empty answer its best reward, {best}, on {empty} of {tried} prompts; the policy \
             will learn to say nothing"
        ));
    }
    warnings
}

fn asked(prompt: &Prompt, response: String, seed: u64) -> ScoreRequest {
    ScoreRequest {
        prompt: match &prompt.body {
            PromptBody::Text(text) => text.clone(),
            PromptBody::Messages(messages) => messages
                .iter()
                .rev()
                .find(|message| message.role == "user")
                .map_or_else(String::new, |message| message.text().to_owned()),
            PromptBody::Tokens(_) => String::new(),
        },
        response,
        label: prompt.label.clone(),
        metadata: prompt.metadata.clone(),
        finish: Some(slime_core::FinishReason::Stop),
        seed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_core::ports::{BoxFuture, Scored};
    use slime_core::{Accounting, PromptId, Verdict};

    fn prompts(label: Option<&str>) -> Vec<Prompt> {
        let prompt = |row| Prompt {
            id: PromptId {
                source: "labels".into(),
                row,
            },
            body: PromptBody::Text("q".into()),
            label: label.map(Into::into),
            tools: Vec::new(),
            metadata: Default::default(),
        };
        (0..8).map(prompt).collect()
    }

    struct By<F>(F);

    impl<F: Fn(&ScoreRequest) -> Outcome + Send + Sync> Verifier for By<F> {
        fn name(&self) -> &str {
            "by"
        }

        fn score(&self, item: ScoreRequest) -> BoxFuture<'_, Scored> {
            let outcome = (self.0)(&item);
            Box::pin(std::future::ready(Scored {
                outcome,
                cost: Accounting::default(),
            }))
        }
    }

    fn reward(reward: f64) -> Outcome {
        Outcome::Scored(Verdict {
            reward,
            metrics: Vec::new(),
        })
    }

    fn warnings(
        label: Option<&'static str>,
        verifier: impl Fn(&ScoreRequest) -> Outcome + Send + Sync,
    ) -> Vec<String> {
        let prompts = prompts(label);
        futures::executor::block_on(try_out(&By(verifier), (0.0, 1.0), &prompts, 1))
    }

    #[test]
    fn a_verifier_that_knows_its_labels_says_nothing() {
        let exact =
            |item: &ScoreRequest| reward(f64::from(item.label.as_ref() == Some(&item.response)));
        assert!(warnings(Some("4"), exact).is_empty());
        let boxed = |item: &ScoreRequest| reward(f64::from(item.response == "\\boxed{4}"));
        assert!(warnings(Some("4"), boxed).is_empty());
        assert!(warnings(None, exact).is_empty(), "nothing to try");
    }

    #[test]
    fn wrong_labels_unusable_ones_and_rewards_for_nothing_are_named() {
        let never = warnings(Some("4"), |_| reward(0.0));
        assert!(
            never[0].contains("none of 8 gold answers") && never.len() == 1,
            "{never:?}"
        );
        let always = warnings(Some("4"), |_| reward(1.0));
        assert!(
            always[0].contains("an empty answer its best reward, 1, on 8 of 8"),
            "{always:?}"
        );
        let unusable = warnings(Some("None"), |_| Outcome::InvalidGold("no answer".into()));
        assert!(
            unusable[0].contains("cannot use 8 of 8 labels: no answer"),
            "{unusable:?}"
        );
    }
}
