//! Backward passes against candle's autograd, in f64.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod oracle;

use candle_core::{D, Device, Tensor, Var};
use oracle::*;
use slime_kernels::{Heads, Ops, Sequences};

fn var(rows: usize, cols: usize, data: &[f64]) -> Var {
    Var::from_tensor(&Tensor::from_slice(data, (rows, cols), &Device::Cpu).unwrap()).unwrap()
}

fn flat(x: &Tensor) -> Vec<f64> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

/// Gradients of `Σ y dy` with respect to each variable.
fn gradients(y: &Tensor, dy: &[f64], of: &[&Var]) -> Vec<Vec<f64>> {
    let dy = Tensor::from_slice(dy, y.dims(), &Device::Cpu).unwrap();
    let store = (y * dy).unwrap().sum_all().unwrap().backward().unwrap();
    of.iter().map(|v| flat(store.get(v).unwrap())).collect()
}

#[test]
fn linear() {
    let cpu = f64s();
    let (rows, inputs, outputs) = (130, 47, 35);
    let (x, w, dy) = (
        numbers(1, rows * inputs),
        numbers(2, outputs * inputs),
        numbers(3, rows * outputs),
    );
    let (vx, vw) = (var(rows, inputs, &x), var(outputs, inputs, &w));
    let y = vx.matmul(&vw.t().unwrap()).unwrap();
    let should = gradients(&y, &dy, &[&vx, &vw]);
    let (tx, tw, tdy) = (
        tensor(&cpu, rows, inputs, &x),
        tensor(&cpu, outputs, inputs, &w),
        tensor(&cpu, rows, outputs, &dy),
    );
    assert_close(
        "y",
        &cpu.read_f64(&cpu.matmul_nt(&tx, &tw).unwrap()).unwrap(),
        &flat(&y),
        1e-13,
    );
    assert_close(
        "dx",
        &cpu.read_f64(&cpu.matmul_nn(&tdy, &tw).unwrap()).unwrap(),
        &should[0],
        1e-13,
    );
    let mut dw = cpu.float_zeros(outputs, inputs).unwrap();
    cpu.accumulate_tn(&tdy, &tx, &mut dw).unwrap();
    assert_close("dw", &cpu.read_float_f64(&dw).unwrap(), &should[1], 1e-13);
}

#[test]
fn rmsnorm() {
    let cpu = f64s();
    let (rows, cols) = (130, 50);
    let (x, w, dy) = (
        numbers(1, rows * cols),
        numbers(2, cols),
        numbers(3, rows * cols),
    );
    let (vx, vw) = (var(rows, cols, &x), var(1, cols, &w));
    let mean = vx.sqr().unwrap().mean_keepdim(D::Minus1).unwrap();
    let y = vx
        .broadcast_div(&(mean + 1e-5).unwrap().sqrt().unwrap())
        .unwrap()
        .broadcast_mul(&vw)
        .unwrap();
    let should = gradients(&y, &dy, &[&vx, &vw]);
    let (tx, tw) = (tensor(&cpu, rows, cols, &x), tensor(&cpu, 1, cols, &w));
    let (ty, r) = cpu.rmsnorm(&tx, &tw, 1e-5).unwrap();
    assert_close("y", &cpu.read_f64(&ty).unwrap(), &flat(&y), 1e-13);
    let mut dw = cpu.float_zeros(1, cols).unwrap();
    let dx = cpu
        .rmsnorm_backward(&tensor(&cpu, rows, cols, &dy), &tx, &r, &tw, None, &mut dw)
        .unwrap();
    assert_close("dx", &cpu.read_f64(&dx).unwrap(), &should[0], 1e-12);
    assert_close("dw", &cpu.read_float_f64(&dw).unwrap(), &should[1], 1e-12);
}

