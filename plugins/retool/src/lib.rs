//! Python as a tool (ReTool, arXiv:2504.11536): a turn that ends with a fenced `python` block has it run, and the
//! output comes back in a message of role `tool`. The first turn without one ends the rollout.
//!
//! Programs run in the host's sandbox, an interpreter each; nothing survives between them. Needs the grant
//! `code_exec`.

use slime_sdk_capabilities::code_exec::{self, Ending, Program, Ran};
use slime_sdk_generator::{
    Error, ErrorCode, FinishReason, Generator, Message, Sampling, Trajectory, export,
};

const MAX_PROGRAMS: usize = 16;
/// Bytes of output that the policy sees.
const OUTPUT_BYTES: usize = 2048;

/// Runs programs until there are none.
pub struct Retool;

impl Generator for Retool {
    fn generate(start: Trajectory) -> Result<Vec<Trajectory>, Error> {
        run(&start, |source| {
            let program = Program {
                source: source.to_owned(),
                ..Program::default()
            };
            code_exec::run(&program).map_err(|error| Error::new(error.code, error.message))
        })?;
        Ok(vec![start])
    }
}

fn run(trajectory: &Trajectory, execute: impl Fn(&str) -> Result<Ran, Error>) -> Result<(), Error> {
    for _ in 0..=MAX_PROGRAMS {
        let turn = match trajectory.sample(&Sampling::default()) {
            // What was written so far is judged as it stands.
            Err(error) if error.code == ErrorCode::LimitExceeded => return Ok(()),
            other => other?,
        };
        let Some(source) = program(&turn.text) else {
            return Ok(());
        };
        if turn.finish_reason != FinishReason::Stop {
            return Ok(());
        }
        let said = observation(&execute(source)?);
        match trajectory.append(&Message::new("tool", said)) {
            Err(error) if error.code == ErrorCode::LimitExceeded => return Ok(()),
            other => other?,
        }
    }
    Ok(())
}

/// The fenced block that a turn ends with.
fn program(text: &str) -> Option<&str> {
    let text = text.trim_end();
    let body = text.strip_suffix("```")?;
    let at = body.rfind("```python\n")?;
    let source = &body[at + "```python\n".len()..];
    (!source.contains("```")).then_some(source)
}

/// What the policy is told of a program.
fn observation(ran: &Ran) -> String {
    let text = |bytes: &[u8]| {
        let mut end = bytes.len().min(OUTPUT_BYTES);
        while end > 0 && std::str::from_utf8(&bytes[..end]).is_err() && end + 4 > OUTPUT_BYTES {
            end -= 1;
        }
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    };
    let output = text(&ran.stdout);
    match ran.ending {
        Ending::Finished => output,
        Ending::Failed => format!("{output}{}", text(&ran.stderr)),
        Ending::TimedOut => format!("{output}error: the program took too long"),
        Ending::OutOfMemory => format!("{output}error: the program needs too much memory"),
        Ending::OutputLimit => format!("{output}error: the program writes too much"),
        Ending::Crashed => format!("{output}error: the interpreter broke"),
    }
}

export!(Retool);

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(ending: Ending, stdout: &str, stderr: &str) -> Ran {
        Ran {
            ending,
            exit_code: 0,
            stdout: stdout.into(),
            stderr: stderr.into(),
            cpu_ms: 0.0,
            peak_memory_bytes: 0,
        }
    }

    #[test]
    fn programs_are_run_until_a_turn_ends_without_one() {
        let start = Trajectory::scripted(
            "6 * 7?",
            ["Let me see.\n```python\nprint(6 * 7)\n```\n", "It is 42."],
        );
        run(&start, |source| {
            assert_eq!(source, "print(6 * 7)\n");
            Ok(ran(Ending::Finished, "42\n", ""))
        })
        .unwrap();
        assert!(
            start.response().ends_with("42\nIt is 42."),
            "{}",
            start.response()
        );
    }

    #[test]
    fn a_program_that_fails_is_told_of_and_the_rollout_goes_on() {
        let start = Trajectory::scripted("q", ["```python\n1/0\n```", "no"]);
        run(&start, |_| Ok(ran(Ending::Failed, "", "ZeroDivisionError"))).unwrap();
        assert!(start.response().contains("ZeroDivisionErrorno"));
        assert_eq!(
            observation(&ran(Ending::TimedOut, "a\n", "")),
            "a\nerror: the program took too long"
        );
    }

    #[test]
    fn only_a_block_at_the_end_of_a_turn_is_a_program() {
        assert_eq!(program("```python\na\n```"), Some("a\n"));
        assert_eq!(program("```python\na\n``` and so"), None);
        assert_eq!(program("```json\n{}\n```"), None);
        assert_eq!(program("```python\na\n```\n```python\nb\n```"), Some("b\n"));
    }
}
