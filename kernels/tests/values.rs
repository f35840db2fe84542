//! Forward results against plain loops in f64, at the sizes and places where kernels go wrong.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod oracle;

use oracle::*;
use slime_kernels::{AdamW, Heads, Ops, RopeStyle, Sequences};

fn product(x: &[f64], w: &[f64], rows: usize, inputs: usize, outputs: usize) -> Vec<f64> {
    let mut y = vec![0.0; rows * outputs];
    for r in 0..rows {
        for o in 0..outputs {
            y[r * outputs + o] = dot(
                &x[r * inputs..(r + 1) * inputs],
                &w[o * inputs..(o + 1) * inputs],
            );
        }
    }
    y
}

fn transposed(x: &[f64], rows: usize, cols: usize) -> Vec<f64> {
    (0..cols)
        .flat_map(|c| (0..rows).map(move |r| x[r * cols + c]))
        .collect()
}

#[test]
fn products_of_every_size_class() {
    let (narrow, wide_cpu) = (f32s(), f64s());
    // (rows, in, out): few rows, many rows, tails everywhere, several blocks of k, several blocks of columns.
    for (rows, inputs, outputs) in [
        (1, 1, 1),
        (2, 8, 16),
        (7, 513, 33),
        (96, 40, 17),
        (97, 40, 17),
        (150, 1030, 19),
        (300, 17, 2070),
        (2070, 19, 130),
        (1, 600, 50),
        (13, 7, 15),
    ] {
        let what = format!("{rows} × {inputs} × {outputs}");
        let (x, w, dy) = (
            floats(1, rows * inputs),
            floats(2, outputs * inputs),
            floats(3, rows * outputs),
        );
        let (wx, ww, wdy) = (wide(&x), wide(&w), wide(&dy));
        let y = product(&wx, &ww, rows, inputs, outputs);
        let dx = product(
            &wdy,
            &transposed(&ww, outputs, inputs),
            rows,
            outputs,
            inputs,
        );
        let mut dw = product(
            &transposed(&wdy, rows, outputs),
            &transposed(&wx, rows, inputs),
            outputs,
            rows,
            inputs,
        );
        dw.iter_mut().for_each(|x| *x += 0.5);

        let (tx, tw, tdy) = (
            tensor(&wide_cpu, rows, inputs, &wx),
            tensor(&wide_cpu, outputs, inputs, &ww),
            tensor(&wide_cpu, rows, outputs, &wdy),
        );
        assert_close(
            &what,
            &wide_cpu
                .read_f64(&wide_cpu.matmul_nt(&tx, &tw).unwrap())
                .unwrap(),
            &y,
            1e-14,
        );
        assert_close(
            &what,
            &wide_cpu
                .read_f64(&wide_cpu.matmul_nn(&tdy, &tw).unwrap())
                .unwrap(),
            &dx,
            1e-14,
        );
        let mut sum = wide_cpu
            .float_f64(outputs, inputs, &vec![0.5; outputs * inputs])
            .unwrap();
        wide_cpu.accumulate_tn(&tdy, &tx, &mut sum).unwrap();
        assert_close(&what, &wide_cpu.read_float_f64(&sum).unwrap(), &dw, 1e-14);

        let (tx, tw, tdy) = (
            narrow.tensor(rows, inputs, &x).unwrap(),
            narrow.tensor(outputs, inputs, &w).unwrap(),
            narrow.tensor(rows, outputs, &dy).unwrap(),
        );
        assert_close(
            &what,
            &narrow
                .read_f64(&narrow.matmul_nt(&tx, &tw).unwrap())
                .unwrap(),
            &y,
            1e-6,
        );
        assert_close(
            &what,
            &narrow
                .read_f64(&narrow.matmul_nn(&tdy, &tw).unwrap())
                .unwrap(),
            &dx,
            1e-6,
        );
        let mut sum = narrow
            .float(outputs, inputs, &vec![0.5; outputs * inputs])
            .unwrap();
        narrow.accumulate_tn(&tdy, &tx, &mut sum).unwrap();
        assert_close(&what, &narrow.read_float_f64(&sum).unwrap(), &dw, 1e-6);
    }
}

