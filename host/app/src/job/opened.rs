//! What a plan names, opened and checked before anything starts.

use super::curriculum::{Dial, Dials};
use crate::config::plan::{EvalPlan, Length, Plan, Prompts, SamplingPlan};
use crate::config::sections::Filter;
use crate::config::{Problem, Resolved};
use crate::error::{Failure, Result};
use crate::telemetry::Console;
use crate::wire::device::Machine;
use crate::wire::engine::Launching;
use crate::wire::servers::Places;
use crate::wire::sources::Made;
use crate::wire::{Model, Plugins, RunScoring, Serving, Whose, sources, tools};
use slime_core::SamplingParams;
use slime_core::ports::{BoxFuture, Policy, PolicyError, SampleRequest, Sampled, Source};
use slime_engine::Inlet;
use slime_rollout::SamplerConfig;
use slime_rollout::collect::{Driver, GroupFilter, PluginFilter, Scoring, ZeroStd};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

/// What a run was asked for, opened and checked.
pub struct Opened {
    /// What to do.
    pub plan: Plan,
    /// Who said so.
    pub said: Resolved,
    /// The policy.
    pub model: Arc<Model>,
    /// Plugins.
    pub plugins: Plugins,
    /// Who scores.
    pub scoring: RunScoring,
    /// How hard made-up prompts are, where that changes.
    pub dials: Option<Dials>,
    /// A plugin's prompts that are not trained on: as hard as the recipe says.
    pub aside: Option<Arc<dyn Source>>,
    /// Prompts to train on.
    pub source: Option<Arc<dyn Source>>,
    /// Held-out prompts.
    pub held_out: Vec<Arc<dyn Source>>,
    /// Places of the servers to launch.
    places: Option<Places>,
}

impl Opened {
    /// Open everything the plan names. `trains` says whether prompts to train on are needed.
    ///
    /// # Errors
    /// Every problem of every part.
    pub fn new(mut plan: Plan, said: Resolved, trains: bool, console: &Console) -> Result<Self> {
        let places = plan.rollout.launch.as_ref().map(Places::keep).transpose()?;
        if let Some(places) = &places {
            places.tell(&mut plan.model);
        }
        let mut problems = Vec::new();
        let keep = |failure: Failure, problems: &mut Vec<Problem>| match failure {
            Failure::Config(found) => {
                problems.extend(found.0);
                None
            }
            run => Some(run),
        };
        let mut failures = Vec::new();
        let model = Model::open(&plan.model, &said, plan.seed);
        let plugins = Plugins::open(&plan, &said, console);
        let made = match &plugins {
            Ok(plugins) => made(&plan, plugins),
            Err(_) => Ok(MadeUp::default()),
        };
        let scoring = match &plugins {
            Ok(plugins) => {
                let only = plugins.only_source().map(|plugin| plugin.name());
                RunScoring::new(&plan, &plugins.scorers, only, &said, trains).map(Some)
            }
            Err(_) => Ok(None),
        };
        let known = plugins.is_ok();
        let is_made = |prompts: &Prompts| matches!(prompts, Prompts::Plugin { .. });
        let only_files = plan.data.is_some() || !plan.mix.is_empty();
        let only_files = only_files && !plan.mix.iter().any(|part| is_made(&part.prompts));
        let made = made.map_err(|e| failures.extend(keep(e, &mut problems)));
        let made = made.unwrap_or_default();
        // Without plugins it is not known whether one is a source, so only files are looked at.
        let source = (trains && (known || only_files))
            .then(|| {
                sources::training(
                    plan.data.as_ref(),
                    &plan.mix,
                    &plan.chat,
                    made.only.as_ref(),
                    &made.by_name,
                    &said,
                )
            })
            .transpose();
        let held_out = match &plan.eval {
            Some(eval) if known || !eval.sets.is_empty() => {
                sources::held_out(eval, &plan.chat, made.aside.as_ref(), &said)
            }
            _ => Ok(Vec::new()),
        };
        let scoring = scoring
            .map_err(|e| failures.extend(keep(e, &mut problems)))
            .unwrap_or_default();
        let model = model
            .map_err(|e| failures.extend(keep(e, &mut problems)))
            .ok();
        let plugins = plugins
            .map_err(|e| failures.extend(keep(e, &mut problems)))
            .ok();
        let source = source
            .map_err(|e| failures.extend(keep(e, &mut problems)))
            .ok();
        let held_out = held_out
            .map_err(|e| failures.extend(keep(e, &mut problems)))
            .ok();
        crate::cli::collected(problems)?;
        match (model, plugins, scoring, source, held_out) {
            (Some(model), Some(plugins), Some(scoring), Some(source), Some(held_out)) => Ok(Self {
                plan,
                said,
                model: Arc::new(model),
                scoring,
                dials: made.dials,
                aside: made.aside,
                source: source.map(|source| tools::offered(source, &plugins.tools)),
                held_out: held_out
                    .into_iter()
                    .map(|source| tools::offered(source, &plugins.tools))
                    .collect(),
                plugins,
                places,
            }),
            _ => Err(failures
                .pop()
                .unwrap_or_else(|| Failure::run("a part of the run could not be opened"))),
        }
    }

