use super::*;

/// Logits of a made-up vocabulary: a few likely tokens and a long tail.
fn logits(n: usize) -> Vec<f32> {
    (0..n)
        .map(|i| (random::uniform(99, i as u64) * 6.0 - if i % 7 == 0 { 0.0 } else { 2.0 }) as f32)
        .collect()
}

/// Brute force: every probability in f64, cut by sorting everything.
fn expected(z: &[f32], p: &Params) -> Vec<f64> {
    let m = z.iter().copied().fold(f32::MIN, f32::max);
    let w: Vec<f64> = z
        .iter()
        .map(|&z| ((f64::from(z) - f64::from(m)) / p.temperature).exp())
        .collect();
    let total: f64 = w.iter().sum();
    let probs: Vec<f64> = w.iter().map(|w| w / total).collect();
    let mut order: Vec<usize> = (0..z.len()).collect();
    order.sort_by(|&a, &b| probs[b].total_cmp(&probs[a]).then(a.cmp(&b)));
    let mut kept = vec![0.0; z.len()];
    let mut before = 0.0;
    for (rank, &i) in order.iter().enumerate() {
        if rank < p.top_k && before <= p.top_p && probs[i] >= p.min_p * probs[order[0]] {
            kept[i] = probs[i];
        }
        before += probs[i];
    }
    let mass: f64 = kept.iter().sum();
    kept.iter().map(|k| k / mass).collect()
}

/// 20,000 draws against the brute-force distribution. Cells expected fewer than 5 times are put together.
fn chi_square(z: &[f32], p: &Params, seed: u64) {
    let n = 20_000;
    let want = expected(z, p);
    let mut scratch = vec![0.0; z.len()];
    let mut seen = vec![0u32; z.len()];
    for position in 0..n {
        let token = sample(z, &mut scratch, p, seed, position, 0).expect("finite");
        seen[token.id as usize] += 1;
    }
    let (mut chi, mut cells, mut rest_want, mut rest_seen) = (0.0, 0usize, 0.0, 0.0);
    for (&w, &s) in want.iter().zip(&seen) {
        assert!(w > 0.0 || s == 0, "a token that was cut off was drawn");
        let w = w * n as f64;
        if w >= 5.0 {
            chi += (f64::from(s) - w).powi(2) / w;
            cells += 1;
        } else {
            rest_want += w;
            rest_seen += f64::from(s);
        }
    }
    if rest_want >= 5.0 {
        chi += (rest_seen - rest_want).powi(2) / rest_want;
        cells += 1;
    }
    let freedom = (cells - 1) as f64;
    // Five standard deviations of a chi-square variable above its mean.
    assert!(
        chi <= freedom + 5.0 * (2.0 * freedom).sqrt() + 1e-9,
        "chi² {chi} with {freedom} degrees of freedom, {p:?}"
    );
}

#[test]
fn draws_follow_the_distribution_that_was_asked_for() {
    for (n, seed) in [(3, 1), (300, 2), (1031, 3)] {
        let z = logits(n);
        for temperature in [0.5, 1.0, 1.7] {
            let base = Params {
                temperature,
                ..Params::default()
            };
            chi_square(&z, &base, seed);
            chi_square(
                &z,
                &Params {
                    top_k: 5,
                    ..base.clone()
                },
                seed,
            );
            chi_square(
                &z,
                &Params {
                    top_p: 0.6,
                    ..base.clone()
                },
                seed,
            );
            chi_square(
                &z,
                &Params {
                    min_p: 0.2,
                    ..base.clone()
                },
                seed,
            );
            chi_square(
                &z,
                &Params {
                    top_k: 40,
                    top_p: 0.8,
                    min_p: 0.05,
                    ..base
                },
                seed,
            );
        }
    }
}

