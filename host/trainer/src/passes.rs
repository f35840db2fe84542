//! Passes that only look: log-probs of the reference, and of the policy before it changes.

use crate::config::TrainConfig;
use crate::data::{Batch, MicroBatch};
use crate::head::Head;
use crate::step::Scores;
use crate::trainer::{Phase, Trainer};
use crate::{Error, Result};
use slime_core::RolloutRecord;
use slime_kernels::Ops;
use slime_model::Network;

impl<O: Ops> Trainer<O> {
    /// Log-probs and entropies of every token that trains.
    pub(crate) fn scores(
        &self,
        network: &Network<O>,
        batch: &Batch<'_>,
        packed: &[MicroBatch],
        phase: Phase,
        step: (usize, usize),
    ) -> Result<Scores> {
        let head = head(&*self.ops, network, &self.config, self.vocab);
        let mut scores = Scores::unknown(batch.num_trained());
        let total = packed.iter().map(|m| m.ids.len()).sum();
        let mut done = 0;
        for micro in packed {
            self.report(phase, step, (done, total));
            let hidden = network.forward(&micro.ids, &micro.sequences, &micro.rows)?;
            let stats = head.stats(&hidden, &micro.targets)?;
            for (row, &number) in micro.tokens.iter().enumerate() {
                scores.logp[number] = stats.logprob[row];
                scores.entropy[number] = stats.entropy[row];
            }
            done += micro.ids.len();
        }
        Ok(scores)
    }

    pub(crate) fn fill_reference(
        &self,
        batches: &mut [Batch<'_>],
        packed: &[Vec<MicroBatch>],
    ) -> Result<()> {
        let Some(asked_by) = self.config.needs_reference() else {
            return Ok(());
        };
        let reference = self
            .reference
            .as_ref()
            .ok_or(Error::NoReference(asked_by))?;
        let num_steps = batches.len();
        for (step, (batch, packed)) in batches.iter_mut().zip(packed).enumerate() {
            let scores = self.scores(
                reference,
                batch,
                packed,
                Phase::Reference,
                (step, num_steps),
            )?;
            batch.columns.reference = scores.logp;
        }
        Ok(())
    }

    /// The old policy's log-probs. With a single step the step's own forward gives them, and the ratio is exactly 1.
    pub(crate) fn fill_old(
        &self,
        batches: &mut [Batch<'_>],
        packed: &[Vec<MicroBatch>],
    ) -> Result<()> {
        let config = &self.config;
        if config.use_rollout_logprobs {
            batches
                .iter_mut()
                .for_each(|batch| batch.columns.old = batch.columns.rollout.clone());
            return Ok(());
        }
        if batches.len() == 1 && config.kl_coef == 0.0 {
            return Ok(());
        }
        let num_steps = batches.len();
        for (step, (batch, packed)) in batches.iter_mut().zip(packed).enumerate() {
            let scores = self.scores(
                &self.network,
                batch,
                packed,
                Phase::OldLogProbs,
                (step, num_steps),
            )?;
            batch.columns.old = scores.logp;
        }
        Ok(())
    }

    pub(crate) fn check_rollout_logprobs(&self, records: &[RolloutRecord]) -> Result<()> {
        let option = match (self.config.use_rollout_logprobs, self.config.use_tis) {
            (true, _) => "use_rollout_logprobs",
            (_, true) => "use_tis",
            _ => return Ok(()),
        };
        let missing = |r: &RolloutRecord| {
            r.is_scored() && r.loss_mask.contains(&1) && r.rollout_log_probs.is_empty()
        };
        match records.iter().position(missing) {
            Some(index) => Err(Error::Record {
                index,
                group: records[index].group_id.0,
                rollout: records[index].rollout_id.0,
                detail: format!("{option} needs rollout_log_probs, and it has none"),
            }),
            None => Ok(()),
        }
    }
}

/// The head of a network, as the configuration reads it.
pub(crate) fn head<'a, O: Ops>(
    ops: &'a O,
    network: &'a Network<O>,
    config: &TrainConfig,
    vocab: usize,
) -> Head<'a, O> {
    Head {
        ops,
        weight: network.weights().get(network.head()),
        temperature: config.rollout_temperature,
        vocab,
        chunk_rows: config.log_probs_chunk_size,
    }
}
