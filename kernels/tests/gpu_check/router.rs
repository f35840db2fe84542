//! A router in f64, written from the formulas: what the device's choices are compared with.

use slime_kernels::Route;

fn scores(logits: &[f64], rule: &Route) -> Vec<f64> {
    if rule.is_sigmoid {
        return logits.iter().map(|z| 1.0 / (1.0 + (-z).exp())).collect();
    }
    let total: f64 = logits.iter().map(|z| z.exp()).sum();
    logits.iter().map(|z| z.exp() / total).collect()
}

/// Indices by falling value, the first of equals first.
fn ranked(values: &[f64]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|&a, &b| values[b].total_cmp(&values[a]).then(a.cmp(&b)));
    order
}

fn weights(logits: &[f64], rule: &Route, experts: &[u32]) -> Vec<f64> {
    let scores = scores(logits, rule);
    let chosen: Vec<f64> = experts.iter().map(|&e| scores[e as usize]).collect();
    let sum = match rule.renormalise {
        true => chosen.iter().sum(),
        false => 1.0,
    };
    chosen
        .iter()
        .map(|score| rule.scale * score / sum)
        .collect()
}

/// Experts and weights of every row.
pub(crate) fn route(
    logits: &[f64],
    bias: Option<&[f64]>,
    forced: Option<&[u32]>,
    rule: &Route,
) -> (Vec<u32>, Vec<f64>) {
    let (mut experts, mut all) = (Vec::new(), Vec::new());
    for (row, logits) in logits.chunks_exact(rule.experts).enumerate() {
        let mut value = scores(logits, rule);
        for (value, bias) in value.iter_mut().zip(bias.unwrap_or_default()) {
            *value += bias;
        }
        if let Some((count, kept)) = rule.groups {
            let size = rule.experts / count;
            let of_group = |group: &[f64]| -> f64 {
                let order = ranked(group);
                order.iter().take(2).map(|&e| group[e]).sum()
            };
            let groups: Vec<f64> = value.chunks_exact(size).map(of_group).collect();
            for group in ranked(&groups).into_iter().skip(kept) {
                value[group * size..(group + 1) * size].fill(f64::NEG_INFINITY);
            }
        }
        let recorded = forced.map(|f| &f[row * rule.top_k..(row + 1) * rule.top_k]);
        let chosen: Vec<u32> = match recorded.filter(|r| !r.contains(&Route::FREE)) {
            Some(recorded) => recorded.to_vec(),
            None => {
                let order = ranked(&value);
                order.iter().take(rule.top_k).map(|&e| e as u32).collect()
            }
        };
        all.extend(weights(logits, rule, &chosen));
        experts.extend(chosen);
    }
    (experts, all)
}

/// Slopes of `Σ dweights · weights` along every logit, by central differences.
pub(crate) fn backward(
    logits: &[f64],
    rule: &Route,
    experts: &[u32],
    dweights: &[f64],
) -> Vec<f64> {
    let rows = logits.chunks_exact(rule.experts);
    let choices = experts
        .chunks_exact(rule.top_k)
        .zip(dweights.chunks_exact(rule.top_k));
    let of_row = |(logits, (experts, dweights)): (&[f64], (&[u32], &[f64]))| -> Vec<f64> {
        let value = |e: usize, by: f64| -> f64 {
            let mut moved = logits.to_vec();
            moved[e] += by;
            let weights = weights(&moved, rule, experts);
            weights.iter().zip(dweights).map(|(w, d)| w * d).sum()
        };
        let slope = |e| (value(e, 1e-5) - value(e, -1e-5)) / 2e-5;
        (0..rule.experts).map(slope).collect()
    };
    rows.zip(choices).flat_map(of_row).collect()
}
