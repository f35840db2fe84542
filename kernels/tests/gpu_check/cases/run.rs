//! What a case computes.

use super::{Body, Kind, Outputs, ids, numbers, scaled, tables, tensor};
use crate::router;
use slime_kernels::{
    AdamW, ColumnMap, Draw, Drawn, KeySpan, Norms, Ops, PagedSequence, Patch, Result, RopeTable,
    Route, Sequences, Update,
};

/// Draws whose answers rounding cannot change, with the answers: of every row one of its five likeliest tokens, asked for
/// at the middle of its share of the distribution, or the likeliest itself as greedy decoding asks.
fn draws(logits: &[f64], cols: usize, vocab: usize, temperature: f64) -> (Vec<Draw>, Vec<Drawn>) {
    let rows = logits.chunks_exact(cols).enumerate().map(|(row, z)| {
        let u: Vec<f64> = z[..vocab].iter().map(|z| z / temperature).collect();
        let most = u.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = u.iter().map(|u| (u - most).exp()).sum();
        let mut order: Vec<usize> = (0..vocab).collect();
        order.sort_by(|&a, &b| u[b].total_cmp(&u[a]));
        let greedy = row % 3 == 2;
        let token = order[if greedy { 0 } else { row % 5 }];
        let before: f64 = u[..token].iter().map(|u| (u - most).exp()).sum();
        let share = (u[token] - most).exp();
        let uniform = (!greedy).then_some((before + share / 2.0) / total);
        let logprob = share.ln() - total.ln();
        let draw = Draw {
            inv_temperature: 1.0 / temperature,
            uniform,
        };
        (
            draw,
            Drawn {
                token: token as u32,
                logprob,
            },
        )
    });
    rows.unzip()
}

