//! The experts that an engine chose while it sampled, from the rollouts' records into micro-batches.
//!
//! ```text
//! record: [tokens - 1, layers, top_k] in base64 ─► a micro-batch's rows, layer by layer; −1 leaves a row to the router
//! ```

use super::{Batch, MicroBatch};
use crate::{Error, Result};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use slime_core::RolloutRecord;
use slime_model::layers::Routes;
use slime_model::{Ffn, LayerSpec, ModelSpec};

/// Give every micro-batch of `batch` the experts that its records bring.
///
/// # Errors
/// A record brings none, or they do not fit the model.
pub fn of_rollouts(spec: &ModelSpec, batch: &Batch<'_>, packed: &mut [MicroBatch]) -> Result<()> {
    for micro in packed {
        micro.routes = Some(of_members(spec, batch, &micro.members)?);
    }
    Ok(())
}

/// The experts of some sequences' input tokens, end to end.
///
/// # Errors
/// As [`of_rollouts`]; the index is the sequence's.
pub fn of_members(spec: &ModelSpec, batch: &Batch<'_>, members: &[usize]) -> Result<Routes> {
    let mut routes = Routes {
        layers: vec![Vec::new(); spec.layers.len()],
    };
    for &member in members {
        let sequence = &batch.sequences[member];
        let refuse = |detail| {
            let ids = sequence.record.map(|r| (r.group_id.0, r.rollout_id.0));
            let (group, rollout) = ids.unwrap_or_default();
            Error::Record {
                index: member,
                group,
                rollout,
                detail,
            }
        };
        let num_tokens = sequence.inputs().len();
        append(spec, sequence.record, num_tokens, &mut routes).map_err(refuse)?;
    }
    Ok(routes)
}

/// Experts of a token in a layer; 0 where there are none.
pub fn top_k(layer: &LayerSpec) -> usize {
    match &layer.ffn {
        Ffn::Moe(moe) => moe.routing.top_k,
        Ffn::SwiGlu { .. } => 0,
    }
}

/// The first `num_tokens` tokens' experts of one record, behind what is there.
fn append(
    spec: &ModelSpec,
    record: Option<&RolloutRecord>,
    num_tokens: usize,
    routes: &mut Routes,
) -> Result<(), String> {
    let Some((tokens, text)) =
        record.and_then(|r| Some((r.tokens.len(), r.routed_experts.as_ref()?)))
    else {
        return Err("use_rollout_routing_replay needs routed_experts, and it has none".into());
    };
    let bytes = STANDARD
        .decode(text)
        .map_err(|e| format!("routed_experts is not base64: {e}"))?;
    let top_k = spec.layers.iter().map(top_k).max();
    let (layers, top_k) = (spec.layers.len(), top_k.unwrap_or(0));
    let of_token = 4 * layers * top_k;
    let expected = of_token * (tokens - 1);
    // What the environment said last was never read by the engine, and nothing that trains depends on it.
    let spoken = record.map_or(0, |r| {
        tokens - r.loss_mask.iter().rev().take_while(|&&m| m == 0).count()
    });
    let fits = bytes.len() % of_token.max(1) == 0
        && (of_token * spoken.saturating_sub(1)..=expected).contains(&bytes.len());
    if !fits {
        return Err(format!(
            "routed_experts has {} bytes, should have {expected}: 4 × {} tokens × {layers} layers × {top_k} experts",
            bytes.len(),
            tokens - 1
        ));
    }
    let mut bytes = bytes;
    while bytes.len() < expected {
        bytes.extend((0..top_k as u32).flat_map(u32::to_le_bytes));
    }
    let experts: Vec<u32> = bytes
        .as_chunks()
        .0
        .iter()
        .map(|b| u32::from_le_bytes(*b))
        .collect();
    for (at, experts) in experts.chunks_exact(top_k.max(1)).enumerate() {
        let (token, layer) = (at / layers, at % layers);
        if let Ffn::Moe(moe) = &spec.layers[layer].ffn
            && token < num_tokens
        {
            let (named, known) = (experts.iter(), moe.routing.experts);
            let mut foreign = named.filter(|e| **e != Routes::FREE && **e as usize >= known);
            if let Some(expert) = foreign.next() {
                return Err(format!(
                    "routed_experts names expert {expert} for token {token} in layer {layer}, and the model has {known}"
                ));
            }
            routes.layers[layer].extend(experts);
        }
    }
    Ok(())
}
