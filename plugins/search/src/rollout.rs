//! The rollout: search, read, search again, answer.

use serde_json::{Value, json};
use slime_sdk_capabilities::http::{self, Request};
use slime_sdk_generator::{
    Error, ErrorCode, FinishReason, Generator, Message, Sampling, Trajectory, export,
};

const MAX_SEARCHES: usize = 8;
/// Passages that a query brings.
const PASSAGES: usize = 3;
/// Bytes of passages that the policy sees, a query.
const PASSAGE_BYTES: usize = 2048;
const TIME_LIMIT_MS: u32 = 20_000;
const OPEN: &str = "<search>";
const CLOSE: &str = "</search>";
/// Told to a policy that neither searches nor answers.
const NEITHER: &str =
    "\nPut a query between <search> and </search>, or the answer between <answer> and </answer>.\n";

/// Searches until there is an answer.
pub struct Search;

impl Generator for Search {
    fn generate(start: Trajectory) -> Result<Vec<Trajectory>, Error> {
        let url = std::env::var("SEARCH_URL").ok();
        run(&start, |query| {
            let url = url.as_deref().ok_or_else(|| {
                Error::new(
                    ErrorCode::Unavailable,
                    "no retrieval server: grant env = { SEARCH_URL = \"http://HOST:PORT/retrieve\" }",
                )
            })?;
            retrieve(url, query)
        })?;
        Ok(vec![start])
    }
}

fn run(
    trajectory: &Trajectory,
    retrieve: impl Fn(&str) -> Result<Vec<String>, Error>,
) -> Result<(), Error> {
    let sampling = Sampling {
        max_tokens: 0,
        stop: vec![CLOSE.into(), "</answer>".into()],
    };
    for left in (0..=MAX_SEARCHES).rev() {
        let turn = match trajectory.sample(&sampling) {
            // What was written so far is judged as it stands.
            Err(error) if error.code == ErrorCode::LimitExceeded => return Ok(()),
            other => other?,
        };
        if turn.finish_reason != FinishReason::Stop || left == 0 {
            return Ok(());
        }
        let said = match asked(&turn.text) {
            Asked::Answer => return Ok(()),
            Asked::Query(query) => {
                let passages = retrieve(query)?;
                format!("\n\n<information>{}</information>\n\n", shown(&passages))
            }
            Asked::Nothing => NEITHER.to_owned(),
        };
        match trajectory.append(&Message::new("tool", said)) {
            Err(error) if error.code == ErrorCode::LimitExceeded => return Ok(()),
            other => other?,
        }
    }
    Ok(())
}

#[derive(Debug, PartialEq)]
enum Asked<'a> {
    Query(&'a str),
    Answer,
    Nothing,
}

/// What a turn ends with. Its closing mark ended the turn and may be left out of its text.
fn asked(text: &str) -> Asked<'_> {
    let (search, answer) = (text.rfind(OPEN), text.rfind("<answer>"));
    match search {
        Some(at) if answer.is_none_or(|other| other < at) => {
            let query = &text[at + OPEN.len()..];
            let query = query.split(CLOSE).next().unwrap_or(query).trim();
            if query.is_empty() {
                Asked::Nothing
            } else {
                Asked::Query(query)
            }
        }
        _ if answer.is_some() => Asked::Answer,
        _ => Asked::Nothing,
    }
}

/// Ask the server: `{"queries": […], "topk": n, "return_scores": true}`.
fn retrieve(url: &str, query: &str) -> Result<Vec<String>, Error> {
    let body = json!({"queries": [query], "topk": PASSAGES, "return_scores": true});
    let mut request = Request::post_json(url, body.to_string());
    request.time_limit_ms = TIME_LIMIT_MS;
    let answer = http::send(&request).map_err(|error| Error::new(error.code, error.message))?;
    if answer.status != 200 {
        let message = format!("the retrieval server answered {}", answer.status);
        return Err(Error::new(ErrorCode::Unavailable, message));
    }
    passages(&answer.body).ok_or_else(|| {
        Error::new(
            ErrorCode::Unavailable,
            "the retrieval server gave no `result`",
        )
    })
}

/// `{"result": [[{"document": {"contents": …}, "score": …}, …]]}`, with or without scores.
fn passages(body: &[u8]) -> Option<Vec<String>> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let found = answer["result"].as_array()?.first()?.as_array()?;
    let contents = found.iter().filter_map(|one| {
        let document = if one["document"].is_null() {
            one
        } else {
            &one["document"]
        };
        document["contents"].as_str().map(str::to_owned)
    });
    Some(contents.collect())
}

/// A title and a text each, numbered, cut where the policy has seen enough.
fn shown(passages: &[String]) -> String {
    let mut text = String::new();
    for (index, passage) in passages.iter().enumerate() {
        let (title, body) = passage.split_once('\n').unwrap_or(("", passage));
        let title = title.trim_matches('"');
        text.push_str(&format!(
            "Doc {} (title: {title}): {}\n",
            index + 1,
            body.trim()
        ));
    }
    // A passage must not end its own quotation.
    let mut text = text.replace("</information>", "");
    let mut end = text.len().min(PASSAGE_BYTES);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text.truncate(end);
    text
}

export!(Search);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_are_answered_until_there_is_an_answer() {
        let start = Trajectory::scripted(
            "Who wrote it?",
            [
                "I look. <search> author of it </search>",
                "So <answer>Ann</answer>",
                "more",
            ],
        );
        run(&start, |query| {
            assert_eq!(query, "author of it");
            Ok(vec!["\"It\"\nIt was written by Ann.".into()])
        })
        .unwrap();
        let text = start.response();
        assert!(
            text.contains("<information>Doc 1 (title: It): It was written by Ann.\n</information>"),
            "{text}"
        );
        assert!(text.ends_with("<answer>Ann"), "{text}");
    }

    #[test]
    fn a_turn_without_either_is_told_so_and_searches_are_bounded() {
        let start = Trajectory::scripted("q", ["hm", "<answer>x</answer>"]);
        run(&start, |_| unreachable!()).unwrap();
        assert!(start.response().contains(NEITHER));
        let start = Trajectory::scripted("q", vec!["<search>a</search>"; 20]);
        let asked = std::cell::Cell::new(0);
        run(&start, |_| {
            asked.set(asked.get() + 1);
            Ok(Vec::new())
        })
        .unwrap();
        assert_eq!(asked.get(), MAX_SEARCHES);
    }

    #[test]
    fn the_last_mark_of_a_turn_counts() {
        assert_eq!(asked("<answer>a</answer> no <search>b"), Asked::Query("b"));
        assert_eq!(asked("<search>b</search> <answer>a"), Asked::Answer);
        assert_eq!(asked("<search> "), Asked::Nothing);
    }

    #[test]
    fn answers_of_the_server_are_read_and_cannot_end_their_quotation() {
        let body = br#"{"result": [[{"document": {"contents": "T\na </information> b"}, "score": 1.5}, {"contents": "U\nc"}]]}"#;
        let found = passages(body).unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!(
            shown(&found),
            "Doc 1 (title: T): a  b\nDoc 2 (title: U): c\n"
        );
        assert!(shown(&["é".repeat(5000)]).len() <= PASSAGE_BYTES);
        assert_eq!(passages(b"{}"), None);
    }

    #[test]
    fn a_retrieval_server_that_is_not_there_fails_the_rollout() {
        let start = Trajectory::scripted("q", ["<search>a</search>"]);
        assert!(run(&start, |_| Err(Error::new(ErrorCode::Unavailable, "down"))).is_err());
    }
}
