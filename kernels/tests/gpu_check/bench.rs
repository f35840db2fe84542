//! How fast, on shapes of Qwen3: bytes counted once in and once out against a device copy, products in TFLOP/s.

use slime_kernels::cuda::Cuda;
use slime_kernels::{
    AdamW, DeltaHeads, DeltaRule, Draw, Heads, KeySpan, Norms, Ops, PagedSequence, Result,
    RopeStyle, RopeTable, Sequences,
};

const RUNS: u32 = 10;

pub(crate) fn run(cuda: &Cuda) {
    if let Err(why) = table(cuda) {
        println!("bench: FAILED: {why}");
    }
}

fn time(cuda: &Cuda, mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    call()?;
    call()?;
    let mut times = [0.0; 5];
    for time in &mut times {
        *time = f64::from(cuda.time_ms(RUNS, &mut call)?);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[2])
}

fn random(cuda: &Cuda, rows: usize, cols: usize) -> Result<slime_kernels::cuda::Tensor> {
    let mut state = 0x1234_5678_9abc_def1u64;
    let data: Vec<f32> = (0..rows * cols)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
        })
        .collect();
    cuda.tensor(rows, cols, &data)
}

struct Table<'a> {
    cuda: &'a Cuda,
    copy: f64,
}

impl Table<'_> {
    fn bytes(
        &self,
        op: &str,
        shape: String,
        bytes: f64,
        call: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let ms = time(self.cuda, call)?;
        let rate = bytes / ms / 1e6;
        println!(
            "{op:<24} {shape:<34} {ms:>8.3} ms {rate:>7.0} GB/s   {:>4.0} % of copy",
            100.0 * rate / self.copy
        );
        Ok(())
    }
    fn flops(
        &self,
        op: &str,
        shape: String,
        flops: f64,
        call: impl FnMut() -> Result<()>,
    ) -> Result<()> {
        let ms = time(self.cuda, call)?;
        println!(
            "{op:<24} {shape:<34} {ms:>8.3} ms {:>7.0} TFLOP/s",
            flops / ms / 1e9
        );
        Ok(())
    }
}

fn table(cuda: &Cuda) -> Result<()> {
    let big = random(cuda, 131_072, 1024)?;
    let ms = time(cuda, || cuda.copy(&big).map(drop))?;
    let table = Table {
        cuda,
        copy: 2.0 * 131_072.0 * 1024.0 * 2.0 / ms / 1e6,
    };
    println!(
        "device copy of 256 MiB: {:.0} GB/s, read and written",
        table.copy
    );
    drop(big);
    for (hidden, tokens) in [
        (1024, 131_072),
        (2048, 65_536),
        (2560, 65_536),
        (4096, 32_768),
    ] {
        norms(&table, hidden, tokens)?;
    }
    for (f, tokens) in [(3072, 32_768), (9728, 16_384)] {
        swiglu(&table, f, tokens)?;
    }
    rotation(
        &table,
        Heads {
            query: 16,
            kv: 8,
            dim: 128,
        },
        32_768,
    )?;
    optimizer(&table, 100_000_000)?;
    head(&table)?;
    for (heads, lengths) in [
        (
            Heads {
                query: 16,
                kv: 8,
                dim: 128,
            },
            vec![4096; 4],
        ),
        (
            Heads {
                query: 32,
                kv: 8,
                dim: 128,
            },
            vec![4096; 4],
        ),
        (
            Heads {
                query: 14,
                kv: 2,
                dim: 64,
            },
            vec![4096; 8],
        ),
    ] {
        keys(&table, heads, &lengths)?;
        attention(&table, heads, lengths)?;
    }
    // GLM-4.7-Flash's unfolded heads, and Qwen3-Next's attention and delta net.
    for (query, kv, dim) in [(20, 20, 256), (16, 16, 192), (16, 2, 256)] {
        attention(&table, Heads { query, kv, dim }, vec![4096; 4])?;
    }
    delta(&table, vec![4096; 4])?;
    for (experts, rows, inputs, outputs) in [
        (128, 1024, 2048, 1536),
        (128, 1024, 768, 2048),
        (64, 128, 2048, 1536),
    ] {
        experts_products(&table, experts, rows, inputs, outputs)?;
    }
    serving(&table, 256, 1280)?;
    for (rows, inputs, outputs) in [
        (16_384, 1024, 4096),
        (16_384, 1024, 6144),
        (16_384, 3072, 1024),
        (16_384, 2048, 12_288),
        (16_384, 6144, 2048),
    ] {
        products(&table, rows, inputs, outputs)?;
    }
    Ok(())
}