#[test]
fn products_with_nothing_to_sum_are_zero_and_leave_gradients_alone() {
    let cpu = f32s();
    let empty = |rows, cols| cpu.tensor(rows, cols, &[]).unwrap();
    assert_eq!(
        cpu.read(&cpu.matmul_nt(&empty(3, 0), &empty(2, 0)).unwrap())
            .unwrap(),
        [0.0; 6]
    );
    assert_eq!(
        cpu.shape(
            &cpu.matmul_nt(&empty(0, 4), &cpu.tensor(2, 4, &[1.0; 8]).unwrap())
                .unwrap()
        ),
        (0, 2)
    );
    let mut dw = cpu.float(2, 4, &[7.0; 8]).unwrap();
    cpu.accumulate_tn(&empty(0, 2), &empty(0, 4), &mut dw)
        .unwrap();
    assert_eq!(cpu.read_float(&dw).unwrap(), [7.0; 8]);
}

#[test]
fn empty_batches_pass_through_every_operation() {
    let cpu = f32s();
    let heads = Heads {
        query: 2,
        kv: 1,
        dim: 4,
    };
    let x = |cols| cpu.tensor(0, cols, &[]).unwrap();
    let (none, w) = (cpu.ids(&[]).unwrap(), cpu.tensor(1, 8, &[1.0; 8]).unwrap());
    let (y, r) = cpu.rmsnorm(&x(8), &w, 1e-5).unwrap();
    let mut dw = cpu.float_zeros(1, 8).unwrap();
    cpu.rmsnorm_backward(&y, &x(8), &r, &w, None, &mut dw)
        .unwrap();
    assert_eq!(cpu.read_float(&dw).unwrap(), [0.0; 8]);
    let rope = rope(&cpu, 1, 4, RopeStyle::Half);
    let (qkv, _) = cpu.qk_norm_rope(&x(16), heads, &none, &rope, None).unwrap();
    for lengths in [vec![], vec![0], vec![0, 0]] {
        let sequences = Sequences::from_lengths(lengths);
        let (out, lse) = cpu.attention(&qkv, heads, &sequences, 1.0).unwrap();
        assert_eq!(
            cpu.shape(
                &cpu.attention_backward(&out, &qkv, &out, &lse, heads, &sequences, 1.0)
                    .unwrap()
            ),
            (0, 16)
        );
    }
    assert_eq!(
        cpu.shape(
            &cpu.swiglu_backward(&cpu.swiglu(&x(8)).unwrap(), &x(8))
                .unwrap()
        ),
        (0, 8)
    );
    let logits = cpu.logits(&x(8), &w).unwrap();
    let stats = cpu.token_stats(&logits, &none, 1.0, 1).unwrap();
    assert!(stats.logprob.is_empty());
    cpu.logits_backward(logits, &none, 1.0, 1, &stats, &[], &[])
        .unwrap();
    assert_eq!(cpu.shape(&cpu.gather_rows(&x(3), &none).unwrap()), (0, 3));
    assert_eq!(
        cpu.read(&cpu.scatter_rows(&x(1), &none, 2).unwrap())
            .unwrap(),
        [0.0; 2]
    );
}

/// Attention as the formula has it.
fn attention(x: &[f64], heads: Heads, sequences: &Sequences, scale: f64) -> (Vec<f64>, Vec<f64>) {
    let tokens = sequences.num_tokens();
    let head = |row: usize, h: usize| &x[row * heads.qkv_cols() + h * heads.dim..][..heads.dim];
    let (mut out, mut lse) = (
        vec![0.0; tokens * heads.out_cols()],
        vec![0.0; heads.query * tokens],
    );
    for range in sequences.ranges() {
        for h in 0..heads.query {
            let kv = h / (heads.query / heads.kv);
            for i in range.clone() {
                let s: Vec<f64> = (range.start..=i)
                    .map(|j| scale * dot(head(i, h), head(j, heads.query + kv)))
                    .collect();
                let m = s.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let l = m + s.iter().map(|s| (s - m).exp()).sum::<f64>().ln();
                lse[h * tokens + i] = l;
                for (s, j) in s.iter().zip(range.clone()) {
                    for d in 0..heads.dim {
                        out[i * heads.out_cols() + h * heads.dim + d] +=
                            (s - l).exp() * head(j, heads.query + heads.kv + kv)[d];
                    }
                }
            }
        }
    }
    (out, lse)
}

