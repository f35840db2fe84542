//! Attention through a cache gives packed attention's bits, however the prefix came into the cache.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod oracle;

use oracle::*;
use slime_kernels::{Cpu, CpuTensor, Heads, Ops, PagedSequence, Sequences};

const SCALE: f64 = 0.2;

fn rows(cpu: &Cpu<f32>, x: &[f32], cols: usize, rows: &[usize]) -> CpuTensor<f32> {
    let data: Vec<f32> = rows
        .iter()
        .flat_map(|r| x[r * cols..(r + 1) * cols].to_vec())
        .collect();
    cpu.tensor(rows.len(), cols, &data).unwrap()
}

/// Serves sequences of the given lengths, at most `chunk(i)` new tokens of sequence `i` a call, through a cache full of NaN,
/// and compares every token with packed attention.
fn serve(heads: Heads, lengths: &[usize], chunk: impl Fn(usize) -> usize) {
    let cpu = f32s();
    let sequences = Sequences::from_lengths(lengths.iter().copied());
    let (tokens, cols, block) = (
        sequences.num_tokens(),
        heads.qkv_cols(),
        cpu.kv_block_tokens(),
    );
    let x = floats(7, tokens * cols);
    let all: Vec<usize> = (0..tokens).collect();
    let (packed, _) = cpu
        .attention(&rows(&cpu, &x, cols, &all), heads, &sequences, SCALE)
        .unwrap();
    let packed = bits(&cpu.read(&packed).unwrap());

    let num_blocks: usize = lengths.iter().map(|n| n.div_ceil(block)).sum::<usize>() + 2;
    let mut cache = cpu.kv_cache(2, num_blocks, heads).unwrap();
    let layer = 1;
    let everywhere: Vec<usize> = (0..num_blocks * block).collect();
    let nan = cpu
        .tensor(
            num_blocks * block,
            cols,
            &vec![f32::NAN; num_blocks * block * cols],
        )
        .unwrap();
    let all_slots = cpu.tables(&everywhere, &[], 0).unwrap();
    cpu.kv_write(&mut cache, layer, &nan, heads, &all_slots)
        .unwrap();
    // Blocks from the end, interleaved among sequences.
    let mut free: Vec<u32> = (0..num_blocks as u32).collect();
    let mut tables: Vec<Vec<u32>> = vec![Vec::new(); lengths.len()];
    let mut done = vec![0; lengths.len()];
    while done.iter().zip(lengths).any(|(d, n)| d < n) {
        let (mut new_rows, mut slots, mut parts) = (Vec::new(), Vec::new(), Vec::new());
        for (i, n) in lengths.iter().enumerate() {
            let new = chunk(i).min(n - done[i]);
            if new == 0 {
                continue;
            }
            let start = new_rows.len();
            for position in done[i]..done[i] + new {
                if position / block == tables[i].len() {
                    tables[i].push(free.pop().unwrap());
                }
                slots.push(tables[i][position / block] as usize * block + position % block);
                new_rows.push(sequences.offsets[i] + position);
            }
            done[i] += new;
            parts.push((i, start..new_rows.len(), done[i]));
        }
        let qkv = rows(&cpu, &x, cols, &new_rows);
        let paged: Vec<PagedSequence<'_>> = parts
            .iter()
            .map(|(i, rows, context)| PagedSequence {
                rows: rows.clone(),
                context: *context,
                blocks: &tables[*i],
            })
            .collect();
        let tables = cpu.tables(&slots, &paged, 0).unwrap();
        cpu.kv_write(&mut cache, layer, &qkv, heads, &tables)
            .unwrap();
        let out = bits(
            &cpu.read(
                &cpu.attention_paged(&cache, layer, &qkv, heads, &tables, SCALE)
                    .unwrap(),
            )
            .unwrap(),
        );
        let width = heads.out_cols();
        for (i, row) in new_rows.iter().enumerate() {
            assert!(
                out[i * width..(i + 1) * width] == packed[row * width..(row + 1) * width],
                "{heads:?} {lengths:?}: token {row}"
            );
        }
    }
}