    /// Start who samples. Launched servers write to `logs`.
    ///
    /// # Errors
    /// The engine cannot start, or a server does not answer.
    pub async fn serve(&self, whose: Whose<'_>, logs: &Path) -> Result<Serving> {
        let launching = Launching {
            places: self.places.as_ref(),
            logs,
        };
        let (device, rollout) = (self.plan.model.device, &self.plan.rollout);
        Serving::start(device, &self.model, rollout, &self.said, whose, launching).await
    }

    /// The same beside a trainer, which can hand its tensors to the embedded engine where that samples.
    ///
    /// # Errors
    /// As [`Self::serve`].
    pub async fn serve_beside<O: Machine>(
        &self,
        whose: Whose<'_>,
        logs: &Path,
    ) -> Result<(Serving, Option<Inlet<O>>)> {
        let launching = Launching {
            places: self.places.as_ref(),
            logs,
        };
        let (device, rollout) = (self.plan.model.device, &self.plan.rollout);
        Serving::start_beside(device, &self.model, rollout, &self.said, whose, launching).await
    }

    /// Who drives rollouts, sampled as `how` says.
    pub fn driver(
        &self,
        serving: &Serving,
        how: &SamplingPlan,
        n_samples_per_prompt: u32,
        rid_prefix: &str,
    ) -> Driver {
        let context_tokens = serving.context_tokens;
        let config = self.sampler(how, context_tokens, n_samples_per_prompt, rid_prefix);
        self.driven_by(serving.pool.clone(), self.scoring.training.clone(), config)
    }

    /// Who runs stored rollouts again: no engine answers.
    pub fn replayer(&self) -> Driver {
        let rollout = &self.plan.rollout;
        let positions = self.model.spec.max_positions;
        let context = rollout
            .max_context_len
            .map_or(positions, |n| (n as usize).min(positions));
        let n = rollout.n_samples_per_prompt;
        let config = self.sampler(&rollout.sampling, context as u32, n, "replay");
        let scoring = self.scoring.training.clone();
        self.driven_by(Arc::new(Nobody), scoring, config)
    }

    fn driven_by(
        &self,
        policy: Arc<dyn Policy>,
        scoring: Scoring,
        config: SamplerConfig,
    ) -> Driver {
        let (text, generator) = (self.model.text.clone(), self.plugins.generator.clone());
        Driver::new(policy, text, generator, scoring, config)
    }

    fn sampler(
        &self,
        how: &SamplingPlan,
        context_tokens: u32,
        n_samples_per_prompt: u32,
        rid_prefix: &str,
    ) -> SamplerConfig {
        let params = SamplingParams {
            max_new_tokens: how.max_response_len,
            temperature: how.temperature,
            top_p: how.top_p,
            top_k: how.top_k,
            stop: how.stop.clone(),
            stop_token_ids: how.stop_token_ids.clone(),
            ..SamplingParams::default()
        };
        let mut config =
            SamplerConfig::new(self.plan.seed, n_samples_per_prompt, params, context_tokens);
        config.limits.response_tokens = Some(how.max_response_len);
        config.rid_prefix = rid_prefix.into();
        config.template_kwargs = self.plan.template_kwargs.clone();
        config.max_refills = self.plan.rollout.max_refills;
        config.over_sampling = self.plan.rollout.over_sampling;
        config
    }

