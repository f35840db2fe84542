//! From LaTeX or plain text to tokens. An unknown command is an error: nothing is skipped silently.

use crate::ratio::Ratio;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Token {
    /// The number, whether it was written as digits alone, and whether white space came before it.
    Number {
        value: Ratio,
        plain: bool,
        spaced: bool,
    },
    /// A run of letters, or the name of a command that stands for a symbol or function.
    Word(String),
    /// What `\text` and its kin hold.
    Text(String),
    Frac,
    Sqrt,
    Infinity,
    EmptySet,
    Percent,
    Degree,
    /// One of `+ - * / ^ _ ! | , ;`.
    Op(char),
    /// One of `( [ {`, and `S` for the braces of a set.
    Open(char),
    /// The counterpart: `) ] }`, and `S`.
    Close(char),
    /// One of `= < >`, and `l`, `g`, `n` for ≤, ≥, ≠; `i` for ∈.
    Relation(char),
}

/// Text commands whose content is words.
const TEXT_COMMANDS: [&str; 8] = [
    "text",
    "textbf",
    "textit",
    "textrm",
    "mathrm",
    "mathbf",
    "mbox",
    "operatorname",
];
/// Commands that only shape the picture.
const SILENT: [&str; 17] = [
    "left",
    "right",
    "big",
    "Big",
    "bigl",
    "bigr",
    "Bigl",
    "Bigr",
    "displaystyle",
    "textstyle",
    "quad",
    "qquad",
    "limits",
    "mathit",
    "mathsf",
    "nolimits",
    "hfill",
];
const GREEK: [&str; 24] = [
    "alpha",
    "beta",
    "gamma",
    "delta",
    "epsilon",
    "varepsilon",
    "zeta",
    "eta",
    "theta",
    "iota",
    "kappa",
    "lambda",
    "mu",
    "nu",
    "xi",
    "rho",
    "sigma",
    "tau",
    "phi",
    "varphi",
    "chi",
    "psi",
    "omega",
    "ell",
];

/// Split `source` into tokens.
pub(crate) fn tokens(source: &str) -> Option<Vec<Token>> {
    let chars: Vec<char> = plain(source).chars().collect();
    Lexer {
        chars,
        at: 0,
        nested: 0,
        spaced: false,
        tokens: Vec::new(),
    }
    .run()
}

/// Compatibility forms to the characters they stand for.
fn plain(source: &str) -> String {
    let mut text = String::with_capacity(source.len());
    for c in source.chars() {
        match c {
            '\u{2212}' | '\u{2013}' | '\u{fe63}' => text.push('-'),
            '\u{ff01}'..='\u{ff5e}' => text.extend(char::from_u32(c as u32 - 0xfee0)),
            '\u{1d7ce}'..='\u{1d7ff}' => {
                text.extend(char::from_digit((c as u32 - 0x1d7ce) % 10, 10))
            }
            '¹' => text.push_str("^1"),
            '²' => text.push_str("^2"),
            '³' => text.push_str("^3"),
            '½' => text.push_str(" 1/2"),
            '¼' => text.push_str(" 1/4"),
            '¾' => text.push_str(" 3/4"),
            '⅓' => text.push_str(" 1/3"),
            '⅔' => text.push_str(" 2/3"),
            '×' | '·' | '⋅' | '∗' => text.push('*'),
            '÷' | '∕' | '⁄' => text.push('/'),
            '≤' => text.push_str("\\le "),
            '≥' => text.push_str("\\ge "),
            '≠' => text.push_str("\\ne "),
            '∈' => text.push_str("\\in "),
            '∞' => text.push_str("\\infty "),
            'π' => text.push_str("\\pi "),
            '√' => text.push_str("\\sqrt "),
            '∅' => text.push_str("\\emptyset "),
            '°' => text.push_str("\\degree "),
            '\u{3001}' => text.push(','),
            '\u{3000}' | '\u{a0}' => text.push(' '),
            c => text.push(c),
        }
    }
    text
}

struct Lexer {
    chars: Vec<char>,
    at: usize,
    /// Open brackets in which a comma always separates.
    nested: usize,
    spaced: bool,
    tokens: Vec<Token>,
}

