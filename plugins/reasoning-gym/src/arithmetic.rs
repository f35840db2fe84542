//! Puzzles with numbers.

use crate::tasks::Puzzle;
use slime_sdk_source::Random;

/// Make a number from others: any expression that does counts.
pub(crate) fn countdown(random: &mut Random, level: u64) -> Puzzle {
    let count = 2 + level.min(4);
    let mut numbers: Vec<i64> = (0..count)
        .map(|_| random.within(1, 9 + 8 * level as i64))
        .collect();
    let shown = list(&numbers);
    // Left to right, so that the answer needs no brackets but around what came before.
    let mut value = numbers.remove(0);
    let mut text = value.to_string();
    for next in numbers {
        let (sign, result) = match random.below(3) {
            0 if value >= next => ('-', value - next),
            1 if value * next <= 999 => ('*', value * next),
            _ => ('+', value + next),
        };
        text = format!("({text}{sign}{next})");
        value = result;
    }
    Puzzle {
        question: format!(
            "Use each of the numbers {shown} exactly once, with + - * / and brackets, to make {value}. \
             Answer with the expression alone."
        ),
        answer: text,
    }
}

/// Whether an expression uses the numbers of the question, each once, and makes its target.
pub(crate) fn reaches(question: &str, _gold: &str, answer: &str) -> bool {
    let numbers: Vec<i64> = digits(question);
    let Some((target, given)) = numbers.split_last() else {
        return false;
    };
    let expression = answer.split('=').next().unwrap_or(answer);
    let mut reader = Reader {
        text: expression.as_bytes(),
        at: 0,
        used: Vec::new(),
        depth: 0,
    };
    let Some(value) = reader.sum() else {
        return false;
    };
    reader.skip();
    let mut given = given.to_vec();
    given.sort_unstable();
    reader.used.sort_unstable();
    reader.at == reader.text.len() && reader.used == given && value == (i128::from(*target), 1)
}

fn digits(text: &str) -> Vec<i64> {
    text.split(|c: char| !c.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect()
}

/// Reads sums of products of numbers and brackets, as exact fractions.
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    used: Vec<i64>,
    depth: usize,
}

type Fraction = (i128, i128);

impl Reader<'_> {
    fn skip(&mut self) {
        while self.text.get(self.at).is_some_and(u8::is_ascii_whitespace) {
            self.at += 1;
        }
    }

    fn take(&mut self, wanted: &[u8]) -> Option<u8> {
        self.skip();
        let found = *self.text.get(self.at)?;
        wanted.contains(&found).then(|| {
            self.at += 1;
            found
        })
    }

    fn sum(&mut self) -> Option<Fraction> {
        let mut left = self.product()?;
        while let Some(sign) = self.take(b"+-") {
            let right = self.product()?;
            let other = if sign == b'+' { right.0 } else { -right.0 };
            let top = left
                .0
                .checked_mul(right.1)?
                .checked_add(other.checked_mul(left.1)?)?;
            left = reduced(top, left.1.checked_mul(right.1)?)?;
        }
        Some(left)
    }

    fn product(&mut self) -> Option<Fraction> {
        let mut left = self.one()?;
        while let Some(sign) = self.take(b"*/") {
            let (top, bottom) = self.one()?;
            let (top, bottom) = if sign == b'*' {
                (top, bottom)
            } else {
                (bottom, top)
            };
            left = reduced(left.0.checked_mul(top)?, left.1.checked_mul(bottom)?)?;
        }
        Some(left)
    }

    fn one(&mut self) -> Option<Fraction> {
        if self.take(b"(").is_some() {
            self.depth += 1;
            if self.depth > 64 {
                return None;
            }
            let inside = self.sum()?;
            self.depth -= 1;
            return self.take(b")").map(|_| inside);
        }
        self.skip();
        let start = self.at;
        while self.text.get(self.at).is_some_and(u8::is_ascii_digit) {
            self.at += 1;
        }
        let number = std::str::from_utf8(&self.text[start..self.at]).ok()?;
        let number: i64 = number.parse().ok()?;
        self.used.push(number);
        Some((i128::from(number), 1))
    }
}

fn reduced(top: i128, bottom: i128) -> Option<Fraction> {
    if bottom == 0 {
        return None;
    }
    let (mut a, mut b) = (top.unsigned_abs(), bottom.unsigned_abs());
    while b != 0 {
        (a, b) = (b, a % b);
    }
    let common = i128::try_from(a.max(1)).ok()?;
    let sign = bottom.signum();
    Some((sign * top / common, sign * bottom / common))
}

/// The next number of a row.
pub(crate) fn sequence(random: &mut Random, level: u64) -> Puzzle {
    let mut numbers = vec![random.within(1, 9 + 10 * level as i64)];
    let step = random.within(2, 4 + 6 * level as i64);
    let change = if level >= 2 {
        random.within(1, level as i64)
    } else {
        0
    };
    let times = if level >= 3 && random.below(2) == 0 {
        2
    } else {
        1
    };
    for index in 0..5 + level as i64 / 2 {
        let last = numbers[numbers.len() - 1];
        numbers.push(times * last + step + change * index);
    }
    let next = numbers.pop().unwrap_or_default();
    Puzzle {
        question: format!("What is the next number: {}, ?", list(&numbers)),
        answer: next.to_string(),
    }
}

/// A number in another base.
pub(crate) fn base(random: &mut Random, level: u64) -> Puzzle {
    let bases: &[u64] = if level < 2 {
        &[2]
    } else {
        &[2, 3, 5, 7, 8, 16]
    };
    let base = bases[random.below(bases.len() as u64) as usize];
    let number = random.within(4, 16 << (3 * level)) as u64;
    let (mut rest, mut text) = (number, String::new());
    while rest > 0 {
        let digit = char::from_digit((rest % base) as u32, 16).unwrap_or('0');
        text.insert(0, digit);
        rest /= base;
    }
    Puzzle {
        question: format!("Write the decimal number {number} in base {base}, without a prefix."),
        answer: text,
    }
}

/// A greatest common divisor.
pub(crate) fn gcd(random: &mut Random, level: u64) -> Puzzle {
    let common = random.within(1, 6 << (2 * level));
    let most = 10 << level;
    let (x, y) = (
        common * random.within(1, most),
        common * random.within(1, most),
    );
    let (mut a, mut b) = (x, y);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    Puzzle {
        question: format!("What is the greatest common divisor of {x} and {y}?"),
        answer: a.to_string(),
    }
}

fn list(numbers: &[i64]) -> String {
    let texts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_expression_that_makes_the_target_from_the_numbers_counts() {
        let question =
            "Use each of the numbers 2, 3, 4 exactly once, with + - * / and brackets, to make 14.";
        for right in ["2+3*4", "(3 * 4) + 2", "2 + 4*3 = 14", "((2))+(4*3)"] {
            assert!(reaches(question, "", right), "{right}");
        }
        for wrong in [
            "14", "2+3*4*1", "2+12", "2*3+4*2", "2+3*4)", "2/0+3*4", "", "2 + 3", "-2+4*4",
        ] {
            assert!(!reaches(question, "", wrong), "{wrong}");
        }
        let half =
            "Use each of the numbers 1, 2, 6 exactly once, with + - * / and brackets, to make 3.";
        assert!(reaches(half, "", "6*(1/2)"), "fractions are exact");
        assert!(!reaches(half, "", &"(".repeat(100_000)));
    }
}
