//! Are two answers the same? Exactly where both are rational; numerically at a few points elsewhere.

use crate::answer::Answer;
use crate::expr::Expr;

/// Relative difference that still counts as rounding, where a value is not rational.
const TOLERANCE: f64 = 1e-9;
/// Points at which expressions with symbols or roots are compared.
const TRIALS: u64 = 4;

/// Whether `answer` is what `gold` says. Symmetric but for units: one that gold has must be there; one that only
/// the answer has is ignored.
pub(crate) fn same(gold: &Answer, answer: &Answer) -> bool {
    match (gold, answer) {
        (
            Answer::Value {
                expr: a,
                unit: gold_unit,
            },
            Answer::Value { expr: b, unit },
        ) => (gold_unit.is_none() && !is_base(unit) || gold_unit == unit) && same_value(a, b),
        (
            Answer::Bracketed {
                open: a_open,
                close: a_close,
                items: a,
            },
            Answer::Bracketed {
                open: b_open,
                close: b_close,
                items: b,
            },
        ) => a_open == b_open && a_close == b_close && in_order(a, b),
        // Saying an element twice adds none.
        (Answer::Set(a), Answer::Set(b)) => holds(a, b) && holds(b, a),
        (Answer::List(a), Answer::List(b)) | (Answer::Union(a), Answer::Union(b)) => {
            in_any_order(a, b)
        }
        // `{3}` asked for, `3` given, or the other way round.
        (Answer::Set(a), b) | (b, Answer::Set(a)) if a.len() == 1 => same(&a[0], b),
        (Answer::Set(a), Answer::List(b)) | (Answer::List(a), Answer::Set(b)) => in_any_order(a, b),
        (Answer::Matrix(a), Answer::Matrix(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| in_order(a, b))
        }
        (
            Answer::Relation {
                sides: a,
                signs: a_signs,
            },
            Answer::Relation {
                sides: b,
                signs: b_signs,
            },
        ) => same_relation(a, a_signs, b, b_signs),
        (Answer::Words(a), Answer::Words(b)) => bare(a) == bare(b),
        // `\text{A}` and `A`.
        (
            Answer::Words(a),
            Answer::Value {
                expr: Expr::Symbol(b),
                unit: None,
            },
        )
        | (
            Answer::Value {
                expr: Expr::Symbol(b),
                unit: None,
            },
            Answer::Words(a),
        ) => bare(a) == b.to_lowercase(),
        _ => false,
    }
}

/// `(a)` is `a`.
fn bare(words: &str) -> &str {
    words.trim_matches(['(', ')', '.'])
}

/// Digits in another base are another number, so that mark is never ignored.
fn is_base(unit: &Option<String>) -> bool {
    unit.as_ref().is_some_and(|unit| unit.starts_with("base "))
}

fn in_order(a: &[Answer], b: &[Answer]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
}

/// Whether every one of `b` is among `a`.
fn holds(a: &[Answer], b: &[Answer]) -> bool {
    b.iter().all(|b| a.iter().any(|a| same(a, b)))
}

fn in_any_order(a: &[Answer], b: &[Answer]) -> bool {
    if a.len() != b.len() {
        return false;
    }
    let mut left: Vec<&Answer> = b.iter().collect();
    a.iter()
        .all(|a| match left.iter().position(|b| same(a, b)) {
            Some(at) => {
                left.swap_remove(at);
                true
            }
            None => false,
        })
}

fn same_value(a: &Expr, b: &Expr) -> bool {
    match (a.exact(), b.exact()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b || same_at_every_trial(|trial| (a.at(trial), b.at(trial))),
    }
}

fn same_at_every_trial(values: impl Fn(u64) -> (f64, f64)) -> bool {
    let mut compared = 0;
    for trial in 0..TRIALS {
        let (a, b) = values(trial);
        if a.is_nan() && b.is_nan() {
            continue;
        }
        if !close(a, b) {
            return false;
        }
        compared += 1;
    }
    compared > 0
}

fn close(a: f64, b: f64) -> bool {
    // Infinities are equal or they are not.
    a == b || (a.is_finite() && b.is_finite() && (a - b).abs() <= TOLERANCE * a.abs().max(b.abs()))
}

/// `x + y = 5` is `y + x = 5` and `5 = x + y`; chains must match side by side.
fn same_relation(a: &[Expr], a_signs: &[char], b: &[Expr], b_signs: &[char]) -> bool {
    let straight =
        a_signs == b_signs && a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_value(a, b));
    if straight {
        return true;
    }
    let ([a_left, a_right], [a_sign], [b_left, b_right], [b_sign]) = (a, a_signs, b, b_signs)
    else {
        return false;
    };
    let turned = |sign: char| match sign {
        '<' => '>',
        '>' => '<',
        'l' => 'g',
        'g' => 'l',
        sign => sign,
    };
    let difference = |left: &Expr, right: &Expr, trial| left.at(trial) - right.at(trial);
    let moved = *a_sign == *b_sign
        && same_at_every_trial(|trial| {
            (
                difference(a_left, a_right, trial),
                difference(b_left, b_right, trial),
            )
        });
    let swapped = *a_sign == turned(*b_sign)
        && same_at_every_trial(|trial| {
            (
                difference(a_left, a_right, trial),
                difference(b_right, b_left, trial),
            )
        });
    moved || swapped
}
