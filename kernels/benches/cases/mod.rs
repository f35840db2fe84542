//! The operations that a training step and a decoding step of a 135 M model consist of, ready to be timed.

use slime_kernels::{AdamW, Cpu, Heads, Ops, RopeStyle, RopeTable, Sequences};

/// Runs the operation once.
pub(crate) type Ready = Box<dyn FnMut()>;

/// One operation on one shape.
pub(crate) struct Case {
    pub(crate) name: String,
    /// FLOPs of a product or of attention, else bytes.
    pub(crate) work: f64,
    /// Makes the operands.
    pub(crate) make: Box<dyn FnOnce() -> Ready>,
}

/// SmolLM2-135M.
const HIDDEN: usize = 576;
const FFN: usize = 1536;
const VOCAB: usize = 49_152;
const HEADS: Heads = Heads {
    query: 9,
    kv: 3,
    dim: 64,
};

fn numbers(len: usize) -> Vec<f32> {
    (0..len)
        .map(|i| ((i.wrapping_mul(2_654_435_761) >> 7) % 2001) as f32 / 1000.0 - 1.0)
        .collect()
}

/// All of them.
pub(crate) fn cases() -> Vec<Case> {
    let mut all = Vec::new();
    let mut add = |name: String, work: f64, make: Box<dyn FnOnce() -> Ready>| {
        all.push(Case { name, work, make })
    };
    let shapes = [
        (HIDDEN, HIDDEN),
        (HIDDEN, 2 * FFN),
        (FFN, HIDDEN),
        (HIDDEN, VOCAB),
    ];
    for rows in [1, 4, 16, 64, 512, 2048] {
        for (inputs, outputs) in shapes {
            if outputs == VOCAB && rows > 512 {
                continue;
            }
            let flops = 2.0 * rows as f64 * inputs as f64 * outputs as f64;
            add(
                format!("nt {rows} {inputs} {outputs}"),
                flops,
                Box::new(move || nt(rows, inputs, outputs)),
            );
            if rows >= 512 {
                add(
                    format!("nn {rows} {inputs} {outputs}"),
                    flops,
                    Box::new(move || nn(rows, inputs, outputs)),
                );
                add(
                    format!("tn {rows} {inputs} {outputs}"),
                    flops,
                    Box::new(move || tn(rows, inputs, outputs)),
                );
            }
        }
    }
    for lengths in [vec![512; 4], vec![2048], vec![64; 32]] {
        let pairs: f64 = lengths.iter().map(|n| (n * (n + 1) / 2) as f64).sum();
        let flops = 4.0 * pairs * (HEADS.query * HEADS.dim) as f64;
        let name = format!("{}x{}", lengths.len(), lengths[0]);
        let l = lengths.clone();
        add(
            format!("attention {name}"),
            flops,
            Box::new(move || attention(l, false)),
        );
        add(
            format!("attention_backward {name}"),
            2.5 * flops,
            Box::new(move || attention(lengths, true)),
        );
    }
    let rows = 2048;
    let bytes = |numbers: usize| 4.0 * (rows * numbers) as f64;
    add(
        "rmsnorm 2048".into(),
        bytes(2 * HIDDEN),
        Box::new(move || norm(rows, false)),
    );
    add(
        "rmsnorm_backward 2048".into(),
        bytes(4 * HIDDEN),
        Box::new(move || norm(rows, true)),
    );
    add(
        "swiglu 2048".into(),
        bytes(3 * FFN),
        Box::new(move || swiglu(rows, false)),
    );
    add(
        "swiglu_backward 2048".into(),
        bytes(5 * FFN),
        Box::new(move || swiglu(rows, true)),
    );
    add(
        "rope 2048".into(),
        bytes(2 * HEADS.qkv_cols()),
        Box::new(move || rope(rows)),
    );
    add(
        "token_stats 256".into(),
        4.0 * (256 * VOCAB) as f64,
        Box::new(|| head(256, false)),
    );
    add(
        "logits_backward 256".into(),
        8.0 * (256 * VOCAB) as f64,
        Box::new(|| head(256, true)),
    );
    add(
        "adamw 28M".into(),
        28.0 * (HIDDEN * VOCAB) as f64,
        Box::new(adamw),
    );
    all
}

fn matrix(cpu: &Cpu<f32>, rows: usize, cols: usize) -> <Cpu<f32> as Ops>::Tensor {
    cpu.tensor(rows, cols, &numbers(rows * cols)).expect("fits")
}

fn nt(rows: usize, inputs: usize, outputs: usize) -> Ready {
    let cpu = Cpu::<f32>::new();
    let (x, w) = (matrix(&cpu, rows, inputs), matrix(&cpu, outputs, inputs));
    Box::new(move || drop(cpu.matmul_nt(&x, &w).expect("fits")))
}

fn nn(rows: usize, inputs: usize, outputs: usize) -> Ready {
    let cpu = Cpu::<f32>::new();
    let (dy, w) = (matrix(&cpu, rows, outputs), matrix(&cpu, outputs, inputs));
    Box::new(move || drop(cpu.matmul_nn(&dy, &w).expect("fits")))
}

