//! What an answer is: a value, a tuple or interval, a set, a list, a matrix, an equation, or words.

use crate::expr::Expr;
use crate::parse::expression;
use crate::token::{Token, tokens};

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answer {
    Value {
        expr: Expr,
        unit: Option<String>,
    },
    /// Ordered, with its brackets: `(1,2)`, `[0,1)`.
    Bracketed {
        open: char,
        close: char,
        items: Vec<Answer>,
    },
    /// In no order.
    Set(Vec<Answer>),
    /// Answers side by side, in no order: `1, 2` or `3 or 4`.
    List(Vec<Answer>),
    /// A union of intervals or sets, in no order.
    Union(Vec<Answer>),
    /// Rows of cells.
    Matrix(Vec<Vec<Answer>>),
    /// Sides and what stands between them.
    Relation {
        sides: Vec<Expr>,
        signs: Vec<char>,
    },
    /// Words, lower case, single spaces.
    Words(String),
}

/// What a single letter behind a number is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Letters {
    Symbols,
    Units,
}

/// Units that people write without `\text`, long enough to be no product of symbols.
const UNITS: [&str; 28] = [
    "mm", "cm", "dm", "km", "mg", "kg", "ml", "cl", "ms", "ft", "yd", "mi", "lb", "oz", "hr",
    "min", "sec", "mph", "kph", "rpm", "Hz", "kHz", "kW", "kWh", "Pa", "kPa", "mol", "deg",
];

/// Parse an answer; `None` where it means nothing here.
pub(crate) fn parse(source: &str) -> Option<Answer> {
    let source = source.trim();
    if let Some(rows) = matrix_rows(source) {
        let rows: Option<Vec<Vec<_>>> = rows
            .split("\\\\")
            .filter(|row| !row.trim().is_empty())
            .map(|row| row.split('&').map(parse).collect())
            .collect();
        return rows.filter(|rows| !rows.is_empty()).map(Answer::Matrix);
    }
    if source.contains("\\pm") || source.contains('±') {
        let both: Option<Vec<_>> = ['+', '-']
            .iter()
            .map(|sign| {
                parse(
                    &source
                        .replace("\\pm", &sign.to_string())
                        .replace('±', &sign.to_string()),
                )
            })
            .collect();
        return both.map(flat_list);
    }
    let parsed = tokens(source).and_then(|tokens| list(&tokens));
    parsed.or_else(|| words(source))
}

impl Answer {
    pub(crate) fn has_unit(&self) -> bool {
        matches!(self, Self::Value { unit: Some(_), .. })
    }
}

/// Parse an answer to a question whose gold answer has a unit: `35 m` is 35 metres, not 35 times m.
pub(crate) fn parse_with_unit(source: &str) -> Option<Answer> {
    value(&tokens(source)?, Letters::Units)
}

/// The inside of `\begin{pmatrix} … \end{pmatrix}` and its kin.
fn matrix_rows(source: &str) -> Option<&str> {
    let source = source
        .trim_start_matches("\\left")
        .trim_matches(['(', ')', '[', ']'])
        .trim();
    let rest = source.strip_prefix("\\begin{")?;
    let (kind, rest) = rest.split_once('}')?;
    let (rows, after) = rest.rsplit_once("\\end{")?;
    (kind.ends_with("matrix") && after.starts_with(kind)).then_some(rows)
}

fn flat_list(items: Vec<Answer>) -> Answer {
    let flat = items.into_iter().flat_map(|item| match item {
        Answer::List(items) => items,
        item => vec![item],
    });
    Answer::List(flat.collect())
}

/// Items separated by commas, semicolons, "or" or "and" outside of brackets.
fn list(tokens: &[Token]) -> Option<Answer> {
    let separates = |token: &Token| match token {
        Token::Op(',' | ';') => true,
        Token::Word(word) => word == "or" || word == "and",
        Token::Text(text) => matches!(text.trim(), "or" | "and" | ","),
        _ => false,
    };
    let mut items = Vec::new();
    for part in split(tokens, separates) {
        // `1, 2, and 3` has an empty item before the "and".
        if !part.is_empty() || items.is_empty() {
            items.push(item(part)?);
        }
    }
    if items.len() > 1 {
        Some(flat_list(items))
    } else {
        items.pop()
    }
}

