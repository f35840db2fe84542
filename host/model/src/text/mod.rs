//! Text to tokens and back: tokenizer, chat template, streaming.

pub mod bytes;
