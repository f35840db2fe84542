//! Rows on their way to experts that other ranks hold, and back.
//!
//! ```text
//! members of the group, in order    etp + ETP ep       each holds E / EP consecutive experts, of each 1 / ETP of its columns
//! rows sorted by expert ─► to every member that holds a part of the expert ─► sorted by expert there ─► experts
//! results ─► back the way they came ─► a token's sum over its experts and their parts, in one order
//! ```
//!
//! Who sends how many rows to which expert is told first, once a pass. Router weights and their gradients travel as host
//! numbers, unrounded. Every member takes part, also one whose experts nobody chose. With one sender and one receiver the
//! same type sorts rows and sends nothing. Read [`super::moe`] for what happens in between.

use super::peers::Experts;
use super::routing::{Chosen, Order};
use crate::spec::Routing;
use slime_kernels::{Comm, Ops, Result};
use std::ops::Range;
use std::sync::Arc;

/// Where the rows of one pass through one layer go. Numbers on the host; a backward takes the ways its forward made.
pub(super) struct Ways {
    /// Rows of the pass as they leave: member by member, by expert.
    rows: Vec<u32>,
    /// Of each row, choice and part of the chosen expert: where its result is among those that come back.
    places: Vec<u32>,
    /// Parts that each expert has, on as many members.
    parts: usize,
    /// Where each expert's rows begin here, and where they end.
    offsets: Vec<usize>,
    /// Router weights of the rows here, by expert.
    weights: Vec<f64>,
    journey: Option<Journey>,
}

/// How many rows go where, and how those that come are sorted.
struct Journey {
    sent: Vec<usize>,
    received: Vec<usize>,
    /// Rows that arrive, in the order of this rank's experts.
    by_expert: Vec<u32>,
    /// The reverse.
    by_arrival: Vec<u32>,
}

/// The ways as a device needs them.
pub(super) struct Sorted<O: Ops> {
    ways: Ways,
    group: Option<Arc<dyn Comm<O>>>,
    /// How many results make one row's sum.
    terms: usize,
    rows: O::Ids,
    places: O::Ids,
    /// `[rows here, 1]`.
    pub(super) weights: O::Float,
}

impl Journey {
    /// `counts`: rows of each member for each expert of the model.
    fn new(experts: &[Range<usize>], rank: usize, counts: &[&[f64]]) -> (Self, Vec<usize>) {
        let of = |from: usize, expert: usize| counts[from][expert] as usize;
        let total = |from: usize, to: usize| experts[to].clone().map(|e| of(from, e)).sum();
        let held = experts[rank].clone();
        let mut offsets = vec![0];
        for expert in held.clone() {
            let here: usize = (0..counts.len()).map(|from| of(from, expert)).sum();
            offsets.push(offsets[offsets.len() - 1] + here);
        }
        // They arrive member by member, by expert within each.
        let mut by_expert = vec![0; offsets[held.len()]];
        let mut next = offsets.clone();
        let mut by_arrival = Vec::with_capacity(by_expert.len());
        for from in 0..counts.len() {
            for (next, expert) in next.iter_mut().zip(held.clone()) {
                for _ in 0..of(from, expert) {
                    by_expert[*next] = by_arrival.len() as u32;
                    by_arrival.push(*next as u32);
                    *next += 1;
                }
            }
        }
        let journey = Self {
            sent: (0..experts.len()).map(|to| total(rank, to)).collect(),
            received: (0..counts.len()).map(|from| total(from, rank)).collect(),
            by_expert,
            by_arrival,
        };
        (journey, offsets)
    }
}

fn picked(numbers: &[f64], at: &[u32]) -> Vec<f64> {
    at.iter().map(|&i| numbers[i as usize]).collect()
}

impl Ways {
    /// Nobody else has experts.
    fn home(order: Order, chosen: &Chosen) -> Self {
        let mut by_expert = vec![0.0; order.places.len()];
        for (place, weight) in order.places.iter().zip(&chosen.weights) {
            by_expert[*place as usize] = *weight;
        }
        Self {
            rows: order.rows,
            places: order.places,
            parts: 1,
            offsets: order.offsets,
            weights: by_expert,
            journey: None,
        }
    }

