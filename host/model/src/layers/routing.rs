//! Which experts a row goes to, and with what weights: on the host and in f64, for devices that do not choose themselves
//! ([`slime_kernels::Ops::route`]) and as what those are compared with.
//!
//! A device has to tell the host how many rows each expert gets anyway. Ties go to the expert that comes first.
//! It knows no matrix. Read [`super::moe`] next.

use crate::spec::{Routing, Score};
use slime_kernels::{Error, Result, Route};
use std::cell::RefCell;

/// Added to the sum that weights are divided by, as DeepSeek-V3 does.
const TINY: f64 = 1e-20;

/// The choice of every row.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// `[rows × top_k]`, each row's best first.
    pub experts: Vec<u32>,
    /// Their weights.
    pub weights: Vec<f64>,
}

/// Rows of a pass sorted by expert, and by row within an expert.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Order {
    /// Rows of the pass, `[rows × top_k]`.
    pub rows: Vec<u32>,
    /// For each row and choice, where it is in `rows`.
    pub places: Vec<u32>,
    /// Where each expert's rows begin: `[experts + 1]`.
    pub offsets: Vec<usize>,
}

/// Experts that rows went to, a layer at a time; empty for layers without experts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Routes {
    /// Of each layer, `[rows × top_k]`. [`Routes::FREE`] leaves a choice to the router.
    pub layers: Vec<Vec<u32>>,
}

/// What a pass does about routes.
#[derive(Clone, Copy)]
pub enum Replay<'a> {
    /// Routers choose.
    Off,
    /// Routers choose, and their choices are kept.
    Record(&'a RefCell<Routes>),
    /// These are taken.
    Force(&'a Routes),
}

impl Routes {
    /// No expert: the router chooses for this row.
    pub const FREE: u32 = Route::FREE;

    /// Those of `rows`, in that order.
    pub fn select(&self, rows: &[u32], num_rows: usize) -> Self {
        let of = |layer: &Vec<u32>| Self::picked(layer, rows, num_rows);
        Self {
            layers: self.layers.iter().map(of).collect(),
        }
    }

    /// The same for one layer, of whose `num_rows` rows `all` is.
    pub fn picked(all: &[u32], rows: &[u32], num_rows: usize) -> Vec<u32> {
        let top_k = all.len() / num_rows.max(1);
        let row = |r: &u32| &all[*r as usize * top_k..(*r as usize + 1) * top_k];
        rows.iter().flat_map(row).copied().collect()
    }

    /// The reverse for one layer: `experts` are of `rows`; those of the other rows are left free.
    pub fn spread(experts: &[u32], rows: &[u32], num_rows: usize) -> Vec<u32> {
        let top_k = experts.len() / rows.len().max(1);
        let mut all = vec![Self::FREE; num_rows * top_k];
        for (row, experts) in rows.iter().zip(experts.chunks_exact(top_k.max(1))) {
            all[*row as usize * top_k..][..top_k].copy_from_slice(experts);
        }
        all
    }
}

impl<'a> Replay<'a> {
    pub(super) fn of_layer(self, layer: usize) -> Option<&'a [u32]> {
        match self {
            Self::Force(routes) => routes.layers.get(layer).map(Vec::as_slice),
            Self::Off | Self::Record(_) => None,
        }
    }

    pub(super) fn record(self, layer: usize, experts: &[u32]) {
        if let Self::Record(routes) = self {
            let layers = &mut routes.borrow_mut().layers;
            layers.resize(layers.len().max(layer + 1), Vec::new());
            layers[layer] = experts.to_vec();
        }
    }
}