#[test]
fn what_is_kept_equals_a_full_sort() {
    for n in [2, 17, 1000] {
        let z = logits(n);
        for top_p in [1e-9, 0.1, 0.5, 0.9, 0.999, 1.0] {
            for top_k in [2, 10, usize::MAX] {
                for min_p in [0.0, 0.01, 0.5, 1.0] {
                    let p = Params {
                        top_p,
                        top_k,
                        min_p,
                        ..Params::default()
                    };
                    let mut w = vec![0.0; n];
                    let s = Softmax::of(&z, &mut w, 1.0).expect("finite");
                    let kept = nucleus::Cut {
                        top_k,
                        top_p,
                        min_p,
                    }
                    .kept(&w, s.total);
                    let want: Vec<u32> = (0..n as u32)
                        .filter(|&i| expected(&z, &p)[i as usize] > 0.0)
                        .collect();
                    assert_eq!(kept.iter().map(|k| k.0).collect::<Vec<_>>(), want, "{p:?}");
                }
            }
        }
    }
}

#[test]
fn logprobs_are_those_of_the_tempered_distribution_before_any_cut() {
    let z = logits(500);
    let mut scratch = vec![0.0; 500];
    for temperature in [0.3, 1.0, 2.5] {
        let plain = expected(
            &z,
            &Params {
                temperature,
                ..Params::default()
            },
        );
        let p = Params {
            temperature,
            top_k: 20,
            top_p: 0.9,
            ..Params::default()
        };
        for position in 0..50 {
            let t = sample(&z, &mut scratch, &p, 4, position, 3).expect("finite");
            let want = plain[t.id as usize].ln();
            assert!((f64::from(t.logprob.expect("sampled")) - want).abs() < 1e-6);
            for (lp, id) in t.top {
                assert!((f64::from(lp) - plain[id as usize].ln()).abs() < 1e-6);
            }
        }
    }
}

#[test]
fn greedy_takes_the_first_largest_and_reports_untempered_logprobs() {
    let z = [2.0f32, 3.0, 3.0, 1.0];
    let p = Params {
        top_k: 1,
        temperature: 9.0,
        ..Params::default()
    };
    let t = sample(&z, &mut [0.0; 4], &p, 0, 0, 4).expect("finite");
    let lse = (2f64.exp() + 2.0 * 3f64.exp() + 1f64.exp()).ln();
    assert_eq!(t.id, 1);
    assert!((f64::from(t.logprob.expect("sampled")) - (3.0 - lse)).abs() < 1e-6);
    assert_eq!(t.top.iter().map(|t| t.1).collect::<Vec<_>>(), [1, 2, 0, 3]);
}

#[test]
fn a_draw_depends_on_seed_and_position_alone() {
    let z = logits(64);
    let p = Params::default();
    let draw = |seed, position| {
        sample(&z, &mut [0.0; 64], &p, seed, position, 0)
            .expect("finite")
            .id
    };
    let row: Vec<u32> = (0..40).map(|i| draw(8, i)).collect();
    let backwards: Vec<u32> = (0..40).rev().map(|i| draw(8, i)).collect();
    assert!(row.iter().eq(backwards.iter().rev()));
    assert_ne!(row, (0..40).map(|i| draw(9, i)).collect::<Vec<_>>());
}

#[test]
fn penalties_and_biases_are_sglangs() {
    let mut counts = Counts::default();
    for t in [1, 1, 2] {
        counts.add(t);
    }
    let p = Params {
        frequency_penalty: 0.5,
        presence_penalty: 0.25,
        repetition_penalty: 2.0,
        logit_bias: vec![(3, -1.0)],
        min_new_tokens: 4,
        stop_token_ids: vec![4],
        ..Params::default()
    };
    let mut z = [1.0f32, 3.25, -0.25, 1.0, 9.0, 9.0];
    adjust(&mut z, &p, &counts, 3, &[5, 77]);
    assert_eq!(
        z,
        [1.0, 1.0, -2.0, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY]
    );
    let mut z = [0.0f32; 6];
    adjust(&mut z, &p, &Counts::default(), 4, &[5]);
    assert_eq!(z, [0.0, 0.0, 0.0, -1.0, 0.0, 0.0]);
}
