//! Does a component fit this host? What it exports and imports, read before any of its code runs.
//!
//! Finds every problem at once. The trial start in [`crate::plugin`] finds what types alone do not show.

use crate::{Grants, Problem};
use wasmtime::Engine;
use wasmtime::component::Component;

/// The version of `slime:plugin` that this host speaks.
pub(crate) const VERSION: &str = "0.1.0";

/// Worlds by the interface they export.
const WORLDS: [(&str, &str); 9] = [
    ("verification", "verifier"),
    ("group-verification", "group-verifier"),
    ("judgement", "judge"),
    ("generation", "generator"),
    ("generation-async", "generator"),
    ("tools", "tool"),
    ("drawing", "source"),
    ("filtering", "filter"),
    ("shaping", "shaper"),
];
/// Capabilities: the interface that is imported, and what grants it.
const CAPABILITIES: [(&str, &str); 4] = [
    ("code-exec", "code_exec"),
    ("kv", "kv"),
    ("http", "http"),
    ("models", "models"),
];
/// WASI packages whose imports meet an empty context.
const EMPTY_WASI: [&str; 6] = [
    "wasi:cli",
    "wasi:clocks",
    "wasi:filesystem",
    "wasi:io",
    "wasi:random",
    "wasi:sockets",
];

/// What a component exports and imports, and why it does not fit.
pub(crate) struct Fit {
    /// Of this host's worlds, in the contract's order.
    pub(crate) worlds: Vec<&'static str>,
    pub(crate) imports: Vec<String>,
    /// Capabilities that it imports, by the name of their grant.
    pub(crate) asks: Vec<String>,
    pub(crate) problems: Vec<Problem>,
}

/// Whether a component exports, or imports, what only asynchronous guests do: the names stand in it as they are.
pub(crate) fn mentions_async(component: &[u8]) -> bool {
    const NAME: &[u8] = b"slime:plugin/generation-async@";
    component.windows(NAME.len()).any(|window| window == NAME)
}

/// Our interfaces among a component's imports.
pub(crate) fn interfaces(imports: &[String]) -> Vec<&str> {
    imports
        .iter()
        .filter_map(|import| ours(import))
        .map(|(interface, _)| interface)
        .collect()
}

pub(crate) fn examine(engine: &Engine, component: &Component, grants: &Grants) -> Fit {
    let ty = component.component_type();
    let exports: Vec<String> = ty
        .exports(engine)
        .map(|(name, _)| name.to_owned())
        .collect();
    let imports: Vec<String> = ty
        .imports(engine)
        .map(|(name, _)| name.to_owned())
        .collect();
    let mut problems = Vec::new();
    let worlds = exported_worlds(&exports, &mut problems);
    for import in &imports {
        problems.extend(import_problem(import, &worlds, grants));
    }
    let asked = interfaces(&imports);
    let asks = CAPABILITIES
        .iter()
        .filter(|(interface, _)| asked.contains(interface))
        .map(|(_, grant)| (*grant).to_owned())
        .collect();
    Fit {
        worlds,
        imports,
        asks,
        problems,
    }
}

fn exported_worlds(exports: &[String], problems: &mut Vec<Problem>) -> Vec<&'static str> {
    let mut worlds = Vec::new();
    let before = problems.len();
    for export in exports {
        let Some((interface, version)) = ours(export) else {
            continue;
        };
        if !compatible(version) {
            problems.push(other_version(&format!("exports {export}"), version));
        } else if let Some((_, world)) = WORLDS.iter().find(|(name, _)| *name == interface) {
            worlds.push(*world);
        }
    }
    worlds.sort_by_key(|world| WORLDS.iter().position(|(_, name)| name == world));
    worlds.dedup();
    if worlds.is_empty() && problems.len() == before {
        problems.push(no_world(exports));
    }
    worlds
}

fn no_world(exports: &[String]) -> Problem {
    let offered = "verifier, generator, source or another world of wit/";
    let found = match exports {
        [] => "nothing".into(),
        names => names.join(", "),
    };
    Problem {
        what: format!("it exports no world of slime:plugin@{VERSION}, but {found}"),
        cure: format!("implement {offered} and name the type in the SDK's `export!`"),
    }
}

