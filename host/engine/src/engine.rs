//! The engine's face inside the process: start it, hand it requests, pause it, give it new weights.
//!
//! It checks every request before the scheduler sees it, so nothing a client sends can hurt the thread that owns
//! the model. It knows no JSON; [`crate::serve`] puts HTTP around it.

use crate::forward::{Forward, Source};
use crate::metrics::Metrics;
use crate::random;
use crate::request::{Chunk, Params, Request, Wanted};
use crate::scheduler::{Command, Limits, PauseMode, Scheduler, Update};
use crate::{Error, Result};
use slime_core::ports::TextCodec;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Instant;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;

/// How an engine is set up. Names are SGLang's flags where it has one.
#[derive(Clone, Debug)]
pub struct EngineConfig {
    /// Tokens the paged cache holds; rounded up to whole blocks.
    pub max_total_tokens: usize,
    /// Requests that run at once; the rest queue.
    pub max_running_requests: usize,
    /// Longest prompt and answer together; `None` is the model's. Never more than the cache holds.
    pub context_length: Option<usize>,
    /// Rows of one step: decoding tokens and prompt chunks together.
    pub chunked_prefill_size: usize,
    /// Decode steps of up to so many requests run as CUDA graphs where the device and the model can; 0: none does.
    pub cuda_graph_max_bs: usize,
    /// Seeds requests that bring no seed of their own.
    pub seed: u64,
    /// Label of the weights it starts with.
    pub weight_version: String,
    /// What `/v1/models` says.
    pub served_model_name: String,
    /// Where the model came from, for `/model_info`.
    pub model_path: PathBuf,
    /// Defaults of the OpenAI paths (`generation_config.json`).
    pub sampling_defaults: SamplingDefaults,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            max_total_tokens: 32_768,
            max_running_requests: 64,
            context_length: None,
            chunked_prefill_size: 512,
            cuda_graph_max_bs: 256,
            seed: 0,
            weight_version: "default".into(),
            served_model_name: "policy".into(),
            model_path: PathBuf::from("in-memory"),
            sampling_defaults: SamplingDefaults::default(),
        }
    }
}

/// What a model's `generation_config.json` asks for where a chat request says nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct SamplingDefaults {
    /// Temperature.
    pub temperature: Option<f64>,
    /// Nucleus mass.
    pub top_p: Option<f64>,
    /// Tokens kept.
    pub top_k: Option<i64>,
    /// Relative floor.
    pub min_p: Option<f64>,
    /// Repetition penalty.
    pub repetition_penalty: Option<f64>,
}

impl SamplingDefaults {
    /// From the file's JSON; what it does not say stays unsaid.
    pub fn from_generation_config(json: &serde_json::Value) -> Self {
        Self {
            temperature: json["temperature"].as_f64(),
            top_p: json["top_p"].as_f64(),
            // transformers writes 0 for "all", SGLang -1.
            top_k: json["top_k"].as_i64().map(|k| if k == 0 { -1 } else { k }),
            min_p: json["min_p"].as_f64(),
            repetition_penalty: json["repetition_penalty"].as_f64(),
        }
    }
}

/// A running engine. Cloning shares it; it ends when the last handle is dropped or at [`EngineHandle::stop`].
#[derive(Clone)]
pub struct EngineHandle {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    commands: Sender<Command>,
    pub(crate) codec: Arc<dyn TextCodec>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) config: EngineConfig,
    /// Prompt and answer together.
    pub(crate) context_length: usize,
    /// Ids that can be fed.
    pub(crate) vocab_size: usize,
    pub(crate) has_experts: bool,
    pub(crate) block_tokens: usize,
    pub(crate) model_type: String,
    /// Where the weights came from last.
    pub(crate) model_path: Mutex<PathBuf>,
    /// Requests under way by their public id.
    live: Mutex<BTreeMap<String, Vec<u64>>>,
    next_id: AtomicU64,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
}

