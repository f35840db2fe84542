//! A tool for the policy: `calculate` works out `+ - * /`, brackets and decimals, exactly where it can.

use slime_sdk_tool::{Definition, Error, Tools, export};

const MAX_DEPTH: usize = 64;

/// The one tool.
pub struct Calculator;

impl Tools for Calculator {
    fn definitions() -> Vec<Definition> {
        vec![Definition {
            name: "calculate".into(),
            description: "Works out an arithmetic expression with + - * / and brackets.".into(),
            parameters: r#"{"type":"object","properties":{"expression":{"type":"string"}},"required":["expression"]}"#
                .into(),
        }]
    }

    fn call(_name: &str, arguments: &str) -> Result<String, Error> {
        let arguments: serde_json::Value = serde_json::from_str(arguments)
            .map_err(|error| Error::invalid_input(error.to_string()))?;
        let text = arguments["expression"].as_str().ok_or_else(|| {
            Error::invalid_input("give `expression`, a text like \"(1 + 2) * 3\"")
        })?;
        let mut parser = Parser { rest: text.trim() };
        let value = parser.sum(0).and_then(|value| match parser.rest {
            "" => Ok(value),
            rest => Err(format!("`{rest}` was not expected")),
        });
        let value = value.map_err(|reason| Error::invalid_input(format!("{text}: {reason}")))?;
        if !value.is_finite() {
            return Err(Error::invalid_input(format!("{text} is no number")));
        }
        Ok(format!("{value}"))
    }
}

struct Parser<'a> {
    rest: &'a str,
}

impl Parser<'_> {
    fn take(&mut self, signs: [char; 2]) -> Option<char> {
        let next = self.rest.chars().next().filter(|c| signs.contains(c))?;
        self.rest = self.rest[next.len_utf8()..].trim_start();
        Some(next)
    }

    fn sum(&mut self, depth: usize) -> Result<f64, String> {
        let mut value = self.product(depth)?;
        while let Some(sign) = self.take(['+', '-']) {
            let next = self.product(depth)?;
            value = if sign == '+' {
                value + next
            } else {
                value - next
            };
        }
        Ok(value)
    }

    fn product(&mut self, depth: usize) -> Result<f64, String> {
        let mut value = self.atom(depth)?;
        while let Some(sign) = self.take(['*', '/']) {
            let next = self.atom(depth)?;
            value = if sign == '*' {
                value * next
            } else {
                value / next
            };
        }
        Ok(value)
    }

    fn atom(&mut self, depth: usize) -> Result<f64, String> {
        if depth > MAX_DEPTH {
            return Err("it is nested too deep".into());
        }
        if let Some(sign) = self.take(['-', '+']) {
            let value = self.atom(depth + 1)?;
            return Ok(if sign == '-' { -value } else { value });
        }
        if self.take(['(', '(']).is_some() {
            let value = self.sum(depth + 1)?;
            return match self.take([')', ')']) {
                Some(_) => Ok(value),
                None => Err("a bracket is not closed".into()),
            };
        }
        let end = self
            .rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(self.rest.len());
        let (number, rest) = self.rest.split_at(end);
        self.rest = rest.trim_start();
        number
            .parse()
            .map_err(|_| format!("a number was expected before `{rest}`"))
    }
}

export!(Calculator);

#[cfg(test)]
mod tests {
    use super::*;

    fn call(expression: &str) -> Result<String, Error> {
        Calculator::call("calculate", &format!("{{\"expression\":\"{expression}\"}}"))
    }

    #[test]
    fn expressions_are_worked_out_by_precedence() {
        for (expression, value) in [
            ("1 + 2 * 3", "7"),
            ("(1+2)*3", "9"),
            ("8/4/2", "1"),
            ("-(2 - 5)", "3"),
            ("0.1 + 0.2 - 0.3", "0.00000000000000005551115123125783"),
            ("2 * -3", "-6"),
        ] {
            assert_eq!(call(expression).unwrap(), value, "{expression}");
        }
    }

    #[test]
    fn what_is_no_expression_is_told_to_the_policy() {
        for expression in ["", "1 +", "(1", "1 2", "2 ** 3", "1/0", "__import__"] {
            let error = call(expression).unwrap_err();
            assert_eq!(
                error.code,
                slime_sdk_tool::ErrorCode::InvalidInput,
                "{expression}"
            );
        }
        let deep = format!("{}1{}", "(".repeat(5000), ")".repeat(5000));
        assert!(call(&deep).unwrap_err().message.contains("nested too deep"));
    }
}
