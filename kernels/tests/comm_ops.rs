//! Operations that only several ranks need, against the whole computation on one.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use slime_kernels::{Cpu, Heads, KeySpan, NO_TARGET, Ops, Patch, Sequences};

type F64 = Cpu<f64>;

/// Numbers that look random and are the same everywhere.
fn numbers(count: usize, seed: u64) -> Vec<f64> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn furthest(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let gap = |(a, b): (&f64, &f64)| {
        if (a - b).is_nan() {
            f64::INFINITY
        } else {
            (a - b).abs()
        }
    };
    a.iter().zip(b).map(gap).fold(0.0, f64::max)
}

/// One sequence of `chunks × 2` pieces on `ranks` ranks, by hand: what each rank holds, merged hop by hop; against attention
/// over the whole sequence. Returns the furthest gaps of output, lse, and gradient.
fn ring(ops: &F64, heads: Heads, len: usize, ranks: usize, scale: f64) -> [f64; 3] {
    let (cols, out_cols) = (heads.qkv_cols(), heads.out_cols());
    let (qkv, dout) = (numbers(len * cols, 3), numbers(len * out_cols, 4));
    let rows_of = |data: &[f64], cols: usize, rows: &[usize]| -> Vec<f64> {
        rows.iter()
            .flat_map(|&r| data[r * cols..][..cols].to_vec())
            .collect()
    };
    let whole = Sequences::from_lengths([len]);
    let (q, d) = (
        ops.tensor_f64(len, cols, &qkv).unwrap(),
        ops.tensor_f64(len, out_cols, &dout).unwrap(),
    );
    let (out, lse) = ops.attention(&q, heads, &whole, scale).unwrap();
    let grad = ops
        .attention_backward(&d, &q, &out, &lse, heads, &whole, scale)
        .unwrap();
    let (out, lse, grad) = (
        ops.read_f64(&out).unwrap(),
        ops.read_float_f64(&lse).unwrap(),
        ops.read_f64(&grad).unwrap(),
    );

    let chunk = len / (2 * ranks);
    let held = |rank: usize| -> Vec<usize> {
        let last = 2 * ranks - 1 - rank;
        (rank * chunk..(rank + 1) * chunk)
            .chain(last * chunk..(last + 1) * chunk)
            .collect()
    };
    let own = Sequences::from_lengths([2 * chunk]);
    let mut merged_grad = vec![0.0; len * cols];
    let mut gaps = [0.0f64; 3];
    for rank in 0..ranks {
        let rows = held(rank);
        let n = rows.len();
        let q = ops
            .tensor_f64(n, cols, &rows_of(&qkv, cols, &rows))
            .unwrap();
        let d = ops
            .tensor_f64(n, out_cols, &rows_of(&dout, out_cols, &rows))
            .unwrap();
        let kv_of = |other: usize| {
            let all = ops
                .tensor_f64(n, cols, &rows_of(&qkv, cols, &held(other)))
                .unwrap();
            ops.columns(&all, out_cols..cols).unwrap()
        };
        let spans_of = |other: usize| match other < rank {
            true => vec![KeySpan {
                queries: 0..n,
                keys: 0..chunk,
            }],
            false => vec![KeySpan {
                queries: chunk..n,
                keys: 0..n,
            }],
        };
        let (mut o, mut l) = ops.attention(&q, heads, &own, scale).unwrap();
        for other in (0..ranks).filter(|&other| other != rank) {
            let spans = spans_of(other);
            (o, l) = ops
                .attend_keys(&q, &kv_of(other), heads, &spans, scale, &o, &l)
                .unwrap();
        }
        gaps[0] = gaps[0].max(furthest(
            &ops.read_f64(&o).unwrap(),
            &rows_of(&out, out_cols, &rows),
        ));
        let mine = ops.read_float_f64(&l).unwrap();
        for head in 0..heads.query {
            let want: Vec<f64> = rows.iter().map(|&r| lse[head * len + r]).collect();
            gaps[1] = gaps[1].max(furthest(&mine[head * n..][..n], &want));
        }
        let dq = ops
            .attention_backward(&d, &q, &o, &l, heads, &own, scale)
            .unwrap();
        let mut add = |rows: &[usize], part: Vec<f64>, width: usize, at: usize| {
            for (i, &row) in rows.iter().enumerate() {
                for c in 0..width {
                    merged_grad[row * cols + at + c] += part[i * width + c];
                }
            }
        };
        add(&rows, ops.read_f64(&dq).unwrap(), cols, 0);
        for other in (0..ranks).filter(|&other| other != rank) {
            let (kv, spans) = (kv_of(other), spans_of(other));
            let (dq, dkv) = ops
                .attend_keys_backward(&d, &q, &kv, heads, &spans, scale, &o, &l)
                .unwrap();
            add(&rows, ops.read_f64(&dq).unwrap(), cols, 0);
            add(
                &held(other),
                ops.read_f64(&dkv).unwrap(),
                cols - out_cols,
                out_cols,
            );
        }
    }
    gaps[2] = furthest(&merged_grad, &grad);
    gaps
}

