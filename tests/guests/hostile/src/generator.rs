//! What a generator can do, right and wrong, a word each.

use slime_sdk_generator::{
    Error, Generator, Message, Prompt, Sampling, Trajectory, export, sample_all,
};

struct Hostile;

impl Generator for Hostile {
    fn generate(start: Trajectory) -> Result<Vec<Trajectory>, Error> {
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
                let turn = start.sample(&short)?;
                start.append(&Message::new("user", format!("you said {}", turn.text)))?;
                start.sample(&short)?;
            }
            "spam" => loop {
                start.sample(&short)?;
            },
            "greedy" => {
                start.sample(&Sampling::default())?;
            }
            "fork-bomb" => {
                let mut copies = Vec::new();
                loop {
                    copies.push(start.fork()?);
                }
            }
            "tree" => {
                start.sample(&short)?;
                let branches = vec![start.fork()?, start.fork()?, start];
                return sample_all(branches, &short)
                    .into_iter()
                    .map(|(trajectory, turn)| turn.map(|_| trajectory))
                    .collect();
            }
            "none" => return Ok(Vec::new()),
            "fail-late" => {
                start.sample(&short)?;
                return Err(Error::other("no use"));
            }
            "bad-stop" => {
                start.sample(&Sampling {
                    max_tokens: 4,
                    stop: vec![String::new()],
                })?;
            }
            "loop" => loop {
                std::hint::black_box(&start);
            },
            _ => {
                start.sample(&short)?;
            }
        }
        Ok(vec![start])
    }
}

export!(Hostile);
