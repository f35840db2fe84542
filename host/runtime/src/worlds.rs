//! The worlds a component may export: linked once, asked who they are at load, ready to instantiate.

use crate::bindings::{
    filter, generator, generator_async, group_verifier, judge, shaper, source, tool, types,
    verdicts, verifier,
};
use crate::call::{self, Job};
use crate::context::Context;
use crate::plugin::Loaded;
use crate::toolbox;
use slime_core::Tool;
use std::sync::Arc;
use wasmtime::component::{Component, HasSelf, Linker};
use wasmtime::{Engine, Store};

/// What a plugin says of itself.
#[derive(Default)]
pub(crate) struct Told {
    pub(crate) about: Option<types::About>,
    pub(crate) reward_range: Option<(f64, f64)>,
    pub(crate) num_rows: Option<u64>,
    pub(crate) tools: Vec<Tool>,
}

/// The exported worlds, linked and ready to instantiate.
#[derive(Default)]
pub(crate) struct Worlds {
    pub(crate) verifier: Option<verifier::VerifierPre<Context>>,
    pub(crate) group_verifier: Option<group_verifier::GroupVerifierPre<Context>>,
    pub(crate) judge: Option<judge::JudgePre<Context>>,
    pub(crate) generator: Option<generator::GeneratorPre<Context>>,
    pub(crate) generator_async: Option<generator_async::GeneratorAsyncPre<Context>>,
    /// Compiled for the engine of asynchronous guests.
    pub(crate) is_concurrent: bool,
    pub(crate) tool: Option<tool::ToolPre<Context>>,
    pub(crate) source: Option<source::SourcePre<Context>>,
    pub(crate) filter: Option<filter::FilterPre<Context>>,
    pub(crate) shaper: Option<shaper::ShaperPre<Context>>,
}

/// Link only what the component imports and may import; [`crate::contract`] has refused the rest.
pub(crate) fn link(
    engine: &Engine,
    component: &Component,
    exported: &[&str],
    imported: &[&str],
    concurrent: bool,
) -> wasmtime::Result<Worlds> {
    let mut linker: Linker<Context> = Linker::new(engine);
    wasmtime_wasi::p2::add_to_linker_async(&mut linker)?;
    for interface in imported {
        macro_rules! add {
            ($($name:literal => $module:ident),* $(,)?) => {
                match *interface {
                    $($name => crate::bindings::$module::add_to_linker::<_, HasSelf<_>>(
                        &mut linker,
                        |context| context,
                    )?,)*
                    _ => {}
                }
            };
        }
        add!(
            "types" => types,
            "verdicts" => verdicts,
            "log" => log,
            "rollouts" => rollouts,
            "groups" => groups,
            "trajectories" => trajectories,
            "trajectories-async" => trajectories_async,
            "tools" => tools,
            "models" => models,
            "code-exec" => code_exec,
            "kv" => kv,
            "http" => http,
        );
    }
    let pre = linker.instantiate_pre(component)?;
    let mut worlds = Worlds {
        is_concurrent: concurrent,
        ..Worlds::default()
    };
    for world in exported {
        let pre = pre.clone();
        match *world {
            "verifier" => worlds.verifier = Some(verifier::VerifierPre::new(pre)?),
            "group-verifier" => {
                worlds.group_verifier = Some(group_verifier::GroupVerifierPre::new(pre)?);
            }
            "judge" => worlds.judge = Some(judge::JudgePre::new(pre)?),
            "generator" if concurrent => {
                worlds.generator_async = Some(generator_async::GeneratorAsyncPre::new(pre)?);
            }
            "generator" => worlds.generator = Some(generator::GeneratorPre::new(pre)?),
            "tool" => worlds.tool = Some(tool::ToolPre::new(pre)?),
            "source" => worlds.source = Some(source::SourcePre::new(pre)?),
            "filter" => worlds.filter = Some(filter::FilterPre::new(pre)?),
            "shaper" => worlds.shaper = Some(shaper::ShaperPre::new(pre)?),
            _ => {}
        }
    }
    Ok(worlds)
}

