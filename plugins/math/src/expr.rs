//! Expressions and their values: exact where possible, else a float at given values of the symbols.

use crate::ratio::Ratio;
use std::collections::BTreeSet;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expr {
    Number(Ratio),
    /// A letter, a Greek name or a subscripted letter. Stands for a positive real.
    Symbol(String),
    Pi,
    Euler,
    Infinity,
    Neg(Box<Expr>),
    Add(Box<Expr>, Box<Expr>),
    Mul(Box<Expr>, Box<Expr>),
    Div(Box<Expr>, Box<Expr>),
    Pow(Box<Expr>, Box<Expr>),
    /// Degree, then radicand.
    Root(Box<Expr>, Box<Expr>),
    Abs(Box<Expr>),
    Factorial(Box<Expr>),
    Call(Function, Box<Expr>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Function {
    Sin,
    Cos,
    Tan,
    Cot,
    Sec,
    Csc,
    Asin,
    Acos,
    Atan,
    Ln,
    /// To base 10, as school books mean it.
    Log,
    Exp,
}

impl Function {
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "sin" => Self::Sin,
            "cos" => Self::Cos,
            "tan" => Self::Tan,
            "cot" => Self::Cot,
            "sec" => Self::Sec,
            "csc" => Self::Csc,
            "arcsin" => Self::Asin,
            "arccos" => Self::Acos,
            "arctan" => Self::Atan,
            "ln" => Self::Ln,
            "log" => Self::Log,
            "exp" => Self::Exp,
            _ => return None,
        })
    }

    fn apply(self, x: f64) -> f64 {
        match self {
            Self::Sin => settled(x, x.sin()),
            Self::Cos => settled(x, x.cos()),
            Self::Tan => settled(x, x.tan()),
            Self::Cot => settled(x, x.tan().recip()),
            Self::Sec => x.cos().recip(),
            Self::Csc => x.sin().recip(),
            Self::Asin => x.asin(),
            Self::Acos => x.acos(),
            Self::Atan => x.atan(),
            Self::Ln => x.ln(),
            Self::Log => x.log10(),
            Self::Exp => x.exp(),
        }
    }
}

impl Expr {
    /// The exact value, where it is rational and computing it ends.
    pub(crate) fn exact(&self) -> Option<Ratio> {
        match self {
            Self::Number(ratio) => Some(ratio.clone()),
            Self::Neg(a) => Some(a.exact()?.neg()),
            Self::Add(a, b) => a.exact()?.add(&b.exact()?),
            Self::Mul(a, b) => a.exact()?.mul(&b.exact()?),
            Self::Div(a, b) => a.exact()?.div(&b.exact()?),
            Self::Pow(a, b) => a.exact()?.pow(&b.exact()?),
            Self::Root(degree, a) => a.exact()?.root(&degree.exact()?),
            Self::Abs(a) => Some(a.exact()?.abs()),
            Self::Factorial(a) => a.exact()?.factorial(),
            Self::Symbol(_) | Self::Pi | Self::Euler | Self::Infinity | Self::Call(..) => None,
        }
    }

    /// The value where each symbol has the value that `trial` gives it.
    pub(crate) fn at(&self, trial: u64) -> f64 {
        match self {
            Self::Number(ratio) => ratio.to_f64(),
            Self::Symbol(name) => value_of(name, trial),
            Self::Pi => std::f64::consts::PI,
            Self::Euler => std::f64::consts::E,
            Self::Infinity => f64::INFINITY,
            Self::Neg(a) => -a.at(trial),
            Self::Add(a, b) => a.at(trial) + b.at(trial),
            Self::Mul(a, b) => a.at(trial) * b.at(trial),
            // A quotient by zero is no infinity: it has no value.
            Self::Div(a, b) => match b.at(trial) {
                0.0 => f64::NAN,
                b => a.at(trial) / b,
            },
            Self::Pow(a, b) => a.at(trial).powf(b.at(trial)),
            Self::Root(degree, a) => root(a.at(trial), degree.at(trial)),
            Self::Abs(a) => a.at(trial).abs(),
            Self::Factorial(a) => a
                .exact()
                .and_then(|n| n.factorial())
                .map_or(f64::NAN, |n| n.to_f64()),
            Self::Call(function, a) => function.apply(a.at(trial)),
        }
    }

    pub(crate) fn symbols(&self) -> BTreeSet<&str> {
        let mut names = BTreeSet::new();
        self.collect(&mut names);
        names
    }

    fn collect<'a>(&'a self, names: &mut BTreeSet<&'a str>) {
        match self {
            Self::Symbol(name) => {
                names.insert(name);
            }
            Self::Number(_) | Self::Pi | Self::Euler | Self::Infinity => {}
            Self::Neg(a) | Self::Abs(a) | Self::Factorial(a) | Self::Call(_, a) => a.collect(names),
            Self::Add(a, b)
            | Self::Mul(a, b)
            | Self::Div(a, b)
            | Self::Pow(a, b)
            | Self::Root(a, b) => {
                a.collect(names);
                b.collect(names);
            }
        }
    }
}

/// Zero where rounding the argument explains the whole value: π as a float is not π, and sin π is zero.
fn settled(x: f64, value: f64) -> f64 {
    if value.abs() <= x.abs() * f64::EPSILON {
        0.0
    } else {
        value
    }
}

fn root(x: f64, degree: f64) -> f64 {
    if degree == 2.0 {
        x.sqrt()
    } else if degree == 3.0 {
        x.cbrt()
    } else {
        x.powf(degree.recip())
    }
}

/// A value in (0.6, 2.4), different for each name and trial and always the same for both.
fn value_of(name: &str, trial: u64) -> f64 {
    // FNV-1a, then a finaliser, because names are short.
    let mut hash = name
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325 ^ trial, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    0.6 + 1.8 * ((hash ^ (hash >> 31)) >> 11) as f64 / (1u64 << 53) as f64
}
