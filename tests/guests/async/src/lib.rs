//! What an asynchronous generator can do, right and wrong, a word each. On the wasm target only.
#![cfg(target_family = "wasm")]
#![forbid(unsafe_code)]

use slime_sdk_generator_async::{Error, Generator, Message, Prompt, Sampling, Trajectory, export};
use std::cell::RefCell;

struct Async;

thread_local! {
    /// What one rollout leaves for another to take.
    static LEFT: RefCell<Option<Trajectory>> = const { RefCell::new(None) };
}

impl Generator for Async {
    async fn generate(mut start: Trajectory) -> Result<Vec<Trajectory>, Error> {
        let word = match start.prompt() {
            Prompt::Text(text) => text,
            Prompt::Messages(messages) => messages
                .last()
                .map(|m| m.content.clone())
                .unwrap_or_default(),
            Prompt::Tokens(tokens) => format!("{tokens:?}"),
        };
        let short = Sampling {
            max_tokens: 4,
            stop: vec!["\n".into()],
        };
        match word.as_str() {
            "two-turns" => {
                let turn = start.sample(&short).await?;
                start.append(&Message::new("user", format!("you said {}", turn.text)))?;
                start.sample(&short).await?;
            }
            "fork" => {
                start.sample(&short).await?;
                let mut copy = start.fork()?;
                copy.sample(&short).await?;
                return Ok(vec![start, copy]);
            }
            "spend" => loop {
                start.sample(&short).await?;
            },
            "fail" => {
                start.sample(&short).await?;
                return Err(Error::other("no use"));
            }
            "panic" => {
                start.sample(&short).await?;
                panic!("on purpose");
            }
            "loop" => {
                start.sample(&short).await?;
                loop {
                    std::hint::black_box(&start);
                }
            }
            "leave" => {
                let copy = start.fork()?;
                LEFT.with_borrow_mut(|left| *left = Some(copy));
                start.sample(&short).await?;
            }
            "take" => {
                start.sample(&short).await?;
                if let Some(other) = LEFT.with_borrow_mut(Option::take) {
                    return Ok(vec![start, other]);
                }
                return Err(Error::other("nothing was left"));
            }
            _ => {
                start.sample(&short).await?;
            }
        }
        Ok(vec![start])
    }
}

export!(Async);
