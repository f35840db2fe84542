//! Prompts that say which tools there are: those of the run's tool plugins, where the row names none itself.

use slime_core::ports::{BoxFuture, Source, SourceError};
use slime_core::{Prompt, Tool};
use std::sync::Arc;

struct WithTools {
    inner: Arc<dyn Source>,
    tools: Vec<Tool>,
}

/// `source` with the tools put into its prompts.
pub fn offered(source: Arc<dyn Source>, tools: &[Tool]) -> Arc<dyn Source> {
    if tools.is_empty() {
        return source;
    }
    Arc::new(WithTools {
        inner: source,
        tools: tools.to_vec(),
    })
}

impl Source for WithTools {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn len(&self) -> Option<u64> {
        self.inner.len()
    }

    fn draw(&self, index: u64, seed: u64) -> BoxFuture<'_, Result<Prompt, SourceError>> {
        Box::pin(async move {
            let mut prompt = self.inner.draw(index, seed).await?;
            if prompt.tools.is_empty() {
                prompt.tools.clone_from(&self.tools);
            }
            Ok(prompt)
        })
    }
}
