//! Every operation's backward against central differences, in f64.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod oracle;

use oracle::*;
use slime_kernels::{Heads, Norms, Ops, RopeStyle, Sequences, TokenStats};

#[test]
fn matmul_and_bias() {
    let cpu = f64s();
    for (rows, inputs, outputs) in [(1, 1, 1), (3, 5, 4), (7, 19, 10), (0, 3, 2)] {
        let (x, w, b) = (
            numbers(1, rows * inputs),
            numbers(2, outputs * inputs),
            numbers(3, outputs),
        );
        let dy = numbers(4, rows * outputs);
        let y = |x: &[f64], w: &[f64], b: &[f64]| {
            let y = cpu
                .matmul_nt(
                    &tensor(&cpu, rows, inputs, x),
                    &tensor(&cpu, outputs, inputs, w),
                )
                .unwrap();
            let y = cpu.add_bias(&y, &tensor(&cpu, 1, outputs, b)).unwrap();
            dot(&cpu.read_f64(&y).unwrap(), &dy)
        };
        let (tx, tw, tdy) = (
            tensor(&cpu, rows, inputs, &x),
            tensor(&cpu, outputs, inputs, &w),
            tensor(&cpu, rows, outputs, &dy),
        );
        let dx = cpu.matmul_nn(&tdy, &tw).unwrap();
        assert_gradient("dx", &cpu.read_f64(&dx).unwrap(), &x, |x| y(x, &w, &b));
        let mut dw = cpu.float_zeros(outputs, inputs).unwrap();
        cpu.accumulate_tn(&tdy, &tx, &mut dw).unwrap();
        assert_gradient("dw", &cpu.read_float_f64(&dw).unwrap(), &w, |w| {
            y(&x, w, &b)
        });
        let mut db = cpu.float_zeros(1, outputs).unwrap();
        cpu.accumulate_bias(&tdy, &mut db).unwrap();
        assert_gradient("db", &cpu.read_float_f64(&db).unwrap(), &b, |b| {
            y(&x, &w, b)
        });
    }
}

#[test]
fn embedding_with_repeated_ids() {
    let cpu = f64s();
    let (vocab, hidden, tokens) = (5, 6, [4, 0, 4, 4, 2]);
    let (table, dy) = (
        numbers(1, vocab * hidden),
        numbers(2, tokens.len() * hidden),
    );
    let ids = cpu.ids(&tokens).unwrap();
    let mut dtable = cpu.float_zeros(vocab, hidden).unwrap();
    cpu.accumulate_embed(&tensor(&cpu, tokens.len(), hidden, &dy), &ids, &mut dtable)
        .unwrap();
    assert_gradient(
        "dtable",
        &cpu.read_float_f64(&dtable).unwrap(),
        &table,
        |table| {
            dot(
                &cpu.read_f64(
                    &cpu.embed(&tensor(&cpu, vocab, hidden, table), &ids)
                        .unwrap(),
                )
                .unwrap(),
                &dy,
            )
        },
    );
}

#[test]
fn gather_is_undone_by_scatter() {
    let cpu = f64s();
    let (x, dy) = (numbers(1, 6 * 3), numbers(2, 2 * 3));
    let rows = cpu.ids(&[5, 1]).unwrap();
    let dx = cpu
        .scatter_rows(&tensor(&cpu, 2, 3, &dy), &rows, 6)
        .unwrap();
    assert_gradient("dx", &cpu.read_f64(&dx).unwrap(), &x, |x| {
        dot(
            &cpu.read_f64(&cpu.gather_rows(&tensor(&cpu, 6, 3, x), &rows).unwrap())
                .unwrap(),
            &dy,
        )
    });
}

