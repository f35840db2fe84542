//! Work recorded once and done again with other numbers: the bits of doing it.

use slime_kernels::cuda::{Cuda, Tensor};
use slime_kernels::{Heads, Ops, PagedSequence, Result};

const HEADS: Heads = Heads {
    query: 4,
    kv: 2,
    dim: 64,
};
/// Room for contexts of two pieces, as the attention kernel splits them.
const LONGEST: usize = 1024;
const BLOCKS: usize = 120;

/// Prints a line a check and returns how many are wrong.
pub(crate) fn check(cuda: &Cuda) -> usize {
    let checks = [
        ("replays have the bits of the work itself", replays(cuda)),
        ("memory of a recording stays its own", keeps(cuda)),
        ("work of the host's is refused", refuses(cuda)),
    ];
    let say = |(what, outcome)| crate::say("record", what, outcome);
    checks.into_iter().map(say).sum()
}

fn numbers(seed: usize, count: usize) -> Vec<f32> {
    (0..count)
        .map(|i| (((i + seed) * 37 % 211) as f32 - 105.0) / 64.0)
        .collect()
}

/// Three sequences, each with a new token: ids, and how many tokens each has.
struct Step {
    ids: [u32; 3],
    contexts: [usize; 3],
}

impl Step {
    /// What a call is told: slots, and the tables' sequences to `with`.
    fn told<R>(&self, size: usize, with: impl FnOnce(&[usize], &[PagedSequence<'_>]) -> R) -> R {
        let blocks: Vec<Vec<u32>> = (0..3)
            .map(|s| (0..80).map(|b| b * 3 + s).collect())
            .collect();
        let of = |s: usize| PagedSequence {
            rows: s..s + 1,
            context: self.contexts[s],
            blocks: &blocks[s][..self.contexts[s].div_ceil(size)],
        };
        let slots = [0, 1, 2].map(|s| {
            let at = self.contexts[s] - 1;
            blocks[s][at / size] as usize * size + at % size
        });
        with(&slots, &[of(0), of(1), of(2)])
    }
}

/// The operations of a layer that read ids and tables.
fn replays(cuda: &Cuda) -> Result<bool> {
    let (vocab, hidden, size) = (64, 128, cuda.kv_block_tokens());
    let cols = HEADS.qkv_cols();
    let embedding = cuda.tensor(vocab, hidden, &numbers(1, vocab * hidden))?;
    let weight = cuda.tensor(cols, hidden, &numbers(2, cols * hidden))?;
    let scale = cuda.tensor(1, hidden, &numbers(3, hidden))?;
    let mut cache = cuda.kv_cache(1, BLOCKS, HEADS)?;
    let everywhere: Vec<usize> = (0..BLOCKS * size).collect();
    let history = numbers(4, BLOCKS * size * cols);
    let history = cuda.tensor(BLOCKS * size, cols, &history)?;
    let slots = cuda.tables(&everywhere, &[], 0)?;
    cuda.kv_write(&mut cache, 0, &history, HEADS, &slots)?;
    let steps = [
        ([7, 0, 63], [33, 1, 500]),
        ([5, 9, 2], [34, 2, 513]),
        ([1, 1, 60], [600, 3, 514]),
    ];
    let steps = steps.map(|(ids, contexts)| Step { ids, contexts });
    let mut work = |ids: &_, tables: &_| -> Result<Tensor> {
        let x = cuda.embed(&embedding, ids)?;
        let (x, _) = cuda.rmsnorm(&x, &scale, 1e-6)?;
        let qkv = cuda.matmul_nt(&x, &weight)?;
        cuda.kv_write(&mut cache, 0, &qkv, HEADS, tables)?;
        cuda.attention_paged(&cache, 0, &qkv, HEADS, tables, 0.125)
    };
    let mut want = Vec::new();
    for step in &steps {
        let tables = step.told(size, |slots, sequences| cuda.tables(slots, sequences, 0))?;
        want.push(cuda.read(&work(&cuda.ids(&step.ids)?, &tables)?)?);
    }
    let mut ids = cuda.ids(&steps[0].ids)?;
    let mut tables = steps[0].told(size, |slots, sequences| {
        cuda.tables(slots, sequences, LONGEST)
    })?;
    work(&ids, &tables)?;
    let mut out = None;
    let replay = cuda.record(&mut || {
        out = Some(work(&ids, &tables)?);
        Ok(())
    })?;
    let (Some(replay), Some(out)) = (replay, out) else {
        return Ok(false);
    };
    let mut right = true;
    for (step, want) in steps.iter().zip(&want).chain(steps.iter().zip(&want)) {
        cuda.assign_ids(&mut ids, &step.ids)?;
        step.told(size, |slots, sequences| {
            cuda.assign_tables(&mut tables, slots, sequences)
        })?;
        replay()?;
        right &= cuda.read(&out)? == *want;
    }
    let beyond = Step {
        ids: [0; 3],
        contexts: [1, 1, LONGEST + 1],
    };
    let refused = beyond.told(size, |slots, sequences| {
        cuda.assign_tables(&mut tables, slots, sequences)
    });
    Ok(right && refused.is_err())
}

/// Four times `x`, through memory that is free again when it is made.
fn fourfold(cuda: &Cuda, x: &Tensor) -> Result<Tensor> {
    let twice = cuda.add(x, x)?;
    cuda.add(&twice, &twice)
}

fn keeps(cuda: &Cuda) -> Result<bool> {
    let values = numbers(5, 64 * 64);
    let x = cuda.tensor(64, 64, &values)?;
    let mut outs = Vec::new();
    let mut replays = Vec::new();
    for _ in 0..2 {
        replays.extend(cuda.record(&mut || {
            outs.push(fourfold(cuda, &x)?);
            Ok(())
        })?);
    }
    // As many as take every block that is free.
    let others = (0..8).map(|_| cuda.tensor(64, 64, &[9.0; 64 * 64]));
    let others = others.collect::<Result<Vec<_>>>()?;
    let want: Vec<f32> = values.iter().map(|v| 4.0 * v).collect();
    let mut right = replays.len() == 2;
    for (replay, out) in replays.iter().zip(&outs) {
        replay()?;
        right &= cuda.read(out)? == want;
    }
    // One alone keeps what it has.
    drop(replays.pop());
    let more = cuda.tensor(64, 64, &[9.0; 64 * 64])?;
    replays[0]()?;
    right &= cuda.read(&outs[0])? == want;
    for other in others.iter().chain([&more]) {
        right &= cuda.read(other)?.iter().all(|v| *v == 9.0);
    }
    Ok(right)
}

fn refuses(cuda: &Cuda) -> Result<bool> {
    let x = cuda.tensor(8, 8, &numbers(6, 64))?;
    let refused = [
        cuda.record(&mut || cuda.tensor(8, 8, &[0.0; 64]).map(drop)),
        cuda.record(&mut || cuda.read(&x).map(drop)),
        cuda.record(&mut || cuda.synchronize()),
        cuda.record(&mut || cuda.time_ms(1, || Ok(())).map(drop)),
    ];
    let said = |refused: &Result<_>| match refused {
        Err(why) => why.to_string().contains("takes no part in recorded work"),
        Ok(_) => false,
    };
    // The device computes and records on.
    let mut out = None;
    let replay = cuda.record(&mut || {
        out = Some(fourfold(cuda, &x)?);
        Ok(())
    })?;
    let (Some(replay), Some(out)) = (replay, out) else {
        return Ok(false);
    };
    replay()?;
    let right = cuda.read(&out)? == cuda.read(&fourfold(cuda, &x)?)?;
    Ok(right && refused.iter().all(said))
}