#[test]
fn attention_of_all_groups_head_sizes_and_lengths() {
    let (narrow, wide_cpu) = (f32s(), f64s());
    for (query, kv) in [(2, 2), (4, 2), (7, 1), (9, 3)] {
        for dim in [16, 24, 64, 3] {
            let heads = Heads { query, kv, dim };
            let sequences = Sequences::from_lengths([1, 0, 7, 33, 130, 0]);
            let (tokens, scale) = (sequences.num_tokens(), 3.0 / (dim as f64).sqrt());
            let x = floats(1, tokens * heads.qkv_cols());
            let (out, lse) = attention(&wide(&x), heads, &sequences, scale);
            let (is, is_lse) = wide_cpu
                .attention(
                    &tensor(&wide_cpu, tokens, heads.qkv_cols(), &wide(&x)),
                    heads,
                    &sequences,
                    scale,
                )
                .unwrap();
            assert_close("o in f64", &wide_cpu.read_f64(&is).unwrap(), &out, 1e-13);
            assert_close(
                "lse in f64",
                &wide_cpu.read_float_f64(&is_lse).unwrap(),
                &lse,
                1e-13,
            );
            let (is, is_lse) = narrow
                .attention(
                    &narrow.tensor(tokens, heads.qkv_cols(), &x).unwrap(),
                    heads,
                    &sequences,
                    scale,
                )
                .unwrap();
            assert_close("o in f32", &narrow.read_f64(&is).unwrap(), &out, 1e-6);
            assert_close(
                "lse in f32",
                &narrow.read_float_f64(&is_lse).unwrap(),
                &lse,
                1e-6,
            );
        }
    }
}

#[test]
fn a_nan_in_a_later_token_or_another_sequence_does_not_reach_a_token() {
    let cpu = f32s();
    let heads = Heads {
        query: 2,
        kv: 1,
        dim: 16,
    };
    let sequences = Sequences::from_lengths([20, 70]);
    let mut x = floats(1, 90 * heads.qkv_cols());
    let clean = cpu
        .read(
            &cpu.attention(
                &cpu.tensor(90, heads.qkv_cols(), &x).unwrap(),
                heads,
                &sequences,
                0.25,
            )
            .unwrap()
            .0,
        )
        .unwrap();
    x[67 * heads.qkv_cols()..68 * heads.qkv_cols()].fill(f32::NAN);
    let with_nan = cpu
        .read(
            &cpu.attention(
                &cpu.tensor(90, heads.qkv_cols(), &x).unwrap(),
                heads,
                &sequences,
                0.25,
            )
            .unwrap()
            .0,
        )
        .unwrap();
    let width = heads.out_cols();
    assert_eq!(bits(&with_nan[..67 * width]), bits(&clean[..67 * width]));
    assert!(with_nan[67 * width..].iter().all(|x| x.is_nan()));
}

#[test]
fn attention_with_huge_scores_picks_the_greatest() {
    let cpu = f32s();
    let heads = Heads {
        query: 1,
        kv: 1,
        dim: 1,
    };
    // q k = 1e4 for the second token on itself, -1e4 on the first.
    let x = [1.0, -100.0, 5.0, 100.0, 100.0, 7.0];
    let (out, lse) = cpu
        .attention(
            &cpu.tensor(2, 3, &x).unwrap(),
            heads,
            &Sequences::from_lengths([2]),
            1.0,
        )
        .unwrap();
    assert_eq!(cpu.read(&out).unwrap(), [5.0, 7.0]);
    assert_eq!(cpu.read_float(&lse).unwrap(), [-100.0, 1e4]);
}

#[test]
fn rmsnorm_of_huge_numbers_does_not_overflow_and_of_zeros_is_zero() {
    let cpu = f32s();
    let x = cpu
        .tensor(3, 2, &[1e20, -1e20, 0.0, 0.0, 3e-20, 3e-20])
        .unwrap();
    let w = cpu.tensor(1, 2, &[1.0, 2.0]).unwrap();
    let (y, r) = cpu.rmsnorm(&x, &w, 1e-6).unwrap();
    let y = cpu.read(&y).unwrap();
    assert!(
        (y[0] - 1.0).abs() < 1e-6 && (y[1] + 2.0).abs() < 1e-6,
        "{y:?}"
    );
    assert_eq!(y[2..4], [0.0, 0.0]);
    assert!((y[4] - 3e-17).abs() < 1e-22, "{y:?}");
    let mut dw = cpu.float_zeros(1, 2).unwrap();
    let dy = cpu.tensor(3, 2, &[1.0; 6]).unwrap();
    let dx = cpu
        .read(
            &cpu.rmsnorm_backward(&dy, &x, &r, &w, None, &mut dw)
                .unwrap(),
        )
        .unwrap();
    assert!(dx.iter().all(|x| x.is_finite()), "{dx:?}");
    assert!(
        (dx[2] - 1e3).abs() < 0.1 && (dx[3] - 2e3).abs() < 0.1,
        "{dx:?}"
    );
}

