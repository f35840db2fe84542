//! What is asked and what it is worth. Change the numbers here and nowhere else.

/// One level of difficulty.
pub(crate) struct Level {
    /// Operands of sums and differences go from 0 to this.
    pub(crate) largest_term: i64,
    /// Operands of products go from 0 to this.
    pub(crate) largest_factor: i64,
    /// One of these stands between the operands.
    pub(crate) operators: &'static [char],
}

/// From the easiest to the hardest; the run's difficulty, 0 to 1, picks one.
pub(crate) const LEVELS: [Level; 5] = [
    Level {
        largest_term: 4,
        largest_factor: 0,
        operators: &['+'],
    },
    Level {
        largest_term: 20,
        largest_factor: 0,
        operators: &['+', '-'],
    },
    Level {
        largest_term: 99,
        largest_factor: 0,
        operators: &['+', '-'],
    },
    Level {
        largest_term: 99,
        largest_factor: 12,
        operators: &['+', '-', '*'],
    },
    Level {
        largest_term: 999,
        largest_factor: 31,
        operators: &['+', '-', '*'],
    },
];

/// For the right answer.
pub(crate) const EXACT_REWARD: f64 = 1.0;
/// At most this for a wrong number, in proportion to its right digits: a slope towards the answer.
pub(crate) const DIGITS_REWARD: f64 = 0.05;
/// For any number at all.
pub(crate) const NUMBER_REWARD: f64 = 0.01;

/// The prompt's text.
pub(crate) fn question(a: i64, operator: char, b: i64) -> String {
    format!("{a}{operator}{b}=")
}

/// The level that a difficulty from 0 to 1 stands for.
pub(crate) fn level(difficulty: f64) -> usize {
    let last = LEVELS.len() - 1;
    ((difficulty * last as f64).round() as usize).min(last)
}
