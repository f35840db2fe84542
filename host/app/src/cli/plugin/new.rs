//! `slime-host plugin new`: a folder that builds, passes its own cases and runs, in any of the languages.
//!
//! The folder stands alone: a Rust plugin outside a checkout gets the SDK and the contract beside it.

use super::super::{Context, Outcome};
use crate::config::Problem;
use crate::error::{Result, at_path};
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// A language that plugins are written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Lang {
    /// Compiled; the fastest.
    #[default]
    Rust,
    /// CPython inside the component.
    Python,
    /// QuickJS inside the component.
    Js,
    /// Compiled by zig; the smallest.
    C,
}

/// What the plugin does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum World {
    /// Scores one rollout
    #[default]
    Verifier,
    /// Scores a group together
    GroupVerifier,
    /// Scores with a model's help
    Judge,
    /// Drives a rollout
    Generator,
    /// Drives up to 64 rollouts in one instance
    GeneratorAsync,
    /// Runs tools for the policy
    Tool,
    /// Makes prompts up
    Source,
    /// Keeps groups or drops them
    Filter,
    /// Changes rewards
    Shaper,
}

impl World {
    fn name(self) -> &'static str {
        match self {
            Self::Verifier => "verifier",
            Self::GroupVerifier => "group-verifier",
            Self::Judge => "judge",
            Self::Generator => "generator",
            Self::GeneratorAsync => "generator-async",
            Self::Tool => "tool",
            Self::Source => "source",
            Self::Filter => "filter",
            Self::Shaper => "shaper",
        }
    }
}

macro_rules! templates {
    ($world:expr, $ending:literal; $($name:ident => $file:literal),*) => {
        match $world {
            $(World::$name => Some(include_str!(concat!("templates/", $file, $ending))),)*
            #[allow(unreachable_patterns, reason = "not every language has every world")]
            _ => None,
        }
    };
}

/// The plugin's own text; `None` where the language has no template of that world.
fn source(lang: Lang, world: World) -> Option<&'static str> {
    match lang {
        Lang::Rust => {
            templates!(world, ".rs.txt"; Verifier => "verifier", GroupVerifier => "group-verifier",
            Judge => "judge", Generator => "generator", GeneratorAsync => "generator-async", Tool => "tool", Source => "source", Filter => "filter",
            Shaper => "shaper")
        }
        Lang::Python => {
            templates!(world, ".py.txt"; Verifier => "verifier", GroupVerifier => "group-verifier",
            Judge => "judge", Generator => "generator", GeneratorAsync => "generator-async", Tool => "tool", Source => "source", Filter => "filter",
            Shaper => "shaper")
        }
        Lang::Js => {
            templates!(world, ".js.txt"; Verifier => "verifier", GroupVerifier => "group-verifier",
            Generator => "generator", Tool => "tool", Source => "source", Filter => "filter", Shaper => "shaper")
        }
        Lang::C => templates!(world, ".c.txt"; Verifier => "verifier"),
    }
}

fn cases(world: World) -> &'static str {
    templates!(world, ".jsonl"; Verifier => "verifier", GroupVerifier => "group-verifier", Judge => "judge",
        Generator => "generator", GeneratorAsync => "generator", Tool => "tool", Source => "source",
        Filter => "filter", Shaper => "shaper")
    .unwrap_or_default()
}

/// Files of the SDKs, as they lie in a checkout: path below its root, text.
const SDK: [(&str, &str); 8] = [
    (
        "types/src/lib.rs",
        include_str!("../../../../../sdk/types/src/lib.rs"),
    ),
    (
        "types/src/finished.rs",
        include_str!("../../../../../sdk/types/src/finished.rs"),
    ),
    (
        "types/src/group.rs",
        include_str!("../../../../../sdk/types/src/group.rs"),
    ),
    (
        "types/src/macros.rs",
        include_str!("../../../../../sdk/types/src/macros.rs"),
    ),
    (
        "types/src/verdict.rs",
        include_str!("../../../../../sdk/types/src/verdict.rs"),
    ),
    (
        "generator/src/scripted.rs",
        include_str!("../../../../../sdk/generator/src/scripted.rs"),
    ),
    (
        "source/src/random.rs",
        include_str!("../../../../../sdk/source/src/random.rs"),
    ),
    (
        "verifier/src/finished.rs",
        include_str!("../../../../../sdk/verifier/src/finished.rs"),
    ),
];

macro_rules! sdk_crate {
    ($name:literal) => {
        [
            (
                concat!($name, "/src/lib.rs"),
                include_str!(concat!("../../../../../sdk/", $name, "/src/lib.rs")),
            ),
            (
                concat!($name, "/src/adapter.rs"),
                include_str!(concat!("../../../../../sdk/", $name, "/src/adapter.rs")),
            ),
        ]
    };
}

fn sdk_files(world: World) -> Vec<(&'static str, &'static str)> {
    let of_world = match world {
        World::Verifier => sdk_crate!("verifier"),
        World::GroupVerifier => sdk_crate!("group-verifier"),
        World::Judge => sdk_crate!("judge"),
        World::Generator => sdk_crate!("generator"),
        World::GeneratorAsync => sdk_crate!("generator-async"),
        World::Tool => sdk_crate!("tool"),
        World::Source => sdk_crate!("source"),
        World::Filter => sdk_crate!("filter"),
        World::Shaper => sdk_crate!("shaper"),
    };
    let own = format!("{}/", world.name());
    let shared = SDK
        .into_iter()
        .filter(|(path, _)| path.starts_with("types/") || path.starts_with(&own));
    shared.chain(of_world).collect()
}

