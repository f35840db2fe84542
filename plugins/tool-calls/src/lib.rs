//! Multi-turn tool calling. The policy writes `<tool_call>{"name": …, "arguments": {…}}</tool_call>`; the run's tool
//! plugins answer in a message of role `tool`; it ends with the first turn that calls nothing.
//!
//! A call that is malformed, or names a tool that does not exist, is answered with what is wrong: the same way in
//! training and in evaluation, and never the end of the rollout.

use slime_sdk_capabilities::tools;
#[cfg(feature = "component")]
use slime_sdk_generator::export;
use slime_sdk_generator::{
    Error, ErrorCode, FinishReason, Generator, Message, Sampling, Trajectory,
};

const MAX_TURNS: usize = 16;
const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";
/// Bytes of an answer that the policy sees.
const ANSWER_BYTES: usize = 4096;

/// Answers tool calls until there are none.
pub struct ToolCalls;

impl Generator for ToolCalls {
    fn generate(start: Trajectory) -> Result<Vec<Trajectory>, Error> {
        run(&start, calls, call_tool)?;
        Ok(vec![start])
    }
}

/// A call in a turn: the tool's name and its arguments as a JSON object, or what is wrong with it.
pub type Call = Result<(String, String), String>;

/// Call one of the run's tools.
///
/// # Errors
/// As [`tools::call`].
pub fn call_tool(name: &str, arguments: &str) -> Result<String, Error> {
    tools::call(name, arguments).map_err(|error| Error::new(error.code, error.message))
}

/// Let the policy write turns and answer the calls that `read` finds in them, until there are none.
///
/// # Errors
/// The host gave up on the rollout.
pub fn run(
    trajectory: &Trajectory,
    read: impl Fn(&str) -> Vec<Call>,
    call: impl Fn(&str, &str) -> Result<String, Error>,
) -> Result<(), Error> {
    for _ in 0..MAX_TURNS {
        let turn = match trajectory.sample(&Sampling::default()) {
            // What was written so far is judged as it stands.
            Err(error) if error.code == ErrorCode::LimitExceeded => return Ok(()),
            other => other?,
        };
        let calls = read(&turn.text);
        if calls.is_empty() || turn.finish_reason != FinishReason::Stop {
            return Ok(());
        }
        for asked in calls {
            let answer = match asked {
                Ok((name, arguments)) => match call(&name, &arguments) {
                    Ok(answer) => answer,
                    Err(error) if error.code == ErrorCode::Cancelled => return Err(error),
                    Err(error) => format!("error: {error}"),
                },
                Err(reason) => format!("error: {reason}"),
            };
            match trajectory.append(&Message::new("tool", clip(&answer))) {
                Err(error) if error.code == ErrorCode::LimitExceeded => return Ok(()),
                other => other?,
            }
        }
    }
    Ok(())
}

fn clip(answer: &str) -> &str {
    let mut end = answer.len().min(ANSWER_BYTES);
    while !answer.is_char_boundary(end) {
        end -= 1;
    }
    &answer[..end]
}

/// Every call in a turn.
fn calls(text: &str) -> Vec<Call> {
    let mut calls = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(OPEN) {
        let inside = &rest[at + OPEN.len()..];
        let Some(end) = inside.find(CLOSE) else {
            calls.push(Err(format!("{OPEN} without {CLOSE}")));
            break;
        };
        calls.push(parse(&inside[..end]));
        rest = &inside[end + CLOSE.len()..];
    }
    calls
}

fn parse(json: &str) -> Call {
    let call: serde_json::Value = serde_json::from_str(json.trim())
        .map_err(|error| format!("the call is no JSON: {error}"))?;
    let name = call["name"]
        .as_str()
        .ok_or("the call has no \"name\"")?
        .to_owned();
    match &call["arguments"] {
        serde_json::Value::Null => Ok((name, "{}".into())),
        arguments if arguments.is_object() => Ok((name, arguments.to_string())),
        other => Err(format!("\"arguments\" is {other}, not an object")),
    }
}

#[cfg(feature = "component")]
export!(ToolCalls);

#[cfg(test)]
mod tests {
    use super::*;

    fn add(name: &str, arguments: &str) -> Result<String, Error> {
        match name {
            "add" => Ok(format!("sum of {arguments}")),
            other => Err(Error::invalid_input(format!("there is no tool `{other}`"))),
        }
    }

    #[test]
    fn calls_are_answered_until_a_turn_calls_nothing() {
        let start = Trajectory::scripted(
            "2 + 3?",
            [
                "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 2}}</tool_call>",
                "It is 5.",
                "never asked for",
            ],
        );
        run(&start, calls, add).unwrap();
        assert!(
            start.response().ends_with("sum of {\"a\":2}It is 5."),
            "{}",
            start.response()
        );
    }

    #[test]
    fn a15_a16_a_broken_or_invented_call_is_answered_and_the_rollout_goes_on() {
        for (call, answer) in [
            (
                "<tool_call>{\"name\": add}</tool_call>",
                "error: the call is no JSON",
            ),
            (
                "<tool_call>{}</tool_call>",
                "error: the call has no \"name\"",
            ),
            (
                "<tool_call>{\"name\": \"rm\"}</tool_call>",
                "error: there is no tool `rm`",
            ),
            (
                "<tool_call>{\"name\": \"add\"",
                "error: <tool_call> without </tool_call>",
            ),
            (
                "<tool_call>{\"name\":\"add\",\"arguments\":[1]}</tool_call>",
                "error: \"arguments\" is [1]",
            ),
        ] {
            let start = Trajectory::scripted("q", [call, "done"]);
            run(&start, calls, add).unwrap();
            let text = start.response();
            assert!(text.contains(answer) && text.ends_with("done"), "{text}");
        }
    }

    #[test]
    fn two_calls_in_one_turn_are_both_answered_in_order() {
        let one = |n: u32| {
            format!("<tool_call>{{\"name\":\"add\",\"arguments\":{{\"n\":{n}}}}}</tool_call>")
        };
        let start = Trajectory::scripted("q", [format!("{}{}", one(1), one(2)), "done".into()]);
        run(&start, calls, add).unwrap();
        assert!(
            start
                .response()
                .contains("sum of {\"n\":1}sum of {\"n\":2}"),
            "{}",
            start.response()
        );
    }
}
