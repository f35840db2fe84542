//! The source: a prompt that says what it was asked for.

use slime_sdk_source::{Draw, Drawn, Error, Source, export};

struct Contract;

impl Source for Contract {
    fn draw(draw: Draw) -> Result<Drawn, Error> {
        if draw.index == 13 {
            return Err(Error::other("unlucky"));
        }
        let text = format!("{} {}", draw.index, draw.difficulty);
        Ok(Drawn::text(text).with_label(draw.index.to_string()))
    }
}

export!(Contract);