#[test]
fn any_chunking_of_the_prefix_gives_the_same_bits() {
    for heads in [
        Heads {
            query: 3,
            kv: 3,
            dim: 16,
        },
        Heads {
            query: 4,
            kv: 2,
            dim: 24,
        },
        Heads {
            query: 7,
            kv: 1,
            dim: 64,
        },
        Heads {
            query: 9,
            kv: 3,
            dim: 64,
        },
    ] {
        let lengths = [1, 0, 7, 33, 130];
        serve(heads, &lengths, |_| usize::MAX);
        serve(heads, &lengths, |_| 1);
        serve(heads, &lengths, |_| 5);
        serve(heads, &lengths, |i| [3, 1, 64, 16, 17][i]);
        serve(heads, &lengths, |i| [1, 1, 1, 1, 100][i]);
    }
}

#[test]
fn sequences_may_share_the_blocks_of_a_prefix() {
    let cpu = f32s();
    let heads = Heads {
        query: 2,
        kv: 1,
        dim: 16,
    };
    let (cols, block) = (heads.qkv_cols(), cpu.kv_block_tokens());
    let x = floats(1, (2 * block + 2) * cols);
    let mut cache = cpu.kv_cache(1, 4, heads).unwrap();
    // Tokens 0..block in block 2; the two continuations' last token in blocks 0 and 3.
    let prefix: Vec<usize> = (0..block).collect();
    let in_block: Vec<usize> = (2 * block..3 * block).collect();
    let tables = cpu.tables(&in_block, &[], 0).unwrap();
    let of_prefix = rows(&cpu, &x, cols, &prefix);
    cpu.kv_write(&mut cache, 0, &of_prefix, heads, &tables)
        .unwrap();
    let tails = rows(&cpu, &x, cols, &[block, block + 1]);
    let context = block + 1;
    let paged = [
        PagedSequence {
            rows: 0..1,
            context,
            blocks: &[2, 0],
        },
        PagedSequence {
            rows: 1..2,
            context,
            blocks: &[2, 3],
        },
    ];
    let tables = cpu.tables(&[0, 3 * block], &paged, 0).unwrap();
    cpu.kv_write(&mut cache, 0, &tails, heads, &tables).unwrap();
    let out = bits(
        &cpu.read(
            &cpu.attention_paged(&cache, 0, &tails, heads, &tables, SCALE)
                .unwrap(),
        )
        .unwrap(),
    );
    for (i, tail) in [block, block + 1].into_iter().enumerate() {
        let sequence: Vec<usize> = prefix.iter().copied().chain([tail]).collect();
        let (alone, _) = cpu
            .attention(
                &rows(&cpu, &x, cols, &sequence),
                heads,
                &Sequences::from_lengths([context]),
                SCALE,
            )
            .unwrap();
        let alone = bits(&cpu.read(&alone).unwrap());
        assert_eq!(
            out[i * heads.out_cols()..][..heads.out_cols()],
            alone[block * heads.out_cols()..]
        );
    }
}

#[test]
fn a_table_too_short_or_a_foreign_block_is_refused() {
    let cpu = f32s();
    let heads = Heads {
        query: 1,
        kv: 1,
        dim: 8,
    };
    let cache = cpu.kv_cache(1, 2, heads).unwrap();
    let qkv = cpu
        .tensor(1, heads.qkv_cols(), &floats(1, heads.qkv_cols()))
        .unwrap();
    for (context, blocks) in [(17, &[0u32][..]), (3, &[2])] {
        let s = [PagedSequence {
            rows: 0..1,
            context,
            blocks,
        }];
        let tables = cpu.tables(&[], &s, 0).unwrap();
        assert!(
            cpu.attention_paged(&cache, 0, &qkv, heads, &tables, 1.0)
                .is_err()
        );
    }
    let mut cache = cache;
    let [beyond, first] =
        [2 * cpu.kv_block_tokens(), 0].map(|slot| cpu.tables(&[slot], &[], 0).unwrap());
    assert!(cpu.kv_write(&mut cache, 0, &qkv, heads, &beyond).is_err());
    assert!(cpu.kv_write(&mut cache, 1, &qkv, heads, &first).is_err());
}