    /// Tell the others how many rows go where, and send the rows' weights.
    fn abroad<O: Ops>(peers: &Experts<O>, order: &Order, chosen: &Chosen) -> Result<Self> {
        let group = &*peers.group;
        let (members, parts) = (group.size(), peers.parts);
        let num_experts = order.offsets.len() - 1;
        let each = num_experts / (members / parts);
        let experts: Vec<Range<usize>> = (0..members)
            .map(|m| m / parts * each..(m / parts + 1) * each)
            .collect();
        let (mut rows, mut starts) = (Vec::new(), Vec::with_capacity(members));
        for held in &experts {
            starts.push(rows.len());
            rows.extend_from_slice(&order.rows[order.offsets[held.start]..order.offsets[held.end]]);
        }
        // Each choice is sent once to every member with a part of the expert.
        let mut places = Vec::with_capacity(parts * order.places.len());
        let mut leaving = vec![0.0; rows.len()];
        let choices = chosen.experts.iter().zip(&chosen.weights);
        for (&place, (&expert, &weight)) in order.places.iter().zip(choices) {
            let owner = expert as usize / each;
            for member in owner * parts..(owner + 1) * parts {
                let at = starts[member] + place as usize - order.offsets[owner * each];
                places.push(at as u32);
                leaving[at] = weight;
            }
        }
        let own: Vec<f64> = order
            .offsets
            .windows(2)
            .map(|w| (w[1] - w[0]) as f64)
            .collect();
        let all = group.all_gather_host(&own)?;
        let counts: Vec<&[f64]> = all.chunks_exact(num_experts).collect();
        let (journey, offsets) = Journey::new(&experts, group.rank(), &counts);
        let arrived = group.all_to_all_host(&leaving, &journey.sent, &journey.received)?;
        Ok(Self {
            rows,
            places,
            parts,
            offsets,
            weights: picked(&arrived, &journey.by_expert),
            journey: Some(journey),
        })
    }
}

impl<O: Ops> Sorted<O> {
    /// The ways of rows whose experts are `chosen`.
    pub(super) fn new(
        ops: &O,
        peers: Option<&Experts<O>>,
        chosen: &Chosen,
        routing: &Routing,
    ) -> Result<Self> {
        let order = Order::new(&chosen.experts, routing.experts, routing.top_k);
        let ways = match peers {
            Some(peers) => Ways::abroad(peers, &order, chosen)?,
            None => Ways::home(order, chosen),
        };
        Ok(Self {
            terms: routing.top_k * ways.parts,
            group: peers.map(|p| p.group.clone()),
            rows: ops.ids(&ways.rows)?,
            places: ops.ids(&ways.places)?,
            weights: ops.float_f64(ways.weights.len(), 1, &ways.weights)?,
            ways,
        })
    }

    /// Where each expert's rows begin here, and where they end.
    pub(super) fn offsets(&self) -> &[usize] {
        &self.ways.offsets
    }

    fn abroad(&self) -> Option<(&dyn Comm<O>, &Journey)> {
        Some((&**self.group.as_ref()?, self.ways.journey.as_ref()?))
    }

    /// Rows of the pass → those that this rank's experts get, by expert.
    pub(super) fn out(&self, x: &O::Tensor, ops: &O) -> Result<O::Tensor> {
        let rows = ops.gather_rows(x, &self.rows)?;
        let Some((group, journey)) = self.abroad() else {
            return Ok(rows);
        };
        let arrived = group.all_to_all(&rows, &journey.sent, &journey.received)?;
        ops.gather_rows(&arrived, &ops.ids(&journey.by_expert)?)
    }

    /// What this rank's experts gave, by expert → each row's sum.
    pub(super) fn back(&self, y: O::Tensor, ops: &O) -> Result<O::Tensor> {
        let results = match self.abroad() {
            Some((group, journey)) => {
                let leaving = ops.gather_rows(&y, &ops.ids(&journey.by_arrival)?)?;
                drop(y);
                group.all_to_all(&leaving, &journey.received, &journey.sent)?
            }
            None => y,
        };
        ops.sum_rows(&results, &self.places, self.terms)
    }

    /// A number of each row at this rank's experts → the sum of each row and choice, over the expert's parts.
    pub(super) fn numbers_back(&self, here: Vec<f64>) -> Result<Vec<f64>> {
        let numbers = match self.abroad() {
            Some((group, journey)) => {
                let leaving = picked(&here, &journey.by_arrival);
                group.all_to_all_host(&leaving, &journey.received, &journey.sent)?
            }
            None => here,
        };
        let of = |places: &[u32]| places.iter().map(|&p| numbers[p as usize]).sum();
        Ok(self
            .ways
            .places
            .chunks_exact(self.ways.parts)
            .map(of)
            .collect())
    }
}