#[test]
fn swiglu() {
    let cpu = f64s();
    let (rows, f) = (9, 40);
    let (x, da) = (numbers(1, rows * 2 * f), numbers(2, rows * f));
    let vx = var(rows, 2 * f, &x);
    let (gate, up) = (vx.narrow(1, 0, f).unwrap(), vx.narrow(1, f, f).unwrap());
    let y = (gate.silu().unwrap() * up).unwrap();
    let should = gradients(&y, &da, &[&vx]);
    let tx = tensor(&cpu, rows, 2 * f, &x);
    assert_close(
        "a",
        &cpu.read_f64(&cpu.swiglu(&tx).unwrap()).unwrap(),
        &flat(&y),
        1e-13,
    );
    let dx = cpu
        .swiglu_backward(&tensor(&cpu, rows, f, &da), &tx)
        .unwrap();
    assert_close("dgate_up", &cpu.read_f64(&dx).unwrap(), &should[0], 1e-12);
}

#[test]
fn embedding() {
    let cpu = f64s();
    let (vocab, hidden, tokens) = (11, 20, ids(3, 50, 11));
    let (table, dy) = (
        numbers(1, vocab * hidden),
        numbers(2, tokens.len() * hidden),
    );
    let v = var(vocab, hidden, &table);
    let y = v
        .embedding(&Tensor::from_slice(&tokens, tokens.len(), &Device::Cpu).unwrap())
        .unwrap();
    let should = gradients(&y, &dy, &[&v]);
    let mut dtable = cpu.float_zeros(vocab, hidden).unwrap();
    cpu.accumulate_embed(
        &tensor(&cpu, tokens.len(), hidden, &dy),
        &cpu.ids(&tokens).unwrap(),
        &mut dtable,
    )
    .unwrap();
    assert_close(
        "dtable",
        &cpu.read_float_f64(&dtable).unwrap(),
        &should[0],
        1e-13,
    );
}

#[test]
fn causal_attention() {
    let cpu = f64s();
    for (query, kv, dim, tokens) in [(2, 2, 16, 33), (2, 1, 24, 7), (7, 1, 64, 70)] {
        let (heads, scale) = (Heads { query, kv, dim }, 0.3);
        let (x, dy) = (
            numbers(1, tokens * heads.qkv_cols()),
            numbers(2, tokens * heads.out_cols()),
        );
        let v = var(tokens, heads.qkv_cols(), &x);
        let mask: Vec<f64> = (0..tokens * tokens)
            .map(|i| {
                if i % tokens > i / tokens {
                    f64::NEG_INFINITY
                } else {
                    0.0
                }
            })
            .collect();
        let mask = Tensor::from_slice(&mask, (tokens, tokens), &Device::Cpu).unwrap();
        let head = |h: usize| v.narrow(1, h * dim, dim).unwrap().contiguous().unwrap();
        let outs: Vec<Tensor> = (0..query)
            .map(|h| {
                let g = h / (query / kv);
                let s = (head(h).matmul(&head(query + g).t().unwrap()).unwrap() * scale)
                    .unwrap()
                    .add(&mask)
                    .unwrap();
                let e = s
                    .broadcast_sub(&s.max_keepdim(1).unwrap().detach())
                    .unwrap()
                    .exp()
                    .unwrap();
                let p = e.broadcast_div(&e.sum_keepdim(1).unwrap()).unwrap();
                p.matmul(&head(query + kv + g)).unwrap()
            })
            .collect();
        let y = Tensor::cat(&outs, 1).unwrap();
        let should = gradients(&y, &dy, &[&v]);
        let sequences = Sequences::from_lengths([tokens]);
        let qkv = tensor(&cpu, tokens, heads.qkv_cols(), &x);
        let (out, lse) = cpu.attention(&qkv, heads, &sequences, scale).unwrap();
        assert_close("o", &cpu.read_f64(&out).unwrap(), &flat(&y), 1e-12);
        let dout = tensor(&cpu, tokens, heads.out_cols(), &dy);
        let dqkv = cpu
            .attention_backward(&dout, &qkv, &out, &lse, heads, &sequences, scale)
            .unwrap();
        assert_close("dqkv", &cpu.read_f64(&dqkv).unwrap(), &should[0], 1e-12);
    }
}
