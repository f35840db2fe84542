//! Text to tokens and back: tokenizer, chat template, streaming.
//!
//! [`Text`] is what the rest of the program uses, through slime-core's `TextCodec`. It never guesses: a conversation the
//! template refuses is refused, and ids are those transformers gives. Read [`codec`] first, then [`template`] and
//! [`tool_calls`].

pub mod bytes;
mod clock;
pub mod codec;
mod json;
pub mod stream;
pub mod template;
pub mod tool_calls;

pub use codec::Text;
pub use stream::TextStream;
pub use template::ChatTemplate;
