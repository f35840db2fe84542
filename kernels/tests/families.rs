//! The operations that only some families need: values against plain loops, backwards against central differences,
//! serving against training bit by bit.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod oracle;

use oracle::*;
use slime_kernels::{
    ColumnMap, Cpu, DeltaHeads, DeltaRule, HeadParts, Ops, PagedSequence, Sequences,
};

const OFFSETS: [usize; 6] = [0, 3, 3, 4, 110, 110];

#[test]
fn rows_of_an_expert_meet_its_matrix_and_no_other() {
    let cpu = f32s();
    let (experts, inputs, outputs, rows) = (5, 21, 7, 110);
    let (x, w) = (
        floats(1, rows * inputs),
        floats(2, experts * outputs * inputs),
    );
    let tx = cpu.tensor(rows, inputs, &x).unwrap();
    let tw = cpu.tensor(experts * outputs, inputs, &w).unwrap();
    let all = cpu.grouped_nt(&tx, &tw, &OFFSETS).unwrap();
    let all = cpu.read(&all).unwrap();
    for (expert, ends) in OFFSETS.windows(2).enumerate() {
        for row in ends[0]..ends[1] {
            // The bits of the plain product, row by row.
            let one = cpu
                .tensor(1, inputs, &x[row * inputs..(row + 1) * inputs])
                .unwrap();
            let own = &w[expert * outputs * inputs..(expert + 1) * outputs * inputs];
            let own = cpu.tensor(outputs, inputs, own).unwrap();
            let want = cpu.read(&cpu.matmul_nt(&one, &own).unwrap()).unwrap();
            assert_eq!(
                bits(&all[row * outputs..(row + 1) * outputs]),
                bits(&want),
                "row {row}"
            );
        }
    }
}

#[test]
fn gradients_of_grouped_products_are_slopes_and_spare_experts_without_rows() {
    let cpu = f64s();
    let (experts, inputs, outputs, rows) = (5, 6, 4, 12);
    let offsets = [0, 3, 3, 4, 12, 12];
    let (x, w) = (
        numbers(1, rows * inputs),
        numbers(2, experts * outputs * inputs),
    );
    let dy = numbers(3, rows * outputs);
    let loss = |x: &[f64], w: &[f64]| {
        let (x, w) = (
            tensor(&cpu, rows, inputs, x),
            tensor(&cpu, experts * outputs, inputs, w),
        );
        dot(
            &cpu.read_f64(&cpu.grouped_nt(&x, &w, &offsets).unwrap())
                .unwrap(),
            &dy,
        )
    };
    let (tx, tw) = (
        tensor(&cpu, rows, inputs, &x),
        tensor(&cpu, experts * outputs, inputs, &w),
    );
    let tdy = tensor(&cpu, rows, outputs, &dy);
    let dx = cpu.grouped_nn(&tdy, &tw, &offsets).unwrap();
    assert_gradient("dx", &cpu.read_f64(&dx).unwrap(), &x, |x| loss(x, &w));
    let mut dw = float(&cpu, experts * outputs, inputs, &vec![-0.0; w.len()]);
    cpu.accumulate_grouped_tn(&tdy, &tx, &offsets, &mut dw)
        .unwrap();
    let dw = cpu.read_float_f64(&dw).unwrap();
    assert_gradient("dw", &dw, &w, |w| loss(&x, w));
    for expert in [1, 4] {
        let own = &dw[expert * outputs * inputs..(expert + 1) * outputs * inputs];
        assert!(
            own.iter().all(|x| x.to_bits() == (-0.0f64).to_bits()),
            "expert {expert}"
        );
    }
    let wrong = cpu.grouped_nt(&tx, &tw, &[0, 3, 3, 4, 11, 11]).unwrap_err();
    assert!(
        wrong.to_string().contains("must run from 0 to the 12 rows"),
        "{wrong}"
    );
}

#[test]
fn rows_are_scaled_summed_and_multiplied_with_each_other() {
    let cpu = f64s();
    let (x, y, p) = (numbers(1, 12), numbers(2, 12), numbers(3, 4));
    let (tx, ty) = (tensor(&cpu, 4, 3, &x), tensor(&cpu, 4, 3, &y));
    let scaled = cpu.scale_rows(&tx, &float(&cpu, 4, 1, &p)).unwrap();
    let want: Vec<f64> = x.iter().enumerate().map(|(i, x)| x * p[i / 3]).collect();
    assert_eq!(cpu.read_f64(&scaled).unwrap(), want);
    let dots = cpu
        .read_float_f64(&cpu.row_dots(&tx, &ty).unwrap())
        .unwrap();
    let want: Vec<f64> = (0..4)
        .map(|r| dot(&x[r * 3..][..3], &y[r * 3..][..3]))
        .collect();
    assert_close("dots", &dots, &want, 1e-15);
    let places = cpu.ids(&[2, 0, 2, 1, 3, 3]).unwrap();
    let sums = cpu
        .read_f64(&cpu.sum_rows(&tx, &places, 3).unwrap())
        .unwrap();
    let row = |r: usize, c: usize| x[r * 3 + c];
    let want: Vec<f64> = [[2, 0, 2], [1, 3, 3]]
        .iter()
        .flat_map(|p| (0..3).map(move |c| row(p[0], c) + row(p[1], c) + row(p[2], c)))
        .collect();
    assert_eq!(sums, want);
    assert!(cpu.sum_rows(&tx, &cpu.ids(&[4, 0]).unwrap(), 2).is_err());
}

