//! The generator: the prompt's text says what to do.

use slime_sdk_generator::{Error, Generator, Message, Prompt, Sampling, Trajectory, export};

struct Contract;

impl Generator for Contract {
    fn generate(start: Trajectory) -> Result<Vec<Trajectory>, Error> {
        let word = match start.prompt() {
            Prompt::Text(text) => text,
            Prompt::Messages(messages) => messages
                .last()
                .map(|message| message.content.clone())
                .unwrap_or_default(),
            Prompt::Tokens(_) => String::new(),
        };
        let short = Sampling {
            max_tokens: 4,
            stop: vec!["\n".into()],
        };
        match word.as_str() {
            "two-turns" => {
                let turn = start.sample(&short)?;
                start.append(&Message::new("user", format!("you said {}", turn.text)))?;
                start.sample(&short)?;
            }
            "fork" => {
                start.sample(&short)?;
                let copy = start.fork()?;
                copy.sample(&short)?;
                return Ok(vec![start, copy]);
            }
            "tool" => {
                let turn = start.sample(&short)?;
                let answer = slime_sdk_capabilities::tools::call("add", "{\"a\":2,\"b\":3}")
                    .map_err(|error| Error::new(error.code, error.message))?;
                start.append(&Message::new("tool", format!("{} {answer}", turn.text)))?;
            }
            "fail" => {
                start.sample(&short)?;
                return Err(Error::other("no use"));
            }
            _ => {
                start.sample(&Sampling::default())?;
            }
        }
        Ok(vec![start])
    }
}

export!(Contract);