#[test]
fn log_sum_exp_neither_overflows_nor_underflows() {
    let cpu = f32s();
    let logits = cpu
        .float(
            4,
            2,
            &[
                1000.0,
                1000.0,
                -1e4,
                0.0,
                f32::NEG_INFINITY,
                3.0,
                -2000.0,
                -2000.0,
            ],
        )
        .unwrap();
    let targets = cpu.ids(&[0, 0, 1, 1]).unwrap();
    let s = cpu.token_stats(&logits, &targets, 1.0, 2).unwrap();
    let ln2 = std::f64::consts::LN_2;
    assert_close(
        "lse",
        &s.lse,
        &[1000.0 + ln2, 0.0, 3.0, -2000.0 + ln2],
        1e-7,
    );
    assert_close("logprob", &s.logprob, &[-ln2, -1e4, 0.0, -ln2], 1e-7);
    assert_close("entropy", &s.entropy, &[ln2, 0.0, 0.0, ln2], 1e-7);
    let dz = cpu
        .logits_backward(logits, &targets, 1.0, 2, &s, &[1.0; 4], &[1.0; 4])
        .unwrap();
    assert_close(
        "dz",
        &cpu.read_f64(&dz).unwrap(),
        &[0.5, -0.5, 1.0, -1.0, 0.0, 0.0, -0.5, 0.5],
        1e-6,
    );
}

#[test]
fn log_probs_over_a_large_vocabulary_are_exact_to_1e_6() {
    let (cpu, vocab) = (f32s(), 151_936);
    let z: Vec<f32> = floats(1, vocab).iter().map(|z| 20.0 * z).collect();
    let s = cpu
        .token_stats(
            &cpu.float(1, vocab, &z).unwrap(),
            &cpu.ids(&[77]).unwrap(),
            1.0,
            vocab,
        )
        .unwrap();
    let m = z.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = z.iter().map(|z| f64::from(z - m).exp()).sum();
    let lse = f64::from(m) + sum.ln();
    let entropy = lse
        - z.iter()
            .map(|z| (f64::from(*z) - lse).exp() * f64::from(*z))
            .sum::<f64>();
    assert!((s.lse[0] - lse).abs() < 1e-6, "{} {lse}", s.lse[0]);
    assert!((s.logprob[0] - (f64::from(z[77]) - lse)).abs() < 1e-6);
    assert!(
        (s.entropy[0] - entropy).abs() < 2e-6,
        "{} {entropy}",
        s.entropy[0]
    );
}

#[test]
fn nan_logits_are_not_hidden() {
    let cpu = f32s();
    let s = cpu
        .token_stats(
            &cpu.float(1, 20, &[[0.0; 19].as_slice(), &[f32::NAN]].concat())
                .unwrap(),
            &cpu.ids(&[0]).unwrap(),
            1.0,
            20,
        )
        .unwrap();
    assert!(s.lse[0].is_nan() && s.logprob[0].is_nan() && s.entropy[0].is_nan());
}

#[test]
fn targets_beyond_the_vocabulary_and_impossible_temperatures_are_refused() {
    let cpu = f32s();
    let logits = cpu.float(1, 4, &[0.0; 4]).unwrap();
    let stats =
        |target, inv, vocab| cpu.token_stats(&logits, &cpu.ids(&[target]).unwrap(), inv, vocab);
    assert!(stats(3, 1.0, 3).is_err());
    assert!(stats(0, 1.0, 5).is_err());
    assert!(stats(0, f64::INFINITY, 4).is_err());
    assert!(stats(0, 0.0, 4).is_err());
    assert!(
        cpu.embed(
            &cpu.tensor(2, 1, &[0.0; 2]).unwrap(),
            &cpu.ids(&[2]).unwrap()
        )
        .is_err()
    );
}

