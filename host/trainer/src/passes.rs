//! Passes that only look: log-probs of the reference, and of the policy before it changes.

use crate::algo::mismatch::Mismatch;
use crate::config::TrainConfig;
use crate::data::{Batch, MicroBatch};
use crate::head::Head;
use crate::step::Scores;
use crate::trainer::{Phase, Trainer};
use crate::{Error, Result};
use slime_core::RolloutRecord;
use slime_kernels::Ops;
use slime_model::Network;
use slime_model::layers::Routes;

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
        Ok(self
            .scores_and_routes(network, batch, packed, phase, step)?
            .0)
    }

    /// The same, and the experts of each micro-batch that does not say them.
    fn scores_and_routes(
        &self,
        network: &Network<O>,
        batch: &Batch<'_>,
        packed: &[MicroBatch],
        phase: Phase,
        step: (usize, usize),
    ) -> Result<(Scores, Vec<Routes>)> {
        let mut all_routes = Vec::with_capacity(packed.len());
        let head = head(&*self.ops, network, &self.config, self.vocab);
        let mut scores = Scores::unknown(batch.num_trained());
        let total = packed.iter().map(|m| m.ids.len()).sum();
        let mut done = 0;
        for micro in packed {
            self.report(phase, step, (done, total));
            let (ids, sequences, rows) = (&micro.ids, &micro.sequences, &micro.rows);
            let hidden = match &micro.routes {
                Some(routes) => network.forward_routed(ids, sequences, rows, routes)?,
                None => {
                    let (hidden, routes) = network.forward_recording(ids, sequences, rows)?;
                    all_routes.push(routes);
                    hidden
                }
            };
            let stats = head.stats(&hidden, &micro.targets)?;
            for (row, &number) in micro.tokens.iter().enumerate() {
                scores.logp[number] = stats.logprob[row];
                scores.entropy[number] = stats.entropy[row];
            }
            done += micro.ids.len();
        }
        Ok((scores, all_routes))
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

    /// The teacher's log-probs, where it is in the trainer; records bring those of a teacher in the pool.
    pub(crate) fn fill_teacher(
        &self,
        batches: &mut [Batch<'_>],
        packed: &[Vec<MicroBatch>],
    ) -> Result<()> {
        if !self.config.use_opd {
            return Ok(());
        }
        let num_steps = batches.len();
        let Some(teacher) = &self.teacher else {
            return check_taught(batches);
        };
        for (step, (batch, packed)) in batches.iter_mut().zip(packed).enumerate() {
            let at = (step, num_steps);
            batch.columns.teacher = self
                .scores(teacher, batch, packed, Phase::Teacher, at)?
                .logp;
        }
        Ok(())
    }

    /// Corrections between trainer and engine that look at more than one token, from the old log-probs.
    pub(crate) fn fill_corrections(&self, batches: &mut [Batch<'_>]) {
        if let Some(mismatch) = self.config.mismatch() {
            batches
                .iter_mut()
                .for_each(|batch| correct(batch, &mismatch));
        }
    }

    /// The old policy's log-probs. With a single step the step's own forward gives them, and the ratio is exactly 1.
    /// With routing replay, the experts it chose are what the steps' own passes use too, however far the router has
    /// moved by then; with the engine's, those that it chose are used here already.
    pub(crate) fn fill_old(
        &self,
        batches: &mut [Batch<'_>],
        packed: &mut [Vec<MicroBatch>],
    ) -> Result<()> {
        let config = &self.config;
        if config.use_rollout_logprobs {
            batches
                .iter_mut()
                .for_each(|batch| batch.columns.old = batch.columns.rollout.clone());
            return Ok(());
        }
        if batches.len() == 1 && !config.needs_old() {
            return Ok(());
        }
        let num_steps = batches.len();
        for (step, (batch, packed)) in batches.iter_mut().zip(packed).enumerate() {
            let step = (step, num_steps);
            let (scores, routes) =
                self.scores_and_routes(&self.network, batch, packed, Phase::OldLogProbs, step)?;
            batch.columns.old = scores.logp;
            if config.use_routing_replay {
                for (micro, routes) in packed.iter_mut().zip(routes) {
                    micro.routes = Some(routes);
                }
            }
        }
        Ok(())
    }
}

/// Refuse records without the engine's log-probs where the configuration needs them.
pub(crate) fn check_rollout_logprobs(
    config: &TrainConfig,
    records: &[RolloutRecord],
) -> Result<()> {
    let Some(option) = config.needs_rollout_log_probs() else {
        return Ok(());
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

/// Without a teacher in the trainer: do all records bring one's log-probs?
pub(crate) fn check_taught(batches: &[Batch<'_>]) -> Result<()> {
    let known = |batch: &Batch<'_>| batch.columns.teacher.iter().all(|p| !p.is_nan());
    match batches.iter().all(known) {
        true => Ok(()),
        false => Err(Error::NoTeacher),
    }
}

/// Fill the correction column of one train step.
pub fn correct(batch: &mut Batch<'_>, mismatch: &Mismatch) {
    let columns = &batch.columns;
    let log_ratios: Vec<f64> = columns
        .old
        .iter()
        .zip(&columns.rollout)
        .map(|(old, rollout)| old - rollout)
        .collect();
    let own = batch
        .sequences
        .iter()
        .map(|s| &log_ratios[s.trained.clone()]);
    batch.columns.correction = mismatch.correct(own);
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