/// Split outside of brackets.
fn split(tokens: &[Token], separates: impl Fn(&Token) -> bool) -> Vec<&[Token]> {
    let mut parts = Vec::new();
    let (mut depth, mut start) = (0i32, 0);
    for (at, token) in tokens.iter().enumerate() {
        match token {
            Token::Open(_) => depth += 1,
            Token::Close(_) => depth -= 1,
            token if depth == 0 && separates(token) => {
                parts.push(&tokens[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&tokens[start..]);
    parts
}

fn item(tokens: &[Token]) -> Option<Answer> {
    let tokens = ungrouped(tokens);
    if tokens == [Token::EmptySet] {
        return Some(Answer::Set(Vec::new()));
    }
    let union = split(
        tokens,
        |token| matches!(token, Token::Word(name) if name == "\\cup"),
    );
    if union.len() > 1 {
        let parts: Option<Vec<_>> = union.into_iter().map(item).collect();
        return parts.map(Answer::Union);
    }
    if tokens
        .iter()
        .any(|token| matches!(token, Token::Relation(_)))
    {
        return relation(tokens);
    }
    bracketed(tokens).or_else(|| value(tokens, Letters::Symbols))
}

/// Without braces that only group.
fn ungrouped(mut tokens: &[Token]) -> &[Token] {
    while let [Token::Open('{'), inner @ .., Token::Close('}')] = tokens
        && split_depth_ok(inner)
    {
        tokens = inner;
    }
    tokens
}

/// Whether brackets inside close inside.
fn split_depth_ok(tokens: &[Token]) -> bool {
    let mut depth = 0i32;
    tokens.iter().all(|token| {
        depth += match token {
            Token::Open(_) => 1,
            Token::Close(_) => -1,
            _ => 0,
        };
        depth >= 0
    }) && depth == 0
}

fn bracketed(tokens: &[Token]) -> Option<Answer> {
    let [Token::Open(open), inner @ .., Token::Close(close)] = tokens else {
        return None;
    };
    if !split_depth_ok(inner) {
        return None;
    }
    let parts = split(inner, |token| matches!(token, Token::Op(',' | ';')));
    if *open == 'S' && *close == 'S' {
        if inner.is_empty() {
            return Some(Answer::Set(Vec::new()));
        }
        let items: Option<Vec<_>> = parts.into_iter().map(item).collect();
        return items.map(Answer::Set);
    }
    if parts.len() < 2 || !matches!((open, close), ('(' | '[', ')' | ']')) {
        return None;
    }
    let items: Option<Vec<_>> = parts.into_iter().map(item).collect();
    Some(Answer::Bracketed {
        open: *open,
        close: *close,
        items: items?,
    })
}

/// `x = 5` is 5; `0 < x \le 3` and `x > 2` are intervals; other relations stay what they are.
fn relation(tokens: &[Token]) -> Option<Answer> {
    let signs: Vec<char> = tokens
        .iter()
        .filter_map(|token| {
            if let Token::Relation(sign) = token {
                Some(*sign)
            } else {
                None
            }
        })
        .collect();
    let parts = split(tokens, |token| matches!(token, Token::Relation(_)));
    if parts.len() != signs.len() + 1 {
        return None;
    }
    if matches!(signs[..], ['=' | 'i']) && is_name(parts[0]) {
        return item(parts[1]);
    }
    let sides: Option<Vec<Expr>> = parts.into_iter().map(expression).collect();
    let sides = sides?;
    Some(interval(&sides, &signs).unwrap_or(Answer::Relation { sides, signs }))
}

/// A symbol alone, or a function of one: `x`, `x_1`, `f(x)`.
fn is_name(tokens: &[Token]) -> bool {
    let letter = |token: &Token| match token {
        Token::Word(name) => name.starts_with('\\') || name.chars().count() == 1,
        _ => false,
    };
    match tokens {
        [name] | [name, Token::Op('_'), _] => letter(name),
        [name, Token::Open('('), argument, Token::Close(')')] => letter(name) && letter(argument),
        [
            name,
            Token::Op('_'),
            Token::Open('{'),
            ..,
            Token::Close('}'),
        ] => letter(name),
        _ => false,
    }
}

fn interval(sides: &[Expr], signs: &[char]) -> Option<Answer> {
    let is_variable = |expr: &Expr| matches!(expr, Expr::Symbol(_));
    let is_constant = |expr: &Expr| expr.symbols().is_empty();
    let bound = |expr: &Expr| Answer::Value {
        expr: expr.clone(),
        unit: None,
    };
    let make = |low: (Answer, bool), high: (Answer, bool)| Answer::Bracketed {
        open: if low.1 { '[' } else { '(' },
        close: if high.1 { ']' } else { ')' },
        items: vec![low.0, high.0],
    };
    let below = || (bound(&Expr::Neg(Expr::Infinity.into())), false);
    let above = || (bound(&Expr::Infinity), false);
    match (sides, signs) {
        ([low, x, high], [a @ ('<' | 'l'), b @ ('<' | 'l')])
            if is_variable(x) && is_constant(low) && is_constant(high) =>
        {
            Some(make((bound(low), *a == 'l'), (bound(high), *b == 'l')))
        }
        ([high, x, low], [a @ ('>' | 'g'), b @ ('>' | 'g')])
            if is_variable(x) && is_constant(low) && is_constant(high) =>
        {
            Some(make((bound(low), *b == 'g'), (bound(high), *a == 'g')))
        }
        ([x, c], [sign]) if is_variable(x) && is_constant(c) => match sign {
            '<' | 'l' => Some(make(below(), (bound(c), *sign == 'l'))),
            '>' | 'g' => Some(make((bound(c), *sign == 'g'), above())),
            _ => None,
        },
        ([c, x], [sign]) if is_variable(x) && is_constant(c) => match sign {
            '>' | 'g' => Some(make(below(), (bound(c), *sign == 'g'))),
            '<' | 'l' => Some(make((bound(c), *sign == 'l'), above())),
            _ => None,
        },
        _ => None,
    }
}

/// An expression with the unit behind it.
fn value(tokens: &[Token], letters: Letters) -> Option<Answer> {
    if let [Token::Text(text)] = tokens
        && text.trim().chars().count() > 1
    {
        return words(text);
    }
    let known =
        |token: &Token| matches!(token, Token::Word(word) if UNITS.contains(&word.as_str()));
    if letters == Letters::Symbols
        && !tokens.iter().any(known)
        && let Some(expr) = expression(tokens)
    {
        return Some(Answer::Value { expr, unit: None });
    }
    // What stands before the unit must be a number of its own.
    for at in (1..tokens.len()).rev() {
        if let Some(unit) = unit(&tokens[at..])
            && let Some(expr) = expression(&tokens[..at])
            && expr.symbols().is_empty()
        {
            return Some(Answer::Value {
                expr,
                unit: Some(unit),
            });
        }
    }
    None
}

/// `\text{ cm}^2`, `km/h`, `°`, `apples`; a base, as in `1010_2`. One name for each spelling.
fn unit(tokens: &[Token]) -> Option<String> {
    if let [Token::Op('_'), base @ ..] = tokens {
        let base = expression(ungrouped(base))?.exact()?.to_i64()?;
        return Some(format!("base {base}"));
    }
    let tokens = match tokens {
        // 90^\circ
        [Token::Op('^'), rest @ ..] if matches!(ungrouped(rest).first(), Some(Token::Degree)) => {
            ungrouped(rest)
        }
        tokens => tokens,
    };
    let mut name = String::new();
    for token in tokens {
        match token {
            Token::Word(word) if !word.starts_with('\\') => name.push_str(word),
            Token::Text(text) => name.push_str(text),
            Token::Degree => name.push_str("degree"),
            Token::Op(c @ ('/' | '^' | '*')) => name.push(*c),
            Token::Number {
                value, plain: true, ..
            } if name.ends_with('^') => {
                name.push_str(&value.to_i64()?.to_string());
            }
            Token::Open('{') | Token::Close('}') => {}
            _ => return None,
        }
    }
    let mut name: String = name
        .to_lowercase()
        .chars()
        .filter(|c| !c.is_whitespace() && *c != '.')
        .collect();
    if name.len() > 3 && name.ends_with('s') {
        name.pop();
    }
    name.contains(char::is_alphabetic).then_some(name)
}

/// Words without any mathematics in them.
fn words(source: &str) -> Option<Answer> {
    let mut text = source.trim().trim_end_matches('.');
    while let Some(inner) = ["\\text{", "\\textbf{", "\\mathrm{", "\\mbox{"]
        .iter()
        .find_map(|c| text.strip_prefix(c))
    {
        text = inner.strip_suffix('}')?.trim();
    }
    let text = text
        .to_lowercase()
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ");
    let sound = text
        .chars()
        .all(|c| c.is_alphabetic() || matches!(c, ' ' | '-' | '\'' | '.' | '(' | ')'));
    (sound && text.chars().filter(|c| c.is_alphabetic()).count() > 0).then_some(Answer::Words(text))
}
