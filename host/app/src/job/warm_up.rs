//! Supervised fine-tuning: conversations to token sequences with a mask, and the loop over them.
//!
//! Used by the verb `sft`, and before the first rollout of a run that asks for it, on the ranks that train afterwards.

use crate::config::plan::SftPlan;
use crate::config::{Plan, Resolved};
use crate::error::{Failure, Result};
use crate::job::learner::{train_failed, unfit};
use crate::job::ranks::{Ranks, Trained};
use crate::wire::Model;
use crate::wire::device::Machine;
use serde_json::{Map, Value};
use slime_core::ports::{Source, TextCodec};
use slime_core::{Message, Prompt, PromptBody};
use slime_kernels::Ops;
use slime_kernels::comm::Processes;
use slime_rollout::source::permutation;
use slime_trainer::{SftSequence, TrainMetrics};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A tokenized sequence and what of it is learned.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// Token ids.
    pub tokens: Vec<u32>,
    /// `[tokens]`: 1 where the answer is.
    pub mask: Vec<u8>,
}

/// Everything to learn from.
pub struct Corpus {
    sequences: Vec<Sequence>,
    seed: u64,
}

impl Corpus {
    /// Draw every row of `source`, mix up the answers of `shuffled_label_frac` of them, and tokenize.
    ///
    /// # Errors
    /// The first row that has no answer or cannot be rendered, by name.
    pub async fn open(
        source: &dyn Source,
        text: &dyn TextCodec,
        kwargs: &Map<String, Value>,
        seed: u64,
        shuffled_label_frac: f64,
    ) -> Result<Self> {
        let mut prompts = Vec::new();
        for index in 0..source.len().unwrap_or(0) {
            let prompt = source.draw(index, seed).await;
            prompts.push(prompt.map_err(|e| Failure::run(e.to_string()))?);
        }
        shuffle_labels(&mut prompts, shuffled_label_frac, seed);
        let mut sequences = Vec::with_capacity(prompts.len());
        for prompt in &prompts {
            let sequence = sequence(prompt, text, kwargs);
            sequences.push(sequence.map_err(|reason| {
                Failure::run(format!("fine-tuning row {}: {reason}", prompt.id))
            })?);
        }
        match sequences.is_empty() {
            true => Err(Failure::run(format!(
                "{} has no rows to fine-tune on",
                source.name()
            ))),
            false => Ok(Self { sequences, seed }),
        }
    }

    /// Steps of one pass.
    pub fn steps_per_pass(&self, batch_size: usize) -> u64 {
        self.sequences.len().div_ceil(batch_size) as u64
    }

    /// The sequences of one step; every pass has an order of its own.
    fn batch(&self, step: u64, batch_size: usize) -> Vec<&Sequence> {
        let rows = self.sequences.len() as u64;
        let mut order: Option<(u64, Vec<u32>)> = None;
        (step * batch_size as u64..(step + 1) * batch_size as u64)
            .map(|index| {
                let epoch = index / rows;
                if order.as_ref().is_none_or(|(known, _)| *known != epoch) {
                    order = Some((epoch, permutation(self.seed, "sft", epoch, rows as u32)));
                }
                let row = order
                    .as_ref()
                    .map_or(0, |(_, rows_of)| rows_of[(index % rows) as usize]);
                &self.sequences[row as usize]
            })
            .collect()
    }
}

/// Pass the labels of a share of the prompts round among them, in an order that depends on `seed` alone.
fn shuffle_labels(prompts: &mut [Prompt], frac: f64, seed: u64) {
    let mut rows = permutation(seed, "labels", 0, prompts.len() as u32);
    rows.truncate((frac * prompts.len() as f64).round() as usize);
    for pair in rows.windows(2) {
        let (one, other) = (pair[0] as usize, pair[1] as usize);
        let label = prompts[one].label.take();
        prompts[one].label = std::mem::replace(&mut prompts[other].label, label);
    }
}