fn norms(t: &Table<'_>, hidden: usize, tokens: usize) -> Result<()> {
    let cuda = t.cuda;
    let (x, d, w) = (
        random(cuda, tokens, hidden)?,
        random(cuda, tokens, hidden)?,
        random(cuda, 1, hidden)?,
    );
    let row = (tokens * hidden * 2) as f64;
    let shape = || format!("[{tokens}, {hidden}]");
    t.bytes("rmsnorm", shape(), 2.0 * row, || {
        cuda.rmsnorm(&x, &w, 1e-6).map(drop)
    })?;
    t.bytes("add_rmsnorm", shape(), 4.0 * row, || {
        cuda.add_rmsnorm(&x, &d, &w, 1e-6).map(drop)
    })?;
    let (y, r) = cuda.rmsnorm(&x, &w, 1e-6)?;
    let mut dw = cuda.float_zeros(1, hidden)?;
    t.bytes("rmsnorm_backward", shape(), 4.0 * row, || {
        cuda.rmsnorm_backward(&y, &x, &r, &w, Some(&d), &mut dw)
            .map(drop)
    })
}

fn swiglu(t: &Table<'_>, f: usize, tokens: usize) -> Result<()> {
    let cuda = t.cuda;
    let (x, da) = (random(cuda, tokens, 2 * f)?, random(cuda, tokens, f)?);
    let row = (tokens * f * 2) as f64;
    let shape = || format!("[{tokens}, 2 x {f}]");
    t.bytes("swiglu", shape(), 3.0 * row, || cuda.swiglu(&x).map(drop))?;
    t.bytes("swiglu_backward", shape(), 5.0 * row, || {
        cuda.swiglu_backward(&da, &x).map(drop)
    })
}

fn rotation(t: &Table<'_>, heads: Heads, tokens: usize) -> Result<()> {
    let cuda = t.cuda;
    let x = random(cuda, tokens, heads.qkv_cols())?;
    let (query, key) = (random(cuda, 1, heads.dim)?, random(cuda, 1, heads.dim)?);
    let norms = || {
        Some(Norms {
            query: &query,
            key: &key,
            eps: 1e-6,
        })
    };
    let angles = vec![0.5; 4096 * heads.dim / 2];
    let table = || cuda.float(4096, heads.dim / 2, &angles);
    let rope = RopeTable {
        cos: table()?,
        sin: table()?,
        dims: heads.dim,
        style: RopeStyle::Half,
    };
    let positions = cuda.ids(&(0..tokens as u32).map(|p| p % 4096).collect::<Vec<_>>())?;
    let row = (tokens * heads.qkv_cols() * 2) as f64;
    let rotated = (tokens * (heads.query + heads.kv) * heads.dim * 2) as f64;
    let shape = || format!("[{tokens}, {}/{} x {}]", heads.query, heads.kv, heads.dim);
    t.bytes("qk_norm_rope", shape(), 2.0 * row, || {
        cuda.qk_norm_rope(&x, heads, &positions, &rope, norms())
            .map(drop)
    })?;
    let (y, r) = cuda.qk_norm_rope(&x, heads, &positions, &rope, norms())?;
    let Some(r) = r else { return Ok(()) };
    let mut sums = (
        cuda.float_zeros(1, heads.dim)?,
        cuda.float_zeros(1, heads.dim)?,
    );
    t.bytes(
        "qk_norm_rope_backward",
        shape(),
        2.0 * row + rotated,
        || {
            let saved = norms().map(|n| (n, &x, &r));
            cuda.qk_norm_rope_backward(
                &y,
                heads,
                &positions,
                &rope,
                saved,
                Some((&mut sums.0, &mut sums.1)),
            )
            .map(drop)
        },
    )
}

