//! The scheduler over a model whose logits are a hash of the whole context *as the cache holds it*: a block that
//! is shared wrongly, written twice or kept across weights changes every token after it. The oracle is a plain
//! loop over one sequence without a cache.

use super::*;
use crate::engine::{EngineConfig, EngineHandle, Job, start};
use crate::forward::Rows;
use crate::generation::Generation;
use crate::random;
use crate::request::{Params, Span, Token, Wanted};
use crate::sampler;
use crate::text::tests::Bytes;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const BLOCK: usize = 4;
const VOCAB: usize = 258;

/// One cache slot: what was written, where it belongs, under which weights.
type Slot = Option<(u32, u32, u64)>;

struct Hashing {
    slots: Vec<Slot>,
    weights: u64,
    rows: Arc<AtomicUsize>,
    /// Time a step takes, so that a test can act in the middle.
    step: Duration,
}

fn fold(hash: u64, weights: u64, token: u32) -> u64 {
    random::word(hash ^ weights, u64::from(token))
}

fn logits_of(hash: u64) -> Vec<f32> {
    (0..VOCAB as u64)
        .map(|i| (random::uniform(hash, i) * 6.0) as f32)
        .collect()
}

impl Forward for Hashing {
    type Hidden = Vec<u64>;
    type Weights = u64;

    fn model_type(&self) -> String {
        "hashing".into()
    }
    fn block_tokens(&self) -> usize {
        BLOCK
    }
    fn vocab_size(&self) -> usize {
        VOCAB
    }
    fn max_positions(&self) -> usize {
        256
    }
    fn allocate(&mut self, num_blocks: usize) -> Result<()> {
        self.slots = vec![None; num_blocks * BLOCK];
        Ok(())
    }
    fn forward(&mut self, rows: &Rows<'_>, wanted: &[u32]) -> Result<Vec<u64>> {
        std::thread::sleep(self.step);
        self.rows.fetch_add(rows.tokens.len(), Ordering::Relaxed);
        for (i, &slot) in rows.slots.iter().enumerate() {
            self.slots[slot] = Some((rows.tokens[i], rows.positions[i], self.weights));
        }
        let mut hidden = vec![0; rows.tokens.len()];
        for s in rows.sequences {
            for row in s.rows.clone() {
                let context = s.context - (s.rows.end - 1 - row);
                hidden[row] = (0..context).fold(0, |hash, position| {
                    let slot = s.blocks[position / BLOCK] as usize * BLOCK + position % BLOCK;
                    let (token, at, weights) = self.slots[slot].expect("the slot was written");
                    assert_eq!(at as usize, position);
                    fold(hash, weights, token)
                });
            }
        }
        Ok(wanted.iter().map(|&w| hidden[w as usize]).collect())
    }
    fn logits(&self, hidden: &Vec<u64>, range: Range<usize>) -> Result<Vec<f32>> {
        Ok(hidden[range].iter().flat_map(|&h| logits_of(h)).collect())
    }
    fn read_weights(&self, source: Source) -> Result<u64> {
        let Source::Directory(dir) = source else {
            return Err(Error::Weights("no directory".into()));
        };
        let name = dir.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        name.parse()
            .map_err(|_| Error::Weights(format!("{} is no number", dir.display())))
    }
    fn install(&mut self, weights: u64) -> Result<()> {
        self.weights = weights;
        Ok(())
    }
    fn checksums(&self) -> Result<Vec<(String, u64)>> {
        Ok(vec![("all".into(), self.weights)])
    }
    fn tensor(&self, _name: &str, _rows: usize) -> Result<Option<(Vec<f32>, usize)>> {
        Ok(None)
    }
}

struct Setup {
    engine: EngineHandle,
    rows: Arc<AtomicUsize>,
}

fn engine(max_total_tokens: usize, chunk: usize, step_ms: u64) -> Setup {
    let rows = Arc::new(AtomicUsize::new(0));
    let step = Duration::from_millis(step_ms);
    let model = Hashing {
        slots: Vec::new(),
        weights: 1,
        rows: rows.clone(),
        step,
    };
    let config = EngineConfig {
        max_total_tokens,
        chunked_prefill_size: chunk,
        ..EngineConfig::default()
    };
    Setup {
        engine: start(model, Arc::new(Bytes), config).expect("starts"),
        rows,
    }
}

