//! From tokens to an expression. What does not parse whole does not parse: no number is fished out of the rest.

use crate::expr::{Expr, Function};
use crate::ratio::Ratio;
use crate::token::Token;

/// Nesting beyond this is refused: each level costs stack.
const MAX_DEPTH: usize = 600;

/// Parse all of `tokens` as one expression.
pub(crate) fn expression(tokens: &[Token]) -> Option<Expr> {
    let mut parser = Parser {
        tokens,
        at: 0,
        depth: 0,
    };
    let expr = parser.sum()?;
    (parser.at == tokens.len()).then_some(expr)
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at)
    }

    fn take(&mut self, token: &Token) -> bool {
        let here = self.peek() == Some(token);
        self.at += usize::from(here);
        here
    }

    fn sum(&mut self) -> Option<Expr> {
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return None;
        }
        let mut left = self.product()?;
        loop {
            if self.take(&Token::Op('+')) {
                left = Expr::Add(left.into(), self.product()?.into());
            } else if self.take(&Token::Op('-')) {
                left = Expr::Add(left.into(), Box::new(Expr::Neg(self.product()?.into())));
            } else {
                self.depth -= 1;
                return Some(left);
            }
        }
    }

    fn product(&mut self) -> Option<Expr> {
        let mut left = self.signed()?;
        loop {
            if self.take(&Token::Op('*')) {
                left = Expr::Mul(left.into(), self.signed()?.into());
            } else if self.take(&Token::Op('/')) {
                left = Expr::Div(left.into(), self.signed()?.into());
            } else if self.starts_factor() {
                left = Expr::Mul(left.into(), self.power()?.into());
            } else {
                return Some(left);
            }
        }
    }

    /// Whether a factor follows without a sign between. A number never does: `1 2` is no product.
    fn starts_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Word(name)) => name != "\\cup" && name != "\\cap",
            Some(Token::Frac | Token::Sqrt | Token::Infinity | Token::Open('(' | '[' | '{')) => {
                true
            }
            _ => false,
        }
    }

    fn signed(&mut self) -> Option<Expr> {
        let mut negative = false;
        loop {
            if self.take(&Token::Op('-')) {
                negative = !negative;
            } else if !self.take(&Token::Op('+')) {
                let value = self.power()?;
                return Some(if negative {
                    Expr::Neg(value.into())
                } else {
                    value
                });
            }
        }
    }

    fn power(&mut self) -> Option<Expr> {
        let mut base = self.atom()?;
        loop {
            if self.take(&Token::Op('^')) {
                base = Expr::Pow(base.into(), self.script()?.into());
            } else if self.take(&Token::Op('!')) {
                base = Expr::Factorial(base.into());
            } else if self.take(&Token::Percent) {
                base = Expr::Div(base.into(), Box::new(Expr::Number(Ratio::integer(100))));
            } else {
                return Some(base);
            }
        }
    }

    /// What follows `^` or `_`: a group, a signed number or one atom.
    fn script(&mut self) -> Option<Expr> {
        if self.take(&Token::Op('-')) {
            return Some(Expr::Neg(self.atom()?.into()));
        }
        self.atom()
    }

    fn atom(&mut self) -> Option<Expr> {
        let token = self.peek()?;
        self.at += 1;
        match token {
            Token::Number { value, plain, .. } => Some(self.mixed(value, *plain)),
            Token::Infinity => Some(Expr::Infinity),
            Token::Word(name) => self.word(name),
            Token::Text(text) => match text.trim() {
                "e" => Some(Expr::Euler),
                name if name.chars().count() == 1 && name.chars().all(char::is_alphabetic) => {
                    self.subscripted(name.to_owned())
                }
                name => Function::named(name).and_then(|function| self.call(function)),
            },
            Token::Frac => {
                let num = self.argument()?;
                Some(Expr::Div(num.into(), self.argument()?.into()))
            }
            Token::Sqrt => self.root(),
            Token::Open(open) if *open != 'S' => self.closed(*open),
            Token::Op('|') => {
                let inner = self.sum()?;
                self.take(&Token::Op('|')).then(|| Expr::Abs(inner.into()))
            }
            _ => None,
        }
    }

    /// A sum up to the bracket that closes `open`.
    fn closed(&mut self, open: char) -> Option<Expr> {
        let close = match open {
            '(' => ')',
            '[' => ']',
            _ => '}',
        };
        let inner = self.sum()?;
        self.take(&Token::Close(close)).then_some(inner)
    }

    /// `1 1/4` and `2\frac{1}{2}` are sums: a whole number before a proper fraction of whole numbers.
    fn mixed(&mut self, whole: &Ratio, plain: bool) -> Expr {
        let number = Expr::Number(whole.clone());
        if !plain {
            return number;
        }
        let start = self.at;
        match self.fraction_of_integers() {
            Some(fraction) => Expr::Add(number.into(), fraction.into()),
            None => {
                self.at = start;
                number
            }
        }
    }

    fn fraction_of_integers(&mut self) -> Option<Expr> {
        let (num, den) = if self.take(&Token::Frac) {
            (self.argument()?, self.argument()?)
        } else {
            let num = self.spaced_integer(true)?;
            if !self.take(&Token::Op('/')) {
                return None;
            }
            (num, self.spaced_integer(false)?)
        };
        match (&num, &den) {
            (Expr::Number(a), Expr::Number(b)) if a.is_integer() && b.is_integer() && a < b => {
                Some(Expr::Div(num.into(), den.into()))
            }
            _ => None,
        }
    }

    fn spaced_integer(&mut self, must_be_spaced: bool) -> Option<Expr> {
        match self.peek()? {
            Token::Number {
                value,
                plain: true,
                spaced,
            } if *spaced || !must_be_spaced => {
                self.at += 1;
                Some(Expr::Number(value.clone()))
            }
            _ => None,
        }
    }

    /// The argument of a command: a group, or one number or letter.
    fn argument(&mut self) -> Option<Expr> {
        match self.peek()? {
            Token::Open('{') => {
                self.at += 1;
                self.closed('{')
            }
            Token::Number { value, .. } => {
                self.at += 1;
                Some(Expr::Number(value.clone()))
            }
            Token::Word(_) | Token::Sqrt | Token::Frac => self.atom(),
            _ => None,
        }
    }

    fn root(&mut self) -> Option<Expr> {
        let mut degree = Expr::Number(Ratio::integer(2));
        if self.take(&Token::Open('[')) {
            degree = self.closed('[')?;
        }
        let inner = match self.peek()? {
            Token::Open('{') => self.argument()?,
            Token::Open('(') => {
                self.at += 1;
                self.closed('(')?
            }
            Token::Number { value, .. } => {
                self.at += 1;
                Expr::Number(value.clone())
            }
            _ => self.atom()?,
        };
        Some(Expr::Root(degree.into(), inner.into()))
    }

    /// `n` over `k`, as n! / (k! (n − k)!).
    fn binomial(&mut self) -> Option<Expr> {
        let (n, k) = (self.argument()?, self.argument()?);
        let rest = Expr::Add(n.clone().into(), Box::new(Expr::Neg(k.clone().into())));
        let below = Expr::Mul(
            Box::new(Expr::Factorial(k.into())),
            Box::new(Expr::Factorial(rest.into())),
        );
        Some(Expr::Div(Box::new(Expr::Factorial(n.into())), below.into()))
    }

    fn word(&mut self, name: &str) -> Option<Expr> {
        let bare = name.trim_start_matches('\\');
        match bare {
            "pi" => return Some(Expr::Pi),
            "e" => return Some(Expr::Euler),
            "sqrt" => return self.root(),
            "binom" | "dbinom" | "tbinom" if name.starts_with('\\') => return self.binomial(),
            "inf" | "infinity" | "oo" => return Some(Expr::Infinity),
            "cup" | "cap" => return None,
            _ => {}
        }
        if let Some(function) = Function::named(bare) {
            return self.call(function);
        }
        if name.starts_with('\\') || bare.chars().count() == 1 {
            return self.subscripted(bare.to_owned());
        }
        // Letters side by side are a product, as long as they do not look like a word.
        let letters: Vec<char> = bare.chars().collect();
        if letters.len() > 3 {
            return None;
        }
        let (last, first) = letters.split_last()?;
        let mut product = self.subscripted(last.to_string())?;
        for letter in first.iter().rev() {
            let factor = if *letter == 'e' {
                Expr::Euler
            } else {
                Expr::Symbol(letter.to_string())
            };
            product = Expr::Mul(factor.into(), product.into());
        }
        Some(product)
    }

    /// A symbol with its index, as `x_1` or `x_{ab}`.
    fn subscripted(&mut self, name: String) -> Option<Expr> {
        if name == "e" {
            return Some(Expr::Euler);
        }
        if !self.take(&Token::Op('_')) {
            return Some(Expr::Symbol(name));
        }
        let start = self.at;
        self.script()?;
        Some(Expr::Symbol(format!(
            "{name}_{:?}",
            &self.tokens[start..self.at]
        )))
    }

    fn call(&mut self, function: Function) -> Option<Expr> {
        let base = if self.take(&Token::Op('_')) {
            Some(self.script()?)
        } else {
            None
        };
        let power = if self.take(&Token::Op('^')) {
            Some(self.script()?)
        } else {
            None
        };
        let argument = match self.peek()? {
            Token::Open('(' | '{' | '[') => self.atom()?,
            // `\sin 2x`: everything that is multiplied without a sign.
            _ => {
                let mut argument = self.power()?;
                while self.starts_factor() && !matches!(self.peek(), Some(Token::Open(_))) {
                    argument = Expr::Mul(argument.into(), self.power()?.into());
                }
                argument
            }
        };
        let ln = |x: Expr| Expr::Call(Function::Ln, x.into());
        let mut value = match base {
            Some(base) if function == Function::Log => {
                Expr::Div(ln(argument).into(), ln(base).into())
            }
            Some(_) => return None,
            None => Expr::Call(function, argument.into()),
        };
        if let Some(power) = power {
            value = Expr::Pow(value.into(), power.into());
        }
        Some(value)
    }
}