fn optimizer(t: &Table<'_>, count: usize) -> Result<()> {
    let cuda = t.cuda;
    let float = || cuda.float_zeros(1, count);
    let (grad, mut m, mut v, mut master, mut weight) = (
        float()?,
        float()?,
        float()?,
        float()?,
        cuda.tensor(1, count, &vec![0.5; count])?,
    );
    let rule = AdamW {
        lr: 1e-3,
        beta1: 0.9,
        beta2: 0.98,
        eps: 1e-8,
        weight_decay: 0.1,
        step: 1,
        grad_scale: 1.0,
    };
    t.bytes("adamw", format!("[{count}]"), 30.0 * count as f64, || {
        cuda.adamw(&rule, &grad, &mut m, &mut v, Some(&mut master), &mut weight)
    })?;
    t.bytes(
        "sum_squares",
        format!("[{count}]"),
        4.0 * count as f64,
        || cuda.sum_squares(&grad).map(drop),
    )
}

fn head(t: &Table<'_>) -> Result<()> {
    let cuda = t.cuda;
    let (rows, hidden, vocab) = (4096, 1024, 151_936);
    let (h, w) = (random(cuda, rows, hidden)?, random(cuda, vocab, hidden)?);
    let targets = cuda.ids(&vec![7; rows])?;
    let size = (rows * vocab) as f64;
    let shape = || format!("[{rows}, {hidden}] x [{vocab}]");
    t.flops("logits", shape(), 2.0 * size * hidden as f64, || {
        cuda.logits(&h, &w).map(drop)
    })?;
    let logits = cuda.logits(&h, &w)?;
    t.bytes("token_stats", shape(), 4.0 * size, || {
        cuda.token_stats(&logits, &targets, 1.0, vocab).map(drop)
    })?;
    let stats = cuda.token_stats(&logits, &targets, 1.0, vocab)?;
    let ones = vec![1.0; rows];
    drop(logits);
    // The backward consumes its logits, so it is timed with the product that makes them.
    let both = time(cuda, || {
        let z = cuda.logits(&h, &w)?;
        cuda.logits_backward(z, &targets, 1.0, vocab, &stats, &ones, &ones)
            .map(drop)
    })?;
    let alone = time(cuda, || cuda.logits(&h, &w).map(drop))?;
    let (ms, bytes) = (both - alone, 6.0 * size);
    println!(
        "{:<24} {:<34} {ms:>8.3} ms {:>7.0} GB/s   {:>4.0} % of copy",
        "logits_backward",
        shape(),
        bytes / ms / 1e6,
        100.0 * bytes / ms / 1e6 / t.copy
    );
    Ok(())
}

fn attention(t: &Table<'_>, heads: Heads, lengths: Vec<usize>) -> Result<()> {
    let cuda = t.cuda;
    let shape = format!(
        "{} x {}, {}/{} x {}",
        lengths.len(),
        lengths[0],
        heads.query,
        heads.kv,
        heads.dim
    );
    let pairs: f64 = lengths.iter().map(|&n| (n * n) as f64 / 2.0).sum();
    let flops = 4.0 * (heads.query * heads.dim) as f64 * pairs;
    let sequences = Sequences::from_lengths(lengths);
    let tokens = sequences.num_tokens();
    let (qkv, dout) = (
        random(cuda, tokens, heads.qkv_cols())?,
        random(cuda, tokens, heads.out_cols())?,
    );
    let scale = (heads.dim as f64).powf(-0.5);
    t.flops("attention", shape.clone(), flops, || {
        cuda.attention(&qkv, heads, &sequences, scale).map(drop)
    })?;
    let (out, lse) = cuda.attention(&qkv, heads, &sequences, scale)?;
    t.flops("attention_backward", shape, 2.5 * flops, || {
        cuda.attention_backward(&dout, &qkv, &out, &lse, heads, &sequences, scale)
            .map(drop)
    })
}

