//! One rank's train step over shapes: the calls it makes, the work between them, the memory it needs.

use super::machine::Machine;
use crate::config::TrainConfig;
use crate::parallel::trainer::key_heads;
use crate::parallel::{Mesh, ParallelConfig, Place, Rank};
use crate::{Error, Result};
use slime_core::{GroupId, RolloutId, RolloutRecord};
use slime_kernels::comm::Simulated;
use slime_kernels::comm::simulated::{Exchange, Noted};
use slime_kernels::shapes::{Meter, Shapes, Widths};
use slime_model::ModelSpec;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// What one train step trains on: sequences of equal length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Sequences of a step.
    pub sequences: usize,
    /// Tokens of one, prompt and response.
    pub length: usize,
    /// Of these, the prompt's.
    pub prompt: usize,
}

impl Workload {
    /// Rollouts of this size, without content.
    pub fn records(&self) -> Vec<RolloutRecord> {
        let response = self.length - self.prompt;
        (0..self.sequences as u64)
            .map(|i| RolloutRecord {
                group_id: GroupId(i / 8),
                rollout_id: RolloutId(i),
                tokens: vec![0; self.length],
                response_length: response,
                loss_mask: vec![1; response],
                reward: Some((i % 2) as f64),
                outcome: "scored".into(),
                ..RolloutRecord::default()
            })
            .collect()
    }
}

/// Bytes of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Weights, rotation tables included.
    pub weights: usize,
    /// Main gradients.
    pub gradients: usize,
    /// Master weights and moments.
    pub optimizer: usize,
    /// Everything else at the worst moment of the step.
    pub activations: usize,
}

impl Memory {
    /// At the worst moment.
    pub fn peak(&self) -> usize {
        self.weights + self.gradients + self.optimizer + self.activations
    }
}

/// Something a rank does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Event {
    /// Compute, for so long.
    Compute(f64),
    /// Wait for a group, then exchange for so long.
    Meet {
        /// Which group.
        group: u32,
        /// Once all are there.
        seconds: f64,
    },
    /// Begin an exchange that goes on beside what comes next.
    Begin {
        /// Which group.
        group: u32,
        /// Once all are there.
        seconds: f64,
        /// Of this rank in this group.
        number: u64,
    },
    /// Wait for what was begun.
    Wait {
        /// Which group.
        group: u32,
        /// Which exchange.
        number: u64,
    },
    /// Give a message away; it arrives after so long.
    Send {
        /// To this rank.
        to: u32,
        /// Which message.
        tag: u64,
        /// On its way.
        seconds: f64,
    },
    /// Wait for a message.
    Recv {
        /// From this rank.
        from: u32,
        /// Which message.
        tag: u64,
    },
}

/// Groups by number: name and members.
#[derive(Default)]
pub struct Groups {
    all: Mutex<(BTreeMap<(String, Vec<usize>), u32>, Vec<(String, usize)>)>,
}

impl Groups {
    fn number(&self, name: &str, members: &[usize]) -> u32 {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (name.to_owned(), members.to_vec());
        if let Some(&number) = all.0.get(&key) {
            return number;
        }
        let number = all.1.len() as u32;
        all.1.push((name.to_owned(), members.len()));
        all.0.insert(key, number);
        number
    }

    /// Name and number of members of each.
    pub fn list(&self) -> Vec<(String, usize)> {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.1.clone()
    }
}

/// One rank's step.
#[derive(Clone, Debug, PartialEq)]
pub struct Recorded {
    /// Which rank.
    pub rank: usize,
    /// In order.
    pub events: Vec<Event>,
    /// What it needs.
    pub memory: Memory,
    /// Micro-batches of the step, on one data-parallel rank.
    pub micro_batches: usize,
    /// FLOPs it does, recomputation included.
    pub flops: f64,
    /// Bytes it sends, by the group's name and whether they leave the node.
    pub sent: BTreeMap<(String, bool), f64>,
    /// Hash of its calls: ranks with the same work have the same.
    pub calls: u64,
}

#[derive(Default)]
struct Notes {
    events: Vec<Event>,
    flops: f64,
    sent: BTreeMap<(String, bool), f64>,
    calls: u64,
}

/// Bytes of a number of the optimizer's.
pub(super) fn state_width(config: &TrainConfig, widths: Widths) -> usize {
    match config.use_precision_aware_optimizer {
        true => widths.tensor,
        false => widths.float,
    }
}