impl Order {
    pub(super) fn new(experts: &[u32], num_experts: usize, top_k: usize) -> Self {
        let mut offsets = vec![0; num_experts + 1];
        for e in experts {
            offsets[*e as usize + 1] += 1;
        }
        for e in 0..num_experts {
            offsets[e + 1] += offsets[e];
        }
        let mut next = offsets.clone();
        let (mut rows, mut places) = (vec![0; experts.len()], Vec::with_capacity(experts.len()));
        for (choice, e) in experts.iter().enumerate() {
            let place = &mut next[*e as usize];
            rows[*place] = (choice / top_k) as u32;
            places.push(*place as u32);
            *place += 1;
        }
        Self {
            rows,
            places,
            offsets,
        }
    }
}

impl Chosen {
    /// From `logits: [rows, experts]`. `forced` are choices to be taken instead, `[rows × top_k]`, that
    /// [`Routing::check_forced`] has let pass.
    ///
    /// # Errors
    /// A logit is not a number.
    pub(super) fn new(
        routing: &Routing,
        logits: &[f64],
        bias: Option<&[f64]>,
        forced: Option<&[u32]>,
    ) -> Result<Self> {
        let (n, k) = (routing.experts, routing.top_k);
        let rows = logits.len() / n;
        let mut chosen = Self {
            experts: Vec::with_capacity(rows * k),
            weights: Vec::with_capacity(rows * k),
        };
        for (row, logits) in logits.chunks_exact(n).enumerate() {
            if logits.iter().any(|z| z.is_nan()) {
                return Err(wrong(format!(
                    "a router's logit of row {row} is not a number"
                )));
            }
            let scores = routing.scores(logits);
            let replayed = forced.map(|f| &f[row * k..(row + 1) * k]);
            match replayed.filter(|r| !r.contains(&Routes::FREE)) {
                Some(replayed) => chosen.experts.extend(replayed),
                None => routing.choose(&scores, bias, &mut chosen.experts),
            }
            let (sum, experts) = routing.sum(&scores, &chosen.experts[row * k..]);
            let weight = |e: &u32| routing.scale * scores[*e as usize] / sum;
            chosen.weights.extend(experts.iter().map(weight));
        }
        Ok(chosen)
    }

    /// As many rows to each expert as to any other.
    pub(super) fn evenly(routing: &Routing, rows: usize) -> Self {
        let choices = rows * routing.top_k;
        Self {
            experts: (0..choices).map(|i| (i % routing.experts) as u32).collect(),
            weights: vec![routing.scale / routing.top_k as f64; choices],
        }
    }

    /// Gradient of the logits, `[rows, experts]`, from that of the weights, `[rows × top_k]`.
    pub(super) fn backward(&self, routing: &Routing, logits: &[f64], dweights: &[f64]) -> Vec<f64> {
        let (n, k) = (routing.experts, routing.top_k);
        let mut dlogits = vec![0.0; logits.len()];
        for (row, dz) in dlogits.chunks_exact_mut(n).enumerate() {
            let scores = routing.scores(&logits[row * n..(row + 1) * n]);
            let choices = row * k..(row + 1) * k;
            let (dp, p) = (&dweights[choices.clone()], &self.weights[choices.clone()]);
            let (sum, experts) = routing.sum(&scores, &self.experts[choices]);
            // The sum that weights are divided by depends on the scores too.
            let along: f64 = match routing.renormalise {
                true => dp.iter().zip(p).map(|(dp, p)| dp * p).sum(),
                false => 0.0,
            };
            let mut ds = vec![0.0; n];
            for (e, dp) in experts.iter().zip(dp) {
                ds[*e as usize] = (routing.scale * dp - along) / sum;
            }
            match routing.score {
                Score::Sigmoid => {
                    for (dz, (ds, s)) in dz.iter_mut().zip(ds.iter().zip(&scores)) {
                        *dz = ds * s * (1.0 - s);
                    }
                }
                Score::Softmax => {
                    let mean: f64 = ds.iter().zip(&scores).map(|(ds, s)| ds * s).sum();
                    for (dz, (ds, s)) in dz.iter_mut().zip(ds.iter().zip(&scores)) {
                        *dz = s * (ds - mean);
                    }
                }
            }
        }
        dlogits
    }
}