#[test]
fn a_map_of_columns_is_undone_by_its_transpose() {
    let cpu = f64s();
    // Two inputs of 2 and 3 columns: repeat, drop, move, fill with nothing.
    let map = ColumnMap::copies(5, [Some(4), None, Some(0), Some(0), Some(2)]);
    let (x, dy) = (numbers(1, 3 * 5), numbers(2, 3 * 5));
    let parts = |x: &[f64]| {
        let split = |from: usize, to: usize| -> Vec<f64> {
            (0..3)
                .flat_map(|r| x[r * 5 + from..r * 5 + to].to_vec())
                .collect()
        };
        (
            tensor(&cpu, 3, 2, &split(0, 2)),
            tensor(&cpu, 3, 3, &split(2, 5)),
        )
    };
    let mapped = |x: &[f64]| {
        let (a, b) = parts(x);
        cpu.read_f64(&cpu.map_columns(&[&a, &b], &map).unwrap())
            .unwrap()
    };
    let y = mapped(&x);
    assert_eq!(&y[..5], &[x[4], 0.0, x[0], x[0], x[2]]);
    let back = map.transposed();
    let dx = cpu.map_columns(&[&tensor(&cpu, 3, 5, &dy)], &back).unwrap();
    assert_gradient("dx", &cpu.read_f64(&dx).unwrap(), &x, |x| {
        dot(&mapped(x), &dy)
    });
    assert!(cpu.map_columns(&[&parts(&x).0], &map).is_err());
}

#[test]
fn each_head_meets_its_own_rows() {
    let cpu = f64s();
    let (heads, rows) = (3, 5);
    // A head has 7 columns of x and 6 rows of w.
    let (x, w) = (numbers(1, rows * 21), numbers(2, 18 * 4));
    let (tx, tw) = (tensor(&cpu, rows, 21, &x), tensor(&cpu, 18, 4, &w));
    let at = |h: usize, j: usize, c: usize| w[(h * 6 + j) * 4 + c];
    let parts = HeadParts {
        heads,
        x_start: 2,
        w_start: 1,
        len: 3,
    };
    let down = cpu
        .read_f64(&cpu.heads_nn(&tx, &tw, parts).unwrap())
        .unwrap();
    let up = cpu
        .read_f64(&cpu.heads_nt(&tx, &tw, parts).unwrap())
        .unwrap();
    let (mut want_down, mut want_up) = (Vec::new(), Vec::new());
    for row in 0..rows {
        for h in 0..heads {
            let own = |j: usize| x[row * 21 + h * 7 + 2 + j];
            want_down.extend((0..4).map(|c| (0..3).map(|j| own(j) * at(h, 1 + j, c)).sum::<f64>()));
            want_up.extend((0..3).map(|j| (0..4).map(|c| own(c) * at(h, 1 + j, c)).sum::<f64>()));
        }
    }
    assert_close("nn", &down, &want_down, 1e-14);
    assert_close("nt", &up, &want_up, 1e-14);
    let outside = HeadParts {
        w_start: 4,
        ..parts
    };
    assert!(cpu.heads_nn(&tx, &tw, outside).is_err());
}

#[test]
fn a_gates_gradients_are_slopes() {
    let cpu = f64s();
    let (x, g, dy) = (numbers(1, 15), numbers(2, 15), numbers(3, 15));
    let t = |x: &[f64]| tensor(&cpu, 3, 5, x);
    let loss = |x: &[f64], g: &[f64]| {
        dot(
            &cpu.read_f64(&cpu.gate(&t(x), &t(g)).unwrap()).unwrap(),
            &dy,
        )
    };
    let (dx, dg) = cpu.gate_backward(&t(&dy), &t(&x), &t(&g)).unwrap();
    assert_gradient("dx", &cpu.read_f64(&dx).unwrap(), &x, |x| loss(x, &g));
    assert_gradient("dg", &cpu.read_f64(&dg).unwrap(), &g, |g| loss(&x, g));
}

