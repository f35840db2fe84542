//! Offline scoring: order, accounting, and bad rows.

use crate::support::{component, hostile, limits, runtime};
use serde_json::Value;
use slime_runtime::{Grants, RuntimeError, ScoreSummary, score};
use std::io::Cursor;

fn run(rows: &str) -> Result<(ScoreSummary, Vec<Value>), RuntimeError> {
    let mut output = Vec::new();
    let summary = score(hostile(), 7, Cursor::new(rows), &mut output, |_| {})?;
    let text = String::from_utf8(output).unwrap();
    Ok((
        summary,
        text.lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    ))
}

#[test]
fn rows_come_out_in_the_order_they_went_in() {
    let rows: String = (0..500)
        .map(|i| {
            // Every 50th takes long, so that later rows are done before it.
            let word = if i % 50 == 0 { "work" } else { "length" };
            format!(
                "{{\"prompt\":\"{word}\",\"response\":\"{}\",\"label\":null,\"metadata\":{{}}}}\n",
                "x".repeat(i)
            )
        })
        .collect();
    let (summary, out) = run(&rows).unwrap();
    assert_eq!(out.len(), 500);
    for (i, row) in out.iter().enumerate() {
        assert_eq!(row["index"], i);
        assert_eq!(
            (&row["outcome"], &row["reward"]),
            (&"scored".into(), &1.0.into())
        );
        if i % 50 != 0 {
            assert_eq!(row["metrics"]["bytes"], i as f64);
        }
        assert!(row["cpu_ms"].as_f64().unwrap() > 0.0 && row["wall_ms"].as_f64().unwrap() > 0.0);
        assert!(row["peak_memory_bytes"].as_u64().unwrap() > 0);
        assert!(row.get("detail").is_none());
    }
    assert_eq!((summary.num_rows, summary.mean_reward), (500, Some(1.0)));
    assert_eq!(
        summary.outcomes.into_iter().collect::<Vec<_>>(),
        [("scored", 500)]
    );
}

#[test]
fn a_failing_rollout_is_a_row_like_any_other() {
    let rows = "{\"prompt\":\"panic\",\"response\":\"\"}\n\n{\"prompt\":\"gold\",\"response\":\"\"}\r\n{\"prompt\":\"\",\"response\":\"\"}";
    let (summary, out) = run(rows).unwrap();
    let kinds: Vec<_> = out
        .iter()
        .map(|row| row["outcome"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["trapped", "invalid-gold", "scored"]);
    assert_eq!(out[0]["reward"], Value::Null);
    assert!(out[0]["detail"].as_str().unwrap().contains("the sky fell"));
    assert_eq!(
        summary.mean_reward,
        Some(1.0),
        "only what was scored counts"
    );
}

#[test]
fn one_bad_row_is_named_before_anything_runs() {
    for (bad, reason) in [
        ("{\"prompt\":\"\"}", "line 3: \"response\" is missing"),
        ("{\"response\":5}", "line 3: \"response\" is 5; give text"),
        (
            "{\"response\":\"\",\"label\":[1]}",
            "line 3: \"label\" is [1]; give text, a number or null",
        ),
        (
            "{\"response\":\"\",\"metadata\":\"x\"}",
            "line 3: \"metadata\" is \"x\"; give an object",
        ),
        (
            "{\"response\":",
            "line 3: is not JSON: EOF while parsing a value (column 12)",
        ),
        (
            "{response}",
            "line 3: is not JSON: key must be a string (column 2)",
        ),
        ("[1]", "line 3: is a list, but not an object like"),
        (
            "{\"response\":\"\"} x",
            "line 3: is not JSON: trailing characters",
        ),
        (
            "{\"response\":\"\",\"prompt\":[{\"role\":\"system\",\"content\":\"\"}]}",
            "line 3: \"prompt\" is a list without a user message",
        ),
    ] {
        let good = "{\"prompt\":\"\",\"response\":\"\"}\n";
        let mut output = Vec::new();
        let rows = format!("{good}{good}{bad}\n{good}");
        let error = score(hostile(), 7, Cursor::new(rows), &mut output, |_| {})
            .unwrap_err()
            .to_string();
        assert!(error.starts_with(reason), "{error}");
        assert!(output.is_empty(), "nothing was scored");
    }
}

#[test]
fn separators_inside_text_split_no_row_and_conversations_are_read() {
    let rows = "{\"prompt\":[{\"role\":\"user\",\"content\":\"length\"},{\"role\":\"assistant\",\"content\":\"hm\"}],\"response\":\"a\u{2028}b\u{85}c\",\"label\":4}\n";
    let (_, out) = run(rows).unwrap();
    assert_eq!(out.len(), 1);
    assert_eq!(out[0]["metrics"]["bytes"], "a\u{2028}b\u{85}c".len() as f64);
}

#[test]
fn same_file_and_seed_give_the_same_bytes_but_for_the_costs() {
    let rows: String = (0..40)
        .map(|_| "{\"prompt\":\"chance\",\"response\":\"\"}\n")
        .collect();
    let strip = |rows: &str| {
        let mut out = run(rows).unwrap().1;
        out.iter_mut().for_each(|row| {
            for key in ["cpu_ms", "wall_ms"] {
                row.as_object_mut().unwrap().remove(key);
            }
        });
        out
    };
    let first = strip(&rows);
    assert_eq!(strip(&rows), first);
    assert_ne!(
        first[0]["metrics"]["hash"], first[1]["metrics"]["hash"],
        "each row has a seed of its own"
    );
}

#[test]
fn a_plugin_that_is_no_verifier_is_refused() {
    let plugin = runtime()
        .load(
            &component("plugins/single-turn"),
            "single-turn",
            limits(),
            Grants::default(),
        )
        .unwrap();
    let error = score(&plugin, 0, Cursor::new(""), &mut Vec::new(), |_| {}).unwrap_err();
    assert_eq!(
        error.to_string(),
        "single-turn is no verifier: it exports generator"
    );
}
