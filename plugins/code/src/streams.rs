//! Programs that read their input and write their output.

use crate::Tally;
use slime_sdk_capabilities::code_exec::{self, Ending, Program};
use slime_sdk_verifier::Error;

/// Run `source` once a pair, all at once.
pub(crate) fn run(source: &str, pairs: &[(String, String)]) -> Result<Tally, Error> {
    let programs: Vec<Program> = pairs
        .iter()
        .map(|(input, _)| Program {
            source: source.to_owned(),
            stdin: input.clone().into_bytes(),
            ..Program::default()
        })
        .collect();
    let mut tally = Tally {
        total: pairs.len(),
        ..Tally::default()
    };
    for (ran, (_, expected)) in code_exec::run_all(&programs).into_iter().zip(pairs) {
        let ran = ran?;
        match ran.ending {
            Ending::Finished => {
                tally.passed += usize::from(same(&String::from_utf8_lossy(&ran.stdout), expected));
            }
            Ending::TimedOut => tally.timed_out += 1,
            _ => tally.failed += 1,
        }
    }
    Ok(tally)
}

/// Equal up to white space at the ends of lines and empty lines at the end.
fn same(found: &str, expected: &str) -> bool {
    let lines = |text: &str| -> Vec<String> {
        let mut lines: Vec<String> = text
            .lines()
            .map(|line| line.trim_end().to_owned())
            .collect();
        while lines.last().is_some_and(String::is_empty) {
            lines.pop();
        }
        lines
    };
    lines(found) == lines(expected)
}

#[cfg(test)]
mod tests {
    use super::same;

    #[test]
    fn outputs_are_equal_up_to_white_space_at_ends() {
        assert!(same("1 2 \n3\n\n", "1 2\n3"));
        assert!(same("", "\n"));
        assert!(!same("1  2", "1 2"));
        assert!(!same("1\n\n2", "1\n2"));
        assert!(!same("9", "9.0"));
    }
}