/// The oracle: one sequence, no cache, no batch.
fn alone(prompt: &[u32], params: &Params, seed: u64, weights: u64) -> Vec<(u32, f32)> {
    let mut tokens = prompt.to_vec();
    let mut out = Vec::new();
    let mut counts = sampler::Counts::default();
    while out.len() < params.max_new_tokens {
        let mut z = logits_of(tokens.iter().fold(0, |h, &t| fold(h, weights, t)));
        sampler::adjust(&mut z, params, &counts, out.len(), &[256]);
        let token =
            sampler::sample(&z, &mut [0.0; VOCAB], params, seed, tokens.len(), 0).expect("finite");
        counts.add(token.id);
        tokens.push(token.id);
        out.push((token.id, token.logprob.expect("sampled")));
        if !params.ignore_eos && token.id == 256 {
            break;
        }
    }
    out
}

fn plain(max_new_tokens: usize) -> Params {
    Params {
        max_new_tokens,
        seed: Some(5),
        ignore_eos: true,
        ..Params::default()
    }
}

fn job(prompt: &[u32], params: &Params) -> Job {
    let wanted = Wanted {
        output: true,
        ..Wanted::default()
    };
    Job {
        rid: None,
        prompt: prompt.to_vec(),
        params: params.clone(),
        wanted,
        stream: false,
    }
}

fn begin(engine: &EngineHandle, job: Job) -> Generation {
    let (params, stream) = (job.params.clone(), job.stream);
    let running = engine.submit(job).expect("accepted").remove(0);
    Generation::new(running, &params, stream)
}

async fn run(engine: &EngineHandle, job: Job) -> Generation {
    begin(engine, job).complete().await.expect("answers")
}

fn pairs(tokens: &[Token]) -> Vec<(u32, f32)> {
    tokens
        .iter()
        .map(|t| (t.id, t.logprob.unwrap_or(f32::NAN)))
        .collect()
}

fn finish(g: &Generation) -> &Finish {
    &g.ending.as_ref().expect("ended").finish
}

fn prompt(seed: u64, len: usize) -> Vec<u32> {
    (0..len as u64)
        .map(|i| (random::word(seed, i) % 250) as u32)
        .collect()
}

#[tokio::test]
async fn sixty_requests_through_a_tiny_cache_sample_what_each_would_alone() {
    for (tokens, chunk) in [(4096, 512), (160, 7), (100, 16)] {
        let Setup { engine, .. } = engine(tokens, chunk, 0);
        let mut jobs = Vec::new();
        for i in 0..60u64 {
            // Prompts share beginnings of different lengths.
            let mut p = prompt(i % 3, 5 + (i as usize % 4) * 6);
            p.extend(prompt(100 + i / 2, i as usize % 5 + 1));
            let params = Params {
                seed: Some(i / 2),
                temperature: 0.5 + i as f64 / 60.0,
                top_k: if i % 5 == 0 { 1 } else { usize::MAX },
                top_p: if i % 3 == 0 { 0.9 } else { 1.0 },
                repetition_penalty: if i % 7 == 0 { 1.3 } else { 1.0 },
                ..plain(8 + i as usize % 40)
            };
            jobs.push((p, params));
        }
        let started: Vec<_> = jobs
            .iter()
            .map(|(p, params)| begin(&engine, job(p, params)))
            .collect();
        let mut retractions = 0;
        for (g, (p, params)) in started.into_iter().zip(&jobs) {
            let g = g.complete().await.expect("answers");
            assert_eq!(
                pairs(&g.tokens),
                alone(p, params, params.seed.expect("given"), 1),
                "{params:?}"
            );
            assert_eq!(finish(&g), &Finish::Length(params.max_new_tokens));
            retractions += g.retractions;
        }
        assert_eq!(
            retractions > 0,
            tokens < 1000,
            "{retractions} with room for {tokens}"
        );
        engine.ping().await.expect("alive");
        assert_eq!(
            engine.inner.metrics.used_tokens(),
            0,
            "every block was given back"
        );
    }
}

#[tokio::test]
async fn samples_of_one_prompt_read_it_once() {
    let Setup { engine, rows } = engine(4096, 16, 0);
    let p = prompt(1, 41);
    let all: Vec<_> = (0..8)
        .map(|i| {
            begin(
                &engine,
                job(
                    &p,
                    &Params {
                        seed: Some(i),
                        ..plain(3)
                    },
                ),
            )
        })
        .collect();
    for (i, g) in all.into_iter().enumerate() {
        let g = g.complete().await.expect("answers");
        assert_eq!(g.prompt.cached_tokens, if i == 0 { 0 } else { 40 });
    }
    assert_eq!(rows.load(Ordering::Relaxed), 41 + 7 + 8 * 2);
}