#[test]
fn pitfall_22_partial_attentions_merge_to_the_whole_at_a_head_of_128() {
    let heads = Heads {
        query: 2,
        kv: 1,
        dim: 128,
    };
    let [out, lse, _] = ring(&F64::new(), heads, 512, 4, 1.0 / 128f64.sqrt());
    assert!(out < 1e-13 && lse < 1e-12, "{out:e} {lse:e}");
}

#[test]
fn pitfall_23_gradients_of_the_parts_add_up_to_the_wholes() {
    let heads = Heads {
        query: 4,
        kv: 2,
        dim: 16,
    };
    for ranks in [2, 4] {
        let [.., grad] = ring(&F64::new(), heads, 64, ranks, 0.3);
        assert!(grad < 1e-13, "{ranks} ranks: {grad:e}");
    }
}

#[test]
fn pitfall_24_key_heads_get_the_gradients_of_all_their_query_heads() {
    for group in [1, 2, 7, 8] {
        let heads = Heads {
            query: 2 * group,
            kv: 2,
            dim: 8,
        };
        let ops = F64::new();
        let len = 12;
        let (cols, out_cols) = (heads.qkv_cols(), heads.out_cols());
        let (qkv, dout) = (numbers(len * cols, 8), numbers(len * out_cols, 9));
        let whole = Sequences::from_lengths([5, 7]);
        let loss = |qkv: &[f64]| -> f64 {
            let q = ops.tensor_f64(len, cols, qkv).unwrap();
            let (out, _) = ops.attention(&q, heads, &whole, 0.4).unwrap();
            let out = ops.read_f64(&out).unwrap();
            out.iter().zip(&dout).map(|(a, b)| a * b).sum()
        };
        let q = ops.tensor_f64(len, cols, &qkv).unwrap();
        let d = ops.tensor_f64(len, out_cols, &dout).unwrap();
        let (out, lse) = ops.attention(&q, heads, &whole, 0.4).unwrap();
        let grad = ops
            .attention_backward(&d, &q, &out, &lse, heads, &whole, 0.4)
            .unwrap();
        let grad = ops.read_f64(&grad).unwrap();
        // A key and a value element of each key head, by central differences.
        for at in [
            out_cols + 3,
            out_cols + 8 + 1,
            out_cols + 16 + 5,
            out_cols + 24 + 2,
        ] {
            for row in [0, 4, 6, 11] {
                let place = row * cols + at;
                let mut moved = qkv.clone();
                moved[place] += 1e-6;
                let up = loss(&moved);
                moved[place] -= 2e-6;
                let slope = (up - loss(&moved)) / 2e-6;
                assert!(
                    (slope - grad[place]).abs() < 1e-8,
                    "{group} heads, {slope} {}",
                    grad[place]
                );
            }
        }
    }
}

