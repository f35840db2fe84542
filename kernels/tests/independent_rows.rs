//! A row's result is the same bits alone, in any batch and with any number of threads.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod oracle;

use std::ops::Range;

use oracle::*;
use slime_kernels::{Cpu, CpuFloat, CpuTensor, Heads, Norms, Ops, RopeStyle, Sequences};

const ROWS: usize = 129;

/// Bits of each row.
type Rows = Vec<Vec<u32>>;

fn with_threads<R: Send>(threads: usize, f: impl FnOnce() -> R + Send) -> R {
    rayon::ThreadPoolBuilder::new()
        .num_threads(threads)
        .build()
        .unwrap()
        .install(f)
}

/// `f` gives the results of the rows asked for out of 129.
fn assert_independent(what: &str, f: impl Fn(Range<usize>) -> Rows + Sync) {
    let reference = with_threads(1, || f(0..ROWS));
    assert_eq!(reference.len(), ROWS);
    for threads in [1, 2] {
        for range in [
            0..ROWS,
            0..1,
            77..78,
            128..129,
            3..5,
            64..66,
            7..23,
            100..116,
            20..120,
        ] {
            let part = with_threads(threads, || f(range.clone()));
            assert_eq!(part.len(), range.len());
            for (i, row) in part.iter().enumerate() {
                assert!(
                    *row == reference[range.start + i],
                    "{what}: row {} of {range:?}, {threads} threads",
                    range.start + i
                );
            }
        }
    }
}

fn rows_of(bits: Vec<u32>, rows: usize) -> Rows {
    assert!(bits.len().is_multiple_of(rows));
    bits.chunks(bits.len() / rows)
        .map(<[u32]>::to_vec)
        .collect()
}

fn of_tensor(cpu: &Cpu<f32>, x: &CpuTensor<f32>) -> Rows {
    rows_of(bits(&cpu.read(x).unwrap()), cpu.shape(x).0)
}

fn of_float(cpu: &Cpu<f32>, x: &CpuFloat<f32>) -> Rows {
    rows_of(bits(&cpu.read_float(x).unwrap()), cpu.float_shape(x).0)
}

fn joined(parts: Vec<Rows>) -> Rows {
    (0..parts[0].len())
        .map(|i| parts.iter().flat_map(|p| p[i].clone()).collect())
        .collect()
}

/// Rows of one fixed matrix.
fn part(cpu: &Cpu<f32>, seed: u64, cols: usize, rows: &Range<usize>) -> CpuTensor<f32> {
    let all = floats(seed, ROWS * cols);
    cpu.tensor(rows.len(), cols, &all[rows.start * cols..rows.end * cols])
        .unwrap()
}

fn whole(cpu: &Cpu<f32>, seed: u64, rows: usize, cols: usize) -> CpuTensor<f32> {
    cpu.tensor(rows, cols, &floats(seed, rows * cols)).unwrap()
}

#[test]
fn products() {
    let cpu = f32s();
    for (inputs, outputs) in [(576, 45), (1100, 16), (33, 2100), (1, 1)] {
        let w = whole(&cpu, 1, outputs, inputs);
        assert_independent("matmul_nt", |rows| {
            of_tensor(
                &cpu,
                &cpu.matmul_nt(&part(&cpu, 2, inputs, &rows), &w).unwrap(),
            )
        });
        assert_independent("matmul_nn", |rows| {
            of_tensor(
                &cpu,
                &cpu.matmul_nn(&part(&cpu, 2, outputs, &rows), &w).unwrap(),
            )
        });
        assert_independent("logits", |rows| {
            of_float(
                &cpu,
                &cpu.logits(&part(&cpu, 2, inputs, &rows), &w).unwrap(),
            )
        });
        // A fresh weight has no packed form.
        assert_independent("matmul_nt, not packed", |rows| {
            let w = whole(&cpu, 1, outputs, inputs);
            of_tensor(
                &cpu,
                &cpu.matmul_nt(&part(&cpu, 2, inputs, &rows), &w).unwrap(),
            )
        });
    }
}