#[tokio::test]
async fn a_cache_hit_changes_no_bit_and_a_second_turn_finds_the_first() {
    let Setup { engine, .. } = engine(4096, 512, 0);
    let p = prompt(2, 30);
    let cold = run(&engine, job(&p, &plain(20))).await;
    let warm = run(&engine, job(&p, &plain(20))).await;
    assert_eq!(
        (cold.prompt.cached_tokens, warm.prompt.cached_tokens),
        (0, 28)
    );
    assert_eq!(pairs(&cold.tokens), pairs(&warm.tokens));
    let second: Vec<u32> = p
        .iter()
        .copied()
        .chain(cold.output_ids())
        .chain([7, 8, 9])
        .collect();
    let turn = run(&engine, job(&second, &plain(5))).await;
    assert_eq!(turn.prompt.cached_tokens, 48);
    assert_eq!(pairs(&turn.tokens), alone(&second, &plain(5), 5, 1));
}

#[tokio::test]
async fn a_continuation_under_the_same_seed_is_the_uninterrupted_answer() {
    let Setup { engine, .. } = engine(4096, 512, 0);
    let p = prompt(3, 11);
    let whole = run(&engine, job(&p, &plain(20))).await;
    let cut: Vec<u32> = p
        .iter()
        .copied()
        .chain(whole.output_ids()[..8].iter().copied())
        .collect();
    let rest = run(&engine, job(&cut, &plain(12))).await;
    assert_eq!(pairs(&rest.tokens), pairs(&whole.tokens[8..]));
}

#[tokio::test]
async fn prompt_logprobs_are_those_of_the_plain_loop_whatever_is_cached() {
    let Setup { engine, .. } = engine(400, 8, 0);
    let p = prompt(4, 37);
    run(&engine, job(&p, &plain(1))).await;
    for from in [0, 1, 17, 36] {
        for new in [0, 3] {
            let mut j = job(&p, &plain(new));
            j.wanted = Wanted {
                output: true,
                input_from: Some(from),
                top: 2,
                routes_from: None,
            };
            let g = run(&engine, j).await;
            assert_eq!(g.prompt.cached_tokens, from / BLOCK * BLOCK);
            let got = &g.prompt.logprobs;
            assert_eq!(got.iter().map(|t| t.id).collect::<Vec<_>>(), p[from..]);
            assert_eq!(got[0].logprob, None);
            for (i, t) in got.iter().enumerate().skip(1) {
                let z = logits_of(p[..from + i].iter().fold(0, |h, &t| fold(h, 1, t)));
                let want = sampler::score(&z, &mut [0.0; VOCAB], t.id, 2).expect("finite");
                assert_eq!(t, &want);
            }
            assert_eq!(g.tokens.len(), new);
        }
    }
}

#[tokio::test]
async fn an_abort_keeps_the_tokens_and_spares_the_others() {
    let Setup { engine, .. } = engine(4096, 512, 2);
    let p = prompt(5, 9);
    let mut first = begin(
        &engine,
        Job {
            rid: Some("a".into()),
            stream: true,
            ..job(&p, &plain(200))
        },
    );
    let other = begin(
        &engine,
        Job {
            rid: Some("ab".into()),
            ..job(&p, &plain(30))
        },
    );
    while first.tokens.len() < 5 {
        assert!(first.advance().await.expect("answers"));
    }
    engine.abort("a");
    engine.abort("nobody");
    let first = first.complete().await.expect("answers");
    assert_eq!(finish(&first), &Finish::Abort("Aborted".into()));
    let n = first.tokens.len();
    assert!((5..200).contains(&n), "{n}");
    assert_eq!(pairs(&first.tokens), alone(&p, &plain(n), 5, 1));
    let other = other.complete().await.expect("answers");
    assert_eq!(finish(&other), &Finish::Length(30));
}

#[tokio::test]
async fn whoever_goes_away_frees_its_place_and_its_id() {
    let Setup { engine, .. } = engine(4096, 512, 2);
    let j = || Job {
        rid: Some("leaver".into()),
        stream: true,
        ..job(&prompt(6, 9), &plain(200))
    };
    let mut g = begin(&engine, j());
    g.advance().await.expect("answers");
    let twice = engine.submit(j()).err().expect("refused").to_string();
    assert_eq!(twice, "Duplicate request ID detected: leaver");
    drop(g);
    let again = begin(&engine, j());
    engine.ping().await.expect("alive");
    assert_eq!(
        engine.inner.metrics.num_running() + engine.inner.metrics.num_waiting(),
        1
    );
    drop(again);
    engine.ping().await.expect("alive");
    assert_eq!(engine.inner.metrics.used_tokens(), 0);
}

