//! Tokens to text as they come: whole characters only, stop strings found as soon as they are complete.
//!
//! The scheduler uses it to end a request, the server to show it; both see the same text. It never goes the
//! other way: nothing decoded is encoded again.

use slime_core::ports::TextCodec;

/// Prompt tokens that decoding starts from, so that a first piece keeps its leading space.
const CONTEXT_TOKENS: usize = 5;

/// Decodes one sequence piece by piece.
pub(crate) struct Decoder {
    ids: Vec<u32>,
    /// Decoding starts here …
    start: usize,
    /// … and the text of `start..shown` is out already.
    shown: usize,
    skip_special: bool,
}

impl Decoder {
    pub(crate) fn new(prompt: &[u32], skip_special: bool) -> Self {
        let ids = prompt[prompt.len().saturating_sub(CONTEXT_TOKENS)..].to_vec();
        Self {
            start: 0,
            shown: ids.len(),
            ids,
            skip_special,
        }
    }

    /// Text that `id` completes; empty while a character is unfinished.
    pub(crate) fn push(&mut self, codec: &dyn TextCodec, id: u32) -> String {
        self.ids.push(id);
        let whole = codec.decode(&self.ids[self.start..], self.skip_special);
        if whole.ends_with('\u{fffd}') {
            return String::new();
        }
        self.advance(codec, &whole)
    }

    /// What is left when nothing more comes, an unfinished character as U+FFFD.
    pub(crate) fn finish(&mut self, codec: &dyn TextCodec) -> String {
        let whole = codec.decode(&self.ids[self.start..], self.skip_special);
        self.advance(codec, &whole)
    }

    fn advance(&mut self, codec: &dyn TextCodec, whole: &str) -> String {
        let before = codec.decode(&self.ids[self.start..self.shown], self.skip_special);
        // A prompt may end inside a character; then its replacement is not a prefix of what follows.
        let text = whole
            .strip_prefix(before.as_str())
            .map(str::to_owned)
            .unwrap_or_else(|| {
                whole
                    .strip_prefix(before.trim_end_matches('\u{fffd}'))
                    .unwrap_or_default()
                    .to_owned()
            });
        self.start = self.shown;
        self.shown = self.ids.len();
        text
    }
}

/// The text of `output`, as [`Decoder`] would have given it in pieces.
pub(crate) fn decode_all(
    codec: &dyn TextCodec,
    prompt: &[u32],
    output: &[u32],
    skip_special: bool,
) -> String {
    let mut decoder = Decoder::new(prompt, skip_special);
    decoder.ids.extend_from_slice(output);
    decoder.finish(codec)
}

/// Watches one sequence for stop strings.
pub(crate) struct StopWatch {
    decoder: Decoder,
    tail: String,
    keep_bytes: usize,
}

impl StopWatch {
    pub(crate) fn new(prompt: &[u32], skip_special: bool, stops: &[String]) -> Self {
        let longest = stops.iter().map(String::len).max().unwrap_or(0);
        Self {
            decoder: Decoder::new(prompt, skip_special),
            tail: String::new(),
            keep_bytes: longest,
        }
    }

    /// The first of `stops` that is in the text now.
    pub(crate) fn push<'a>(
        &mut self,
        codec: &dyn TextCodec,
        id: u32,
        stops: &'a [String],
    ) -> Option<&'a String> {
        self.tail.push_str(&self.decoder.push(codec, id));
        let found = stops.iter().find(|s| self.tail.contains(s.as_str()));
        if self.tail.len() > self.keep_bytes {
            let cut = (0..=self.tail.len() - self.keep_bytes)
                .rev()
                .find(|&i| self.tail.is_char_boundary(i));
            self.tail.drain(..cut.unwrap_or(0));
        }
        found
    }
}

/// Length of the longest end of `text` that may still become one of `stops`.
pub(crate) fn held_back(text: &str, stops: &[String]) -> usize {
    let candidates = stops.iter().flat_map(|stop| {
        stop.char_indices()
            .map(|(i, c)| i + c.len_utf8())
            .filter(|&n| n < stop.len() && text.ends_with(&stop[..n]))
    });
    candidates.max().unwrap_or(0)
}