fn wrong(detail: String) -> Error {
    Error::Shape {
        op: "routing",
        detail,
    }
}

impl Routing {
    /// In a device's terms.
    pub(super) fn route(&self) -> Route {
        Route {
            experts: self.experts,
            top_k: self.top_k,
            is_sigmoid: self.score == Score::Sigmoid,
            renormalise: self.renormalise,
            scale: self.scale,
            groups: self.groups.map(|groups| (groups.count, groups.kept)),
        }
    }

    /// Are these choices to replay of `rows` rows of this model?
    pub(super) fn check_forced(&self, forced: Option<&[u32]>, rows: usize) -> Result<()> {
        let (n, k) = (self.experts, self.top_k);
        let Some(forced) = forced else { return Ok(()) };
        if forced.len() != rows * k {
            let have = forced.len();
            return Err(wrong(format!(
                "{have} recorded choices for {rows} rows of {k}"
            )));
        }
        let known = |e: &u32| *e == Routes::FREE || (*e as usize) < n;
        match forced.iter().find(|e| !known(e)) {
            None => Ok(()),
            Some(bad) => Err(wrong(format!(
                "expert {bad} was recorded, the model has {n}"
            ))),
        }
    }

    fn scores(&self, logits: &[f64]) -> Vec<f64> {
        match self.score {
            Score::Sigmoid => logits.iter().map(|z| 1.0 / (1.0 + (-z).exp())).collect(),
            Score::Softmax => {
                let max = logits.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let e: Vec<f64> = logits.iter().map(|z| (z - max).exp()).collect();
                let sum: f64 = e.iter().sum();
                e.into_iter().map(|x| x / sum).collect()
            }
        }
    }

    /// What weights are divided by, and the experts once more.
    fn sum<'a>(&self, scores: &[f64], experts: &'a [u32]) -> (f64, &'a [u32]) {
        if !self.renormalise {
            return (1.0, experts);
        }
        let tiny = if self.score == Score::Sigmoid {
            TINY
        } else {
            0.0
        };
        let sum: f64 = experts.iter().map(|e| scores[*e as usize]).sum();
        (sum + tiny, experts)
    }

    /// Appends the `top_k` experts of the largest scores plus bias, among the best groups.
    fn choose(&self, scores: &[f64], bias: Option<&[f64]>, out: &mut Vec<u32>) {
        let mut biased: Vec<f64> = scores.to_vec();
        if let Some(bias) = bias {
            for (s, b) in biased.iter_mut().zip(bias) {
                *s += b;
            }
        }
        if let Some(groups) = self.groups {
            let size = self.experts / groups.count;
            let best_two = |group: &[f64]| {
                let best = best(group, 2);
                best.iter().map(|e| group[*e as usize]).sum()
            };
            let of_groups: Vec<f64> = biased.chunks_exact(size).map(best_two).collect();
            let kept = best(&of_groups, groups.kept);
            for (g, group) in biased.chunks_exact_mut(size).enumerate() {
                if !kept.contains(&(g as u32)) {
                    group.fill(f64::NEG_INFINITY);
                }
            }
        }
        out.extend(best(&biased, self.top_k));
    }
}