    /// Held-out prompts, each with who samples them as they ask.
    pub fn eval_sets(&self, serving: &Serving, eval: &EvalPlan) -> Vec<(Driver, Arc<dyn Source>)> {
        let sets = self.held_out.iter().enumerate();
        sets.map(|(index, source)| {
            let own = eval.sets.get(index);
            let how = own.map_or(&eval.sampling, |set| &set.sampling);
            let n = own.map_or(eval.n_samples_per_prompt, |set| set.n_samples_per_prompt);
            let config = self.sampler(how, serving.context_tokens, n, "eval");
            let scoring = self.scoring.sets.get(index);
            let scoring = scoring.unwrap_or(&self.scoring.training).clone();
            let driver = self.driven_by(serving.pool.clone(), scoring, config);
            (driver, Arc::clone(source))
        })
        .collect()
    }

    /// Which groups are trained on.
    pub fn filters(&self) -> Vec<Arc<dyn GroupFilter>> {
        let mut filters: Vec<Arc<dyn GroupFilter>> = match self.plan.rollout.filter {
            Filter::All => Vec::new(),
            Filter::NonzeroStd => vec![Arc::new(ZeroStd)],
        };
        for filter in &self.plugins.filters {
            let codec = self.model.text.clone();
            filters.push(Arc::new(PluginFilter::new(Arc::clone(filter), codec)));
        }
        filters
    }

    /// Rollout steps of the whole run.
    pub fn num_steps(&self) -> u64 {
        match (
            self.plan.run.length,
            self.source.as_ref().and_then(|source| source.len()),
        ) {
            (Length::Steps(steps), _) => steps,
            (Length::Epochs(epochs), rows) => {
                (epochs * rows.unwrap_or(0) / self.plan.rollout.batch_size).max(1)
            }
        }
    }

    /// Model, algorithm and size in a few words.
    pub fn facts(&self) -> String {
        let rollout = &self.plan.rollout;
        format!(
            "{} · {} · {} prompts × {} samples · lr {:e} · seed {}",
            self.model.name(),
            self.model.size(),
            rollout.batch_size,
            rollout.n_samples_per_prompt,
            self.plan.train.lr,
            self.plan.seed
        )
    }
}

/// Prompts that plugins make up.
#[derive(Default)]
struct MadeUp {
    /// The only source's.
    only: Option<Arc<dyn Source>>,
    /// The same, as hard as the recipe says from beginning to end.
    aside: Option<Arc<dyn Source>>,
    /// Those of several sources.
    by_name: BTreeMap<String, Arc<dyn Source>>,
    dials: Option<Dials>,
}

fn made(plan: &Plan, plugins: &Plugins) -> Result<MadeUp> {
    let mut all = MadeUp::default();
    let mut dials = BTreeMap::new();
    let moves = plan.curriculum.is_some();
    let mut make = |name: &str, plugin: &slime_runtime::Plugin, difficulty: f64| {
        let dial = Dial::at(difficulty);
        dials.insert(name.to_owned(), dial.clone());
        Made::new(name, plugin, dial, moves).map(|made| Arc::new(made) as Arc<dyn Source>)
    };
    for part in &plan.mix {
        if let Prompts::Plugin { plugin, difficulty } = &part.prompts
            && let Some(plugin) = plugins.sources.get(plugin)
        {
            let source = make(&part.name, plugin, *difficulty)?;
            all.by_name.insert(part.name.clone(), source);
        }
    }
    if let Some(plugin) = plugins.only_source() {
        let name = plugin.name();
        if plan.mix.is_empty() && plan.data.is_none() {
            all.only = Some(make(name, plugin, plan.difficulty)?);
        }
        let still = Made::new(name, plugin, Dial::at(plan.difficulty), false)?;
        all.aside = Some(Arc::new(still));
    }
    all.dials = plan.curriculum.map(|rule| Dials {
        rule,
        sources: dials,
    });
    Ok(all)
}

/// The policy of a replay before its record is put in its place.
struct Nobody;

impl Policy for Nobody {
    fn sample(&self, _: SampleRequest) -> BoxFuture<'_, std::result::Result<Sampled, PolicyError>> {
        let refused = PolicyError::Refused("nobody samples in a replay".into());
        Box::pin(std::future::ready(Err(refused)))
    }
}