#[test]
fn rope_is_exact_at_position_32768() {
    let cpu = f32s();
    let heads = Heads {
        query: 1,
        kv: 1,
        dim: 64,
    };
    let x = floats(1, heads.qkv_cols());
    let rope = rope(&cpu, 32_769, 64, RopeStyle::Half);
    let (y, _) = cpu
        .qk_norm_rope(
            &cpu.tensor(1, heads.qkv_cols(), &x).unwrap(),
            heads,
            &cpu.ids(&[32_768]).unwrap(),
            &rope,
            None,
        )
        .unwrap();
    let mut should = wide(&x);
    for head in should.chunks_mut(64).take(2) {
        for i in 0..32 {
            let (sin, cos) = (32_768.0 / 10_000f64.powf(2.0 * i as f64 / 64.0)).sin_cos();
            let (a, b) = (head[i], head[i + 32]);
            (head[i], head[i + 32]) = (a * cos - b * sin, b * cos + a * sin);
        }
    }
    assert_close("rope", &cpu.read_f64(&y).unwrap(), &should, 2e-7);
    assert!(
        cpu.qk_norm_rope(
            &cpu.tensor(1, heads.qkv_cols(), &x).unwrap(),
            heads,
            &cpu.ids(&[32_769]).unwrap(),
            &rope,
            None
        )
        .is_err()
    );
}

#[test]
fn rope_conventions_are_pinned() {
    let cpu = f64s();
    let heads = Heads {
        query: 1,
        kv: 1,
        dim: 6,
    };
    // A quarter turn for pair 0 and none for pair 1; the last two dimensions pass.
    let turn = |style| {
        let rope = slime_kernels::RopeTable {
            cos: float(&cpu, 1, 2, &[0.0, 1.0]),
            sin: float(&cpu, 1, 2, &[1.0, 0.0]),
            dims: 4,
            style,
        };
        let x: Vec<f64> = (1..=18).map(f64::from).collect();
        let (y, _) = cpu
            .qk_norm_rope(
                &tensor(&cpu, 1, 18, &x),
                heads,
                &cpu.ids(&[0]).unwrap(),
                &rope,
                None,
            )
            .unwrap();
        cpu.read_f64(&y).unwrap()
    };
    let values = [13.0, 14.0, 15.0, 16.0, 17.0, 18.0];
    let half = [
        -3.0, 2.0, 1.0, 4.0, 5.0, 6.0, -9.0, 8.0, 7.0, 10.0, 11.0, 12.0,
    ];
    assert_eq!(turn(RopeStyle::Half), [half.as_slice(), &values].concat());
    let interleaved = [
        -2.0, 1.0, 3.0, 4.0, 5.0, 6.0, -8.0, 7.0, 9.0, 10.0, 11.0, 12.0,
    ];
    assert_eq!(
        turn(RopeStyle::Interleaved),
        [interleaved.as_slice(), &values].concat()
    );
}

#[test]
fn silu_and_its_slope_at_special_points() {
    let cpu = f32s();
    let gates = [0.0f32, 1.0, -1e4, 1e4, 88.0, -88.0];
    let rows: Vec<f32> = gates.iter().flat_map(|g| [*g, 1.0]).collect();
    let x = cpu.tensor(gates.len(), 2, &rows).unwrap();
    let a = cpu.read(&cpu.swiglu(&x).unwrap()).unwrap();
    let d = cpu
        .read(
            &cpu.swiglu_backward(&cpu.tensor(gates.len(), 1, &[1.0; 6]).unwrap(), &x)
                .unwrap(),
        )
        .unwrap();
    let slopes: Vec<f32> = d.chunks(2).map(|d| d[0]).collect();
    assert_eq!([a[0], a[2], a[3]], [0.0, 0.0, 1e4]);
    assert!(
        (slopes[0] - 0.5).abs() < 1e-7 && (slopes[1] - 0.927_670_5).abs() < 1e-6,
        "{slopes:?}"
    );
    assert!(d.iter().all(|d| d.is_finite()), "{d:?}");
    assert_eq!([slopes[2], slopes[3]], [0.0, 1.0]);
}