/// Cut `text` at the stop string that ended it.
pub(crate) fn trim_stop(text: &mut String, stop: &str, keep: bool) {
    if let Some(at) = text.find(stop) {
        text.truncate(if keep { at + stop.len() } else { at });
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use slime_core::ports::CodecError;
    use slime_core::{Message, Tool};

    /// Every byte is a token; 256 ends a turn, 257 begins one.
    pub(crate) struct Bytes;

    impl TextCodec for Bytes {
        fn encode(&self, text: &str) -> Result<Vec<u32>, CodecError> {
            Ok(text.bytes().map(u32::from).collect())
        }
        fn decode(&self, tokens: &[u32], skip_special_tokens: bool) -> String {
            let mut bytes = Vec::new();
            for &t in tokens {
                match u8::try_from(t) {
                    Ok(b) => bytes.push(b),
                    Err(_) if skip_special_tokens => {}
                    Err(_) => bytes.extend(format!("<{t}>").bytes()),
                }
            }
            String::from_utf8_lossy(&bytes).into_owned()
        }
        fn render_chat(
            &self,
            messages: &[Message],
            tools: &[Tool],
            add_generation_prompt: bool,
            _: &serde_json::Map<String, serde_json::Value>,
        ) -> Result<Vec<u32>, CodecError> {
            let mut ids = Vec::new();
            for tool in tools {
                ids.extend(tool.to_string().bytes().map(u32::from));
            }
            for m in messages {
                ids.push(257);
                ids.extend(format!("{}:{}", m.role, m.text()).bytes().map(u32::from));
                ids.push(256);
            }
            if add_generation_prompt {
                ids.push(257);
            }
            Ok(ids)
        }
        fn has_chat_template(&self) -> bool {
            true
        }
        fn eos_token_ids(&self) -> &[u32] {
            &[256]
        }
        fn vocab_size(&self) -> usize {
            258
        }
    }

    fn pieces(text: &[u8]) -> Vec<String> {
        let mut d = Decoder::new(b"prompt".map(u32::from).as_slice(), true);
        let mut out: Vec<_> = text.iter().map(|&b| d.push(&Bytes, b.into())).collect();
        out.push(d.finish(&Bytes));
        out
    }

    #[test]
    fn a_character_is_shown_when_it_is_whole() {
        assert_eq!(
            pieces("aé😀b".as_bytes()),
            ["a", "", "é", "", "", "", "😀", "b", ""]
        );
        assert_eq!(
            pieces(b"a\xf0\x9f").concat(),
            "a\u{fffd}",
            "what never becomes whole is shown at the end"
        );
        assert_eq!(pieces(b"\xffab").concat(), "\u{fffd}ab");
    }

    #[test]
    fn pieces_add_up_to_the_whole() {
        for text in [
            "",
            "plain",
            "aé😀b\n\u{1f469}\u{200d}\u{1f467}",
            "x\u{fffd}y",
        ] {
            let ids: Vec<u32> = text.bytes().map(u32::from).collect();
            assert_eq!(pieces(text.as_bytes()).concat(), text);
            assert_eq!(decode_all(&Bytes, &[112, 32], &ids, true), text);
        }
    }

    #[test]
    fn a_prompt_that_ends_inside_a_character_does_not_eat_the_answer() {
        let prompt = [0xf0u32, 0x9f];
        assert_eq!(decode_all(&Bytes, &prompt, &[97, 98], true), "ab");
    }

    #[test]
    fn stop_strings_are_found_across_tokens_and_at_once() {
        let stops = vec!["\n\nUser".to_owned(), "é!".to_owned()];
        let mut w = StopWatch::new(&[], true, &stops);
        let hits: Vec<bool> = "a\n\n\nUser"
            .bytes()
            .map(|b| w.push(&Bytes, b.into(), &stops).is_some())
            .collect();
        assert_eq!(
            hits,
            [false, false, false, false, false, false, false, true]
        );
        let mut w = StopWatch::new(&[], true, &stops);
        let hit: Vec<_> = "xxxxxxxxxxxxé!"
            .bytes()
            .filter_map(|b| w.push(&Bytes, b.into(), &stops))
            .collect();
        assert_eq!(hit, ["é!"]);
    }

    #[test]
    fn an_unfinished_stop_string_is_held_back() {
        let stops = vec!["\n\nUser".to_owned()];
        assert_eq!(held_back("abc\n", &stops), 1);
        assert_eq!(held_back("abc\n\nUs", &stops), 4);
        assert_eq!(held_back("abc", &stops), 0);
        let mut t = "abc\n\nUser: x".to_owned();
        trim_stop(&mut t, "\n\nUser", true);
        assert_eq!(t, "abc\n\nUser");
        trim_stop(&mut t, "\n\nUser", false);
        assert_eq!(t, "abc");
    }
}
