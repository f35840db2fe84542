//! Text of tokens as they come: what was given out never changes, and all of it together is what decoding everything
//! at once gives.
//!
//! A character's bytes may lie in several tokens, so text that could still change is held back until it cannot. (One
//! exception, transformers' too: a byte-fallback tokenizer decodes a run of byte tokens with one bad byte in it to
//! replacement characters only; what was given out before that byte stays given.)

use super::codec::decode;
use std::sync::Arc;
use tokenizers::Tokenizer;

/// Tokens a byte-level window keeps when it is cut.
const KEPT: usize = 8;
/// UTF-8's longest character.
const MAX_CHAR_BYTES: usize = 4;

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
            self.shorten();
        }
        new
    }

    /// Forget all but the newest tokens. Where the window is cut a character may break, but its pieces were given out
    /// already; the unfinished one at the end is whole if more characters than its bytes lie before it.
    fn shorten(&mut self) {
        let newest = &self.window[self.window.len() - KEPT..];
        let text = decode(&self.tokenizer, newest, self.skip_special_tokens);
        if text.ends_with('\u{FFFD}') && text.chars().count() > MAX_CHAR_BYTES {
            self.given = text.len() - '\u{FFFD}'.len_utf8();
            self.window = newest.to_vec();
            self.num_context = 0;
        }
    }

    fn text(&self) -> String {
        decode(&self.tokenizer, &self.window, self.skip_special_tokens)
    }
}

#[cfg(test)]
mod tests {
    use crate::ModelFiles;
    use crate::text::{Text, bytes};
    use proptest::prelude::*;
    use slime_core::ports::TextCodec;

    fn streamed(text: &Text, tokens: &[u32], skip: bool) -> Vec<String> {
        let mut stream = text.stream(skip);
        let mut pieces: Vec<String> = tokens.iter().map(|t| stream.push(*t)).collect();
        pieces.push(stream.finish());
        pieces
    }

    /// Llama 2's way: pieces with a marker for spaces, and bytes as tokens of their own.
    fn byte_fallback() -> Text {
        let mut vocab: serde_json::Map<_, _> = (0..256u32)
            .map(|b| (format!("<0x{b:02X}>"), b.into()))
            .collect();
        for (i, piece) in ["▁", "▁a", "b", "é", "▁word"].iter().enumerate() {
            vocab.insert((*piece).into(), (256 + i).into());
        }
        let mut files = ModelFiles::new("test");
        files.insert_json(
            "tokenizer.json",
            &serde_json::json!({
                "version": "1.0", "truncation": null, "padding": null, "added_tokens": [], "normalizer": null,
                "pre_tokenizer": null, "post_processor": null,
                "decoder": {"type": "Sequence", "decoders": [
                    {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                    {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
                "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
                    "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": true, "ignore_merges": false,
                    "vocab": vocab, "merges": []},
            }),
        );
        Text::new(&files).unwrap()
    }

    #[test]
    fn a_character_is_given_out_when_its_last_byte_comes() {
        let text = Text::bytes().unwrap();
        let tokens: Vec<u32> = "aé😀".bytes().map(u32::from).collect();
        assert_eq!(
            streamed(&text, &tokens, true),
            ["a", "", "é", "", "", "", "😀", ""]
        );
    }

    #[test]
    fn bytes_that_never_become_a_character_are_replaced_as_soon_as_that_is_certain() {
        let text = Text::bytes().unwrap();
        assert_eq!(
            streamed(&text, &[0xE2, 0x28, 0xFF, 0xF0], true),
            ["", "\u{FFFD}(", "", "\u{FFFD}", "\u{FFFD}"]
        );
    }

    #[test]
    fn the_first_space_is_stripped_once_and_not_in_every_piece() {
        let text = byte_fallback();
        assert_eq!(
            streamed(&text, &[257, 258, 257, 260], true).concat(),
            "ab a word"
        );
    }

    #[test]
    fn special_tokens_are_left_out_or_kept_as_asked() {
        let text = Text::bytes().unwrap();
        let tokens = [u32::from(b'x'), bytes::END, 262];
        assert_eq!(streamed(&text, &tokens, true).concat(), "x<think>");
        assert_eq!(streamed(&text, &tokens, false).concat(), "x<|end|><think>");
    }

    proptest! {
        #[test]
        fn pieces_together_are_the_decoded_whole(
            bytes in prop::collection::vec(prop_oneof![0u32..264, 0x80u32..0x100, 0xE0u32..0xF5], 0..200),
            string in ".{0,20}",
        ) {
            let text = Text::bytes().unwrap();
            let mut tokens = bytes;
            tokens.extend(text.encode(&string).unwrap());
            prop_assert_eq!(streamed(&text, &tokens, true).concat(), text.decode(&tokens, true));
        }

        #[test]
        fn pieces_together_are_the_decoded_whole_with_byte_fallback(
            parts in prop::collection::vec(
                prop_oneof![(256u32..261).prop_map(|t| vec![t]), ".".prop_map(|c| c.bytes().map(u32::from).collect())],
                0..40,
            ),
        ) {
            let text = byte_fallback();
            let tokens = parts.concat();
            prop_assert_eq!(streamed(&text, &tokens, true).concat(), text.decode(&tokens, true));
        }
    }
}
