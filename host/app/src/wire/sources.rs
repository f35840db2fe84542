//! Where prompts come from: files, or a source plugin; held-out ones apart from those trained on.

use super::refused;
use crate::config::plan::{DataPlan, EvalPlan, MixPlan, Prompts};
use crate::config::{Problem, Resolved};
use crate::error::Result;
use crate::job::curriculum::Dial;
use slime_core::ports::{BoxFuture, Source, SourceError};
use slime_core::{Message, Prompt, PromptBody};
use slime_rollout::{Mixer, PromptFile, RowKeys};
use slime_runtime::Plugin;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A source plugin's draws from here on are held out: no run draws so many prompts.
const HELD_OUT: u64 = 1 << 40;
/// And from here on they are for the supervised warm-up.
const WARM_UP: u64 = 1 << 41;

/// The prompts to train on. `made` are those that plugins make up, by the source's name.
///
/// # Errors
/// A file or row that cannot be used; no source at all.
pub fn training(
    data: Option<&DataPlan>,
    mix: &[MixPlan],
    chat: &Chat,
    plugin: Option<&Arc<dyn Source>>,
    made: &BTreeMap<String, Arc<dyn Source>>,
    said: &Resolved,
) -> Result<Arc<dyn Source>> {
    if !mix.is_empty() {
        return mixed(mix, made, chat, said);
    }
    let source = match (data, plugin) {
        (Some(data), _) => file("train", data, said)?,
        (None, Some(plugin)) => Arc::clone(plugin),
        (None, None) => {
            let problem =
                Problem::new("there are no prompts: no plugin is a source, and no file is given");
            return Err(problem
                .help("add --prompt-data FILE.jsonl, or a plugin that is a source")
                .into());
        }
    };
    Ok(chat.around(source))
}

/// Several sources, drawn from in proportion to their weights.
fn mixed(
    mix: &[MixPlan],
    made: &BTreeMap<String, Arc<dyn Source>>,
    chat: &Chat,
    said: &Resolved,
) -> Result<Arc<dyn Source>> {
    let mut weighted: Vec<(Arc<dyn Source>, f64)> = Vec::new();
    for part in mix {
        let key = format!("data.sources.{}", part.name);
        match &part.prompts {
            Prompts::File(data) => {
                let file = open(&part.name, data).map_err(|e| refused(said, &[&key], e))?;
                weighted.push((Arc::new(file), part.weight));
            }
            Prompts::Plugin { plugin, .. } => {
                let source = made.get(&part.name).ok_or_else(|| {
                    Problem::new(format!("`{key}`: no plugin {plugin} makes prompts up"))
                        .help("name a source plugin on the command line or in `run.plugins`")
                        .at(said.place(&key))
                })?;
                weighted.push((Arc::clone(source), part.weight));
            }
        }
    }
    let mixer = Mixer::new(weighted).map_err(|e| refused(said, &["data.sources"], e))?;
    Ok(chat.around(Arc::new(mixer)))
}

/// Held-out prompts by name.
///
/// # Errors
/// A file or row that cannot be used; a source plugin whose rows are all trained on.
pub fn held_out(
    eval: &EvalPlan,
    chat: &Chat,
    plugin: Option<&Arc<dyn Source>>,
    said: &Resolved,
) -> Result<Vec<Arc<dyn Source>>> {
    let mut sources = Vec::new();
    for set in &eval.sets {
        sources.push(chat.around(file(&set.name, &set.data, said)?));
    }
    if sources.is_empty() {
        let Some(plugin) = plugin else {
            let problem = Problem::new(
                "nothing to evaluate on: no plugin is a source, and no held-out file is given",
            );
            return Err(problem
                .help("add --eval-prompt-data NAME FILE.jsonl")
                .at(said.place("eval.interval"))
                .into());
        };
        if let Some(rows) = plugin.len() {
            let problem = Problem::new(format!(
                "{} has {rows} rows, and all of them are trained on",
                plugin.name()
            ));
            return Err(problem
                .help("give held-out prompts: --eval-prompt-data NAME FILE.jsonl")
                .at(said.place("eval.interval"))
                .into());
        }
        sources.push(chat.around(Arc::new(Part {
            inner: Arc::clone(plugin),
            start: HELD_OUT,
            rows: eval.num_prompts,
        })));
    }
    Ok(sources)
}

/// Prompts with answers to learn before the first rollout, apart from all others.
pub fn warm_up(plugin: &Arc<dyn Source>, rows: u64, chat: &Chat) -> Arc<dyn Source> {
    chat.around(match plugin.len() {
        Some(_) => Arc::clone(plugin),
        None => Arc::new(Part {
            inner: Arc::clone(plugin),
            start: WARM_UP,
            rows,
        }),
    })
}

/// A file of prompts.
///
/// # Errors
/// The file or a row cannot be used.
pub fn open(name: &str, data: &DataPlan) -> Result<PromptFile, slime_rollout::RolloutError> {
    let keys = RowKeys {
        input: data.input_key.clone(),
        label: data.label_key.clone(),
        metadata: data.metadata_key.clone(),
        tools: data.tool_key.clone(),
        // Done for every source alike, by `Chat`.
        apply_chat_template: false,
    };
    PromptFile::open(name, &data.path, &keys, data.shuffle)
}

fn file(name: &str, data: &DataPlan, said: &Resolved) -> Result<Arc<dyn Source>> {
    let key = format!("eval.prompt_data.{name}");
    let place = if name == "train" {
        "data.prompt_data"
    } else {
        key.as_str()
    };
    Ok(Arc::new(
        open(name, data).map_err(|e| refused(said, &[place], e))?,
    ))
}