/// Run rank `rank` of a layout through one train step, on shapes.
///
/// # Errors
/// The configuration or the layout does not fit the model.
pub fn record(
    spec: &Arc<ModelSpec>,
    (config, parallel): (&TrainConfig, &ParallelConfig),
    records: &[RolloutRecord],
    machine: &Machine,
    groups: &Arc<Groups>,
    widths: Widths,
    rank: usize,
) -> Result<Recorded> {
    let problems = parallel.problems(spec);
    if !problems.is_empty() {
        return Err(Error::Config(problems));
    }
    let notes: Arc<Mutex<Notes>> = Arc::default();
    let lock = |notes: &Arc<Mutex<Notes>>, act: &dyn Fn(&mut Notes)| {
        act(&mut notes.lock().unwrap_or_else(PoisonError::into_inner));
    };
    let (noted, speed) = (notes.clone(), machine.clone());
    let meter = Meter::telling(widths, move |work| {
        let seconds = speed.seconds(work);
        lock(&noted, &|notes| {
            notes.flops += work.flops();
            match notes.events.last_mut() {
                Some(Event::Compute(before)) => *before += seconds,
                _ => notes.events.push(Event::Compute(seconds)),
            }
        });
    });
    let ops = Arc::new(Shapes::new(meter.clone()));
    let (noted, speed, numbers) = (notes.clone(), machine.clone(), groups.clone());
    let told = Arc::new(move |name: &str, members: &[usize], call: Noted| {
        let seconds = speed.exchange_seconds(&call, members);
        let sent = speed.sent_bytes(&call, members.len());
        let event = match call.exchange {
            Exchange::Send { to, tag } => Event::Send {
                to: to as u32,
                tag,
                seconds: speed.exchange_seconds(&call, &[rank, to]),
            },
            Exchange::Recv { from, tag } => Event::Recv {
                from: from as u32,
                tag,
            },
            Exchange::Wait(number) => Event::Wait {
                group: numbers.number(name, members),
                number,
            },
            _ => {
                let group = numbers.number(name, members);
                match call.begun {
                    Some(number) => Event::Begin {
                        group,
                        seconds,
                        number,
                    },
                    None => Event::Meet { group, seconds },
                }
            }
        };
        let key = (name.to_owned(), !speed.inside_a_node(members));
        lock(&noted, &|notes| {
            let kind = std::mem::discriminant(&call.exchange);
            let text = format!("{name} {kind:?} {}", call.bytes);
            notes.calls = text
                .bytes()
                .fold(notes.calls ^ 0xcbf2_9ce4_8422_2325, |h, b| {
                    (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3)
                });
            if members.len() > 1 {
                notes.events.push(event);
                if sent > 0.0 {
                    *notes.sent.entry(key.clone()).or_default() += sent;
                }
            }
        });
    });
    let mesh = Mesh::new(
        Place::new(parallel, rank),
        key_heads(spec),
        |name, members| {
            let comm = Simulated::new(ops.clone(), name, members, rank, told.clone())?;
            Ok(Arc::new(comm))
        },
    )?;
    let device = ops.clone();
    let mut own = Rank::new(
        ops,
        spec.clone(),
        mesh,
        (config.clone(), parallel.clone()),
        spec.vocab,
        &move |_, shard| Ok(device.tensor_of(shard.rows, shard.cols)),
    )?;
    let elements: usize = own.stage.shards.iter().map(|s| s.len()).sum();
    let gradients = elements * widths.float;
    let states: usize = own
        .optimizer
        .segments
        .iter()
        .map(|s| s.range.len() * (2 + usize::from(s.master.is_some())))
        .sum();
    let optimizer = states * state_width(config, widths);
    let standing = meter.live_bytes();
    meter.forget_peak();
    *notes.lock().unwrap_or_else(PoisonError::into_inner) = Notes::default();
    let metrics = own.train(records)?;
    let notes = std::mem::take(&mut *notes.lock().unwrap_or_else(PoisonError::into_inner));
    Ok(Recorded {
        rank,
        events: notes.events,
        memory: Memory {
            weights: standing - gradients - optimizer,
            gradients,
            optimizer,
            activations: meter.peak_bytes() - standing,
        },
        micro_batches: metrics.iter().map(|m| m.micro_batches).sum::<usize>()
            / parallel.data_parallel_size,
        flops: notes.flops,
        sent: notes.sent,
        calls: notes.calls,
    })
}
