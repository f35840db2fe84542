//! The program in a response: the last fenced block, else everything.

/// The last fenced block; one that names Python goes before one that names nothing. Without a fence, the response.
pub(crate) fn program(response: &str) -> String {
    let blocks = blocks(response);
    let named = blocks
        .iter()
        .rev()
        .find(|(language, _)| matches!(language.as_str(), "python" | "py" | "python3"));
    let any = || {
        blocks
            .iter()
            .rev()
            .find(|(language, _)| language.is_empty())
    };
    match named.or_else(any) {
        Some((_, text)) => text.clone(),
        None if blocks.is_empty() => response.to_owned(),
        None => String::new(),
    }
}

/// Fenced blocks: language, text. One that is never closed ends with the response.
fn blocks(response: &str) -> Vec<(String, String)> {
    let mut blocks = Vec::new();
    let mut open: Option<(String, String)> = None;
    for line in response.lines() {
        let fence = line.trim_start().strip_prefix("```");
        match (&mut open, fence) {
            (None, Some(language)) => {
                open = Some((language.trim().to_lowercase(), String::new()));
            }
            (Some(_), Some(rest)) if rest.trim().is_empty() => blocks.extend(open.take()),
            (Some((_, text)), _) => {
                text.push_str(line);
                text.push('\n');
            }
            (None, None) => {}
        }
    }
    blocks.extend(open);
    blocks
}

#[cfg(test)]
mod tests {
    use super::program;

    #[test]
    fn the_last_python_block_is_the_program() {
        for (response, wanted) in [
            ("print(1)", "print(1)"),
            ("```python\na\n```\nthen\n```python\nb\n```", "b\n"),
            ("```\na\n```", "a\n"),
            ("```python\na\n```\noutput:\n```\n42\n```", "a\n"),
            ("so ```python is\n```py\ncut", "cut\n"),
            ("```json\n{}\n```", ""),
            ("  ```python\n  x\n  ```", "  x\n"),
        ] {
            assert_eq!(program(response), wanted, "{response}");
        }
    }
}