#[test]
fn rmsnorm_alone_and_with_residual() {
    let cpu = f64s();
    for (rows, cols) in [(1, 1), (5, 8), (70, 11)] {
        let (x, w, dy, residual) = (
            numbers(1, rows * cols),
            numbers(2, cols),
            numbers(3, rows * cols),
            numbers(4, rows * cols),
        );
        let loss = |x: &[f64], w: &[f64]| {
            let (y, _) = cpu
                .rmsnorm(
                    &tensor(&cpu, rows, cols, x),
                    &tensor(&cpu, 1, cols, w),
                    1e-3,
                )
                .unwrap();
            // The residual's gradient reaches x past the norm.
            dot(&cpu.read_f64(&y).unwrap(), &dy) + dot(x, &residual)
        };
        let (tx, tw) = (tensor(&cpu, rows, cols, &x), tensor(&cpu, 1, cols, &w));
        let (_, r) = cpu.rmsnorm(&tx, &tw, 1e-3).unwrap();
        let mut dw = cpu.float_zeros(1, cols).unwrap();
        let (dy, residual) = (
            tensor(&cpu, rows, cols, &dy),
            tensor(&cpu, rows, cols, &residual),
        );
        let dx = cpu
            .rmsnorm_backward(&dy, &tx, &r, &tw, Some(&residual), &mut dw)
            .unwrap();
        assert_gradient("dx", &cpu.read_f64(&dx).unwrap(), &x, |x| loss(x, &w));
        assert_gradient("dw", &cpu.read_float_f64(&dw).unwrap(), &w, |w| loss(&x, w));

        let delta = tensor(&cpu, rows, cols, &numbers(5, rows * cols));
        let (s, y, r) = cpu.add_rmsnorm(&tx, &delta, &tw, 1e-3).unwrap();
        let sum = cpu.add(&tx, &delta).unwrap();
        let (y_of_sum, r_of_sum) = cpu.rmsnorm(&sum, &tw, 1e-3).unwrap();
        assert_eq!(cpu.read_f64(&s).unwrap(), cpu.read_f64(&sum).unwrap());
        assert_eq!(cpu.read_f64(&y).unwrap(), cpu.read_f64(&y_of_sum).unwrap());
        assert_eq!(
            cpu.read_float_f64(&r).unwrap(),
            cpu.read_float_f64(&r_of_sum).unwrap()
        );
    }
}

#[test]
fn queries_and_keys_normed_and_rotated() {
    let cpu = f64s();
    let heads = Heads {
        query: 3,
        kv: 1,
        dim: 8,
    };
    let positions = [0u32, 7, 31, 3];
    let ids = cpu.ids(&positions).unwrap();
    let (rows, cols) = (positions.len(), heads.qkv_cols());
    let (x, dy) = (numbers(1, rows * cols), numbers(2, rows * cols));
    let (wq, wk) = (numbers(3, heads.dim), numbers(4, heads.dim));
    for style in [RopeStyle::Half, RopeStyle::Interleaved] {
        for dims in [8, 6, 2, 0] {
            let rope = rope(&cpu, 32, dims, style);
            for normed in [false, true] {
                let loss = |x: &[f64], wq: &[f64], wk: &[f64]| {
                    let (wq, wk) = (
                        tensor(&cpu, 1, heads.dim, wq),
                        tensor(&cpu, 1, heads.dim, wk),
                    );
                    let norms = normed.then_some(Norms {
                        query: &wq,
                        key: &wk,
                        eps: 1e-3,
                    });
                    let (y, _) = cpu
                        .qk_norm_rope(&tensor(&cpu, rows, cols, x), heads, &ids, &rope, norms)
                        .unwrap();
                    dot(&cpu.read_f64(&y).unwrap(), &dy)
                };
                let tx = tensor(&cpu, rows, cols, &x);
                let (twq, twk) = (
                    tensor(&cpu, 1, heads.dim, &wq),
                    tensor(&cpu, 1, heads.dim, &wk),
                );
                let norms = || Norms {
                    query: &twq,
                    key: &twk,
                    eps: 1e-3,
                };
                let (_, r) = cpu
                    .qk_norm_rope(&tx, heads, &ids, &rope, normed.then(norms))
                    .unwrap();
                let (mut dwq, mut dwk) = (
                    cpu.float_zeros(1, heads.dim).unwrap(),
                    cpu.float_zeros(1, heads.dim).unwrap(),
                );
                let saved = r.as_ref().map(|r| (norms(), &tx, r));
                let dnorms = normed.then_some((&mut dwq, &mut dwk));
                let dx = cpu
                    .qk_norm_rope_backward(
                        &tensor(&cpu, rows, cols, &dy),
                        heads,
                        &ids,
                        &rope,
                        saved,
                        dnorms,
                    )
                    .unwrap();
                assert_gradient("dqkv", &cpu.read_f64(&dx).unwrap(), &x, |x| {
                    loss(x, &wq, &wk)
                });
                if normed {
                    assert_gradient("dquery", &cpu.read_float_f64(&dwq).unwrap(), &wq, |wq| {
                        loss(&x, wq, &wk)
                    });
                    assert_gradient("dkey", &cpu.read_float_f64(&dwk).unwrap(), &wk, |wk| {
                        loss(&x, &wq, wk)
                    });
                }
            }
        }
    }
}