/// Start an engine over any model. `slime-host` uses [`crate::Engine`], which opens a directory.
pub(crate) fn start<F: Forward>(
    mut model: F,
    codec: Arc<dyn TextCodec>,
    config: EngineConfig,
) -> Result<EngineHandle> {
    for (name, value) in [
        ("max_total_tokens", config.max_total_tokens),
        ("max_running_requests", config.max_running_requests),
        ("chunked_prefill_size", config.chunked_prefill_size),
    ] {
        if value == 0 {
            return Err(Error::Config(format!("{name} is 0: it must be at least 1")));
        }
    }
    let block_tokens = model.block_tokens();
    let num_blocks = config.max_total_tokens.div_ceil(block_tokens);
    let positions = model.max_positions();
    if let Some(asked) = config.context_length.filter(|&c| c == 0 || c > positions) {
        return Err(Error::Config(format!(
            "context_length {asked} does not fit the model: give 1 to {positions}, the positions it was made for"
        )));
    }
    let context_length = config
        .context_length
        .unwrap_or(positions)
        .min(num_blocks * block_tokens);
    let model_type = model.model_type();
    model.allocate(num_blocks)?;
    let (vocab_size, has_experts) = (model.vocab_size(), model.has_experts());
    let limits = Limits {
        step_tokens: config.chunked_prefill_size,
        running: config.max_running_requests,
        vocab: vocab_size.min(codec.vocab_size()),
    };
    let (commands, inbox) = mpsc::channel();
    let metrics = Arc::new(Metrics::new(
        num_blocks * block_tokens,
        &config.weight_version,
    ));
    let scheduler = Scheduler::new(
        model,
        codec.clone(),
        limits,
        num_blocks,
        &config.weight_version,
        inbox,
        metrics.clone(),
    );
    let thread = std::thread::Builder::new()
        .name("slime-engine".into())
        .spawn(move || scheduler.run())
        .map_err(|source| Error::Io {
            what: "starting the engine's thread".into(),
            source,
        })?;
    let inner = Inner {
        commands,
        codec,
        metrics,
        context_length,
        vocab_size,
        has_experts,
        block_tokens,
        model_type,
        model_path: Mutex::new(config.model_path.clone()),
        live: Mutex::default(),
        next_id: AtomicU64::new(0),
        thread: Mutex::new(Some(thread)),
        config,
    };
    Ok(EngineHandle {
        inner: Arc::new(inner),
    })
}

impl EngineHandle {
    /// Prompt and answer together may have so many tokens.
    pub fn context_length(&self) -> usize {
        self.inner.context_length
    }

    /// The label of the weights that are served.
    pub fn weight_version(&self) -> String {
        self.inner.metrics.version()
    }

    /// Tokenizer and chat template.
    pub fn codec(&self) -> &Arc<dyn TextCodec> {
        &self.inner.codec
    }

    /// Hold all requests back until [`Self::resume`].
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn pause(&self, mode: PauseMode) -> Result<()> {
        self.ask(|done| Command::Pause(mode, done)).await
    }

