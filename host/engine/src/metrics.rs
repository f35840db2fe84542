//! Counters and gauges, written by the scheduler's thread and read by `/metrics`, `/v1/loads` and the health paths.
//!
//! Names are SGLang's where it has one. It measures nothing itself.

use crate::request::Finish;
use std::fmt::Write;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

/// How things stand after a step.
pub(crate) struct Gauges<'a> {
    pub(crate) running: usize,
    pub(crate) waiting: usize,
    /// Cache tokens of running requests.
    pub(crate) used_tokens: usize,
    /// Cache tokens that only wait to be used again.
    pub(crate) evictable_tokens: usize,
    pub(crate) paused: bool,
    pub(crate) version: &'a str,
}

const LATENCY_BOUNDS_S: [f64; 12] = [
    0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0,
];

#[derive(Default)]
struct Histogram {
    buckets: [AtomicU64; LATENCY_BOUNDS_S.len()],
    count: AtomicU64,
    sum_us: AtomicU64,
}

impl Histogram {
    fn add(&self, seconds: f64) {
        for (bucket, bound) in self.buckets.iter().zip(LATENCY_BOUNDS_S) {
            if seconds <= bound {
                bucket.fetch_add(1, Ordering::Relaxed);
            }
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        self.sum_us
            .fetch_add((seconds * 1e6) as u64, Ordering::Relaxed);
    }
}

/// Throughput since the last look at least a second ago.
struct Window {
    since: Instant,
    tokens: u64,
    tokens_per_s: f64,
}

/// Everything counted.
pub(crate) struct Metrics {
    running: AtomicU64,
    waiting: AtomicU64,
    used_tokens: AtomicU64,
    evictable_tokens: AtomicU64,
    paused: AtomicBool,
    version: Mutex<String>,
    max_total_tokens: u64,
    prefill_tokens: AtomicU64,
    generation_tokens: AtomicU64,
    prompt_tokens: AtomicU64,
    cached_tokens: AtomicU64,
    requests: AtomicU64,
    aborted: AtomicU64,
    failed: AtomicU64,
    retractions: AtomicU64,
    /// Decode steps without and with a CUDA graph.
    decode_steps: [AtomicU64; 2],
    first_token: Histogram,
    end_to_end: Histogram,
    window: Mutex<Window>,
}

impl Metrics {
    pub(crate) fn new(max_total_tokens: usize, version: &str) -> Self {
        Self {
            running: AtomicU64::new(0),
            waiting: AtomicU64::new(0),
            used_tokens: AtomicU64::new(0),
            evictable_tokens: AtomicU64::new(0),
            paused: AtomicBool::new(false),
            version: Mutex::new(version.to_owned()),
            max_total_tokens: max_total_tokens as u64,
            prefill_tokens: AtomicU64::new(0),
            generation_tokens: AtomicU64::new(0),
            prompt_tokens: AtomicU64::new(0),
            cached_tokens: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            aborted: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            retractions: AtomicU64::new(0),
            decode_steps: Default::default(),
            first_token: Histogram::default(),
            end_to_end: Histogram::default(),
            window: Mutex::new(Window {
                since: Instant::now(),
                tokens: 0,
                tokens_per_s: 0.0,
            }),
        }
    }

    // ---- the scheduler's side ----

    pub(crate) fn show(&self, now: &Gauges<'_>) {
        self.running.store(now.running as u64, Ordering::Relaxed);
        self.waiting.store(now.waiting as u64, Ordering::Relaxed);
        self.used_tokens
            .store(now.used_tokens as u64, Ordering::Relaxed);
        self.evictable_tokens
            .store(now.evictable_tokens as u64, Ordering::Relaxed);
        self.paused.store(now.paused, Ordering::Release);
        if let Ok(mut version) = self.version.lock()
            && *version != now.version
        {
            now.version.clone_into(&mut version);
        }
    }

    pub(crate) fn prefilled(&self, rows: usize) {
        self.prefill_tokens
            .fetch_add(rows as u64, Ordering::Relaxed);
    }

