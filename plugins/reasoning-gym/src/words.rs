//! Puzzles with words and letters.

use crate::tasks::Puzzle;
use slime_sdk_source::Random;

/// Numbers in order.
pub(crate) fn sort(random: &mut Random, level: u64) -> Puzzle {
    let count = 3 + 3 * level;
    let mut numbers: Vec<i64> = (0..count)
        .map(|_| random.within(1, 99 + 200 * level as i64))
        .collect();
    let text = |numbers: &[i64]| {
        let texts: Vec<String> = numbers.iter().map(ToString::to_string).collect();
        texts.join(", ")
    };
    let question = format!(
        "Sort from the smallest to the largest, with commas in between: {}",
        text(&numbers)
    );
    numbers.sort_unstable();
    Puzzle {
        question,
        answer: text(&numbers),
    }
}

/// How often a letter stands in made-up words.
pub(crate) fn letters(random: &mut Random, level: u64) -> Puzzle {
    let words: Vec<String> = (0..=level).map(|_| word(random)).collect();
    let text = words.join(" ");
    let there: Vec<char> = text.chars().filter(|c| *c != ' ').collect();
    let letter = there[random.below(there.len() as u64) as usize];
    let count = there.iter().filter(|c| **c == letter).count();
    Puzzle {
        question: format!("How often does the letter {letter} stand in: {text}?"),
        answer: count.to_string(),
    }
}

/// A text whose letters were moved along the alphabet.
pub(crate) fn caesar(random: &mut Random, level: u64) -> Puzzle {
    let words: Vec<String> = (0..=level).map(|_| word(random)).collect();
    let plain = words.join(" ");
    let shift = random.within(1, 3 + 5 * level as i64) as u8;
    let moved: String = plain
        .chars()
        .map(|c| match c {
            'a'..='z' => char::from(b'a' + (c as u8 - b'a' + shift) % 26),
            other => other,
        })
        .collect();
    Puzzle {
        question: format!(
            "Every letter was moved {shift} places along the alphabet. What was the text: {moved}?"
        ),
        answer: plain,
    }
}

/// Two or three syllables.
fn word(random: &mut Random) -> String {
    const CONSONANTS: &[u8] = b"bdfgklmnprstvz";
    const VOWELS: &[u8] = b"aeiou";
    let mut text = String::new();
    for _ in 0..2 + random.below(2) {
        let mut pick = |from: &[u8]| char::from(from[random.below(from.len() as u64) as usize]);
        text.push(pick(CONSONANTS));
        text.push(pick(VOWELS));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use slime_sdk_source::Draw;

    #[test]
    fn moved_back_the_text_is_the_answer() {
        for index in 0..100 {
            let draw = Draw {
                index,
                seed: 3,
                difficulty: 0.0,
            };
            let puzzle = caesar(&mut draw.random(), index % 5);
            let words: Vec<&str> = puzzle.question.split(' ').collect();
            let shift: u8 = words[4].parse().unwrap();
            let (_, moved) = puzzle.question.split_once("text: ").unwrap();
            let back: String = moved
                .trim_end_matches('?')
                .chars()
                .map(|c| match c {
                    'a'..='z' => char::from(b'a' + (c as u8 - b'a' + 26 - shift % 26) % 26),
                    other => other,
                })
                .collect();
            assert_eq!(back, puzzle.answer, "{}", puzzle.question);
        }
    }
}
