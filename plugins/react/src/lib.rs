//! ReAct (arXiv:2210.03629): a turn that ends with `tool[input]` is answered by the run's tool plugins, in a message of
//! role `tool`; the first turn that ends otherwise ends the rollout.
//!
//! The input is the tool's one argument, whatever it is called there. A tool that takes several is not for this
//! format, and says so to the policy; `tool-calls` reaches those.

use serde_json::Value;
use slime_plugin_tool_calls::{Call, call_tool, run};
use slime_sdk_capabilities::tools::{self, Definition};
use slime_sdk_generator::{Error, Generator, Trajectory, export};

/// Acts and observes until a turn is no act.
pub struct React;

impl Generator for React {
    fn generate(start: Trajectory) -> Result<Vec<Trajectory>, Error> {
        let tools = tools::definitions();
        run(&start, |turn| acts(turn, &tools), call_tool)?;
        Ok(vec![start])
    }
}

/// The act that a turn ends with, if it does.
fn acts(turn: &str, tools: &[Definition]) -> Vec<Call> {
    let Some((name, input)) = act(turn) else {
        return Vec::new();
    };
    let Some(tool) = tools.iter().find(|tool| tool.name == name) else {
        let names: Vec<&str> = tools.iter().map(|tool| tool.name.as_str()).collect();
        let names = names.join(", ");
        return vec![Err(format!("there is no tool `{name}`; tools: {names}"))];
    };
    vec![match parameter(tool) {
        Some(parameter) => {
            let arguments = Value::Object([(parameter, input.into())].into_iter().collect());
            Ok((name.to_owned(), arguments.to_string()))
        }
        None => Err(format!(
            "`{name}` does not take one text, so it cannot be called as {name}[…]"
        )),
    }]
}

/// `name[input]` at the end of a text. Brackets within the input are its own.
fn act(turn: &str) -> Option<(&str, &str)> {
    let inside = turn.trim_end().strip_suffix(']')?;
    let line = inside.rfind('\n').map_or(0, |at| at + 1);
    let open = line + inside[line..].find('[')?;
    let name = inside[..open]
        .rsplit(|c: char| !(c.is_alphanumeric() || c == '_' || c == '-'))
        .next()?;
    (!name.is_empty()).then_some((name, &inside[open + 1..]))
}

/// The one parameter of a tool, if that is a text.
fn parameter(tool: &Definition) -> Option<String> {
    let schema: Value = serde_json::from_str(&tool.parameters).ok()?;
    let parameters = schema["properties"].as_object()?;
    match parameters.iter().next() {
        Some((name, of)) if parameters.len() == 1 && of["type"] == "string" => Some(name.clone()),
        _ => None,
    }
}

export!(React);

#[cfg(test)]
mod tests {
    use super::*;

    fn tools() -> Vec<Definition> {
        let tool = |name: &str, parameters: &str| Definition {
            name: name.into(),
            description: String::new(),
            parameters: parameters.into(),
        };
        vec![
            tool(
                "calculate",
                r#"{"properties": {"expression": {"type": "string"}}}"#,
            ),
            tool(
                "move",
                r#"{"properties": {"x": {"type": "string"}, "y": {"type": "string"}}}"#,
            ),
            tool("count", r#"{"properties": {"n": {"type": "integer"}}}"#),
        ]
    }

    fn answered(turns: &[&str]) -> String {
        let start = Trajectory::scripted("q", turns.iter().copied());
        let tools = tools();
        run(
            &start,
            |turn| acts(turn, &tools),
            |name, arguments| Ok(format!(" {name}({arguments}) ")),
        )
        .unwrap();
        start.response()
    }

    #[test]
    fn acts_are_answered_until_a_turn_is_none() {
        assert_eq!(
            answered(&["I add.\nAction: calculate[1+2]", "It is 3.", "never"]),
            "I add.\nAction: calculate[1+2] calculate({\"expression\":\"1+2\"}) It is 3."
        );
    }

    #[test]
    fn what_a_tool_cannot_be_asked_is_said_to_the_policy() {
        for (turn, said) in [
            (
                "rm[x]",
                "error: there is no tool `rm`; tools: calculate, move, count",
            ),
            ("move[1]", "error: `move` does not take one text"),
            ("count[1]", "error: `count` does not take one text"),
        ] {
            let text = answered(&[turn, "done"]);
            assert!(text.contains(said) && text.ends_with("done"), "{text}");
        }
    }

    #[test]
    fn an_act_is_a_name_and_brackets_at_the_end() {
        assert_eq!(act("calculate[1+2]"), Some(("calculate", "1+2")));
        assert_eq!(act("Action 1: look-up[a[0]]\n"), Some(("look-up", "a[0]")));
        assert_eq!(act("calculate[1+2] is 3"), None);
        assert_eq!(act("so [1]"), None, "a list, not an act");
        assert_eq!(act("f[\n1]"), None);
        assert_eq!(act("3"), None);
    }
}