/// A delta net of Qwen3-Next's shape: what it reads and writes once against a copy, its states not counted.
fn delta(t: &Table<'_>, lengths: Vec<usize>) -> Result<()> {
    let cuda = t.cuda;
    let heads = DeltaHeads {
        keys: 16,
        values: 32,
        key_dim: 128,
        value_dim: 128,
    };
    let (cols, out_cols) = (heads.cols(), heads.values * heads.value_dim);
    let shape = format!("{} x {}, 16/32 x 128", lengths.len(), lengths[0]);
    let sequences = Sequences::from_lengths(lengths);
    let tokens = sequences.num_tokens();
    let (x, conv) = (random(cuda, tokens, cols)?, random(cuda, cols, 4)?);
    let (gates, dout) = (
        random(cuda, tokens, 2 * heads.values)?,
        random(cuda, tokens, out_cols)?,
    );
    let (a_log, dt_bias) = (
        random(cuda, 1, heads.values)?,
        random(cuda, 1, heads.values)?,
    );
    let rule = DeltaRule {
        heads,
        a_log: &a_log,
        dt_bias: &dt_bias,
    };
    let of = |cols: usize| (2 * tokens * cols) as f64;
    t.bytes("causal_conv", shape.clone(), of(2 * cols), || {
        cuda.causal_conv(&x, &conv, &sequences).map(drop)
    })?;
    let mut dconv = cuda.float_zeros(cols, 4)?;
    t.bytes("causal_conv_backward", shape.clone(), of(3 * cols), || {
        cuda.causal_conv_backward(&x, &x, &conv, &sequences, &mut dconv)
            .map(drop)
    })?;
    t.bytes("gated_delta", shape.clone(), of(cols + out_cols), || {
        cuda.gated_delta(&x, &gates, &rule, &sequences).map(drop)
    })?;
    let start = || cuda.float_zeros(1, heads.values);
    let (mut da_log, mut ddt_bias) = (start()?, start()?);
    let bytes = of(2 * cols + out_cols);
    t.bytes("gated_delta_backward", shape, bytes, || {
        let dweights = (&mut da_log, &mut ddt_bias);
        cuda.gated_delta_backward(&dout, &x, &gates, &rule, &sequences, dweights)
            .map(drop)
    })
}

/// Every row of some sequences over as many rows of another rank's, as in a ring.
fn keys(t: &Table<'_>, heads: Heads, lengths: &[usize]) -> Result<()> {
    let cuda = t.cuda;
    let sequences = Sequences::from_lengths(lengths.iter().copied());
    let spans: Vec<KeySpan> = sequences
        .ranges()
        .map(|rows| KeySpan {
            queries: rows.clone(),
            keys: rows.start..rows.start + rows.len() / 2,
        })
        .collect();
    let pairs: f64 = spans
        .iter()
        .map(|s| (s.queries.len() * s.keys.len()) as f64)
        .sum();
    let flops = 4.0 * (heads.query * heads.dim) as f64 * pairs;
    let shape = format!(
        "{} x {} x {}, {}/{} x {}",
        lengths.len(),
        lengths[0],
        lengths[0] / 2,
        heads.query,
        heads.kv,
        heads.dim
    );
    let tokens = sequences.num_tokens();
    let (qkv, dout, kv) = (
        random(cuda, tokens, heads.qkv_cols())?,
        random(cuda, tokens, heads.out_cols())?,
        random(cuda, tokens, 2 * heads.kv * heads.dim)?,
    );
    let scale = (heads.dim as f64).powf(-0.5);
    let (out, lse) = cuda.attention(&qkv, heads, &sequences, scale)?;
    t.flops("attend_keys", shape.clone(), flops, || {
        cuda.attend_keys(&qkv, &kv, heads, &spans, scale, &out, &lse)
            .map(drop)
    })?;
    let (out, lse) = cuda.attend_keys(&qkv, &kv, heads, &spans, scale, &out, &lse)?;
    t.flops("attend_keys_backward", shape, 2.5 * flops, || {
        cuda.attend_keys_backward(&dout, &qkv, &kv, heads, &spans, scale, &out, &lse)
            .map(drop)
    })
}

