//! The contract suite over every folder of `plugins/`: it builds, fits, says who it is, and keeps its own cases.

use crate::support::{component, limits, root, runtime};
use slime_runtime::{Grants, Limits, Plugin};

fn load(folder: &str) -> Plugin {
    let limits = Limits {
        tokens: 1 << 20,
        ..limits()
    };
    let path = component(&format!("plugins/{folder}"));
    runtime()
        .load(&path, folder, limits, Grants::default().looking())
        .unwrap_or_else(|error| panic!("{folder}: {error}"))
}

fn folders() -> Vec<String> {
    let mut names: Vec<String> = std::fs::read_dir(root().join("plugins"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn every_plugin_folder_fits_the_contract_and_keeps_its_cases() {
    let mut tried = 0;
    for folder in folders() {
        let plugin = load(&folder);
        let description = plugin.describe();
        assert!(!plugin.worlds().is_empty(), "{folder}");
        if let Some((name, version)) = &description.about {
            assert_eq!(
                (name.as_str(), version.as_str()),
                (folder.as_str(), env!("CARGO_PKG_VERSION"))
            );
        }
        let home = root().join("plugins").join(&folder);
        assert!(home.join("README.md").is_file(), "{folder}");
        let Ok(cases) = std::fs::read_to_string(home.join("cases.jsonl")) else {
            continue;
        };
        // Programs and models need what this test does without; `programs` tries those.
        if description
            .asks
            .iter()
            .any(|ask| ask == "code_exec" || ask == "models")
        {
            continue;
        }
        tried += 1;
        let results = plugin
            .run_cases(&cases)
            .unwrap_or_else(|error| panic!("{folder}: {error}"));
        assert_eq!(
            results,
            plugin.run_cases(&cases).unwrap(),
            "{folder} repeats itself"
        );
        for case in results {
            assert!(case.differences.is_empty(), "{folder}: {case:?}");
        }
    }
    assert!(tried >= 8, "{tried} folders have cases");
}
