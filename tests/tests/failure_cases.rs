//! docs/failure-cases.md names tests that exist, and has every case.

#![allow(clippy::unwrap_used, reason = "these are tests")]

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn collect(dir: &Path, tests: &mut BTreeSet<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.ends_with("target") {
            collect(&path, tests);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let text = std::fs::read_to_string(&path).unwrap();
            for after in text.split("fn ").skip(1) {
                let name = after
                    .split(|c: char| !c.is_alphanumeric() && c != '_')
                    .next();
                tests.extend(name.map(str::to_owned));
            }
        }
    }
}

/// Every case of the groups that this table is about.
fn cases() -> BTreeSet<String> {
    let groups: [(&str, &[u32]); 9] = [
        ("A", &[1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18]),
        ("C", &[1, 2, 5, 6, 7, 8, 9, 11, 12, 13, 14, 15, 18, 19]),
        (
            "D",
            &[1, 2, 3, 4, 5, 8, 9, 10, 12, 13, 14, 15, 16, 17, 18, 19, 20],
        ),
        ("E", &[1, 2, 3, 4, 5, 6, 7, 8]),
        ("F", &[1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 14]),
        ("I", &[1, 3, 4, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15]),
        ("J", &[2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
        ("M", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        ("N", &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]),
    ];
    let of = |(letter, numbers): (&'static str, &'static [u32])| {
        numbers.iter().map(move |n| format!("{letter}{n:02}"))
    };
    groups.into_iter().flat_map(of).collect()
}

#[test]
fn every_case_has_a_test_with_its_id_or_a_reason() {
    let mut tests = BTreeSet::new();
    for dir in ["host", "kernels", "tests", "plugins"] {
        collect(&root().join(dir), &mut tests);
    }
    let page = std::fs::read_to_string(root().join("docs/failure-cases.md")).unwrap();
    let mut missing = cases();
    for line in page
        .lines()
        .filter(|line| line.starts_with("| ") && !line.starts_with("| case"))
    {
        let [id, _, what] = line.trim_matches('|').split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let id = id.trim();
        missing.remove(id);
        let named: Vec<&str> = what.split('`').skip(1).step_by(2).collect();
        assert!(
            !named.is_empty() || what.contains("does not apply"),
            "{line}"
        );
        for name in named {
            assert!(tests.contains(name), "{id}: no test is named {name}");
            assert!(
                name.contains(&format!("{}_", id.to_lowercase())),
                "{id}: {name} does not begin with it"
            );
        }
    }
    assert!(missing.is_empty(), "no row for {missing:?}");
}