/// As many rows for each of `experts`; beside it one product of the same size.
fn experts_products(
    t: &Table<'_>,
    experts: usize,
    rows: usize,
    inputs: usize,
    outputs: usize,
) -> Result<()> {
    let cuda = t.cuda;
    let total = experts * rows;
    let offsets: Vec<usize> = (0..=experts).map(|e| e * rows).collect();
    let (x, dy) = (random(cuda, total, inputs)?, random(cuda, total, outputs)?);
    let w = random(cuda, experts * outputs, inputs)?;
    let mut dw = cuda.float_zeros(experts * outputs, inputs)?;
    let flops = 2.0 * (total * inputs * outputs) as f64;
    let shape = || format!("{experts} x {rows} rows, [{inputs}] x [{outputs}]");
    t.flops("grouped_nt", shape(), flops, || {
        cuda.grouped_nt(&x, &w, &offsets).map(drop)
    })?;
    t.flops("grouped_nn", shape(), flops, || {
        cuda.grouped_nn(&dy, &w, &offsets).map(drop)
    })?;
    t.flops("grouped_tn", shape(), flops, || {
        cuda.accumulate_grouped_tn(&dy, &x, &offsets, &mut dw)
    })?;
    let one = random(cuda, outputs, inputs)?;
    t.flops("matmul_nt, one matrix", shape(), flops, || {
        cuda.matmul_nt(&x, &one).map(drop)
    })
}

/// A decoding step of `rows` sequences of `context` tokens each: attention through the cache, and drawing.
fn serving(t: &Table<'_>, rows: usize, context: usize) -> Result<()> {
    let cuda = t.cuda;
    let heads = Heads {
        query: 16,
        kv: 8,
        dim: 128,
    };
    let blocks_of_one = context.div_ceil(cuda.kv_block_tokens());
    let cache = cuda.kv_cache(1, rows * blocks_of_one, heads)?;
    // Blocks of different sequences lie between each other, as after many steps.
    let blocks: Vec<Vec<u32>> = (0..rows)
        .map(|s| (0..blocks_of_one).map(|b| (b * rows + s) as u32).collect())
        .collect();
    let sequences: Vec<PagedSequence<'_>> = (0..rows)
        .map(|s| PagedSequence {
            rows: s..s + 1,
            context,
            blocks: &blocks[s],
        })
        .collect();
    let qkv = random(cuda, rows, heads.qkv_cols())?;
    let bytes = (rows * context * heads.kv * heads.dim * 4) as f64;
    let shape = format!("{rows} x {context}, 16/8 x 128");
    let tables = cuda.tables(&[], &sequences, 0)?;
    t.bytes("attention_paged", shape, bytes, || {
        cuda.attention_paged(&cache, 0, &qkv, heads, &tables, 0.088)
            .map(drop)
    })?;
    let vocab = 151_936;
    let (h, w) = (random(cuda, rows, 1024)?, random(cuda, vocab, 1024)?);
    let logits = cuda.logits(&h, &w)?;
    let draws = vec![
        Draw {
            inv_temperature: 1.0,
            uniform: Some(0.5)
        };
        rows
    ];
    t.bytes(
        "draw",
        format!("[{rows}, {vocab}]"),
        (8 * rows * vocab) as f64,
        || cuda.draw(&logits, &draws, vocab).map(drop),
    )
}

fn products(t: &Table<'_>, rows: usize, inputs: usize, outputs: usize) -> Result<()> {
    let cuda = t.cuda;
    let (x, w, dy) = (
        random(cuda, rows, inputs)?,
        random(cuda, outputs, inputs)?,
        random(cuda, rows, outputs)?,
    );
    let flops = 2.0 * (rows * inputs * outputs) as f64;
    let shape = || format!("[{rows}, {inputs}] x [{outputs}]");
    t.flops("matmul_nt", shape(), flops, || {
        cuda.matmul_nt(&x, &w).map(drop)
    })?;
    t.flops("matmul_nn", shape(), flops, || {
        cuda.matmul_nn(&dy, &w).map(drop)
    })?;
    let mut dw = cuda.float_zeros(outputs, inputs)?;
    t.flops("accumulate_tn", shape(), flops, || {
        cuda.accumulate_tn(&dy, &x, &mut dw)
    })
}