    /// Go on after a pause.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn resume(&self) -> Result<()> {
        self.ask(Command::Continue).await
    }

    /// Forget every prefix; `false` where requests are running.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn flush_cache(&self) -> Result<bool> {
        self.ask(Command::Flush).await
    }

    /// Serve the weights in `dir` (`*.safetensors`, any subset of the model's tensors) from the next step on.
    /// Requests under way go on: with `flush` they read their tokens again under the new weights, without it they
    /// keep their keys and values. Returns how many a pause held back.
    ///
    /// # Errors
    /// Whatever is wrong with the files; the old weights are then still served, whole.
    pub async fn update_weights_from_disk(
        &self,
        dir: &Path,
        version: Option<String>,
        flush: bool,
        abort_all: bool,
    ) -> Result<usize> {
        let held = self
            .update(Update {
                source: Source::Directory(dir.to_owned()),
                version,
                flush,
                abort_all,
            })
            .await?;
        if let Ok(mut path) = self.inner.model_path.lock() {
            dir.clone_into(&mut path);
        }
        Ok(held)
    }

    /// Serve other weights from the next step on.
    pub(crate) async fn update(&self, update: Update) -> Result<usize> {
        self.ask(|done| Command::Update(update, done)).await?
    }

    /// Call the weights by another name.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn update_weight_version(&self, version: String, abort_all: bool) -> Result<()> {
        self.ask(|done| Command::SetVersion(version, abort_all, done))
            .await
    }

    /// A checksum of every tensor, by name.
    ///
    /// # Errors
    /// The device failed, or the engine has stopped.
    pub async fn checksums(&self) -> Result<Vec<(String, u64)>> {
        self.ask(Command::Checksums).await?
    }

    /// The first `rows` of a tensor's first axis, and their width; `None` where the model has no such tensor.
    ///
    /// # Errors
    /// The device failed, or the engine has stopped.
    pub async fn tensor(&self, name: &str, rows: usize) -> Result<Option<(Vec<f32>, usize)>> {
        let name = name.to_owned();
        self.ask(|done| Command::Tensor(name, rows, done)).await?
    }

    /// Returns when the scheduler answers between two steps.
    ///
    /// # Errors
    /// The engine has stopped.
    pub async fn ping(&self) -> Result<()> {
        self.ask(Command::Ping).await
    }

    /// End the requests called `rid`; what they have is kept. Unknown ids are nothing.
    pub fn abort(&self, rid: &str) {
        let ids = self
            .inner
            .live
            .lock()
            .ok()
            .and_then(|live| live.get(rid).cloned());
        if let Some(ids) = ids {
            self.tell(Command::Abort(ids));
        }
    }

    /// End every request.
    pub fn abort_all(&self) {
        self.tell(Command::AbortAll);
    }

    /// End the engine and wait for its thread. Requests under way get no more tokens.
    pub fn stop(&self) {
        self.tell(Command::Stop);
        let thread = self.inner.thread.lock().ok().and_then(|mut t| t.take());
        if let Some(thread) = thread {
            let _ = thread.join();
        }
    }

    fn tell(&self, command: Command) {
        // An engine that has stopped has nothing left to do it to.
        let _ = self.inner.commands.send(command);
    }

    async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T> {
        let (done, answer) = oneshot::channel();
        self.inner
            .commands
            .send(command(done))
            .map_err(|_| Error::Stopped)?;
        answer.await.map_err(|_| Error::Stopped)
    }

    /// An id for a request that brought none.
    pub(crate) fn fresh_rid(&self) -> String {
        random::hex_id(
            self.inner.config.seed,
            self.inner.next_id.fetch_add(1, Ordering::Relaxed),
        )
    }

    /// Check a request and queue it: `params.n` sequences under one public id.
    pub(crate) fn submit(&self, job: Job) -> Result<Vec<Running>> {
        let params = &job.params;
        let max_new_tokens = self.check(&job.prompt, params)?;
        let rid = job.rid.unwrap_or_else(|| self.fresh_rid());
        let base = params
            .seed
            .unwrap_or_else(|| random::seed_of(self.inner.config.seed, rid.as_bytes()));
        let ids: Vec<u64> = (0..params.n)
            .map(|_| self.inner.next_id.fetch_add(1, Ordering::Relaxed))
            .collect();
        let mut chunks = Vec::with_capacity(ids.len());
        let mut requests = Vec::with_capacity(ids.len());
        for (k, &id) in ids.iter().enumerate() {
            let (out, receiver) = unbounded_channel();
            chunks.push(receiver);
            requests.push(Request {
                id,
                prompt: job.prompt.clone(),
                params: Params {
                    max_new_tokens,
                    ..params.clone()
                },
                // The first sample of several is the one that n = 1 would have drawn.
                seed: if k == 0 {
                    base
                } else {
                    random::word(base, k as u64)
                },
                wanted: job.wanted,
                stream: job.stream,
                out,
            });
        }
        let registration = Arc::new(self.register(&rid, &ids, requests)?);
        let since = Instant::now();
        let running = ids.into_iter().zip(chunks).map(|(id, chunks)| Running {
            rid: if params.n == 1 {
                rid.clone()
            } else {
                self.fresh_rid()
            },
            prompt: job.prompt.clone(),
            since,
            id,
            chunks,
            ended: false,
            registration: registration.clone(),
        });
        Ok(running.collect())
    }

    /// Queue the requests and make their public id known, in one piece: an abort finds both or neither.
    fn register(&self, rid: &str, ids: &[u64], requests: Vec<Request>) -> Result<Registration> {
        let mut live = self.inner.live.lock().map_err(|_| Error::Stopped)?;
        if live.contains_key(rid) {
            return Err(Error::Invalid(format!(
                "Duplicate request ID detected: {rid}"
            )));
        }
        for request in requests {
            self.inner
                .commands
                .send(Command::Submit(Box::new(request)))
                .map_err(|_| Error::Stopped)?;
        }
        live.insert(rid.to_owned(), ids.to_vec());
        drop(live);
        Ok(Registration {
            rid: rid.to_owned(),
            engine: self.clone(),
        })
    }

    /// What would hurt or cannot work, in SGLang's words. Returns the largest answer allowed.
    fn check(&self, prompt: &[u32], params: &Params) -> Result<usize> {
        let (context, vocab) = (self.inner.context_length, self.inner.vocab_size);
        let n = prompt.len();
        if n == 0 {
            return Err(Error::Invalid("input_ids cannot be empty.".into()));
        }
        if let Some((i, id)) = prompt
            .iter()
            .enumerate()
            .find(|(_, id)| **id as usize >= vocab)
        {
            return Err(Error::Invalid(format!(
                "input_ids[{i}] is {id}, beyond the model's vocabulary of {vocab} tokens: send the ids of this model's tokenizer."
            )));
        }
        if n > context {
            return Err(Error::Invalid(format!(
                "The input ({n} tokens) is longer than the model's context length ({context} tokens)."
            )));
        }
        if params.max_new_tokens == usize::MAX {
            return Ok(context - n);
        }
        let new = params.max_new_tokens;
        if n + new > context {
            return Err(Error::Invalid(format!(
                "Requested token count exceeds the model's maximum context length of {context} tokens. You requested a \
                 total of {} tokens: {n} tokens from the input messages and {new} tokens for the completion. Please reduce \
                 the number of tokens in the input messages or the completion to fit within the limit.",
                n + new
            )));
        }
        Ok(new)
    }
}