/// Make the folder.
///
/// # Errors
/// It is there already, the language lacks the world, or it cannot be written.
pub fn new(folder: &Path, lang: Lang, world: World, context: &Context) -> Result<Outcome> {
    if folder.exists() {
        return Err(Problem::new(format!("{} exists already", folder.display()))
            .help("choose another name")
            .into());
    }
    let Some(text) = source(lang, world) else {
        let message = format!("there is no template of a {} in {lang:?}", world.name());
        return Err(Problem::new(message)
            .help("use --lang rust or --lang python, or start from tests/contract")
            .into());
    };
    let name = name(folder)?;
    let mut files: Vec<(PathBuf, String)> = vec![("cases.jsonl".into(), cases(world).into())];
    match lang {
        Lang::Rust => {
            let checkout = checkout(folder, world);
            files.push(("src/lib.rs".into(), text.into()));
            files.push((
                "Cargo.toml".into(),
                cargo(&name, world, checkout.as_deref()),
            ));
            if checkout.is_none() {
                files.extend(vendored(world));
            }
        }
        Lang::Python | Lang::Js | Lang::C => {
            let file = match lang {
                Lang::Python => "plugin.py",
                Lang::Js => "plugin.js",
                _ => "plugin.c",
            };
            let asks = if world == World::Judge {
                "asks = [\"models\"]\n"
            } else {
                ""
            };
            files.push((file.into(), text.into()));
            let manifest = format!(
                "name = {name:?}\nversion = \"0.1.0\"\nworld = {:?}\nsource = {file:?}\n{asks}",
                world.name()
            );
            files.push(("plugin.toml".into(), manifest));
            files.push((".gitignore".into(), "/build\n".into()));
        }
    }
    for (path, text) in files {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(folder);
        std::fs::create_dir_all(parent).map_err(at_path(parent))?;
        std::fs::write(&path, text).map_err(at_path(&path))?;
    }
    context.console.line(&format!(
        " next:  slime-host plugin test {}",
        folder.display()
    ));
    super::super::data(&format!("{}\n", folder.display()))
}

/// What the plugin is called: as its folder is.
fn name(folder: &Path) -> Result<String> {
    let name = folder.file_name().map_or_else(String::new, |n| {
        n.to_string_lossy()
            .to_lowercase()
            .replace(['_', ' ', '.'], "-")
    });
    let starts = name.starts_with(|c: char| c.is_ascii_lowercase());
    if starts && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
        return Ok(name);
    }
    Err(Problem::new(format!("{name:?} is no name for a plugin"))
        .help("use letters, digits and `-`, a letter first")
        .into())
}

/// Path from the folder to the SDK of the checkout it lies in.
fn checkout(folder: &Path, world: World) -> Option<String> {
    let start = std::path::absolute(folder).ok()?;
    let sdk = format!("sdk/{}", world.name());
    let up = start
        .ancestors()
        .skip(1)
        .position(|dir| dir.join(&sdk).join("Cargo.toml").is_file())?;
    Some(format!("{}{sdk}", "../".repeat(up + 1)))
}

fn cargo(name: &str, world: World, checkout: Option<&str>) -> String {
    let own = format!("slime/sdk/{}", world.name());
    let path = checkout.unwrap_or(&own);
    format!(
        "[package]\nname = \"{name}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n\n\
         [lib]\ncrate-type = [\"cdylib\", \"rlib\"]\n\n\
         [dependencies]\nslime-sdk-{} = {{ path = \"{path}\" }}\n\n[workspace]\n",
        world.name()
    )
}

/// The SDK and the contract, for a folder outside a checkout.
fn vendored(world: World) -> Vec<(PathBuf, String)> {
    let mut files: Vec<(PathBuf, String)> = slime_runtime::WIT_FILES
        .iter()
        .map(|(name, text)| (Path::new("slime/wit").join(name), (*text).to_owned()))
        .collect();
    for (path, text) in sdk_files(world) {
        files.push((Path::new("slime/sdk").join(path), text.to_owned()));
    }
    let version = env!("CARGO_PKG_VERSION");
    let mut types = format!(
        "[package]\nname = \"slime-sdk-types\"\nversion = \"{version}\"\nedition = \"2024\"\n"
    );
    let mut sdk = types.replace("slime-sdk-types", &format!("slime-sdk-{}", world.name()));
    let more = match world {
        World::GeneratorAsync => ", \"async\", \"std\"",
        _ => "",
    };
    let _ = write!(
        sdk,
        "\n[dependencies]\nslime-sdk-types = {{ path = \"../types\" }}\n\n\
         [target.'cfg(target_family = \"wasm\")'.dependencies]\n\
         wit-bindgen = {{ version = \"0.61.1\", default-features = false, features = [\"macros\", \"realloc\"{more}] }}\n"
    );
    types.push('\n');
    files.push(("slime/sdk/types/Cargo.toml".into(), types));
    files.push((
        Path::new("slime/sdk").join(world.name()).join("Cargo.toml"),
        sdk,
    ));
    files
}