#[test]
fn row_wise_operations() {
    let cpu = f32s();
    for cols in [576, 42, 6] {
        let w = whole(&cpu, 1, 1, cols);
        assert_independent("rmsnorm", |rows| {
            let (y, r) = cpu.rmsnorm(&part(&cpu, 2, cols, &rows), &w, 1e-5).unwrap();
            joined(vec![of_tensor(&cpu, &y), of_float(&cpu, &r)])
        });
        assert_independent("add_rmsnorm", |rows| {
            let (s, y, r) = cpu
                .add_rmsnorm(
                    &part(&cpu, 2, cols, &rows),
                    &part(&cpu, 3, cols, &rows),
                    &w,
                    1e-5,
                )
                .unwrap();
            joined(vec![
                of_tensor(&cpu, &s),
                of_tensor(&cpu, &y),
                of_float(&cpu, &r),
            ])
        });
        assert_independent("rmsnorm_backward", |rows| {
            let x = part(&cpu, 2, cols, &rows);
            let (_, r) = cpu.rmsnorm(&x, &w, 1e-5).unwrap();
            let mut dw = cpu.float_zeros(1, cols).unwrap();
            let residual = part(&cpu, 5, cols, &rows);
            of_tensor(
                &cpu,
                &cpu.rmsnorm_backward(
                    &part(&cpu, 4, cols, &rows),
                    &x,
                    &r,
                    &w,
                    Some(&residual),
                    &mut dw,
                )
                .unwrap(),
            )
        });
        assert_independent("swiglu", |rows| {
            of_tensor(&cpu, &cpu.swiglu(&part(&cpu, 2, cols, &rows)).unwrap())
        });
        assert_independent("swiglu_backward", |rows| {
            of_tensor(
                &cpu,
                &cpu.swiglu_backward(&part(&cpu, 3, cols / 2, &rows), &part(&cpu, 2, cols, &rows))
                    .unwrap(),
            )
        });
        assert_independent("add and add_bias", |rows| {
            let sum = cpu
                .add(&part(&cpu, 2, cols, &rows), &part(&cpu, 3, cols, &rows))
                .unwrap();
            of_tensor(&cpu, &cpu.add_bias(&sum, &w).unwrap())
        });
    }
}

#[test]
fn queries_and_keys() {
    let cpu = f32s();
    let heads = Heads {
        query: 6,
        kv: 2,
        dim: 24,
    };
    let (wq, wk) = (whole(&cpu, 1, 1, heads.dim), whole(&cpu, 2, 1, heads.dim));
    let positions = ids(3, ROWS, 500);
    for style in [RopeStyle::Half, RopeStyle::Interleaved] {
        let rope = rope(&cpu, 500, 16, style);
        assert_independent("qk_norm_rope and its backward", |rows| {
            let norms = || Norms {
                query: &wq,
                key: &wk,
                eps: 1e-5,
            };
            let ids = cpu.ids(&positions[rows.clone()]).unwrap();
            let qkv = part(&cpu, 4, heads.qkv_cols(), &rows);
            let (y, r) = cpu
                .qk_norm_rope(&qkv, heads, &ids, &rope, Some(norms()))
                .unwrap();
            let r = r.unwrap();
            let (mut dq, mut dk) = (
                cpu.float_zeros(1, heads.dim).unwrap(),
                cpu.float_zeros(1, heads.dim).unwrap(),
            );
            let dy = part(&cpu, 5, heads.qkv_cols(), &rows);
            let dx = cpu
                .qk_norm_rope_backward(
                    &dy,
                    heads,
                    &ids,
                    &rope,
                    Some((norms(), &qkv, &r)),
                    Some((&mut dq, &mut dk)),
                )
                .unwrap();
            joined(vec![
                of_tensor(&cpu, &y),
                of_float(&cpu, &r),
                of_tensor(&cpu, &dx),
            ])
        });
    }
}

#[test]
fn head_statistics_and_gradient() {
    let cpu = f32s();
    let (vocab, padded) = (1003, 1024);
    let targets = ids(1, ROWS, vocab as u32);
    let (a, b) = (numbers(2, ROWS), numbers(3, ROWS));
    assert_independent("token_stats and logits_backward", |rows| {
        let z = floats(4, ROWS * padded);
        let logits = cpu
            .float(
                rows.len(),
                padded,
                &z[rows.start * padded..rows.end * padded],
            )
            .unwrap();
        let ids = cpu.ids(&targets[rows.clone()]).unwrap();
        let s = cpu.token_stats(&logits, &ids, 1.0 / 0.7, vocab).unwrap();
        let dz = cpu
            .logits_backward(
                logits,
                &ids,
                1.0 / 0.7,
                vocab,
                &s,
                &a[rows.clone()],
                &b[rows.clone()],
            )
            .unwrap();
        let halves = |x: &f64| vec![x.to_bits() as u32, (x.to_bits() >> 32) as u32];
        let stats = (0..rows.len())
            .map(|i| {
                [s.logprob[i], s.entropy[i], s.lse[i]]
                    .iter()
                    .flat_map(halves)
                    .collect()
            })
            .collect();
        joined(vec![stats, of_tensor(&cpu, &dz)])
    });
}