#[test]
fn pitfall_12_the_gradient_in_place_of_the_logits_is_the_same_bits_every_time() {
    let ops = Cpu::<f32>::new();
    let (rows, vocab) = (37, 1021);
    let z: Vec<f32> = numbers(rows * vocab, 1)
        .iter()
        .map(|x| 4.0 * *x as f32)
        .collect();
    let targets = ops
        .ids(&(0..rows as u32).map(|r| r * 13 % 1021).collect::<Vec<_>>())
        .unwrap();
    let (a, b) = (numbers(rows, 2), numbers(rows, 3));
    let once = || {
        let logits = ops.float(rows, vocab, &z).unwrap();
        let stats = ops.token_stats(&logits, &targets, 1.25, vocab).unwrap();
        let dz = ops
            .logits_backward(logits, &targets, 1.25, vocab, &stats, &a, &b)
            .unwrap();
        ops.read(&dz)
            .unwrap()
            .iter()
            .map(|x| x.to_bits())
            .collect::<Vec<_>>()
    };
    let first = once();
    for _ in 0..300 {
        assert!(once() == first);
    }
}

#[test]
fn a_target_on_another_rank_leaves_its_rank_only_the_softmaxs_gradient() {
    let ops = F64::new();
    let (rows, vocab) = (3, 10);
    let z = numbers(rows * vocab, 5);
    let logits = || ops.float_f64(rows, vocab, &z).unwrap();
    let all = ops.ids(&[1, 7, 9]).unwrap();
    let stats = ops.token_stats(&logits(), &all, 0.7, vocab).unwrap();
    let (a, b) = (numbers(rows, 6), numbers(rows, 7));
    let whole = ops
        .logits_backward(logits(), &all, 0.7, vocab, &stats, &a, &b)
        .unwrap();
    let whole = ops.read_f64(&whole).unwrap();
    let mut parts = Vec::new();
    for (start, targets) in [(0, [1, NO_TARGET, NO_TARGET]), (5, [NO_TARGET, 2, 4])] {
        let half: Vec<f64> = (0..rows)
            .flat_map(|r| z[r * vocab + start..][..5].to_vec())
            .collect();
        let half = ops.float_f64(rows, 5, &half).unwrap();
        let ids = ops.ids(&targets).unwrap();
        let dz = ops
            .logits_backward(half, &ids, 0.7, 5, &stats, &a, &b)
            .unwrap();
        parts.push(ops.read_f64(&dz).unwrap());
    }
    for row in 0..rows {
        let joined: Vec<f64> = parts
            .iter()
            .flat_map(|p| p[row * 5..][..5].to_vec())
            .collect();
        assert_eq!(joined, whole[row * vocab..][..vocab]);
    }
    // Where the log-prob is asked for, the target must be there.
    let nowhere = ops.ids(&[NO_TARGET; 3]).unwrap();
    assert!(ops.token_stats(&logits(), &nowhere, 0.7, vocab).is_err());
}

#[test]
fn pitfall_34_a_product_without_rows_leaves_a_gradient_as_it_is() {
    let ops = Cpu::<f32>::poisoning();
    let start: Vec<f32> = numbers(6 * 4, 1).iter().map(|x| *x as f32).collect();
    let mut dw = ops.float(6, 4, &start).unwrap();
    let (dy, x) = (
        ops.tensor(0, 6, &[]).unwrap(),
        ops.tensor(0, 4, &[]).unwrap(),
    );
    ops.accumulate_tn(&dy, &x, &mut dw).unwrap();
    let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&ops.read_float(&dw).unwrap()), bits(&start));
}