/// One request, `params.n` sequences.
pub(crate) struct Job {
    pub(crate) rid: Option<String>,
    pub(crate) prompt: Vec<u32>,
    pub(crate) params: Params,
    pub(crate) wanted: Wanted,
    pub(crate) stream: bool,
}

/// A public id in use; free again when the last of its sequences is dropped.
struct Registration {
    rid: String,
    engine: EngineHandle,
}

impl Drop for Registration {
    fn drop(&mut self) {
        if let Ok(mut live) = self.engine.inner.live.lock() {
            live.remove(&self.rid);
        }
    }
}

/// A sequence under way. Dropping it aborts it: a client that went away is not worked for.
pub(crate) struct Running {
    pub(crate) rid: String,
    pub(crate) prompt: Vec<u32>,
    pub(crate) since: Instant,
    id: u64,
    chunks: UnboundedReceiver<Chunk>,
    ended: bool,
    registration: Arc<Registration>,
}

impl Running {
    pub(crate) fn engine(&self) -> &EngineHandle {
        &self.registration.engine
    }

    /// What is new, everything that has come in since the last call put together.
    pub(crate) async fn next(&mut self) -> Result<Chunk> {
        let mut chunk = self.chunks.recv().await.ok_or(Error::Stopped)?;
        while let Ok(more) = self.chunks.try_recv() {
            chunk.tokens.extend(more.tokens);
            chunk.prompt = chunk.prompt.or(more.prompt);
            chunk.version = more.version.or(chunk.version);
            chunk.retractions = more.retractions;
            chunk.ending = more.ending;
        }
        self.ended |= chunk.ending.is_some();
        Ok(chunk)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.registration.engine.tell(Command::Abort(vec![self.id]));
        }
    }
}
