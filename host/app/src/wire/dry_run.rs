//! Before the first step: does the verifier give the gold answer its best reward, and an empty one less?
//!
//! A wrong label column or a verifier for another format costs a night otherwise. It warns and refuses nothing: a
//! verifier may know better than this check what a right answer looks like.

use super::Plugins;
use slime_core::ports::{ScoreRequest, Source, Verifier};
use slime_core::{Outcome, Prompt, PromptBody};

/// Prompts that are tried.
const PROMPTS: u64 = 8;

/// Warnings, in sentences; none where all is well.
pub async fn dry_run(plugins: &Plugins, source: &dyn Source, seed: u64) -> Vec<String> {
    try_out(&*plugins.verifier, plugins.reward_range, source, seed).await
}

async fn try_out(
    verifier: &dyn Verifier,
    (worst, best): (f64, f64),
    source: &dyn Source,
    seed: u64,
) -> Vec<String> {
    let (mut tried, mut right, mut empty) = (0u64, 0u64, 0u64);
    let (mut unusable, mut first) = (Vec::new(), None);
    for index in 0..PROMPTS.min(source.len().unwrap_or(PROMPTS)) {
        let Ok(prompt) = source.draw(index, seed).await else {
            return Vec::new();
        };
        let Some(label) = prompt.label.clone() else {
            continue;
        };
        tried += 1;
        let mut golds = Vec::new();
        for response in [label.clone(), format!("\\boxed{{{label}}}")] {
            golds.push(verifier.score(asked(&prompt, response, seed)).await.outcome);
        }
        if golds.iter().any(|gold| gold.reward() == Some(best)) {
            right += 1;
        } else if let Some(Outcome::InvalidGold(reason)) = golds.first() {
            unusable.push(reason.clone());
        } else {
            first.get_or_insert((label, golds[0].to_string()));
        }
        let nothing = verifier.score(asked(&prompt, String::new(), seed)).await;
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
    use slime_core::ports::{BoxFuture, Scored, SourceError};
    use slime_core::{Accounting, PromptId, Verdict};

    struct Labels(Option<&'static str>);

    impl Source for Labels {
        fn name(&self) -> &str {
            "labels"
        }

        fn len(&self) -> Option<u64> {
            None
        }

        fn draw(&self, index: u64, _seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
            let prompt = Prompt {
                id: PromptId {
                    source: "labels".into(),
                    row: index,
                },
                body: PromptBody::Text("q".into()),
                label: self.0.map(Into::into),
                tools: Vec::new(),
                metadata: Default::default(),
            };
            Box::pin(std::future::ready(Ok(prompt)))
        }
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
        let source = Labels(label);
        futures::executor::block_on(try_out(&By(verifier), (0.0, 1.0), &source, 1))
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