/// Prompts that a plugin makes up, under the name of a source, as hard as a dial says.
pub struct Made {
    name: String,
    plugin: Plugin,
    dial: Dial,
    /// Prompts tell how hard they were meant to be.
    tells: bool,
    rows: Option<u64>,
}

impl Made {
    /// Of a source plugin. `tells` is for a dial that moves.
    ///
    /// # Errors
    /// It is none.
    pub fn new(name: &str, plugin: &Plugin, dial: Dial, tells: bool) -> Result<Self> {
        let source = plugin.source_at(dial.get());
        let source = source.map_err(|e| super::plugins::problem(&e))?;
        Ok(Self {
            name: name.to_owned(),
            plugin: plugin.clone(),
            dial,
            tells,
            rows: source.len(),
        })
    }
}

impl Source for Made {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> Option<u64> {
        self.rows
    }

    fn draw(&self, index: u64, seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
        Box::pin(async move {
            let difficulty = self.dial.get();
            let source = self.plugin.source_at(difficulty);
            let source = source.map_err(|e| SourceError::Failed {
                name: self.name.clone(),
                reason: e.to_string(),
            })?;
            let mut prompt = source.draw(index, seed).await?;
            prompt.id.source.clone_from(&self.name);
            if self.tells {
                prompt
                    .metadata
                    .insert("difficulty".into(), difficulty.into());
            }
            Ok(prompt)
        })
    }
}

/// A stretch of a source without end, as a source with rows.
struct Part {
    inner: Arc<dyn Source>,
    start: u64,
    rows: u64,
}

impl Source for Part {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> Option<u64> {
        Some(self.rows)
    }

    fn draw(&self, index: u64, seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
        self.inner.draw(self.start + index % self.rows.max(1), seed)
    }
}

/// How prompts become conversations.
#[derive(Clone, Debug, Default)]
pub struct Chat {
    /// Text becomes one user message.
    pub wrap_text: bool,
    /// Put before every conversation that has no system message.
    pub system: Option<String>,
}

impl Chat {
    fn around(&self, inner: Arc<dyn Source>) -> Arc<dyn Source> {
        if self.wrap_text || self.system.is_some() {
            Arc::new(Conversations {
                inner,
                chat: self.clone(),
            })
        } else {
            inner
        }
    }

    fn apply(&self, prompt: &mut Prompt) {
        if let PromptBody::Text(text) = &prompt.body
            && self.wrap_text
        {
            prompt.body = PromptBody::Messages(vec![Message::new("user", text.clone())]);
        }
        if let (PromptBody::Messages(messages), Some(system)) = (&mut prompt.body, &self.system)
            && messages.first().is_none_or(|first| first.role != "system")
        {
            messages.insert(0, Message::new("system", system.clone()));
        }
    }
}

struct Conversations {
    inner: Arc<dyn Source>,
    chat: Chat,
}

impl Source for Conversations {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> Option<u64> {
        self.inner.len()
    }

    fn draw(&self, index: u64, seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
        Box::pin(async move {
            let mut prompt = self.inner.draw(index, seed).await?;
            self.chat.apply(&mut prompt);
            Ok(prompt)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_core::PromptId;

    struct Counting;

    impl Source for Counting {
        fn name(&self) -> &str {
            "counting"
        }

        fn len(&self) -> Option<u64> {
            None
        }

        fn draw(&self, index: u64, _seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
            let body = PromptBody::Messages(vec![Message::new("user", index.to_string())]);
            let id = PromptId {
                source: "counting".into(),
                row: index,
            };
            Box::pin(async move {
                Ok(Prompt {
                    id,
                    body,
                    label: None,
                    tools: Vec::new(),
                    metadata: Default::default(),
                })
            })
        }
    }

    fn rows(source: &dyn Source, count: u64) -> Vec<u64> {
        (0..count)
            .map(|i| {
                futures::executor::block_on(source.draw(i, 1))
                    .unwrap()
                    .id
                    .row
            })
            .collect()
    }

    #[test]
    fn held_out_and_warm_up_prompts_are_never_trained_on() {
        let plugin: Arc<dyn Source> = Arc::new(Counting);
        let said = Resolved::default();
        let train = rows(
            &*training(
                None,
                &[],
                &Chat::default(),
                Some(&plugin),
                &BTreeMap::new(),
                &said,
            )
            .unwrap(),
            100,
        );
        let part = Part {
            inner: Arc::clone(&plugin),
            start: HELD_OUT,
            rows: 10,
        };
        let (eval, warm) = (
            rows(&part, 20),
            rows(&*warm_up(&plugin, 50, &Chat::default()), 50),
        );
        assert!(
            eval.iter().chain(&warm).all(|row| !train.contains(row))
                && eval.iter().all(|row| !warm.contains(row))
        );
        assert_eq!(eval[..10], eval[10..], "a part has as many rows as it says");
    }

    #[test]
    fn text_becomes_a_conversation_where_that_is_asked_for() {
        let id = PromptId {
            source: "t".into(),
            row: 0,
        };
        let mut prompt = Prompt {
            id,
            body: PromptBody::Text("2+2=".into()),
            label: None,
            tools: Vec::new(),
            metadata: Default::default(),
        };
        Chat {
            wrap_text: false,
            system: Some("be brief".into()),
        }
        .apply(&mut prompt);
        assert_eq!(prompt.body, PromptBody::Text("2+2=".into()));
        let chat = Chat {
            wrap_text: true,
            system: Some("be brief".into()),
        };
        chat.apply(&mut prompt);
        chat.apply(&mut prompt);
        assert_eq!(
            prompt.body,
            PromptBody::Messages(vec![
                Message::new("system", "be brief"),
                Message::new("user", "2+2=")
            ])
        );
    }
}