/// Whether the operator granted what stands behind an interface.
fn is_granted(interface: &str, grants: &Grants) -> bool {
    match interface {
        "code-exec" => grants.code_exec.is_some(),
        "kv" => grants.kv.is_some(),
        "http" => !grants.http.is_empty(),
        "models" => !grants.models.is_empty(),
        _ => false,
    }
}

fn import_problem(import: &str, worlds: &[&str], grants: &Grants) -> Option<Problem> {
    if let Some((interface, version)) = ours(import) {
        if !compatible(version) {
            return Some(other_version(&format!("imports {import}"), version));
        }
        let reads_groups = || {
            let readers = ["group-verifier", "filter", "shaper"];
            readers.iter().any(|world| worlds.contains(world))
        };
        let reads_rollouts =
            || worlds.contains(&"verifier") || worlds.contains(&"judge") || reads_groups();
        return match interface {
            "types" | "verdicts" | "log" => None,
            "rollouts" if reads_rollouts() => None,
            "groups" if reads_groups() => None,
            "trajectories" | "trajectories-async" | "tools" if worlds.contains(&"generator") => {
                None
            }
            "trajectories" | "trajectories-async" => Some(Problem {
                what: format!("it imports {import}, but only generators reach the policy"),
                cure: "drop the import, or export a generator".into(),
            }),
            _ if is_granted(interface, grants) => None,
            _ => Some(
                match CAPABILITIES.iter().find(|(name, _)| *name == interface) {
                    Some((_, grant)) => Problem {
                        what: format!("it imports {import}, and `{grant}` is not granted"),
                        cure: format!("grant it with {}", example(grant)),
                    },
                    None => Problem {
                        what: format!("it imports {import}, which this host does not provide"),
                        cure: "drop the import, or use a host that does".into(),
                    },
                },
            ),
        };
    }
    let package = import.split('/').next().unwrap_or(import);
    if EMPTY_WASI.contains(&package) {
        let version = version_of(import);
        if version.starts_with("0.2.") {
            return None;
        }
        return Some(Problem {
            what: format!("it imports {import}, this host speaks WASI 0.2"),
            cure: "build it for wasm32-wasip2".into(),
        });
    }
    if package == "wasi:http" {
        return Some(Problem {
            what: format!("it imports {import}, but plugins get no sockets"),
            cure: "import slime:plugin/http instead, and have the servers it needs granted".into(),
        });
    }
    Some(Problem {
        what: format!("it imports {import}, which no grant covers"),
        cure: "drop the import; `plugin inspect` lists what a plugin may import".into(),
    })
}

/// What grants a capability; `NAME` is the plugin's.
fn example(grant: &str) -> &'static str {
    match grant {
        "code_exec" => {
            "[grants.NAME.code_exec] in the run's configuration, `--grant code_exec` elsewhere"
        }
        "kv" => {
            "[grants.NAME] kv = \"1MiB\" in the run's configuration, `--grant kv=1MiB` elsewhere"
        }
        "http" => {
            "[grants.NAME] http = [\"http://HOST:PORT\"] in the run's configuration, `--grant http=http://HOST:PORT` elsewhere"
        }
        _ => {
            "[grants.NAME] models = [\"MODEL\"] in the run's configuration, `--grant models=MODEL` elsewhere"
        }
    }
}

/// The interface and version of a name in our package.
fn ours(name: &str) -> Option<(&str, &str)> {
    let rest = name.strip_prefix("slime:plugin/")?;
    Some(rest.split_once('@').unwrap_or((rest, "")))
}

fn version_of(name: &str) -> &str {
    name.split_once('@').map_or("", |(_, version)| version)
}

/// Within 0.1 imports may grow: the linker finds out whether this host has all that a newer component uses.
fn compatible(version: &str) -> bool {
    version
        .strip_prefix("0.1.")
        .is_some_and(|patch| !patch.contains(['-', '+']))
}

fn other_version(what: &str, version: &str) -> Problem {
    let cure = if version > VERSION {
        "rebuild it with the SDK of this host's version, or update slime-host"
    } else {
        "rebuild it with the SDK of this host's version"
    };
    Problem {
        what: format!("it {what}, this host speaks slime:plugin@{VERSION}"),
        cure: cure.into(),
    }
}