/// The answer of a prompt as what is to be learned.
///
/// # Errors
/// There is no answer, or the template renders a turn differently once others follow.
pub fn sequence(
    prompt: &Prompt,
    text: &dyn TextCodec,
    kwargs: &Map<String, Value>,
) -> Result<Sequence, String> {
    let answer = || {
        prompt.label.clone().ok_or(
            "it has no answer to learn: give label_key, or end the conversation with the assistant",
        )
    };
    match &prompt.body {
        PromptBody::Messages(messages) => {
            let mut messages = messages.clone();
            if messages.last().is_none_or(|last| last.role != "assistant") {
                messages.push(Message::new("assistant", answer()?));
            }
            conversation(&messages, prompt, text, kwargs)
        }
        PromptBody::Text(_) | PromptBody::Tokens(_) => {
            let mut tokens = match &prompt.body {
                PromptBody::Tokens(tokens) => tokens.clone(),
                PromptBody::Text(start) => text.encode(start).map_err(|e| e.to_string())?,
                PromptBody::Messages(_) => Vec::new(),
            };
            let start = tokens.len();
            tokens.extend(text.encode(&answer()?).map_err(|e| e.to_string())?);
            tokens.extend(text.eos_token_ids().first());
            let mask = (0..tokens.len()).map(|at| u8::from(at >= start)).collect();
            Ok(Sequence { tokens, mask })
        }
    }
}

/// Every assistant turn is learned, its end token included, and nothing else. The turns are found by rendering the
/// conversation up to each of them; a template that writes them differently later is refused rather than guessed at.
fn conversation(
    messages: &[Message],
    prompt: &Prompt,
    text: &dyn TextCodec,
    kwargs: &Map<String, Value>,
) -> Result<Sequence, String> {
    let render = |messages: &[Message], open: bool| {
        text.render_chat(messages, &prompt.tools, open, kwargs)
            .map_err(|e| e.to_string())
    };
    let mut tokens = render(messages, false)?;
    let mut mask = vec![0; tokens.len()];
    let mut end = 0;
    for turn in (0..messages.len()).filter(|turn| messages[*turn].role == "assistant") {
        let (before, through) = (
            render(&messages[..turn], true)?,
            render(&messages[..=turn], false)?,
        );
        let learned = learned(&before, &through, text.eos_token_ids());
        let learned = learned.filter(|_| tokens.starts_with(&through)).ok_or_else(|| {
            format!("the chat template writes turn {turn} differently once others follow, so what to learn is unclear: split the conversation there")
        })?;
        end = learned.end;
        mask[learned].fill(1);
    }
    tokens.truncate(end);
    mask.truncate(end);
    Ok(Sequence { tokens, mask })
}

/// Where a turn's own tokens are: after the generation prompt, through its end token.
fn learned(before: &[u32], through: &[u32], ends: &[u32]) -> Option<Range<usize>> {
    let turn = through.strip_prefix(before)?;
    let length = turn
        .iter()
        .rposition(|token| ends.contains(token))
        .map_or(turn.len(), |at| at + 1);
    (length > 0).then(|| before.len()..before.len() + length)
}

/// A trainer of `model` on the ranks of `plan`, that fine-tunes it as `sft` says.
///
/// # Errors
/// A layout that does not fit the model, a device without room.
pub fn trainer<O: Machine>(
    sft: &SftPlan,
    (said, plan): (&Resolved, &Plan),
    model: &Model,
    ops: Arc<O>,
    processes: Option<&Arc<Processes>>,
) -> Result<Ranks<O>> {
    let weights = model.load(&*ops).map_err(|e| Failure::run(e.to_string()))?;
    let trained = Trained {
        spec: &model.spec,
        config: &sft.train,
        ranks: &plan.ranks,
        vocab: model.text.vocab_size(),
        processes,
    };
    Ranks::new(ops, &trained, weights, Box::new(|_| {})).map_err(|e| unfit(said, e))
}

/// Steps of fine-tuning on `corpus`.
pub fn num_steps(plan: &SftPlan, corpus: &Corpus) -> u64 {
    plan.num_steps
        .unwrap_or_else(|| corpus.steps_per_pass(plan.batch_size))
}