fn attention_gradient(heads: Heads, lengths: &[usize]) {
    let cpu = f64s();
    let sequences = Sequences::from_lengths(lengths.iter().copied());
    let (tokens, scale) = (sequences.num_tokens(), 1.0 / (heads.dim as f64).sqrt());
    let (x, dy) = (
        numbers(1, tokens * heads.qkv_cols()),
        numbers(2, tokens * heads.out_cols()),
    );
    let tx = tensor(&cpu, tokens, heads.qkv_cols(), &x);
    let (out, lse) = cpu.attention(&tx, heads, &sequences, scale).unwrap();
    let dout = tensor(&cpu, tokens, heads.out_cols(), &dy);
    let dx = cpu
        .attention_backward(&dout, &tx, &out, &lse, heads, &sequences, scale)
        .unwrap();
    assert_gradient(
        &format!("{heads:?} {lengths:?}"),
        &cpu.read_f64(&dx).unwrap(),
        &x,
        |x| {
            let (y, _) = cpu
                .attention(
                    &tensor(&cpu, tokens, heads.qkv_cols(), x),
                    heads,
                    &sequences,
                    scale,
                )
                .unwrap();
            dot(&cpu.read_f64(&y).unwrap(), &dy)
        },
    );
}

#[test]
fn attention_of_groups_of_one_two_and_seven() {
    for query in [1, 2, 7] {
        attention_gradient(
            Heads {
                query,
                kv: 1,
                dim: 5,
            },
            &[1, 0, 7, 2],
        );
        attention_gradient(
            Heads {
                query: 2 * query,
                kv: 2,
                dim: 4,
            },
            &[5, 3],
        );
    }
}

#[test]
fn attention_of_common_head_sizes() {
    for dim in [16, 24, 64] {
        attention_gradient(
            Heads {
                query: 2,
                kv: 1,
                dim,
            },
            &[0, 7, 1],
        );
    }
}

#[test]
fn attention_longer_than_a_tile() {
    attention_gradient(
        Heads {
            query: 1,
            kv: 1,
            dim: 2,
        },
        &[33, 130],
    );
}

#[test]
fn swiglu() {
    let cpu = f64s();
    let (tokens, f) = (4, 7);
    let (x, da) = (numbers(1, tokens * 2 * f), numbers(2, tokens * f));
    let dx = cpu
        .swiglu_backward(
            &tensor(&cpu, tokens, f, &da),
            &tensor(&cpu, tokens, 2 * f, &x),
        )
        .unwrap();
    assert_gradient("dgate_up", &cpu.read_f64(&dx).unwrap(), &x, |x| {
        dot(
            &cpu.read_f64(&cpu.swiglu(&tensor(&cpu, tokens, 2 * f, x)).unwrap())
                .unwrap(),
            &da,
        )
    });
}

#[test]
fn log_prob_and_entropy_at_a_temperature() {
    let cpu = f64s();
    let (rows, padded, vocab, inv_temperature) = (4, 11, 9, 1.0 / 0.7);
    let z: Vec<f64> = numbers(1, rows * padded).iter().map(|z| 3.0 * z).collect();
    let (a, b) = (numbers(2, rows), numbers(3, rows));
    let targets = cpu.ids(&[0, 8, 3, 3]).unwrap();
    let stats = |z: &[f64]| -> TokenStats {
        cpu.token_stats(
            &float(&cpu, rows, padded, z),
            &targets,
            inv_temperature,
            vocab,
        )
        .unwrap()
    };
    let s = stats(&z);
    let dz = cpu
        .logits_backward(
            float(&cpu, rows, padded, &z),
            &targets,
            inv_temperature,
            vocab,
            &s,
            &a,
            &b,
        )
        .unwrap();
    assert_gradient("dz", &cpu.read_f64(&dz).unwrap(), &z, |z| {
        let s = stats(z);
        dot(&s.logprob, &a) + dot(&s.entropy, &b)
    });
}
