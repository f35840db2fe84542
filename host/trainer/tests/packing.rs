//! Packed sequences do not see each other, and a token is the same bits packed, alone, or through the paged cache.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod support;

use slime_kernels::{Ops, PagedSequence, Sequences};
use slime_model::{Attention, PagedRows};
use slime_trainer::TrainConfig;
use support::{Numbers, distance, f32_cpu, models, network, tolerance, trainer};

fn texts(vocab: usize) -> Vec<Vec<u32>> {
    let mut numbers = Numbers(11);
    [5, 31, 1, 18]
        .map(|len| numbers.tokens(len, vocab))
        .to_vec()
}

#[test]
fn j07_a_sequence_packed_with_others_has_the_bits_it_has_alone() {
    for model in &models() {
        let ops = f32_cpu();
        let trainer = trainer(&ops, model, TrainConfig::default());
        let texts = texts(trainer.network().spec().vocab);
        let views: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        let packed = trainer.log_probs(&views).unwrap();
        for (view, packed) in views.iter().zip(&packed) {
            assert_eq!(&trainer.log_probs(&[view]).unwrap()[0], packed, "{model}");
            assert_eq!(packed.logprobs.len(), view.len() - 1);
        }
    }
}

#[test]
fn j06_changing_one_sequence_leaves_the_others_alone() {
    let ops = f32_cpu();
    let trainer = trainer(&ops, "qwen2-tiny", TrainConfig::default());
    let mut texts = texts(trainer.network().spec().vocab);
    let scores = |texts: &[Vec<u32>]| {
        let views: Vec<&[u32]> = texts.iter().map(Vec::as_slice).collect();
        trainer.log_probs(&views).unwrap()
    };
    let before = scores(&texts);
    texts[1][3] ^= 1;
    let after = scores(&texts);
    assert_ne!(before[1], after[1]);
    for i in [0, 2, 3] {
        assert_eq!(before[i], after[i]);
    }
}

#[test]
fn rows_served_through_the_cache_in_any_chunks_are_the_bits_of_training() {
    for model in &models() {
        let ops = f32_cpu();
        let network = network(&ops, model);
        let texts = &texts(network.spec().vocab)[..2];
        let layout = Sequences::from_lengths(texts.iter().map(Vec::len));
        let every: Vec<u32> = (0..layout.num_tokens() as u32).collect();
        let trained = network.forward(&texts.concat(), &layout, &every).unwrap();
        let trained = ops.read(&trained).unwrap();
        let hidden = network.spec().hidden;
        // Latent attention serves in the compressed space: the same numbers, not the same bits.
        let latent = |l: &slime_model::LayerSpec| matches!(l.attn, Attention::Latent(_));
        let folds = network.spec().layers.iter().any(latent);

        let block = ops.kv_block_tokens();
        let blocks_of = |sequence: usize| -> Vec<u32> {
            // Interleaved, so that no sequence lies in consecutive blocks.
            (0..64u32.div_ceil(block as u32))
                .map(|b| 2 * b + sequence as u32)
                .collect()
        };
        let blocks = [blocks_of(0), blocks_of(1)];
        let num_blocks = 2 * blocks[0].len();
        let mut cache = network.cache(num_blocks).unwrap();
        // Each call: how many new tokens of each sequence.
        let calls = [[3, 17], [1, 1], [1, 9], [0, 1], [0, 3]];
        let mut done = [0, 0];
        for call in calls {
            let (mut ids, mut positions, mut slots) = (Vec::new(), Vec::new(), Vec::new());
            let mut sequences = Vec::new();
            let mut expected = Vec::new();
            for s in 0..2 {
                let start = ids.len();
                for p in done[s]..done[s] + call[s] {
                    ids.push(texts[s][p]);
                    positions.push(p as u32);
                    slots.push(blocks[s][p / block] as usize * block + p % block);
                    let row = (layout.offsets[s] + p) * hidden;
                    expected.push(&trained[row..row + hidden]);
                }
                done[s] += call[s];
                if call[s] > 0 {
                    let rows = start..ids.len();
                    sequences.push(PagedSequence {
                        rows,
                        context: done[s],
                        blocks: &blocks[s],
                    });
                }
            }
            // The last row of the call, and its first.
            let wanted = [ids.len() as u32 - 1, 0];
            let wanted = if ids.len() == 1 {
                &wanted[..1]
            } else {
                &wanted[..]
            };
            let rows = PagedRows {
                ids: &ids,
                positions: &positions,
                slots: &slots,
                sequences: &sequences,
                wanted,
            };
            let got = ops
                .read(&network.forward_paged(&rows, &mut cache).unwrap())
                .unwrap();
            let want: Vec<f32> = wanted
                .iter()
                .flat_map(|&row| expected[row as usize])
                .copied()
                .collect();
            if folds {
                let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
                let gap = distance(&wide(&got), &wide(&want));
                let bound = tolerance(model, 3e-6, 3e-5);
                assert!(gap < bound, "{model} after {done:?}: {gap:e}");
            } else {
                assert!(got == want, "{model} after {done:?}");
            }
        }
        assert_eq!(done, [5, 31]);
    }
}