    pub(crate) fn sampled(&self) {
        self.generation_tokens.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn retracted(&self) {
        self.retractions.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn decoded(&self, with_graph: bool) {
        self.decode_steps[usize::from(with_graph)].fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn ended(&self, finish: &Finish) {
        match finish {
            Finish::Abort(_) => self.aborted.fetch_add(1, Ordering::Relaxed),
            Finish::Failed(_) => self.failed.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
        self.requests.fetch_add(1, Ordering::Relaxed);
    }

    // ---- the server's side ----

    pub(crate) fn first_token_after(&self, seconds: f64) {
        self.first_token.add(seconds);
    }

    pub(crate) fn answered(&self, prompt_tokens: usize, cached_tokens: usize, seconds: f64) {
        self.prompt_tokens
            .fetch_add(prompt_tokens as u64, Ordering::Relaxed);
        self.cached_tokens
            .fetch_add(cached_tokens as u64, Ordering::Relaxed);
        self.end_to_end.add(seconds);
    }

    pub(crate) fn paused(&self) -> bool {
        self.paused.load(Ordering::Acquire)
    }

    /// The label of the weights that are served.
    pub(crate) fn version(&self) -> String {
        self.version.lock().map(|v| v.clone()).unwrap_or_default()
    }

    pub(crate) fn num_running(&self) -> u64 {
        self.running.load(Ordering::Relaxed)
    }

    pub(crate) fn num_waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    pub(crate) fn used_tokens(&self) -> u64 {
        self.used_tokens.load(Ordering::Relaxed)
    }

    pub(crate) fn max_total_tokens(&self) -> u64 {
        self.max_total_tokens
    }

    pub(crate) fn token_usage(&self) -> f64 {
        self.used_tokens() as f64 / self.max_total_tokens.max(1) as f64
    }

    /// Prompt tokens served by the cache, of all prompt tokens so far.
    pub(crate) fn cache_hit_rate(&self) -> f64 {
        let all = self.prompt_tokens.load(Ordering::Relaxed);
        self.cached_tokens.load(Ordering::Relaxed) as f64 / all.max(1) as f64
    }

    /// Tokens sampled a second, over the time since it was asked a second or more ago.
    pub(crate) fn gen_throughput(&self) -> f64 {
        let now = self.generation_tokens.load(Ordering::Relaxed);
        let Ok(mut window) = self.window.lock() else {
            return 0.0;
        };
        let seconds = window.since.elapsed().as_secs_f64();
        if seconds >= 1.0 {
            window.tokens_per_s = (now - window.tokens) as f64 / seconds;
            window.since = Instant::now();
            window.tokens = now;
        }
        window.tokens_per_s
    }

    /// Prometheus' text format.
    pub(crate) fn prometheus(&self, model: &str) -> String {
        let mut out = String::new();
        let label = format!(
            "model_name=\"{}\"",
            model
                .replace('\\', "\\\\")
                .replace('"', "\\\"")
                .replace('\n', "\\n")
        );
        let load = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
        let gauges = [
            (
                "num_running_reqs",
                "Requests in the running batch.",
                load(&self.running),
            ),
            (
                "num_queue_reqs",
                "Requests in the waiting queue.",
                load(&self.waiting),
            ),
            (
                "num_used_tokens",
                "Cache tokens of running requests.",
                load(&self.used_tokens),
            ),
            (
                "kv_evictable_tokens",
                "Cache tokens that can be evicted.",
                load(&self.evictable_tokens),
            ),
            ("token_usage", "Used part of the cache.", self.token_usage()),
            (
                "gen_throughput",
                "Tokens sampled a second.",
                self.gen_throughput(),
            ),
            (
                "cache_hit_rate",
                "Prompt tokens that the prefix cache served.",
                self.cache_hit_rate(),
            ),
            (
                "max_total_num_tokens",
                "Tokens the cache holds.",
                self.max_total_tokens as f64,
            ),
            (
                "is_paused",
                "1 while generation is paused.",
                f64::from(u8::from(self.paused())),
            ),
        ];
        let counters = [
            (
                "prompt_tokens_total",
                "Prompt tokens of answered requests.",
                load(&self.prompt_tokens),
            ),
            (
                "cached_tokens_total",
                "Of those, served by the prefix cache.",
                load(&self.cached_tokens),
            ),
            (
                "generation_tokens_total",
                "Tokens sampled.",
                load(&self.generation_tokens),
            ),
            (
                "prefill_effective_tokens_total",
                "Tokens read into the cache.",
                load(&self.prefill_tokens),
            ),
            (
                "num_requests_total",
                "Requests that ended.",
                load(&self.requests),
            ),
            (
                "num_aborted_requests_total",
                "Of those, aborted.",
                load(&self.aborted),
            ),
            (
                "num_failed_requests_total",
                "Of those, failed in the engine.",
                load(&self.failed),
            ),
            (
                "num_retracted_requests_total",
                "Times a request gave its cache back.",
                load(&self.retractions),
            ),
        ];
        let rows = gauges
            .map(|g| (g, "gauge"))
            .into_iter()
            .chain(counters.map(|c| (c, "counter")));
        for ((name, help, value), kind) in rows {
            let _ = writeln!(
                out,
                "# HELP sglang:{name} {help}\n# TYPE sglang:{name} {kind}\nsglang:{name}{{{label}}} {value}"
            );
        }
        let name = "sglang:cuda_graph_passes_total";
        let _ = writeln!(
            out,
            "# HELP {name} Decode steps, by whether a CUDA graph ran them.\n# TYPE {name} counter"
        );
        for (mode, steps) in ["decode_none", "decode_cuda_graph"]
            .iter()
            .zip(&self.decode_steps)
        {
            let _ = writeln!(out, "{name}{{{label},mode=\"{mode}\"}} {}", load(steps));
        }
        let times = [
            (
                "time_to_first_token_seconds",
                "Until the first token.",
                &self.first_token,
            ),
            (
                "e2e_request_latency_seconds",
                "Until the answer is whole.",
                &self.end_to_end,
            ),
        ];
        for (name, help, histogram) in times {
            let _ = writeln!(
                out,
                "# HELP sglang:{name} {help}\n# TYPE sglang:{name} histogram"
            );
            for (bucket, bound) in histogram.buckets.iter().zip(LATENCY_BOUNDS_S) {
                let _ = writeln!(
                    out,
                    "sglang:{name}_bucket{{{label},le=\"{bound}\"}} {}",
                    load(bucket)
                );
            }
            let count = load(&histogram.count);
            let _ = writeln!(out, "sglang:{name}_bucket{{{label},le=\"+Inf\"}} {count}");
            let _ = writeln!(
                out,
                "sglang:{name}_sum{{{label}}} {}",
                load(&histogram.sum_us) / 1e6
            );
            let _ = writeln!(out, "sglang:{name}_count{{{label}}} {count}");
        }
        out
    }
}