/// Fine-tune through `steps`. `report` hears of every step and says whether to go on.
///
/// # Errors
/// A sequence that does not fit the model, a rank that failed, or what `report` says.
pub fn run<O: Ops>(
    plan: &SftPlan,
    corpus: &Corpus,
    steps: Range<u64>,
    trainer: &mut Ranks<O>,
    mut report: impl FnMut(&Ranks<O>, u64, &TrainMetrics, Duration) -> Result<bool>,
) -> Result<()> {
    for step in steps {
        let begin = Instant::now();
        let batch = corpus.batch(step, plan.batch_size);
        let sequences: Vec<SftSequence<'_>> = batch
            .iter()
            .map(|s| SftSequence {
                tokens: &s.tokens,
                loss_mask: &s.mask,
            })
            .collect();
        let metrics = trainer.sft_step(&sequences).map_err(train_failed)?;
        if !report(trainer, step, &metrics, begin.elapsed())? {
            break;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_core::PromptId;
    use slime_model::text::Text;

    fn prompt(body: PromptBody, label: Option<&str>) -> Prompt {
        let id = PromptId {
            source: "t".into(),
            row: 0,
        };
        Prompt {
            id,
            body,
            label: label.map(str::to_owned),
            tools: Vec::new(),
            metadata: Map::new(),
        }
    }

    fn learned_text(sequence: &Sequence, text: &Text) -> Vec<String> {
        let mut runs: Vec<Vec<u32>> = Vec::new();
        let mut inside = false;
        for (token, mask) in sequence.tokens.iter().zip(&sequence.mask) {
            match (mask, inside) {
                (1, true) => runs.last_mut().unwrap().push(*token),
                (1, false) => runs.push(vec![*token]),
                _ => {}
            }
            inside = *mask == 1;
        }
        runs.iter().map(|run| text.decode(run, false)).collect()
    }

    #[test]
    fn a07_every_assistant_turn_is_learned_with_its_end_token_and_nothing_else() {
        let text = Text::bytes().unwrap();
        let roles = [
            ("user", "a"),
            ("assistant", "one"),
            ("user", "b"),
            ("assistant", "é2"),
        ];
        let messages = roles
            .iter()
            .map(|(role, content)| Message::new(*role, *content))
            .collect();
        let sequence = sequence(
            &prompt(PromptBody::Messages(messages), None),
            &text,
            &Map::new(),
        )
        .unwrap();
        assert_eq!(learned_text(&sequence, &text), ["one<|end|>", "é2<|end|>"]);
        assert_eq!(
            sequence.mask.last(),
            Some(&1),
            "nothing stands after what is learned"
        );
    }

    #[test]
    fn a_label_is_the_answer_to_learn() {
        let text = Text::bytes().unwrap();
        let chat = prompt(
            PromptBody::Messages(vec![Message::new("user", "2+2")]),
            Some("4"),
        );
        assert_eq!(
            learned_text(&sequence(&chat, &text, &Map::new()).unwrap(), &text),
            ["4<|end|>"]
        );
        let plain = prompt(PromptBody::Text("2+2=".into()), Some("4"));
        let plain = sequence(&plain, &text, &Map::new()).unwrap();
        assert_eq!(plain.tokens.len(), 6);
        assert_eq!(plain.mask, [0, 0, 0, 0, 1, 1]);
        assert!(
            sequence(
                &prompt(PromptBody::Text("x".into()), None),
                &text,
                &Map::new()
            )
            .unwrap_err()
            .contains("label_key")
        );
    }

    #[test]
    fn a_share_of_the_rows_gets_the_answers_of_others_and_no_answer_is_lost() {
        let label = |row: u32| format!("{row}");
        let drawn = || (0..100).map(|row| prompt(PromptBody::Text("x".into()), Some(&label(row))));
        for (frac, moved) in [(0.0, 0), (0.3, 30), (1.0, 100)] {
            let mut prompts: Vec<_> = drawn().collect();
            shuffle_labels(&mut prompts, frac, 7);
            let mut labels: Vec<_> = prompts.into_iter().map(|p| p.label.unwrap()).collect();
            let away = (0..100).filter(|row| labels[*row as usize] != label(*row));
            assert_eq!(away.count(), moved);
            labels.sort_by_key(|label| label.parse::<u32>().unwrap());
            assert_eq!(labels, (0..100).map(label).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_pass_shows_every_sequence_once() {
        let sequences = (0..10)
            .map(|i| Sequence {
                tokens: vec![i],
                mask: vec![1],
            })
            .collect();
        let corpus = Corpus { sequences, seed: 3 };
        let seen = |range: Range<u64>| -> Vec<u32> {
            range
                .flat_map(|step| corpus.batch(step, 5))
                .map(|s| s.tokens[0])
                .collect()
        };
        let (first, second) = (seen(0..2), seen(2..4));
        assert_ne!(first, second, "every pass has another order");
        for mut pass in [first, second] {
            pass.sort_unstable();
            assert_eq!(pass, (0..10).collect::<Vec<_>>());
        }
        assert_eq!(
            corpus.batch(1, 6).len(),
            6,
            "a batch may reach into the next pass"
        );
    }
}
