//! New weights to the pool through a directory that its members read.

use super::{Learn, Publish};
use crate::error::{Failure, Result};
use crate::wire::rollout_failed;
use slime_core::WeightVersion;
use slime_core::ports::BoxFuture;
use slime_rollout::{Publisher, RolloutError, WeightDirs};

/// Writes weights under one directory and makes the pool read them.
pub struct Publishing {
    /// Where versions lie.
    pub dirs: WeightDirs,
    /// Tells the pool.
    pub publisher: Publisher,
    /// A stock server wants a whole HF directory, the embedded engine only weights.
    pub whole_models: bool,
}

/// Either side's error on the way through [`WeightDirs::write`].
enum Either {
    Rollout(RolloutError),
    App(Failure),
}

impl From<RolloutError> for Either {
    fn from(error: RolloutError) -> Self {
        Self::Rollout(error)
    }
}

impl Publish for Publishing {
    fn publish<'a>(
        &'a mut self,
        learner: &'a dyn Learn,
        version: WeightVersion,
    ) -> BoxFuture<'a, Result<()>> {
        // Written before the future is polled: a future that borrows the learner could not move between threads.
        let written = tokio::task::block_in_place(|| {
            self.dirs.write(version, |dir| {
                let written = if self.whole_models {
                    learner.write_model(dir)
                } else {
                    learner.write_weights(dir)
                };
                written.map_err(Either::App)
            })
        });
        Box::pin(async move {
            let dir = written.map_err(|error| match error {
                Either::Rollout(error) => rollout_failed(error),
                Either::App(failure) => failure,
            })?;
            self.publisher
                .publish(&dir, version)
                .await
                .map_err(rollout_failed)?;
            self.dirs
                .prune(&self.publisher.in_use())
                .map_err(rollout_failed)?;
            Ok(())
        })
    }
}