impl Lexer {
    fn run(mut self) -> Option<Vec<Token>> {
        while let Some(c) = self.peek(0) {
            match c {
                c if c.is_whitespace() || c == '~' || c == '$' => {
                    self.at += 1;
                    self.spaced = true;
                    continue;
                }
                '\\' => self.command()?,
                '0'..='9' => self.number()?,
                '.' if self.peek(1).is_some_and(|c| c.is_ascii_digit()) => self.number()?,
                // A full stop ends the sentence around the answer.
                '.' if self.rest_is_blank() => self.at += 1,
                c if c.is_alphabetic() => {
                    let word = self.take_while(char::is_alphabetic);
                    self.tokens.push(Token::Word(word));
                }
                '(' | '[' => self.open(c),
                ')' | ']' => self.close(c),
                '{' => self.push(Token::Open('{')),
                '}' => self.push(Token::Close('}')),
                '%' => self.push(Token::Percent),
                '=' | '<' | '>' => self.relation(c),
                '*' if self.peek(1) == Some('*') => {
                    self.at += 1;
                    self.push(Token::Op('^'));
                }
                '+' | '-' | '*' | '/' | '^' | '_' | '!' | '|' | ',' | ';' => {
                    self.push(Token::Op(c))
                }
                _ => return None,
            }
            self.spaced = false;
        }
        Some(self.tokens)
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.chars.get(self.at + ahead).copied()
    }

    fn push(&mut self, token: Token) {
        self.at += 1;
        self.tokens.push(token);
    }

    fn open(&mut self, bracket: char) {
        self.nested += 1;
        self.push(Token::Open(bracket));
    }

    fn close(&mut self, bracket: char) {
        self.nested = self.nested.saturating_sub(1);
        self.push(Token::Close(bracket));
    }

    fn relation(&mut self, c: char) {
        let loose = c != '=' && self.peek(1) == Some('=');
        self.at += usize::from(loose);
        self.push(Token::Relation(match (c, loose) {
            ('<', true) => 'l',
            ('>', true) => 'g',
            _ => c,
        }));
    }

    fn rest_is_blank(&self) -> bool {
        self.chars[self.at + 1..]
            .iter()
            .all(|c| c.is_whitespace() || *c == '$')
    }

    fn take_while(&mut self, fits: impl Fn(char) -> bool) -> String {
        let start = self.at;
        while self.peek(0).is_some_and(&fits) {
            self.at += 1;
        }
        self.chars[start..self.at].iter().collect()
    }

    fn number(&mut self) -> Option<()> {
        let digit = |c: char| c.is_ascii_digit();
        let mut whole = self.take_while(digit);
        let mut plain = true;
        let grouped = (1..=3).contains(&whole.len());
        while let Some(skip) = self.group_ahead().filter(|_| grouped) {
            self.at += skip;
            whole.push_str(&self.take_while(digit));
            plain = false;
        }
        let mut fraction = String::new();
        if self.peek(0) == Some('.') && (self.peek(1).is_some_and(digit) || !whole.is_empty()) {
            // `5.` before the end of the sentence is 5.
            self.at += 1;
            fraction = self.take_while(digit);
            plain = plain && fraction.is_empty();
        }
        let exponent = self.exponent().unwrap_or(0);
        let value = Ratio::decimal(&whole, &fraction, exponent)?;
        self.tokens.push(Token::Number {
            value,
            plain: plain && exponent == 0,
            spaced: self.spaced,
        });
        Some(())
    }

    /// Whether `,ddd`, `{,}ddd`, `\,ddd` or `,\!ddd` continues the number, and how long its mark is. Inside brackets
    /// a comma separates; four digits after it are no group.
    fn group_ahead(&self) -> Option<usize> {
        let marks: [&[char]; 4] = [&['{', ',', '}'], &[',', '\\', '!'], &['\\', ','], &[',']];
        let mark = marks
            .iter()
            .find(|mark| self.chars[self.at..].starts_with(mark))?;
        if mark.len() == 1 && self.nested > 0 {
            return None;
        }
        let after = &self.chars[self.at + mark.len()..];
        let digits = after.iter().take_while(|c| c.is_ascii_digit()).count();
        (digits == 3).then_some(mark.len())
    }