#[test]
fn a_sequence_attends_alike_alone_and_among_others() {
    let cpu = f32s();
    for (heads, lengths) in [
        (
            Heads {
                query: 9,
                kv: 3,
                dim: 64,
            },
            vec![1, 0, 7, 33, 130, 64],
        ),
        (
            Heads {
                query: 7,
                kv: 1,
                dim: 24,
            },
            vec![20, 100],
        ),
        (
            Heads {
                query: 2,
                kv: 2,
                dim: 16,
            },
            vec![200, 1],
        ),
    ] {
        let sequences = Sequences::from_lengths(lengths.iter().copied());
        let tokens = sequences.num_tokens();
        let (x, dy) = (
            floats(1, tokens * heads.qkv_cols()),
            floats(2, tokens * heads.out_cols()),
        );
        let run = |rows: Range<usize>, sequences: &Sequences| {
            let qkv = cpu
                .tensor(
                    rows.len(),
                    heads.qkv_cols(),
                    &x[rows.start * heads.qkv_cols()..rows.end * heads.qkv_cols()],
                )
                .unwrap();
            let dout = cpu
                .tensor(
                    rows.len(),
                    heads.out_cols(),
                    &dy[rows.start * heads.out_cols()..rows.end * heads.out_cols()],
                )
                .unwrap();
            let (out, lse) = cpu.attention(&qkv, heads, sequences, 0.125).unwrap();
            let dqkv = cpu
                .attention_backward(&dout, &qkv, &out, &lse, heads, sequences, 0.125)
                .unwrap();
            let of_lse = bits(&cpu.read_float(&lse).unwrap());
            let lse = (0..rows.len())
                .map(|i| {
                    (0..heads.query)
                        .map(|h| of_lse[h * rows.len() + i])
                        .collect()
                })
                .collect();
            joined(vec![of_tensor(&cpu, &out), of_tensor(&cpu, &dqkv), lse])
        };
        let reference = with_threads(1, || run(0..tokens, &sequences));
        for threads in [1, 2] {
            assert!(with_threads(threads, || run(0..tokens, &sequences)) == reference);
            for range in sequences.ranges().filter(|r| !r.is_empty()) {
                let alone = with_threads(threads, || {
                    run(range.clone(), &Sequences::from_lengths([range.len()]))
                });
                assert!(alone == reference[range.clone()], "{heads:?} {range:?}");
            }
        }
    }
}

#[test]
fn a_prefix_attends_alike_whatever_follows() {
    let cpu = f32s();
    let heads = Heads {
        query: 4,
        kv: 2,
        dim: 24,
    };
    let x = floats(1, 130 * heads.qkv_cols());
    let run = |tokens: usize| {
        let qkv = cpu
            .tensor(tokens, heads.qkv_cols(), &x[..tokens * heads.qkv_cols()])
            .unwrap();
        of_tensor(
            &cpu,
            &cpu.attention(&qkv, heads, &Sequences::from_lengths([tokens]), 0.2)
                .unwrap()
                .0,
        )
    };
    let whole = run(130);
    for tokens in [1, 2, 16, 17, 63, 64, 65, 129] {
        assert!(run(tokens) == whole[..tokens], "{tokens}");
    }
}

#[test]
fn accumulated_gradients_do_not_depend_on_threads() {
    let cpu = f32s();
    let run = || {
        let (rows, outputs, inputs) = (700, 210, 130);
        let (dy, x) = (whole(&cpu, 1, rows, outputs), whole(&cpu, 2, rows, inputs));
        let mut dw = cpu
            .float(outputs, inputs, &floats(3, outputs * inputs))
            .unwrap();
        cpu.accumulate_tn(&dy, &x, &mut dw).unwrap();
        let mut db = cpu.float_zeros(1, outputs).unwrap();
        cpu.accumulate_bias(&dy, &mut db).unwrap();
        let mut dtable = cpu.float_zeros(50, outputs).unwrap();
        cpu.accumulate_embed(&dy, &cpu.ids(&ids(4, rows, 50)).unwrap(), &mut dtable)
            .unwrap();
        let w = whole(&cpu, 5, 1, outputs);
        let (_, r) = cpu.rmsnorm(&dy, &w, 1e-5).unwrap();
        let mut dnorm = cpu.float_zeros(1, outputs).unwrap();
        cpu.rmsnorm_backward(
            &whole(&cpu, 6, rows, outputs),
            &dy,
            &r,
            &w,
            None,
            &mut dnorm,
        )
        .unwrap();
        let norm = cpu.sum_squares(&dw).unwrap().to_bits();
        (norm, [dw, db, dtable, dnorm].map(|x| of_float(&cpu, &x)))
    };
    assert!(with_threads(1, run) == with_threads(2, run));
}
