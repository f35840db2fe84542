//! The contract as it is handed to the languages' tools: all of `wit/`, and one world made of what the plugin exports
//! and asks for.

use super::manifest::{ASKS, Manifest};
use crate::{RuntimeError, contract};
use std::path::Path;

/// Every file of the contract: name, text.
pub const FILES: [(&str, &str); 17] = [
    (
        "code-exec.wit",
        include_str!("../../../../wit/code-exec.wit"),
    ),
    ("filter.wit", include_str!("../../../../wit/filter.wit")),
    (
        "generator.wit",
        include_str!("../../../../wit/generator.wit"),
    ),
    (
        "group-verifier.wit",
        include_str!("../../../../wit/group-verifier.wit"),
    ),
    ("groups.wit", include_str!("../../../../wit/groups.wit")),
    ("http.wit", include_str!("../../../../wit/http.wit")),
    ("judge.wit", include_str!("../../../../wit/judge.wit")),
    ("kv.wit", include_str!("../../../../wit/kv.wit")),
    ("log.wit", include_str!("../../../../wit/log.wit")),
    ("rollouts.wit", include_str!("../../../../wit/rollouts.wit")),
    ("shaper.wit", include_str!("../../../../wit/shaper.wit")),
    ("source.wit", include_str!("../../../../wit/source.wit")),
    ("tool.wit", include_str!("../../../../wit/tool.wit")),
    (
        "trajectories.wit",
        include_str!("../../../../wit/trajectories.wit"),
    ),
    ("types.wit", include_str!("../../../../wit/types.wit")),
    ("verdicts.wit", include_str!("../../../../wit/verdicts.wit")),
    ("verifier.wit", include_str!("../../../../wit/verifier.wit")),
];

/// The world that tools are asked to build, and its package.
pub(super) const WORLD: &str = "plugin";

/// Write the contract and the plugin's own world into `dir`.
pub(super) fn write(dir: &Path, manifest: &Manifest) -> Result<(), RuntimeError> {
    let deps = dir.join("deps").join("slime-plugin");
    let put = |path: &Path, text: &str| {
        std::fs::write(path, text).map_err(|source| RuntimeError::Read {
            path: path.into(),
            source,
        })
    };
    std::fs::create_dir_all(&deps).map_err(|source| RuntimeError::Read {
        path: deps.clone(),
        source,
    })?;
    for (name, text) in FILES {
        put(&deps.join(name), text)?;
    }
    put(&dir.join("plugin.wit"), &world(manifest))
}

/// The plugin's own world.
pub(super) fn world(manifest: &Manifest) -> String {
    let mut text = format!("package slime:build;\n\nworld {WORLD} {{\n");
    for world in &manifest.worlds {
        text.push_str(&format!(
            "  include slime:plugin/{world}@{};\n",
            contract::VERSION
        ));
    }
    for (_, interface) in ASKS
        .iter()
        .filter(|(ask, _)| manifest.asks.iter().any(|one| one == ask))
    {
        text.push_str(&format!(
            "  import slime:plugin/{interface}@{};\n",
            contract::VERSION
        ));
    }
    text.push_str("}\n");
    text
}

#[cfg(test)]
mod tests {
    use super::FILES;
    use std::collections::BTreeSet;

    #[test]
    fn every_file_of_the_contract_is_handed_on() {
        let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../wit");
        let there: BTreeSet<String> = std::fs::read_dir(dir)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let listed = FILES.iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(there, listed);
    }
}
