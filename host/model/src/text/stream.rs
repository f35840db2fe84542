//! Text of tokens as they come: what was given out never changes, and all of it together is what decoding everything
//! at once gives.
//!
//! A character's bytes may lie in several tokens, so text that could still change is held back until it cannot.

use super::codec::decode;
use std::sync::Arc;
use tokenizers::Tokenizer;

/// Tokens a byte-level window keeps when it is cut. More than the 3 bytes of the longest unfinished character.
const KEPT: usize = 8;

/// Decodes one sequence, token by token.
pub struct TextStream {
    tokenizer: Arc<Tokenizer>,
    /// Each token stands for bytes that do not depend on its neighbours.
    byte_level: bool,
    skip_special_tokens: bool,
    /// The newest tokens, and one finished stretch before them: some decoders treat the first token differently.
    window: Vec<u32>,
    /// How many of them that stretch has.
    num_context: usize,
    /// Bytes of the window's text that were given out.
    given: usize,
}

impl TextStream {
    pub(super) fn new(
        tokenizer: Arc<Tokenizer>,
        byte_level: bool,
        skip_special_tokens: bool,
    ) -> Self {
        Self {
            tokenizer,
            byte_level,
            skip_special_tokens,
            window: Vec::new(),
            num_context: 0,
            given: 0,
        }
    }

    /// Add a token → the text that became certain, often empty.
    pub fn push(&mut self, token: u32) -> String {
        self.window.push(token);
        let text = self.text();
        if text.ends_with('\u{FFFD}') {
            return self.push_unfinished(text);
        }
        let new = text.get(self.given..).unwrap_or_default().to_owned();
        if !new.is_empty() {
            self.window.drain(..self.num_context);
            self.num_context = self.window.len();
            self.given = self.text().len();
        }
        new
    }

    /// The sequence ends here: what was held back, with U+FFFD for bytes that never became a character.
    pub fn finish(&mut self) -> String {
        let text = self.text();
        let rest = text.get(self.given..).unwrap_or_default().to_owned();
        self.window.clear();
        (self.num_context, self.given) = (0, 0);
        rest
    }

    /// Only the last replacement character can still become something else, if tokens are bytes. Other decoders may
    /// rewrite the whole run of bytes, so everything is held back.
    fn push_unfinished(&mut self, text: String) -> String {
        if !self.byte_level {
            return String::new();
        }
        let certain = text.len() - '\u{FFFD}'.len_utf8();
        let new = text.get(self.given..certain).unwrap_or_default().to_owned();
        self.given = self.given.max(certain);
        // Without this, a long run of bytes that are no text would be decoded again for every token.
        if self.window.len() > 4 * KEPT {
            self.window.drain(..self.window.len() - KEPT);
            self.num_context = 0;
            self.given = self.text().len() - '\u{FFFD}'.len_utf8();
        }
        new
    }

    fn text(&self) -> String {
        decode(&self.tokenizer, &self.window, self.skip_special_tokens)
    }
}
