//! Whitening of advantages over all trained tokens of a rollout step (`--normalize-advantages`).
//!
//! `A ← (A - mean) / √(var + 1e-8)`, variance with `n - 1`, as slime does.

/// Added to the variance.
const EPS: f64 = 1e-8;

/// Whiten in place. Fewer than two values, or equal ones, become 0.
pub fn whiten(advantages: &mut [f64]) {
    let count = advantages.len() as f64;
    if count < 2.0 {
        advantages.fill(0.0);
        return;
    }
    let mean = advantages.iter().sum::<f64>() / count;
    let var = advantages.iter().map(|a| (a - mean).powi(2)).sum::<f64>() / (count - 1.0);
    let scale = 1.0 / (var + EPS).sqrt();
    advantages.iter_mut().for_each(|a| *a = (*a - mean) * scale);
}

#[cfg(test)]
mod tests {
    use super::super::golden;
    use super::*;

    #[test]
    fn masked_tokens_do_not_enter_the_statistics() {
        let mut compared = 0;
        for case in golden::cases("whiten") {
            if case.inputs["ddof"] != 1 {
                continue;
            }
            let kept = |key: &str, x: &serde_json::Value| -> Vec<f64> {
                let mask = golden::floats(&case.inputs["mask"]);
                let x = x.as_array().unwrap();
                assert_eq!(x.len(), mask.len(), "{key}");
                std::iter::zip(x, mask)
                    .filter(|(_, m)| *m > 0.0)
                    .map(|(x, _)| x.as_f64().unwrap())
                    .collect()
            };
            let mut got = kept("advantages", &case.inputs["advantages"]);
            whiten(&mut got);
            golden::close(&got, &kept("expected", &case.expected), 1e-12, &case.name);
            compared += 1;
        }
        assert!(compared >= 1);
    }
}
