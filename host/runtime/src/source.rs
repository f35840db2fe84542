//! The source port, offered by a component.

use crate::bindings::source::exports::slime::plugin::drawing::Drawn;
use crate::bindings::types::Error;
use crate::call::{self, Job};
use crate::context::Context;
use crate::plugin::Loaded;
use crate::{convert, seed};
use slime_core::ports::{BoxFuture, Source, SourceError};
use slime_core::{Prompt, PromptId, Tool};
use std::sync::Arc;
use wasmtime::Store;

pub(crate) struct ComponentSource {
    pub(crate) plugin: Arc<Loaded>,
    pub(crate) difficulty: f64,
}

impl Source for ComponentSource {
    fn name(&self) -> &str {
        &self.plugin.name
    }

    fn len(&self) -> Option<u64> {
        self.plugin.told()?.num_rows
    }

    fn draw(&self, index: u64, seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
        Box::pin(async move {
            let job = Draw {
                index,
                seed: seed::for_guest(seed),
                difficulty: self.difficulty,
            };
            let ended = call::dispatch(
                &self.plugin,
                job,
                seed::derive(seed, index),
                self.plugin.limits.wall,
            )
            .await;
            let drawn = match ended.answer {
                Ok(Ok(drawn)) => self.prompt(index, drawn),
                Ok(Err(error)) => Err(call::of_guest(&error, &[]).detail().to_owned()),
                Err(outcome) => Err(outcome.to_string()),
            };
            drawn.map_err(|reason| SourceError::Failed {
                name: self.name().to_owned(),
                reason: format!("draw {index}: {reason}"),
            })
        })
    }
}

impl ComponentSource {
    fn prompt(&self, index: u64, drawn: Drawn) -> Result<Prompt, String> {
        let tools: Vec<Tool> = match &drawn.tools {
            None => Vec::new(),
            Some(json) => serde_json::from_str(json)
                .map_err(|error| format!("tools is no JSON array: {error}"))?,
        };
        Ok(Prompt {
            id: PromptId {
                source: self.name().to_owned(),
                row: index,
            },
            body: convert::prompt_from_guest(drawn.prompt)?,
            label: drawn.label,
            tools,
            metadata: convert::object(drawn.metadata.as_deref(), "metadata")?,
        })
    }
}

struct Draw {
    index: u64,
    seed: u64,
    difficulty: f64,
}

impl Job for Draw {
    type Answer = Result<Drawn, Error>;

    async fn run(
        self,
        plugin: &Loaded,
        store: &mut Store<Context>,
    ) -> wasmtime::Result<Self::Answer> {
        let Some(world) = &plugin.worlds.source else {
            return Err(wasmtime::Error::msg("no source"));
        };
        let bindings = world.instantiate_async(&mut *store).await?;
        bindings
            .slime_plugin_drawing()
            .call_draw(store, self.index, self.seed, self.difficulty)
            .await
    }
}
