//! What a task is, and all of them.

use crate::{arithmetic, logic, words};
use slime_sdk_source::Random;

/// One puzzle.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Puzzle {
    pub(crate) question: String,
    /// One right answer.
    pub(crate) answer: String,
}

/// How puzzles of one kind are made and checked.
pub(crate) struct Task {
    pub(crate) name: &'static str,
    /// A puzzle of a level, 0 (easiest) to 4.
    pub(crate) make: fn(&mut Random, u64) -> Puzzle,
    /// Whether an answer to the question is right, given a right one. Both are trimmed.
    pub(crate) check: fn(question: &str, gold: &str, answer: &str) -> bool,
}

pub(crate) const LEVELS: u64 = 5;

pub(crate) const TASKS: [Task; 10] = [
    Task {
        name: "countdown",
        make: arithmetic::countdown,
        check: arithmetic::reaches,
    },
    Task {
        name: "sequence",
        make: arithmetic::sequence,
        check: same_text,
    },
    Task {
        name: "base",
        make: arithmetic::base,
        check: same_text,
    },
    Task {
        name: "gcd",
        make: arithmetic::gcd,
        check: same_text,
    },
    Task {
        name: "boolean",
        make: logic::boolean,
        check: same_text,
    },
    Task {
        name: "order",
        make: logic::order,
        check: same_text,
    },
    Task {
        name: "path",
        make: logic::path,
        check: logic::walks,
    },
    Task {
        name: "sort",
        make: words::sort,
        check: same_text,
    },
    Task {
        name: "letters",
        make: words::letters,
        check: same_text,
    },
    Task {
        name: "caesar",
        make: words::caesar,
        check: same_text,
    },
];

/// Equal but for case, spaces and a last full stop.
fn same_text(_question: &str, gold: &str, answer: &str) -> bool {
    let plain = |text: &str| -> String {
        let text = text.trim().trim_end_matches('.').to_lowercase();
        text.chars().filter(|c| !c.is_whitespace()).collect()
    };
    plain(gold) == plain(answer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_sdk_source::Draw;
    use std::collections::HashSet;

    fn random(index: u64) -> Random {
        let draw = Draw {
            index,
            seed: 11,
            difficulty: 0.0,
        };
        draw.random()
    }

    #[test]
    fn every_task_accepts_its_own_answer_and_no_empty_one_at_every_level() {
        for task in &TASKS {
            for level in 0..LEVELS {
                for index in 0..100 {
                    let puzzle = (task.make)(&mut random(index), level);
                    let right = (task.check)(&puzzle.question, &puzzle.answer, &puzzle.answer);
                    assert!(right, "{} {level}: {puzzle:?}", task.name);
                    for wrong in ["", "?", "no idea"] {
                        let taken = (task.check)(&puzzle.question, &puzzle.answer, wrong);
                        assert!(!taken, "{} {level}: {puzzle:?}: {wrong}", task.name);
                    }
                }
            }
        }
    }

    #[test]
    fn levels_make_questions_longer_or_larger_and_puzzles_hardly_repeat() {
        for task in &TASKS {
            let length = |level| -> usize {
                let of = |index| (task.make)(&mut random(index), level).question.len();
                (0..200).map(of).sum()
            };
            assert!(length(4) > length(0), "{}", task.name);
            let different: HashSet<String> = (0..200)
                .map(|index| (task.make)(&mut random(index), 2).question)
                .collect();
            assert!(different.len() > 180, "{}: {}", task.name, different.len());
        }
    }

    #[test]
    fn names_are_unique() {
        let names: HashSet<&str> = TASKS.iter().map(|task| task.name).collect();
        assert_eq!(names.len(), TASKS.len());
    }
}