#[test]
fn pieces_are_cut_laid_together_and_padded_with_zeros() {
    let ops = F64::new();
    let x = ops
        .tensor_f64(2, 3, &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0])
        .unwrap();
    let y = ops.tensor_f64(1, 2, &[7.0, 8.0]).unwrap();
    let read = |x| ops.read_f64(&x).unwrap();
    let joined = ops.join(&[(&x, 1..5), (&y, 0..1)], 7).unwrap();
    assert_eq!(ops.shape(&joined), (1, 7));
    assert_eq!(read(joined), [2.0, 3.0, 4.0, 5.0, 7.0, 0.0, 0.0]);
    assert_eq!(read(ops.cut(&x, 2..6, 2, 2).unwrap()), [3.0, 4.0, 5.0, 6.0]);
    assert_eq!(read(ops.columns(&x, 1..3).unwrap()), [2.0, 3.0, 5.0, 6.0]);
    let column = ops.tensor_f64(2, 1, &[10.0, 20.0]).unwrap();
    let added = ops.add_columns(&x, &column, 2).unwrap();
    assert_eq!(read(added), [1.0, 2.0, 13.0, 4.0, 5.0, 26.0]);
    let patch = |from, elements, to, width, stride| Patch {
        from,
        elements,
        to,
        width,
        stride,
    };
    let (left, right) = (patch(&x, 1..5, 0, 2, 3), patch(&y, 0..2, 2, 1, 3));
    let laid = ops.lay_out(&[left.clone(), right], 2, 3).unwrap();
    assert_eq!(read(laid), [2.0, 3.0, 7.0, 4.0, 5.0, 8.0]);
    for refused in [
        ops.lay_out(std::slice::from_ref(&left), 2, 3),
        ops.lay_out(&[left.clone(), patch(&y, 0..2, 3, 1, 3)], 2, 3),
        ops.lay_out(&[left, patch(&y, 0..2, 5, 2, 3)], 2, 3),
        ops.join(&[(&x, 0..6)], 5),
        ops.cut(&x, 3..7, 2, 2),
        ops.columns(&x, 2..4),
    ] {
        assert!(refused.is_err());
    }
}

#[test]
fn products_in_turns_are_the_product() {
    let ops = F64::poisoning();
    let (rows, inputs, outputs) = (7, 5, 6);
    let x = ops
        .tensor_f64(rows, inputs, &numbers(rows * inputs, 1))
        .unwrap();
    let w = ops
        .tensor_f64(outputs, inputs, &numbers(outputs * inputs, 2))
        .unwrap();
    let dy = ops
        .tensor_f64(rows, outputs, &numbers(rows * outputs, 3))
        .unwrap();
    let (mut y, mut dx) = (
        ops.room(rows, outputs).unwrap(),
        ops.room(rows, inputs).unwrap(),
    );
    for range in [2..7, 0..2] {
        let at = range.start;
        ops.put_nt(&ops.rows(&x, range.clone()).unwrap(), &w, &mut y, at)
            .unwrap();
        ops.put_nn(&ops.rows(&dy, range).unwrap(), &w, &mut dx, at)
            .unwrap();
    }
    let whole = (
        ops.matmul_nt(&x, &w).unwrap(),
        ops.matmul_nn(&dy, &w).unwrap(),
    );
    for (made, whole) in [(&y, &whole.0), (&dx, &whole.1)] {
        assert_eq!(ops.read_f64(made).unwrap(), ops.read_f64(whole).unwrap());
    }
    assert!(ops.put_nt(&x, &w, &mut y, 1).is_err());
    assert!(ops.rows(&x, 3..8).is_err());
}

#[test]
fn a_sum_is_in_order_and_of_something() {
    let ops = Cpu::<f32>::new();
    let of = |x: f64| ops.tensor_f64(1, 1, &[x]).unwrap();
    // In f32, term by term, the small ones would be lost.
    let sum = ops
        .sum(&[&of(1.0), &of(3e-8), &of(3e-8), &of(3e-8)])
        .unwrap();
    assert_eq!(ops.read(&sum).unwrap(), [1.0 + f32::EPSILON]);
    assert!(ops.sum(&[]).is_err());
    assert!(ops.sum(&[&of(1.0), &ops.room(2, 1).unwrap()]).is_err());
}
