//! Reads the closed forms of `tests/golden/algo/algo.json`.

use serde_json::Value;

/// One entry.
pub(crate) struct Case {
    /// What it is about.
    pub(crate) name: String,
    /// Arguments.
    pub(crate) inputs: Value,
    /// Results.
    pub(crate) expected: Value,
}

/// The entries for one function.
pub(crate) fn cases(function: &str) -> Vec<Case> {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/golden/algo/algo.json"
    );
    let all: Vec<Value> = serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let of = |entry: &Value| entry["case"].as_str().unwrap().split(' ').next() == Some(function);
    all.into_iter()
        .filter(of)
        .map(|entry| Case {
            name: entry["case"].as_str().unwrap().into(),
            inputs: entry["inputs"].clone(),
            expected: entry["expected"].clone(),
        })
        .collect()
}

/// An array of numbers.
pub(crate) fn floats(value: &Value) -> Vec<f64> {
    value
        .as_array()
        .unwrap()
        .iter()
        .map(|x| x.as_f64().unwrap())
        .collect()
}

/// Equal to a relative tolerance (absolute below 1).
#[track_caller]
pub(crate) fn close(got: &[f64], want: &[f64], tolerance: f64, name: &str) {
    assert_eq!(got.len(), want.len(), "{name}");
    for (got, want) in std::iter::zip(got, want) {
        assert!(
            (got - want).abs() <= tolerance * want.abs().max(1.0),
            "{name}: {got} is not {want}"
        );
    }
}