impl Body {
    #[allow(clippy::too_many_lines, reason = "one arm an operation")]
    pub(super) fn run<O: Ops>(&self, o: &O, out: &mut Outputs<'_, O>) -> Result<()> {
        match *self {
            Self::Rows { rows, cols } => {
                let (x, y, b) = (
                    tensor(o, 1, rows, cols)?,
                    tensor(o, 2, rows, cols)?,
                    tensor(o, 3, 1, cols)?,
                );
                out.put("read", Kind::Exact, o.read_f64(&x)?);
                let places: Vec<u32> = (0..rows as u32).rev().step_by(2).collect();
                let places = o.ids(&places)?;
                let gathered = o.gather_rows(&x, &places)?;
                out.put("gather", Kind::Exact, o.read_f64(&gathered)?);
                out.put(
                    "scatter",
                    Kind::Exact,
                    o.read_f64(&o.scatter_rows(&gathered, &places, rows)?)?,
                );
                out.tensor("add", &o.add(&x, &y)?)?;
                out.tensor("sum", &o.sum(&[&x, &y, &x])?)?;
                let some = o.rows(&x, rows / 3..rows)?;
                out.put("rows", Kind::Exact, o.read_f64(&some)?);
                out.tensor("add_bias", &o.add_bias(&x, &b)?)?;
                let mut db = o.float(1, cols, &numbers(4, cols))?;
                o.accumulate_bias(&x, &mut db)?;
                out.float("db", Kind::Float, &db)
            }
            Self::Pieces { rows, cols } => {
                let x = o.tensor(rows, cols, &numbers(1, rows * cols))?;
                let y = o.float(rows, cols, &numbers(2, rows * cols))?;
                let (some, len) = (cols / 3..cols / 3 + cols / 2, rows * cols);
                let picked = o.columns(&x, some.clone())?;
                out.put("columns", Kind::Exact, o.read_f64(&picked)?);
                out.tensor("add_columns", &o.add_columns(&x, &picked, some.start)?)?;
                // A piece and all of it, with zeros after them.
                let parts = [(&x, len / 4..len / 2), (&x, 0..len)];
                let joined = o.join(&parts, 2 * len)?;
                out.put("join", Kind::Exact, o.read_f64(&joined)?);
                let cut = o.cut(&x, len - cols..len, 1, cols)?;
                out.put("cut", Kind::Exact, o.read_f64(&cut)?);
                // Columns beside columns, then whole rows.
                let left = cols / 3;
                let twice = o.join(&[(&x, 0..len), (&x, 0..len)], 2 * len)?;
                let patch = |elements, to, width| Patch {
                    from: &twice,
                    elements,
                    to,
                    width,
                    stride: 2 * cols,
                };
                let lines = |width| 0..rows * width;
                let patches = [
                    patch(lines(left), 0, left),
                    patch(lines(2 * cols - left), left, 2 * cols - left),
                    patch(0..2 * cols, 2 * rows * cols, 2 * cols),
                ];
                let laid = o.lay_out(&patches, rows + 1, 2 * cols)?;
                out.put("lay_out", Kind::Exact, o.read_f64(&laid)?);
                let parts = [(&y, len / 4..len / 2), (&y, 0..len)];
                let joined = o.join_float(&parts, 2 * len)?;
                out.put("join_float", Kind::Exact, o.read_float_f64(&joined)?);
                let cut = o.cut_float(&y, len - cols..len, 1, cols)?;
                out.put("cut_float", Kind::Exact, o.read_float_f64(&cut)?);
                Ok(())
            }
            Self::Matmul {
                rows,
                inputs,
                outputs,
            } => {
                let (x, w, dy) = (
                    tensor(o, 1, rows, inputs)?,
                    tensor(o, 2, outputs, inputs)?,
                    tensor(o, 3, rows, outputs)?,
                );
                out.tensor("y", &o.matmul_nt(&x, &w)?)?;
                out.tensor("dx", &o.matmul_nn(&dy, &w)?)?;
                // In turns, the last rows first.
                let (mut y, mut dx) = (o.room(rows, outputs)?, o.room(rows, inputs)?);
                for range in [rows / 3..rows, 0..rows / 3] {
                    let at = range.start;
                    o.put_nt(&o.rows(&x, range.clone())?, &w, &mut y, at)?;
                    o.put_nn(&o.rows(&dy, range)?, &w, &mut dx, at)?;
                }
                out.tensor("y in turns", &y)?;
                out.tensor("dx in turns", &dx)?;
                let mut dw = o.float(outputs, inputs, &numbers(4, outputs * inputs))?;
                o.accumulate_tn(&dy, &x, &mut dw)?;
                out.float("dw", Kind::Float, &dw)?;
                o.zero(&mut dw)?;
                out.put("zero", Kind::Exact, vec![o.sum_squares(&dw)?]);
                o.zero(&mut dw)?;
                for _ in 0..2 {
                    o.accumulate_tn(&dy, &x, &mut dw)?;
                }
                out.float("dw from zero", Kind::Float, &dw)
            }
            Self::Experts {
                inputs,
                outputs,
                ref rows,
            } => {
                let mut offsets = vec![0];
                offsets.extend(rows.iter().scan(0, |at, n| {
                    *at += n;
                    Some(*at)
                }));
                let (count, total) = (rows.len(), offsets[rows.len()]);
                let (x, w, dy) = (
                    tensor(o, 1, total, inputs)?,
                    tensor(o, 2, count * outputs, inputs)?,
                    tensor(o, 3, total, outputs)?,
                );
                out.tensor("y", &o.grouped_nt(&x, &w, &offsets)?)?;
                out.tensor("dx", &o.grouped_nn(&dy, &w, &offsets)?)?;
                let size = count * outputs * inputs;
                let mut dw = o.float(count * outputs, inputs, &numbers(4, size))?;
                o.accumulate_grouped_tn(&dy, &x, &offsets, &mut dw)?;
                out.float("dw", Kind::Float, &dw)?;
                o.zero(&mut dw)?;
                for _ in 0..2 {
                    o.accumulate_grouped_tn(&dy, &x, &offsets, &mut dw)?;
                }
                out.float("dw from zero", Kind::Float, &dw)
            }
            Self::ExpertRows { rows, cols, each } => {
                let (x, y) = (tensor(o, 1, rows, cols)?, tensor(o, 2, rows, cols)?);
                let p = o.float(rows, 1, &numbers(3, rows))?;
                out.tensor("scaled", &o.scale_rows(&x, &p)?)?;
                out.float("dots", Kind::Float, &o.row_dots(&x, &y)?)?;
                let places: Vec<u32> = ids(4, 2 * rows * each, rows);
                out.tensor("summed", &o.sum_rows(&x, &o.ids(&places)?, each)?)?;
                out.tensor("gated", &o.gate(&x, &y)?)?;
                let dy = tensor(o, 5, rows, cols)?;
                let (dx, dgate) = o.gate_backward(&dy, &x, &y)?;
                out.tensor("dx of gate", &dx)?;
                out.tensor("dgate", &dgate)?;
                // The first half twice, the second turned round and added to the other input's.
                let sources = (0..cols).flat_map(|c| match c < cols / 2 {
                    true => vec![c as u32],
                    false => vec![(cols - 1 - c) as u32, (cols + c) as u32],
                });
                let counts = (0..cols).map(|c| 1 + u32::from(c >= cols / 2));
                let mut starts = vec![0];
                starts.extend(counts.scan(0, |at, n| {
                    *at += n;
                    Some(*at)
                }));
                let map = ColumnMap {
                    starts,
                    sources: sources.collect(),
                    num_inputs: 2 * cols,
                };
                out.tensor("mapped", &o.map_columns(&[&x, &y], &map)?)
            }
            Self::Routing { rows, rule } => {
                let k = rule.top_k;
                let logits = o.float(rows, rule.experts, &numbers(1, rows * rule.experts))?;
                let bias = tensor(o, 2, 1, rule.experts)?;
                // Every third row replays what was recorded, with one choice missing in every ninth.
                let mut forced: Vec<u32> = (0..rows * k)
                    .map(|i| ((i % k) * 7 % rule.experts) as u32)
                    .collect();
                for (row, forced) in forced.chunks_exact_mut(k).enumerate() {
                    if row % 3 != 0 || row % 9 == 0 {
                        forced[k - 1] = Route::FREE;
                    }
                }
                let dweights: Vec<f64> = numbers(3, rows * k).into_iter().map(f64::from).collect();
                let host = o.read_float_f64(&logits)?;
                let host_bias = o.read_f64(&bias)?;
                for (bias, host_bias, forced) in [
                    (None, None, None),
                    (Some(&bias), Some(&host_bias[..]), None),
                    (Some(&bias), Some(&host_bias[..]), Some(&forced[..])),
                ] {
                    let (experts, weights) = match o.route(&logits, bias, forced, &rule)? {
                        Some(found) => found,
                        None => router::route(&host, host_bias, forced, &rule),
                    };
                    let told = o.route_backward(&logits, &rule, &experts, &weights, &dweights)?;
                    let dlogits = match told {
                        Some(dlogits) => o.read_f64(&dlogits)?,
                        None => router::backward(&host, &rule, &experts, &dweights),
                    };
                    let experts = experts.into_iter().map(f64::from).collect();
                    out.put("experts", Kind::Exact, experts);
                    out.put("weights", Kind::Float, weights);
                    out.put("dlogits", Kind::Rounded, dlogits);
                }
                Ok(())
            }
            Self::Embedding {
                vocab,
                hidden,
                tokens,
            } => {
                let (table, dx) = (tensor(o, 1, vocab, hidden)?, tensor(o, 2, tokens, hidden)?);
                let ids = o.ids(&ids(3, tokens, vocab))?;
                out.put("rows", Kind::Exact, o.read_f64(&o.embed(&table, &ids)?)?);
                let mut dtable = o.float(vocab, hidden, &numbers(4, vocab * hidden))?;
                o.accumulate_embed(&dx, &ids, &mut dtable)?;
                out.float("dtable", Kind::Float, &dtable)
            }
            Self::Norm { rows, cols } => {
                let (x, delta, w) = (
                    tensor(o, 1, rows, cols)?,
                    tensor(o, 2, rows, cols)?,
                    tensor(o, 3, 1, cols)?,
                );
                let (y, r) = o.rmsnorm(&x, &w, 1e-6)?;
                out.tensor("y", &y)?;
                out.float("r", Kind::Float, &r)?;
                let (s, y, sr) = o.add_rmsnorm(&x, &delta, &w, 1e-6)?;
                out.tensor("s", &s)?;
                out.tensor("y of sum", &y)?;
                out.float("r of sum", Kind::FloatOfRounded, &sr)?;
                let dy = tensor(o, 5, rows, cols)?;
                for (name, residual) in [("dx", None), ("dx + residual", Some(&delta))] {
                    let mut dw = o.float(1, cols, &numbers(4, cols))?;
                    out.tensor(
                        name,
                        &o.rmsnorm_backward(&dy, &x, &r, &w, residual, &mut dw)?,
                    )?;
                    out.float("dw", Kind::Float, &dw)?;
                }
                let mut dw = o.float_zeros(1, cols)?;
                let past = Some(&delta);
                let (dx, y) = o.rmsnorm_backward_again(&dy, &x, &r, &w, 1e-6, past, &mut dw)?;
                out.tensor("dx beside y", &dx)?;
                out.tensor("y again", &y)?;
                out.float("dw from zero", Kind::Float, &dw)
            }
            Self::Rotation {
                heads,
                rotary,
                style,
                norms,
                tokens,
            } => {
                let positions: Vec<u32> = (0..tokens as u32).map(|t| t * 37 % 500).collect();
                let angle = |i: usize| {
                    (i / (rotary / 2)) as f64
                        * 10_000f64.powf(-2.0 * (i % (rotary / 2)) as f64 / rotary as f64)
                };
                let table = |f: fn(f64) -> f64| -> Vec<f64> {
                    (0..500 * rotary / 2).map(|i| f(angle(i))).collect()
                };
                let rope = RopeTable {
                    cos: o.float_f64(500, rotary / 2, &table(f64::cos))?,
                    sin: o.float_f64(500, rotary / 2, &table(f64::sin))?,
                    dims: rotary,
                    style,
                };
                let positions = o.ids(&positions)?;
                let (x, dy) = (
                    tensor(o, 1, tokens, heads.qkv_cols())?,
                    tensor(o, 2, tokens, heads.qkv_cols())?,
                );
                let (query, key) = (tensor(o, 3, 1, heads.dim)?, tensor(o, 4, 1, heads.dim)?);
                let weights = || {
                    norms.then_some(Norms {
                        query: &query,
                        key: &key,
                        eps: 1e-6,
                    })
                };
                let (y, r) = o.qk_norm_rope(&x, heads, &positions, &rope, weights())?;
                out.tensor("y", &y)?;
                let mut dnorms = (
                    o.float(1, heads.dim, &numbers(5, heads.dim))?,
                    o.float(1, heads.dim, &numbers(6, heads.dim))?,
                );
                let saved = weights().zip(r.as_ref()).map(|(w, r)| (w, &x, r));
                let into = norms.then_some((&mut dnorms.0, &mut dnorms.1));
                let dx = o.qk_norm_rope_backward(&dy, heads, &positions, &rope, saved, into)?;
                out.tensor("dx", &dx)?;
                out.float("dw query", Kind::Float, &dnorms.0)?;
                out.float("dw key", Kind::Float, &dnorms.1)?;
                match &r {
                    Some(r) => out.float("r", Kind::Float, r),
                    None => Ok(()),
                }
            }
            Self::Attention { heads, ref lengths } => {
                let sequences = Sequences::from_lengths(lengths.iter().copied());
                let tokens = sequences.num_tokens();
                let (qkv, dout) = (
                    tensor(o, 1, tokens, heads.qkv_cols())?,
                    tensor(o, 2, tokens, heads.out_cols())?,
                );
                let scale = (heads.dim as f64).powf(-0.5);
                let (y, lse) = o.attention(&qkv, heads, &sequences, scale)?;
                out.tensor("o", &y)?;
                out.float("lse", Kind::Float, &lse)?;
                let dqkv = o.attention_backward(&dout, &qkv, &y, &lse, heads, &sequences, scale)?;
                let values = o.read_f64(&dqkv)?;
                let (q, k) = (heads.query * heads.dim, heads.kv * heads.dim);
                let columns = |from: usize, to: usize| -> Vec<f64> {
                    values
                        .chunks_exact(heads.qkv_cols())
                        .flat_map(|row| row[from..to].to_vec())
                        .collect()
                };
                out.put("dq", Kind::Rounded, columns(0, q));
                out.put("dk", Kind::Rounded, columns(q, q + k));
                out.put("dv", Kind::Rounded, columns(q + k, q + 2 * k));
                Ok(())
            }
            Self::Keys {
                heads,
                rows,
                others,
                ref spans,
            } => {
                let spans: Vec<KeySpan> = spans
                    .iter()
                    .map(|[queries, keys]| KeySpan {
                        queries: queries.clone(),
                        keys: keys.clone(),
                    })
                    .collect();
                let (qkv, dout, before) = (
                    tensor(o, 1, rows, heads.qkv_cols())?,
                    tensor(o, 2, rows, heads.out_cols())?,
                    tensor(o, 3, rows, heads.out_cols())?,
                );
                let mut lse = o.float(heads.query, rows, &numbers(4, heads.query * rows))?;
                let scale = (heads.dim as f64).powf(-0.5);
                let width = 2 * heads.kv * heads.dim;
                let (first, second) = (tensor(o, 5, others, width)?, tensor(o, 6, others, width)?);
                let mut y = before;
                // As from two peers, one after the other.
                for kv in [&first, &second] {
                    (y, lse) = o.attend_keys(&qkv, kv, heads, &spans, scale, &y, &lse)?;
                    out.tensor("o", &y)?;
                    out.float("lse", Kind::Float, &lse)?;
                }
                for kv in [&first, &second] {
                    let (dqkv, dkv) =
                        o.attend_keys_backward(&dout, &qkv, kv, heads, &spans, scale, &y, &lse)?;
                    let (mut dq, mut rest) = (Vec::new(), Vec::new());
                    for row in o.read_f64(&dqkv)?.chunks_exact(heads.qkv_cols()) {
                        let (of_query, of_key) = row.split_at(heads.out_cols());
                        dq.extend_from_slice(of_query);
                        rest.extend_from_slice(of_key);
                    }
                    out.put("dq", Kind::Merged, dq);
                    out.put("own keys", Kind::Exact, rest);
                    let (mut dk, mut dv) = (Vec::new(), Vec::new());
                    for row in o.read_f64(&dkv)?.chunks_exact(width) {
                        let (of_key, of_value) = row.split_at(width / 2);
                        dk.extend_from_slice(of_key);
                        dv.extend_from_slice(of_value);
                    }
                    out.put("dk", Kind::Merged, dk);
                    out.put("dv", Kind::Rounded, dv);
                }
                Ok(())
            }
            Self::Paged {
                heads,
                ref contexts,
            } => {
                let size = o.kv_block_tokens();
                let (tables, total) = tables(size, contexts.iter().map(|&(_, context)| context));
                let mut cache = o.kv_cache(2, total, heads)?;
                for (i, (&(_, context), table)) in contexts.iter().zip(&tables).enumerate() {
                    let slots: Vec<usize> = (0..context)
                        .map(|t| table[t / size] as usize * size + t % size)
                        .collect();
                    let history = tensor(o, 10 + i as u64, context, heads.qkv_cols())?;
                    let slots = o.tables(&slots, &[], 0)?;
                    o.kv_write(&mut cache, 1, &history, heads, &slots)?;
                }
                let mut row = 0;
                let sequences: Vec<PagedSequence<'_>> = contexts
                    .iter()
                    .zip(&tables)
                    .map(|(&(rows, context), blocks)| {
                        row += rows;
                        PagedSequence {
                            rows: row - rows..row,
                            context,
                            blocks,
                        }
                    })
                    .collect();
                // The call's own rows are in the cache too, as in serving.
                let newest = tensor(o, 3, row, heads.qkv_cols())?;
                let slots: Vec<usize> = sequences
                    .iter()
                    .flat_map(|s| {
                        let first = s.context - s.rows.len();
                        (first..s.context).map(|t| s.blocks[t / size] as usize * size + t % size)
                    })
                    .collect();
                let tables = o.tables(&slots, &sequences, 0)?;
                o.kv_write(&mut cache, 1, &newest, heads, &tables)?;
                let scale = (heads.dim as f64).powf(-0.5);
                let y = o.attention_paged(&cache, 1, &newest, heads, &tables, scale)?;
                out.tensor("o", &y)?;
                // Prompts read whole stay so: they are other kernels' work on a GPU.
                let alone: Vec<_> = sequences
                    .iter()
                    .flat_map(|s| {
                        let whole = s.rows.len() == s.context;
                        let step = if whole { s.rows.len() } else { 1 };
                        s.rows.clone().step_by(step).map(move |row| PagedSequence {
                            rows: row..row + step,
                            context: s.context + row + step - s.rows.end,
                            blocks: s.blocks,
                        })
                    })
                    .collect();
                let tables = o.tables(&slots, &alone, 0)?;
                let again = o.attention_paged(&cache, 1, &newest, heads, &tables, scale)?;
                let (among, by_itself) = (o.read(&y)?, o.read(&again)?);
                let changed = among.iter().zip(&by_itself).filter(|(a, b)| a != b).count();
                out.put(
                    "numbers that other rows change",
                    Kind::Exact,
                    vec![changed as f64],
                );
                Ok(())
            }
            Self::SwiGlu { rows, cols } => {
                let (x, da) = (tensor(o, 1, rows, 2 * cols)?, tensor(o, 2, rows, cols)?);
                out.tensor("a", &o.swiglu(&x)?)?;
                out.tensor("dx", &o.swiglu_backward(&da, &x)?)?;
                let (dx, a) = o.swiglu_backward_again(&da, &x)?;
                out.tensor("dx beside a", &dx)?;
                out.tensor("a again", &a)
            }
            Self::Head {
                rows,
                hidden,
                cols,
                vocab,
                temperature,
            } => {
                let targets = o.ids(&ids(3, rows, vocab))?;
                let logits = match hidden {
                    Some(hidden) => o.logits(
                        &tensor(o, 1, rows, hidden)?,
                        &scaled(o, 2, cols, hidden, 0.125)?,
                    )?,
                    None => o.float(rows, cols, &numbers(4, rows * cols))?,
                };
                out.float("logits", Kind::Float, &logits)?;
                let stats = o.token_stats(&logits, &targets, 1.0 / temperature, vocab)?;
                out.put("logprob", Kind::Float, stats.logprob.clone());
                out.put("entropy", Kind::Float, stats.entropy.clone());
                out.put("lse", Kind::Float, stats.lse.clone());
                let (draws, expected) =
                    draws(&o.read_float_f64(&logits)?, cols, vocab, temperature);
                let drawn = o.draw(&logits, &draws, vocab)?.unwrap_or(expected);
                let tokens = drawn.iter().map(|d| f64::from(d.token)).collect();
                out.put("drawn", Kind::Exact, tokens);
                let logprobs = drawn.iter().map(|d| d.logprob).collect();
                out.put("drawn logprob", Kind::Float, logprobs);
                let weights = |seed| {
                    numbers(seed, rows)
                        .into_iter()
                        .map(f64::from)
                        .collect::<Vec<_>>()
                };
                let (a, b) = (weights(5), weights(6));
                out.tensor(
                    "dz",
                    &o.logits_backward(logits, &targets, 1.0 / temperature, vocab, &stats, &a, &b)?,
                )
            }
            Self::AdamW { count } => {
                let start = numbers(1, count);
                let (mut m, mut v, mut master) = (
                    o.float_zeros(1, count)?,
                    o.float_zeros(1, count)?,
                    o.float(1, count, &start)?,
                );
                let mut weight = o.tensor(1, count, &start)?;
                for step in 1..=3 {
                    let grad = o.float(1, count, &numbers(10 + step, count))?;
                    let rule = AdamW {
                        lr: 1e-2,
                        beta1: 0.9,
                        beta2: 0.98,
                        eps: 1e-8,
                        weight_decay: 0.1,
                        step,
                        grad_scale: 0.5,
                    };
                    o.adamw(&rule, &grad, &mut m, &mut v, Some(&mut master), &mut weight)?;
                }
                // States in 16 bits where the device has them, from a master that the weight does not hold whole.
                let mut short = o.tensor(1, count, &start)?;
                let (mut m3, mut v3) = (o.compact_moment(1, count)?, o.compact_moment(1, count)?);
                let mut rest = o.compact_master(&short)?;
                o.assign(&mut rest, &start)?;
                out.put("assigned", Kind::Exact, o.read_float_f64(&rest)?);
                for step in 1..=3 {
                    let grad = o.float(1, count, &numbers(10 + step, count))?;
                    let rule = AdamW {
                        lr: 1e-3,
                        beta1: 0.9,
                        beta2: 0.98,
                        eps: 1e-8,
                        weight_decay: 0.1,
                        step,
                        grad_scale: 0.5,
                    };
                    o.adamw(&rule, &grad, &mut m3, &mut v3, Some(&mut rest), &mut short)?;
                }
                out.float("compact master", Kind::Float, &rest)?;
                out.float("compact m", Kind::Rounded, &m3)?;
                out.float("compact v", Kind::Rounded, &v3)?;
                out.tensor("compact weight", &short)?;
                // Two parameters at once, the second one longer than a thread block's share.
                let long = 20_003;
                let (mut m2, mut v2, mut master2) = (
                    o.float_zeros(1, long)?,
                    o.float_zeros(1, long)?,
                    o.float(1, long, &numbers(2, long))?,
                );
                let mut weight2 = o.tensor(1, long, &numbers(2, long))?;
                let rule = AdamW {
                    lr: 1e-2,
                    beta1: 0.9,
                    beta2: 0.98,
                    eps: 1e-8,
                    weight_decay: 0.5,
                    step: 4,
                    grad_scale: 0.5,
                };
                let grads = [
                    o.float(1, count, &numbers(14, count))?,
                    o.float(1, long, &numbers(15, long))?,
                ];
                let updates = vec![
                    Update {
                        weight_decay: 0.1,
                        grad: &grads[0],
                        m: &mut m,
                        v: &mut v,
                        master: Some(&mut master),
                        weight: &mut weight,
                    },
                    Update {
                        weight_decay: 0.0,
                        grad: &grads[1],
                        m: &mut m2,
                        v: &mut v2,
                        master: Some(&mut master2),
                        weight: &mut weight2,
                    },
                ];
                o.adamw_all(&rule, updates)?;
                out.put(
                    "norm of all",
                    Kind::Float,
                    vec![o.sum_squares_of_all(&[&grads[0], &grads[1]])?],
                );
                out.float("second's master", Kind::Float, &master2)?;
                out.tensor("second's weight", &weight2)?;
                out.float("m", Kind::Float, &m)?;
                out.float("v", Kind::Float, &v)?;
                out.float("master", Kind::Float, &master)?;
                out.tensor("weight", &weight)
            }
            Self::Family(ref body) => body.run(o, out),
            Self::SumSquares { count } => {
                let x = o.float(1, count, &numbers(1, count))?;
                out.put("sum", Kind::Float, vec![o.sum_squares(&x)?]);
                Ok(())
            }
        }
    }
}