#[tokio::test]
async fn pause_modes_abort_requeue_or_freeze() {
    let Setup { engine, .. } = engine(4096, 512, 2);
    let p = prompt(7, 9);
    for (mode, flushes) in [
        (PauseMode::Abort, true),
        (PauseMode::Retract, true),
        (PauseMode::InPlace, false),
    ] {
        let mut g = begin(
            &engine,
            Job {
                stream: true,
                ..job(&p, &plain(40))
            },
        );
        while g.tokens.len() < 3 {
            g.advance().await.expect("answers");
        }
        engine.pause(mode).await.expect("pauses");
        assert!(engine.inner.metrics.paused());
        let held = begin(&engine, job(&p, &plain(2)));
        assert_eq!(
            engine.flush_cache().await.expect("answers"),
            flushes,
            "{mode:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
        assert_eq!(
            engine.inner.metrics.num_waiting(),
            if mode == PauseMode::Retract { 2 } else { 1 }
        );
        engine.resume().await.expect("resumes");
        let g = g.complete().await.expect("answers");
        let n = g.tokens.len();
        match mode {
            PauseMode::Abort => assert!(n < 40 && *finish(&g) == Finish::Abort("Aborted".into())),
            _ => assert_eq!((n, finish(&g)), (40, &Finish::Length(40))),
        }
        assert_eq!(g.retractions, u32::from(mode == PauseMode::Retract));
        assert_eq!(pairs(&g.tokens), alone(&p, &plain(n), 5, 1), "{mode:?}");
        assert_eq!(held.complete().await.expect("answers").tokens.len(), 2);
    }
}

#[tokio::test]
async fn an_update_in_the_middle_is_told_in_spans_and_reuses_no_old_key() {
    for (flush, mode) in [
        (true, None),
        (true, Some(PauseMode::Retract)),
        (true, Some(PauseMode::InPlace)),
        (false, Some(PauseMode::InPlace)),
    ] {
        let Setup { engine, .. } = engine(4096, 512, 2);
        let p = prompt(8, 9);
        let params = plain(60);
        let mut g = begin(
            &engine,
            Job {
                stream: true,
                ..job(&p, &params)
            },
        );
        while g.tokens.len() < 12 {
            g.advance().await.expect("answers");
        }
        if let Some(mode) = mode {
            engine.pause(mode).await.expect("pauses");
        }
        let held = engine
            .update_weights_from_disk(Path::new("77"), Some("v2".into()), flush, false)
            .await
            .expect("updates");
        assert_eq!(held, usize::from(mode.is_some()));
        engine.resume().await.expect("resumes");
        let g = g.complete().await.expect("answers");
        let spans = g.spans();
        let cut = spans[0].end;
        let span = |version: &str, start, end| Span {
            version: version.into(),
            start,
            end,
        };
        assert_eq!(spans, [span("default", 0, cut), span("v2", cut, 60)]);
        assert_eq!(pairs(&g.tokens[..cut]), alone(&p, &plain(cut), 5, 1));
        // The rest: under the new weights over keys that are all new, or, without a flush, over the old ones.
        let mut tokens: Vec<u32> = p
            .iter()
            .copied()
            .chain(g.output_ids()[..cut].iter().copied())
            .collect();
        // Of the last token before the update no key existed yet.
        let old = if flush { 0 } else { tokens.len() - 1 };
        for t in &g.tokens[cut..] {
            let hash = tokens
                .iter()
                .enumerate()
                .fold(0, |h, (i, &t)| fold(h, if i < old { 1 } else { 77 }, t));
            let want = sampler::sample(
                &logits_of(hash),
                &mut [0.0; VOCAB],
                &params,
                5,
                tokens.len(),
                0,
            )
            .expect("finite");
            assert_eq!(*t, want);
            tokens.push(t.id);
        }
        // Somebody with the same beginning finds only keys of the new weights.
        let again = run(&engine, job(&p, &plain(10))).await;
        assert_eq!(pairs(&again.tokens), alone(&p, &plain(10), 5, 77));
    }
}

#[tokio::test]
async fn weights_that_are_refused_change_nothing() {
    let Setup { engine, .. } = engine(4096, 512, 0);
    let p = prompt(9, 20);
    let before = run(&engine, job(&p, &plain(10))).await;
    let refused = engine
        .update_weights_from_disk(Path::new("torn"), Some("never".into()), true, true)
        .await;
    assert_eq!(
        refused.expect_err("refused").to_string(),
        "torn is no number"
    );
    let after = run(&engine, job(&p, &plain(10))).await;
    assert_eq!(pairs(&after.tokens), pairs(&before.tokens));
    assert_eq!(
        after.prompt.cached_tokens, 16,
        "not even the cache was flushed"
    );
    assert_eq!(engine.weight_version(), "default");
}

#[tokio::test]
async fn stop_tokens_strings_and_lengths_end_a_request_in_that_order_of_precedence() {
    let Setup { engine, .. } = engine(4096, 512, 0);
    let p = prompt(10, 6);
    let full = run(&engine, job(&p, &plain(30))).await;
    let ids = full.output_ids();
    let at = (3..30)
        .find(|&i| ids[i] < 128 && !ids[..i].contains(&ids[i]))
        .expect("an ASCII token");
    let stop = Params {
        stop_token_ids: vec![ids[at]],
        ignore_eos: false,
        ..plain(at + 1)
    };
    let g = run(&engine, job(&p, &stop)).await;
    assert_eq!(
        (finish(&g), g.tokens.len()),
        (&Finish::StopToken(ids[at]), at + 1)
    );
    let text = char::from(ids[at] as u8).to_string();
    let strings = Params {
        stop: vec![text.clone()],
        ..stop
    };
    let g = run(&engine, job(&p, &strings)).await;
    assert_eq!(
        (finish(&g), g.tokens.len()),
        (&Finish::StopString(text.clone()), at + 1)
    );
    assert!(!g.text().contains(&text));
    let zero = run(&engine, job(&p, &plain(0))).await;
    assert_eq!(
        (finish(&zero), zero.text(), zero.spans().len()),
        (&Finish::Length(0), "", 1)
    );
    let least = Params {
        min_new_tokens: at + 3,
        stop_token_ids: vec![ids[at]],
        ignore_eos: false,
        ..plain(40)
    };
    let g = run(&engine, job(&p, &least)).await;
    assert!(g.tokens.len() >= at + 3 && !g.output_ids()[..at + 3].contains(&ids[at]));
}

#[tokio::test]
async fn several_samples_differ_and_the_first_is_that_of_one() {
    let Setup { engine, .. } = engine(4096, 512, 0);
    let p = prompt(11, 13);
    let params = Params { n: 4, ..plain(12) };
    let all = engine
        .submit(Job {
            rid: Some("group".into()),
            ..job(&p, &params)
        })
        .expect("accepted");
    let mut seen = Vec::new();
    for running in all {
        let g = Generation::new(running, &params, false)
            .complete()
            .await
            .expect("answers");
        assert_ne!(g.rid(), "group");
        seen.push(g.output_ids());
    }
    let one = run(&engine, job(&p, &plain(12))).await;
    assert_eq!(seen[0], one.output_ids());
    seen.sort();
    seen.dedup();
    assert_eq!(seen.len(), 4);
}

#[tokio::test]
async fn requests_that_cannot_work_are_refused_with_the_cure() {
    let Setup { engine, .. } = engine(80, 512, 0);
    let refusal = |p: &[u32], n| {
        engine
            .submit(job(p, &plain(n)))
            .err()
            .expect("refused")
            .to_string()
    };
    assert_eq!(refusal(&[], 1), "input_ids cannot be empty.");
    assert!(
        refusal(&[1, 258], 1)
            .starts_with("input_ids[1] is 258, beyond the model's vocabulary of 258 tokens")
    );
    assert_eq!(
        refusal(&[1; 81], 1),
        "The input (81 tokens) is longer than the model's context length (80 tokens)."
    );
    assert!(
        refusal(&[1; 40], 41)
            .starts_with("Requested token count exceeds the model's maximum context length of 80")
    );
    let rest = run(
        &engine,
        job(
            &[1; 40],
            &Params {
                max_new_tokens: usize::MAX,
                ..plain(0)
            },
        ),
    )
    .await;
    assert_eq!(rest.tokens.len(), 40);
}

#[tokio::test]
async fn an_engine_that_stops_tells_everyone() {
    let Setup { engine, .. } = engine(4096, 512, 2);
    let g = begin(&engine, job(&prompt(12, 5), &plain(200)));
    engine.stop();
    assert!(matches!(g.complete().await, Err(Error::Stopped)));
    assert!(matches!(engine.ping().await, Err(Error::Stopped)));
    assert!(matches!(
        engine.submit(job(&[1], &plain(1))),
        Err(Error::Stopped)
    ));
}