    /// `e3`, `E-3`; `2e` and `2ex` are products.
    fn exponent(&mut self) -> Option<i32> {
        if !matches!(self.peek(0), Some('e' | 'E')) {
            return None;
        }
        let sign = usize::from(matches!(self.peek(1), Some('+' | '-')));
        let digits = self.chars[self.at + 1 + sign..]
            .iter()
            .take_while(|c| c.is_ascii_digit())
            .count();
        if digits == 0 || digits > 4 {
            return None;
        }
        let text: String = self.chars[self.at + 1..self.at + 1 + sign + digits]
            .iter()
            .collect();
        self.at += 1 + sign + digits;
        text.parse().ok()
    }

    fn command(&mut self) -> Option<()> {
        self.at += 1;
        let c = self.peek(0)?;
        if !c.is_ascii_alphabetic() {
            self.at += 1;
            match c {
                ',' | ';' | ':' | '!' | ' ' | '\\' => {}
                '%' => self.tokens.push(Token::Percent),
                '$' | '(' | ')' | '[' | ']' => {}
                '{' => {
                    self.nested += 1;
                    self.tokens.push(Token::Open('S'));
                }
                '}' => {
                    self.nested = self.nested.saturating_sub(1);
                    self.tokens.push(Token::Close('S'));
                }
                _ => return None,
            }
            return Some(());
        }
        let name = self.take_while(|c| c.is_ascii_alphabetic());
        let token = match name.as_str() {
            "frac" | "dfrac" | "tfrac" | "cfrac" => return self.frac(),
            "sqrt" => Token::Sqrt,
            "infty" => Token::Infinity,
            "emptyset" | "varnothing" => Token::EmptySet,
            "cdot" | "times" | "ast" => Token::Op('*'),
            "div" => Token::Op('/'),
            "circ" | "degree" | "degrees" => Token::Degree,
            "le" | "leq" | "leqslant" => Token::Relation('l'),
            "ge" | "geq" | "geqslant" => Token::Relation('g'),
            "lt" => Token::Relation('<'),
            "gt" => Token::Relation('>'),
            "ne" | "neq" => Token::Relation('n'),
            "in" => Token::Relation('i'),
            "lbrace" => Token::Open('S'),
            "rbrace" => Token::Close('S'),
            "lvert" | "rvert" | "vert" | "mid" => Token::Op('|'),
            "percent" => Token::Percent,
            "pi" | "cup" | "cap" | "binom" | "dbinom" | "tbinom" => {
                Token::Word(format!("\\{name}"))
            }
            name if GREEK.contains(&name) || crate::expr::Function::named(name).is_some() => {
                Token::Word(format!("\\{name}"))
            }
            name if SILENT.contains(&name) => return Some(()),
            name if TEXT_COMMANDS.contains(&name) => Token::Text(self.braced()?),
            _ => return None,
        };
        self.tokens.push(token);
        Some(())
    }

    /// `\frac12` takes a digit for each argument.
    fn frac(&mut self) -> Option<()> {
        self.tokens.push(Token::Frac);
        for _ in 0..2 {
            self.take_while(char::is_whitespace);
            let Some(digit) = self.peek(0).filter(char::is_ascii_digit) else {
                break;
            };
            self.at += 1;
            let value = Ratio::decimal(&digit.to_string(), "", 0)?;
            self.tokens.push(Token::Number {
                value,
                plain: true,
                spaced: false,
            });
        }
        Some(())
    }

    /// The text between braces.
    fn braced(&mut self) -> Option<String> {
        self.take_while(char::is_whitespace);
        if self.peek(0) != Some('{') {
            return None;
        }
        self.at += 1;
        let mut depth = 1;
        let mut text = String::new();
        loop {
            let c = self.peek(0)?;
            self.at += 1;
            match c {
                '{' => depth += 1,
                '}' => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(text);
            }
            text.push(c);
        }
    }
}
