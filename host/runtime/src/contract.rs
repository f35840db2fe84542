//! Does a component fit this host? What it exports and imports, read before any of its code runs.
//!
//! Finds every problem at once. The trial start in [`crate::plugin`] finds what types alone do not show.

use crate::Problem;
use wasmtime::Engine;
use wasmtime::component::Component;

/// The version of `slime:plugin` that this host speaks.
pub(crate) const VERSION: &str = "0.1.0";

/// Worlds by the interface they export.
const WORLDS: [(&str, &str); 3] = [
    ("verification", "verifier"),
    ("generation", "generator"),
    ("drawing", "source"),
];
/// Worlds of the contract that this host does not run.
const OTHER_WORLDS: [(&str, &str); 6] = [
    ("generation-async", "generator-async"),
    ("group-verification", "group-verifier"),
    ("judgement", "judge"),
    ("tools", "tool"),
    ("filtering", "filter"),
    ("shaping", "shaper"),
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
    pub(crate) problems: Vec<Problem>,
}

pub(crate) fn examine(engine: &Engine, component: &Component) -> Fit {
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
        problems.extend(import_problem(import, &worlds));
    }
    Fit {
        worlds,
        imports,
        problems,
    }
}

fn exported_worlds(exports: &[String], problems: &mut Vec<Problem>) -> Vec<&'static str> {
    let mut worlds = Vec::new();
    let mut others = Vec::new();
    let before = problems.len();
    for export in exports {
        let Some((interface, version)) = ours(export) else {
            continue;
        };
        if !compatible(version) {
            problems.push(other_version(&format!("exports {export}"), version));
        } else if let Some((_, world)) = WORLDS.iter().find(|(name, _)| *name == interface) {
            worlds.push(*world);
        } else if let Some((_, world)) = OTHER_WORLDS.iter().find(|(name, _)| *name == interface) {
            others.push(*world);
        }
    }
    worlds.sort_by_key(|world| WORLDS.iter().position(|(_, name)| name == world));
    if worlds.is_empty() && problems.len() == before {
        problems.push(no_world(exports, &others));
    }
    worlds
}

fn no_world(exports: &[String], others: &[&str]) -> Problem {
    let offered = "verifier, generator or source";
    if let [world, ..] = others {
        return Problem {
            what: format!("it exports the world {world}, which this host does not run"),
            cure: format!("export {offered}"),
        };
    }
    let found = match exports {
        [] => "nothing".into(),
        names => names.join(", "),
    };
    Problem {
        what: format!("it exports no world of slime:plugin@{VERSION}, but {found}"),
        cure: format!("implement {offered} and name the type in the SDK's `export!`"),
    }
}

fn import_problem(import: &str, worlds: &[&str]) -> Option<Problem> {
    if let Some((interface, version)) = ours(import) {
        if !compatible(version) {
            return Some(other_version(&format!("imports {import}"), version));
        }
        return match interface {
            "types" | "log" => None,
            "rollouts" if worlds.contains(&"verifier") => None,
            "trajectories" if worlds.contains(&"generator") => None,
            "trajectories" => Some(Problem {
                what: format!("it imports {import}, but only generators reach the policy"),
                cure: "drop the import, or export a generator".into(),
            }),
            _ => Some(Problem {
                what: format!("it imports {import}, which this host does not provide"),
                cure: "drop the import, or use a host that does".into(),
            }),
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
            what: format!("it imports {import}, but plugins get no network"),
            cure: "drop the import; put what it would fetch into the prompt's metadata".into(),
        });
    }
    Some(Problem {
        what: format!("it imports {import}, which no grant covers"),
        cure: "drop the import; `plugin inspect` lists what a plugin may import".into(),
    })
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