/// Start the component as every call will, and ask each world who it is. Says in words what went wrong.
pub(crate) fn trial(loaded: &Arc<Loaded>) -> Result<Told, String> {
    let mut told = Told::default();
    for &world in &loaded.exported {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let plugin = Arc::clone(loaded);
        loaded.shared.threads.spawn(async move {
            let ended = call::dispatch(&plugin, Describe(world), 0, plugin.limits.wall).await;
            drop(plugin);
            let _ = sender.send(ended.answer);
        });
        let answer = receiver
            .recv()
            .map_err(|_| String::from("the host shut down"))?;
        let of_world = answer.map_err(|outcome| outcome.to_string())??;
        told.about = of_world.about.or(told.about);
        told.reward_range = of_world.reward_range.or(told.reward_range);
        told.num_rows = of_world.num_rows.or(told.num_rows);
        told.tools.extend(of_world.tools);
    }
    if let Some((min, max)) = told.reward_range
        && !(min.is_finite() && max.is_finite() && min <= max)
    {
        return Err(format!(
            "it declares rewards from {min} to {max}; both must be finite, the first not above the second"
        ));
    }
    Ok(told)
}

/// Ask one world who it is.
struct Describe(&'static str);

impl Job for Describe {
    type Answer = Result<Told, String>;

    async fn run(
        self,
        plugin: &Loaded,
        store: &mut Store<Context>,
    ) -> wasmtime::Result<Self::Answer> {
        let worlds = &plugin.worlds;
        let mut told = Told::default();
        let mut verdicts = |info: verdicts::Info| {
            told.reward_range = Some((info.reward_min, info.reward_max));
            told.about = Some(info.about);
        };
        macro_rules! ask {
            ($pre:expr, $interface:ident) => {{
                let bindings = $pre.instantiate_async(&mut *store).await?;
                bindings.$interface().call_describe(&mut *store).await?
            }};
        }
        match self.0 {
            "verifier" => {
                if let Some(pre) = &worlds.verifier {
                    verdicts(ask!(pre, slime_plugin_verification));
                }
            }
            "group-verifier" => {
                if let Some(pre) = &worlds.group_verifier {
                    verdicts(ask!(pre, slime_plugin_group_verification));
                }
            }
            "judge" => {
                if let Some(pre) = &worlds.judge {
                    verdicts(ask!(pre, slime_plugin_judgement));
                }
            }
            "generator" => {
                if let Some(pre) = &worlds.generator {
                    told.about = Some(ask!(pre, slime_plugin_generation));
                }
                if let Some(pre) = &worlds.generator_async {
                    told.about = Some(ask!(pre, slime_plugin_generation_async));
                }
            }
            "filter" => {
                if let Some(pre) = &worlds.filter {
                    told.about = Some(ask!(pre, slime_plugin_filtering));
                }
            }
            "shaper" => {
                if let Some(pre) = &worlds.shaper {
                    told.about = Some(ask!(pre, slime_plugin_shaping));
                }
            }
            "source" => {
                if let Some(pre) = &worlds.source {
                    let info = ask!(pre, slime_plugin_drawing);
                    told.num_rows = info.num_rows;
                    told.about = Some(info.about);
                }
            }
            "tool" => {
                if let Some(pre) = &worlds.tool {
                    let bindings = pre.instantiate_async(&mut *store).await?;
                    let definitions = bindings
                        .slime_plugin_tools()
                        .call_definitions(&mut *store)
                        .await?;
                    match toolbox::described(definitions) {
                        Ok(tools) => told.tools = tools,
                        Err(reason) => return Ok(Err(reason)),
                    }
                }
            }
            _ => {}
        }
        Ok(Ok(told))
    }
}