#[test]
fn a_convolution_sees_its_own_sequence_and_no_later_token() {
    let cpu = f64s();
    let sequences = Sequences {
        offsets: vec![0, 1, 1, 7, 9],
    };
    let (cols, taps) = (3, 4);
    let (x, w, dy) = (
        numbers(1, 9 * cols),
        numbers(2, cols * taps),
        numbers(3, 9 * cols),
    );
    let (t, tw) = (
        |x: &[f64]| tensor(&cpu, 9, cols, x),
        |w: &[f64]| tensor(&cpu, cols, taps, w),
    );
    let y = |x: &[f64], w: &[f64]| {
        cpu.read_f64(&cpu.causal_conv(&t(x), &tw(w), &sequences).unwrap())
            .unwrap()
    };
    let mut want = Vec::new();
    for range in sequences.ranges() {
        for i in range.clone() {
            for c in 0..cols {
                let z: f64 = (0..taps)
                    .filter(|j| i + j + 1 >= range.start + taps)
                    .map(|j| w[c * taps + j] * x[(i + j + 1 - taps) * cols + c])
                    .sum();
                want.push(z / (1.0 + (-z).exp()));
            }
        }
    }
    assert_close("y", &y(&x, &w), &want, 1e-14);
    let mut dw = cpu.float_zeros(cols, taps).unwrap();
    let dx = cpu
        .causal_conv_backward(&t(&dy), &t(&x), &tw(&w), &sequences, &mut dw)
        .unwrap();
    assert_gradient("dx", &cpu.read_f64(&dx).unwrap(), &x, |x| {
        dot(&y(x, &w), &dy)
    });
    assert_gradient("dw", &cpu.read_float_f64(&dw).unwrap(), &w, |w| {
        dot(&y(&x, w), &dy)
    });
}

const HEADS: DeltaHeads = DeltaHeads {
    keys: 2,
    values: 4,
    key_dim: 3,
    value_dim: 5,
};

/// The rule as it is written down, one head at a time.
fn delta_loops(
    qkv: &[f64],
    gates: &[f64],
    a_log: &[f64],
    dt: &[f64],
    sequences: &Sequences,
) -> Vec<f64> {
    let DeltaHeads {
        keys,
        values,
        key_dim,
        value_dim,
    } = HEADS;
    let cols = HEADS.cols();
    let mut out = vec![0.0; sequences.num_tokens() * values * value_dim];
    let unit = |x: &[f64]| -> Vec<f64> {
        let length = (dot(x, x) + 1e-6).sqrt();
        x.iter().map(|x| x / length).collect()
    };
    for range in sequences.ranges() {
        for h in 0..values {
            let mut state = vec![vec![0.0; value_dim]; key_dim];
            for t in range.clone() {
                let row = &qkv[t * cols..(t + 1) * cols];
                let at = h / (values / keys) * key_dim;
                let q = unit(&row[at..at + key_dim]);
                let k = unit(&row[keys * key_dim + at..][..key_dim]);
                let v = &row[2 * keys * key_dim + h * value_dim..][..value_dim];
                let (b, a) = (
                    gates[t * 2 * values + h],
                    gates[t * 2 * values + values + h],
                );
                let beta = 1.0 / (1.0 + (-b).exp());
                let alpha = (-a_log[h].exp() * (1.0 + (a + dt[h]).exp()).ln()).exp();
                for j in 0..value_dim {
                    let remembered: f64 = (0..key_dim).map(|i| alpha * state[i][j] * k[i]).sum();
                    for i in 0..key_dim {
                        state[i][j] = alpha * state[i][j] + k[i] * beta * (v[j] - remembered);
                    }
                    let read: f64 = (0..key_dim).map(|i| state[i][j] * q[i]).sum();
                    out[(t * values + h) * value_dim + j] = read / (key_dim as f64).sqrt();
                }
            }
        }
    }
    out
}