#[test]
fn adamw_follows_its_formula_for_ten_steps() {
    let (narrow, wide_cpu) = (f32s(), f64s());
    let (rows, cols) = (3, 7);
    let start = numbers(1, rows * cols);
    let (mut m, mut v, mut p) = (vec![0.0; 21], vec![0.0; 21], start.clone());
    let mut w64 = tensor(&wide_cpu, rows, cols, &start);
    let (mut m64, mut v64) = (
        wide_cpu.float_zeros(rows, cols).unwrap(),
        wide_cpu.float_zeros(rows, cols).unwrap(),
    );
    let mut w32 = narrow.tensor_f64(rows, cols, &start).unwrap();
    let (mut m32, mut v32) = (
        narrow.float_zeros(rows, cols).unwrap(),
        narrow.float_zeros(rows, cols).unwrap(),
    );
    let mut master = narrow.float_f64(rows, cols, &start).unwrap();
    let kept = w32.clone();
    let before = bits(&narrow.read(&kept).unwrap());
    for step in 1..=10 {
        let g = numbers(10 + step, 21);
        let s = AdamW {
            lr: 1e-2,
            beta1: 0.9,
            beta2: 0.98,
            eps: 1e-8,
            weight_decay: 0.1,
            step,
            grad_scale: 0.3,
        };
        for i in 0..21 {
            let g = g[i] * s.grad_scale;
            m[i] = s.beta1 * m[i] + (1.0 - s.beta1) * g;
            v[i] = s.beta2 * v[i] + (1.0 - s.beta2) * g * g;
            let (mh, vh) = (
                m[i] / (1.0 - s.beta1.powi(step as i32)),
                v[i] / (1.0 - s.beta2.powi(step as i32)),
            );
            p[i] -= s.lr * (mh / (vh.sqrt() + s.eps) + s.weight_decay * p[i]);
        }
        wide_cpu
            .adamw(
                &s,
                &float(&wide_cpu, rows, cols, &g),
                &mut m64,
                &mut v64,
                None,
                &mut w64,
            )
            .unwrap();
        narrow
            .adamw(
                &s,
                &narrow.float_f64(rows, cols, &g).unwrap(),
                &mut m32,
                &mut v32,
                Some(&mut master),
                &mut w32,
            )
            .unwrap();
    }
    assert_close("p in f64", &wide_cpu.read_f64(&w64).unwrap(), &p, 1e-13);
    assert_close(
        "m in f64",
        &wide_cpu.read_float_f64(&m64).unwrap(),
        &m,
        1e-13,
    );
    assert_close(
        "v in f64",
        &wide_cpu.read_float_f64(&v64).unwrap(),
        &v,
        1e-13,
    );
    assert_close("p in f32", &narrow.read_f64(&w32).unwrap(), &p, 1e-6);
    assert_eq!(
        narrow.read(&w32).unwrap(),
        narrow.read_float(&master).unwrap()
    );
    assert_eq!(
        bits(&narrow.read(&kept).unwrap()),
        before,
        "a clone made before the update keeps the old weights"
    );
}

#[test]
fn an_updated_weight_is_used_by_the_next_product() {
    let cpu = f32s();
    let mut w = cpu.tensor(20, 30, &floats(1, 600)).unwrap();
    let x = cpu.tensor(3, 30, &floats(2, 90)).unwrap();
    cpu.matmul_nt(&x, &w).unwrap(); // packs w
    let s = AdamW {
        lr: 0.1,
        beta1: 0.9,
        beta2: 0.9,
        eps: 1e-8,
        weight_decay: 0.0,
        step: 1,
        grad_scale: 1.0,
    };
    let (mut m, mut v) = (
        cpu.float_zeros(20, 30).unwrap(),
        cpu.float_zeros(20, 30).unwrap(),
    );
    cpu.adamw(
        &s,
        &cpu.float(20, 30, &floats(3, 600)).unwrap(),
        &mut m,
        &mut v,
        None,
        &mut w,
    )
    .unwrap();
    let fresh = cpu.tensor(20, 30, &cpu.read(&w).unwrap()).unwrap();
    assert_eq!(
        cpu.read(&cpu.matmul_nt(&x, &w).unwrap()).unwrap(),
        cpu.read(&cpu.matmul_nt(&x, &fresh).unwrap()).unwrap()
    );
}

#[test]
fn sum_of_squares_is_f64() {
    let cpu = f32s();
    let x = floats(1, 100_003);
    let should: f64 = x.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let is = cpu
        .sum_squares(&cpu.float(1, x.len(), &x).unwrap())
        .unwrap();
    assert!((is / should - 1.0).abs() < 1e-13);
    assert_eq!(
        cpu.sum_squares(&cpu.float(1, 2, &[3e20, 4e20]).unwrap())
            .unwrap()
            .sqrt() as f32,
        5e20
    );
}