/// The `count` largest, largest first; the first of equals.
fn best(values: &[f64], count: usize) -> Vec<u32> {
    let mut order: Vec<u32> = (0..values.len() as u32).collect();
    let larger = |a: &u32, b: &u32| {
        let (x, y) = (values[*a as usize], values[*b as usize]);
        y.total_cmp(&x).then(a.cmp(b))
    };
    let count = count.min(order.len());
    if count < order.len() {
        order.select_nth_unstable_by(count, larger);
        order.truncate(count);
    }
    order.sort_unstable_by(larger);
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::ExpertGroups;

    fn routing(score: Score, renormalise: bool, groups: Option<ExpertGroups>) -> Routing {
        Routing {
            experts: 6,
            top_k: 2,
            score,
            bias: true,
            renormalise,
            scale: 2.5,
            groups,
        }
    }

    const LOGITS: [f64; 6] = [0.3, -1.0, 2.0, 0.5, -0.2, 1.7];

    #[test]
    fn the_bias_chooses_and_does_not_weigh() {
        let routing = routing(Score::Sigmoid, true, None);
        let bias = [0.0, 9.0, 0.0, 0.0, 0.0, 0.0];
        let chosen = Chosen::new(&routing, &LOGITS, Some(&bias), None).unwrap();
        assert_eq!(chosen.experts, [1, 2]);
        let s = |z: f64| 1.0 / (1.0 + (-z).exp());
        let want = [s(-1.0), s(2.0)].map(|x| 2.5 * x / (s(-1.0) + s(2.0)));
        for (got, want) in chosen.weights.iter().zip(want) {
            assert!((got - want).abs() < 1e-15);
        }
    }

    #[test]
    fn a_group_that_is_not_kept_gives_no_expert_however_good() {
        // Sums of the best two: 0.3 + 2.0 of the first three beat nothing but 1.7 + 0.5 of the last three.
        let groups = Some(ExpertGroups { count: 2, kept: 1 });
        let chosen = Chosen::new(&routing(Score::Sigmoid, true, groups), &LOGITS, None, None);
        assert_eq!(chosen.unwrap().experts, [5, 3]);
    }

    #[test]
    fn equal_scores_go_to_the_first_experts() {
        let chosen = Chosen::new(&routing(Score::Softmax, true, None), &[0.5; 6], None, None);
        assert_eq!(chosen.unwrap().experts, [0, 1]);
    }

    #[test]
    fn gradients_of_every_scoring_are_the_slopes_of_the_weights() {
        for score in [Score::Sigmoid, Score::Softmax] {
            for renormalise in [true, false] {
                let routing = routing(score, renormalise, None);
                let dweights = [0.7, -1.3];
                let value = |logits: &[f64]| {
                    let chosen = Chosen::new(&routing, logits, None, None).unwrap();
                    assert_eq!(chosen.experts, [2, 5]);
                    let terms = chosen.weights.iter().zip(dweights);
                    terms.map(|(w, d)| w * d).sum::<f64>()
                };
                let chosen = Chosen::new(&routing, &LOGITS, None, None).unwrap();
                let slopes = chosen.backward(&routing, &LOGITS, &dweights);
                for e in 0..6 {
                    let at = |step: f64| {
                        let mut logits = LOGITS;
                        logits[e] += step;
                        value(&logits)
                    };
                    let slope = (at(1e-5) - at(-1e-5)) / 2e-5;
                    assert!(
                        (slope - slopes[e]).abs() < 1e-9,
                        "{score:?} {renormalise} {e}"
                    );
                }
            }
        }
    }

    #[test]
    fn rows_sorted_by_expert_come_back_by_their_places() {
        let order = Order::new(&[2, 0, 2, 1, 0, 2], 4, 2);
        assert_eq!(order.offsets, [0, 2, 3, 6, 6]);
        assert_eq!(order.rows, [0, 2, 1, 0, 1, 2]);
        assert_eq!(order.places, [3, 0, 4, 2, 1, 5]);
    }

    #[test]
    fn recorded_choices_are_taken_and_foreign_ones_refused() {
        let routing = routing(Score::Softmax, true, None);
        let chosen = Chosen::new(&routing, &LOGITS, None, Some(&[4, 1])).unwrap();
        assert_eq!(chosen.experts, [4, 1]);
        let free = Chosen::new(&routing, &LOGITS, None, Some(&[Routes::FREE, 1])).unwrap();
        assert_eq!(free.experts, [2, 5]);
        assert!(routing.check_forced(Some(&[4, Routes::FREE]), 1).is_ok());
        let error = routing.check_forced(Some(&[6, 1]), 1).unwrap_err();
        assert!(error.to_string().contains("expert 6"), "{error}");
        assert!(routing.check_forced(Some(&[1]), 1).is_err());
    }
}
