//! Finds the last integer in a text. Digits only: no number is too long to compare.

/// An integer as sign and digits, without leading zeros; zero has no sign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Integer {
    pub(crate) negative: bool,
    pub(crate) digits: String,
}

impl Integer {
    fn new(negative: bool, digits: &str) -> Self {
        let digits = digits.trim_start_matches('0');
        if digits.is_empty() {
            return Self {
                negative: false,
                digits: "0".into(),
            };
        }
        Self {
            negative,
            digits: digits.into(),
        }
    }

    /// A text that is an integer and nothing else.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.trim();
        let (negative, digits) = match text.strip_prefix(['-', '\u{2212}']) {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let sound = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        sound.then(|| Self::new(negative, digits))
    }

    /// How much of `gold` is right, digit by digit from the right, from 0 to 1.
    pub(crate) fn agreement(&self, gold: &Self) -> f64 {
        let places = self.digits.len().max(gold.digits.len());
        let same = self
            .digits
            .bytes()
            .rev()
            .zip(gold.digits.bytes().rev())
            .filter(|(a, b)| a == b)
            .count();
        let share = same as f64 / places as f64;
        if self.negative == gold.negative {
            share
        } else {
            share / 2.0
        }
    }
}

/// What the last number in a text is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found {
    Nothing,
    /// A number with a fractional part.
    Fraction,
    Integer(Integer),
}

/// The last number in `text`. `1,234` is one number, `12.0` is 12, and the minus of `5-3` is no sign.
pub(crate) fn last_number(text: &str) -> Found {
    let bytes = text.as_bytes();
    let mut found = Found::Nothing;
    let mut at = 0;
    while at < bytes.len() {
        if !bytes[at].is_ascii_digit() {
            at += 1;
            continue;
        }
        let negative = is_sign(&text[..at]);
        let mut digits = String::new();
        at = take_digits(bytes, at, &mut digits);
        while bytes.get(at) == Some(&b',') && is_group(&bytes[at + 1..]) {
            at = take_digits(bytes, at + 1, &mut digits);
        }
        let mut fraction = String::new();
        if bytes.get(at) == Some(&b'.') {
            let end = take_digits(bytes, at + 1, &mut fraction);
            if !fraction.is_empty() {
                at = end;
            }
        }
        found = if fraction.bytes().all(|byte| byte == b'0') {
            Found::Integer(Integer::new(negative, &digits))
        } else {
            Found::Fraction
        };
    }
    found
}

fn take_digits(bytes: &[u8], mut at: usize, digits: &mut String) -> usize {
    while let Some(byte) = bytes.get(at).filter(|byte| byte.is_ascii_digit()) {
        digits.push(char::from(*byte));
        at += 1;
    }
    at
}

/// Exactly three digits.
fn is_group(bytes: &[u8]) -> bool {
    bytes
        .iter()
        .take_while(|byte| byte.is_ascii_digit())
        .count()
        == 3
}

/// Whether the text before a number ends in a sign, and not in a subtraction.
fn is_sign(before: &str) -> bool {
    let Some(before) = before.trim_end_matches(' ').strip_suffix(['-', '\u{2212}']) else {
        return false;
    };
    !before
        .trim_end_matches(' ')
        .ends_with(|c: char| c.is_ascii_digit() || c == ')')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> String {
        match last_number(text) {
            Found::Nothing => "nothing".into(),
            Found::Fraction => "fraction".into(),
            Found::Integer(n) => format!("{}{}", if n.negative { "-" } else { "" }, n.digits),
        }
    }

    #[test]
    fn the_last_number_is_found_as_it_is_meant() {
        for (text, expected) in [
            ("12", "12"),
            ("", "nothing"),
            ("no idea", "nothing"),
            ("5 + 7 = 12.", "12"),
            ("7 then 12", "12"),
            ("-3", "-3"),
            ("\u{2212}3", "-3"),
            ("= -3", "-3"),
            ("5-3", "3"),
            ("5 - 3", "3"),
            ("007", "7"),
            ("-0", "0"),
            ("1,234", "1234"),
            ("1,2,3", "3"),
            ("2,552,004 apples", "2552004"),
            ("12.0", "12"),
            ("12.5", "fraction"),
            ("1e", "1"),
            ("is 12<|im_end|>", "12"),
        ] {
            assert_eq!(found(text), expected, "{text:?}");
        }
    }

    #[test]
    fn agreement_counts_places_from_the_right() {
        let agreement = |a: &str, gold: &str| {
            Integer::parse(a)
                .unwrap()
                .agreement(&Integer::parse(gold).unwrap())
        };
        assert_eq!(agreement("12", "12"), 1.0);
        assert_eq!(agreement("13", "12"), 0.5);
        assert_eq!(agreement("2", "12"), 0.5);
        assert_eq!(agreement("112", "12"), 2.0 / 3.0);
        assert_eq!(agreement("-12", "12"), 0.5);
        assert_eq!(agreement("34", "12"), 0.0);
    }
}