fn tn(rows: usize, inputs: usize, outputs: usize) -> Ready {
    let cpu = Cpu::<f32>::new();
    let (dy, x) = (matrix(&cpu, rows, outputs), matrix(&cpu, rows, inputs));
    let mut dw = cpu.float_zeros(outputs, inputs).expect("fits");
    Box::new(move || cpu.accumulate_tn(&dy, &x, &mut dw).expect("fits"))
}

fn attention(lengths: Vec<usize>, backward: bool) -> Ready {
    let cpu = Cpu::<f32>::new();
    let sequences = Sequences::from_lengths(lengths);
    let tokens = sequences.num_tokens();
    let (qkv, dout) = (
        matrix(&cpu, tokens, HEADS.qkv_cols()),
        matrix(&cpu, tokens, HEADS.out_cols()),
    );
    let (out, lse) = cpu.attention(&qkv, HEADS, &sequences, 0.125).expect("fits");
    Box::new(move || {
        if backward {
            drop(
                cpu.attention_backward(&dout, &qkv, &out, &lse, HEADS, &sequences, 0.125)
                    .expect("fits"),
            );
        } else {
            drop(cpu.attention(&qkv, HEADS, &sequences, 0.125).expect("fits"));
        }
    })
}

fn norm(rows: usize, backward: bool) -> Ready {
    let cpu = Cpu::<f32>::new();
    let (x, dy, w) = (
        matrix(&cpu, rows, HIDDEN),
        matrix(&cpu, rows, HIDDEN),
        matrix(&cpu, 1, HIDDEN),
    );
    let (_, r) = cpu.rmsnorm(&x, &w, 1e-5).expect("fits");
    let mut dw = cpu.float_zeros(1, HIDDEN).expect("fits");
    Box::new(move || {
        if backward {
            drop(
                cpu.rmsnorm_backward(&dy, &x, &r, &w, Some(&dy), &mut dw)
                    .expect("fits"),
            );
        } else {
            drop(cpu.rmsnorm(&x, &w, 1e-5).expect("fits"));
        }
    })
}

fn swiglu(rows: usize, backward: bool) -> Ready {
    let cpu = Cpu::<f32>::new();
    let (x, da) = (matrix(&cpu, rows, 2 * FFN), matrix(&cpu, rows, FFN));
    Box::new(move || {
        if backward {
            drop(cpu.swiglu_backward(&da, &x).expect("fits"))
        } else {
            drop(cpu.swiglu(&x).expect("fits"))
        }
    })
}

fn rope(rows: usize) -> Ready {
    let cpu = Cpu::<f32>::new();
    let half = HEADS.dim / 2;
    let table = || cpu.float(rows, half, &numbers(rows * half)).expect("fits");
    let rope = RopeTable::<Cpu<f32>> {
        cos: table(),
        sin: table(),
        dims: HEADS.dim,
        style: RopeStyle::Half,
    };
    let (qkv, positions) = (
        matrix(&cpu, rows, HEADS.qkv_cols()),
        cpu.ids(&(0..rows as u32).collect::<Vec<_>>())
            .expect("fits"),
    );
    Box::new(move || {
        drop(
            cpu.qk_norm_rope(&qkv, HEADS, &positions, &rope, None)
                .expect("fits"),
        )
    })
}

fn head(rows: usize, backward: bool) -> Ready {
    let cpu = Cpu::<f32>::new();
    let z = numbers(rows * VOCAB);
    let targets = cpu
        .ids(&(0..rows as u32).collect::<Vec<_>>())
        .expect("fits");
    let mut logits = Some(cpu.float(rows, VOCAB, &z).expect("fits"));
    let stats = cpu
        .token_stats(logits.as_ref().expect("just made"), &targets, 1.0, VOCAB)
        .expect("fits");
    let ones = vec![1.0; rows];
    Box::new(move || {
        if backward {
            let z = logits
                .take()
                .unwrap_or_else(|| cpu.float_zeros(rows, VOCAB).expect("fits"));
            drop(
                cpu.logits_backward(z, &targets, 1.0, VOCAB, &stats, &ones, &ones)
                    .expect("fits"),
            );
        } else {
            cpu.token_stats(logits.as_ref().expect("kept"), &targets, 1.0, VOCAB)
                .expect("fits");
        }
    })
}

fn adamw() -> Ready {
    let cpu = Cpu::<f32>::new();
    let mut w = matrix(&cpu, VOCAB, HIDDEN);
    let zeros = || cpu.float_zeros(VOCAB, HIDDEN).expect("fits");
    let (g, mut m, mut v) = (zeros(), zeros(), zeros());
    let step = AdamW {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.95,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 3,
        grad_scale: 1.0,
    };
    Box::new(move || {
        cpu.adamw(&step, &g, &mut m, &mut v, None, &mut w)
            .expect("fits")
    })
}