#[test]
fn the_delta_rule_is_what_is_written_down_and_its_gradients_are_slopes() {
    let cpu = f64s();
    let values = HEADS.values;
    // Longer than the chunk that the backward makes states again from.
    for lengths in [vec![3, 0, 5], vec![70]] {
        let sequences = Sequences::from_lengths(lengths);
        let rows = sequences.num_tokens();
        let (qkv, gates) = (
            numbers(1, rows * HEADS.cols()),
            numbers(2, rows * 2 * values),
        );
        let (a_log, dt) = (numbers(3, values), numbers(4, values));
        let dy = numbers(5, rows * values * HEADS.value_dim);
        let y = |qkv: &[f64], gates: &[f64], a_log: &[f64], dt: &[f64]| {
            let (a_log, dt) = (tensor(&cpu, 1, values, a_log), tensor(&cpu, 1, values, dt));
            let rule = DeltaRule {
                heads: HEADS,
                a_log: &a_log,
                dt_bias: &dt,
            };
            let (qkv, gates) = (
                tensor(&cpu, rows, HEADS.cols(), qkv),
                tensor(&cpu, rows, 2 * values, gates),
            );
            cpu.read_f64(&cpu.gated_delta(&qkv, &gates, &rule, &sequences).unwrap())
                .unwrap()
        };
        let want = delta_loops(&qkv, &gates, &a_log, &dt, &sequences);
        assert_close("y", &y(&qkv, &gates, &a_log, &dt), &want, 1e-12);

        let (ta, tdt) = (
            tensor(&cpu, 1, values, &a_log),
            tensor(&cpu, 1, values, &dt),
        );
        let rule = DeltaRule {
            heads: HEADS,
            a_log: &ta,
            dt_bias: &tdt,
        };
        let mut da = cpu.float_zeros(1, values).unwrap();
        let mut ddt = cpu.float_zeros(1, values).unwrap();
        let (dqkv, dgates) = cpu
            .gated_delta_backward(
                &tensor(&cpu, rows, values * HEADS.value_dim, &dy),
                &tensor(&cpu, rows, HEADS.cols(), &qkv),
                &tensor(&cpu, rows, 2 * values, &gates),
                &rule,
                &sequences,
                (&mut da, &mut ddt),
            )
            .unwrap();
        let loss = |q: &[f64], g: &[f64], a: &[f64], d: &[f64]| dot(&y(q, g, a, d), &dy);
        assert_gradient("dqkv", &cpu.read_f64(&dqkv).unwrap(), &qkv, |x| {
            loss(x, &gates, &a_log, &dt)
        });
        assert_gradient("dgates", &cpu.read_f64(&dgates).unwrap(), &gates, |x| {
            loss(&qkv, x, &a_log, &dt)
        });
        assert_gradient("da_log", &cpu.read_float_f64(&da).unwrap(), &a_log, |x| {
            loss(&qkv, &gates, x, &dt)
        });
        assert_gradient("ddt_bias", &cpu.read_float_f64(&ddt).unwrap(), &dt, |x| {
            loss(&qkv, &gates, &a_log, x)
        });
    }
}

#[test]
fn a_memory_in_the_cache_gives_the_bits_of_training_from_any_block() {
    let cpu: Cpu<f32> = f32s();
    let (length, taps, values) = (45, 4, HEADS.values);
    let x = cpu
        .tensor(length, HEADS.cols(), &floats(1, length * HEADS.cols()))
        .unwrap();
    let gates = cpu
        .tensor(length, 2 * values, &floats(2, length * 2 * values))
        .unwrap();
    let conv = cpu
        .tensor(HEADS.cols(), taps, &floats(3, HEADS.cols() * taps))
        .unwrap();
    let (a_log, dt) = (
        cpu.tensor(1, values, &floats(4, values)).unwrap(),
        cpu.tensor(1, values, &floats(5, values)).unwrap(),
    );
    let rule = DeltaRule {
        heads: HEADS,
        a_log: &a_log,
        dt_bias: &dt,
    };
    let sequences = Sequences::from_lengths([length]);
    let convolved = cpu.causal_conv(&x, &conv, &sequences).unwrap();
    let trained = cpu
        .read(
            &cpu.gated_delta(&convolved, &gates, &rule, &sequences)
                .unwrap(),
        )
        .unwrap();
    let width = values * HEADS.value_dim;

    let mut states = cpu.float_zeros(9, HEADS.state_len(taps)).unwrap();
    let mut serve = |from: usize, to: usize, blocks: &[u32]| {
        let rows = cpu
            .ids(&(from as u32..to as u32).collect::<Vec<_>>())
            .unwrap();
        let (x, gates) = (
            cpu.gather_rows(&x, &rows).unwrap(),
            cpu.gather_rows(&gates, &rows).unwrap(),
        );
        let sequence = PagedSequence {
            rows: 0..to - from,
            context: to,
            blocks,
        };
        let out = cpu
            .gated_delta_paged(&mut states, &x, &conv, &gates, &rule, &[sequence])
            .unwrap();
        let out = cpu.read(&out).unwrap();
        assert!(
            bits(&out) == bits(&trained[from * width..to * width]),
            "{from}..{to}"
        );
    };
    let blocks = [4, 1, 7];
    serve(0, 19, &blocks);
    serve(19, 20, &blocks);
    serve(20, 45, &blocks);
    // Another sequence shares the first two blocks and goes on from their end.
    serve(32, 40, &[4, 1, 0]);
}
