//! The tool: `add` adds two integers.

use slime_sdk_tool::{Definition, Error, Tools, export};

struct Contract;

impl Tools for Contract {
    fn definitions() -> Vec<Definition> {
        vec![Definition {
            name: "add".into(),
            description: "Adds two integers.".into(),
            parameters: r#"{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"integer"}},"required":["a","b"]}"#.into(),
        }]
    }

    fn call(_name: &str, arguments: &str) -> Result<String, Error> {
        let number = |key: &str| {
            let at = arguments.find(&format!("\"{key}\":"))? + key.len() + 3;
            let digits = arguments[at..].trim_start();
            let end = digits
                .find(|c: char| !c.is_ascii_digit() && c != '-')
                .unwrap_or(digits.len());
            digits[..end].parse::<i64>().ok()
        };
        match (number("a"), number("b")) {
            (Some(a), Some(b)) => Ok((a + b).to_string()),
            _ => Err(Error::invalid_input("a and b must be integers")),
        }
    }
}

export!(Contract);
