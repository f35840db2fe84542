//! Draws problems: a function of index, seed and difficulty.

use crate::task::{self, LEVELS};
use slime_sdk_source::{Draw, Drawn, Error, Source, export};

/// Gives arithmetic problems as plain text, with the answer as label.
pub struct ArithSource;

impl Source for ArithSource {
    fn draw(draw: Draw) -> Result<Drawn, Error> {
        let index = task::level(draw.difficulty);
        let level = &LEVELS[index];
        let mut random = draw.random();
        let operator = level.operators[random.below(level.operators.len() as u64) as usize];
        let most = level.largest_term;
        // The answer of a sum or a difference is drawn first: so none is rarer than another, and a model that only
        // guesses is right as often at each.
        let (a, b, answer) = match operator {
            '+' => {
                let sum = random.within(0, 2 * most);
                let a = random.within((sum - most).max(0), sum.min(most));
                (a, sum - a, sum)
            }
            '-' => {
                let difference = random.within(-most, most);
                let a = random.within(difference.max(0), (most + difference).min(most));
                (a, a - difference, difference)
            }
            _ => {
                let most = level.largest_factor;
                let (a, b) = (random.within(0, most), random.within(0, most));
                (a, b, a * b)
            }
        };
        Ok(Drawn::text(task::question(a, operator, b))
            .with_label(answer.to_string())
            .with_metadata(format!("{{\"level\":{index}}}")))
    }
}

export!(ArithSource);

#[cfg(test)]
mod tests {
    use super::*;
    use slime_sdk_source::Prompt;
    use std::collections::HashSet;

    fn draw(index: u64, seed: u64, difficulty: f64) -> (String, i64) {
        let drawn = ArithSource::draw(Draw {
            index,
            seed,
            difficulty,
        })
        .unwrap();
        let Prompt::Text(text) = drawn.prompt else {
            panic!()
        };
        (text, drawn.label.unwrap().parse().unwrap())
    }

    #[test]
    fn every_label_is_the_answer_at_every_level() {
        for step in 0..=20 {
            for index in 0..200 {
                let (text, label) = draw(index, 5, f64::from(step) / 20.0);
                let sum = text.strip_suffix('=').unwrap();
                let at = sum.find(['+', '-', '*']).unwrap();
                let (a, b): (i64, i64) =
                    (sum[..at].parse().unwrap(), sum[at + 1..].parse().unwrap());
                let expected = match &sum[at..=at] {
                    "+" => a + b,
                    "-" => a - b,
                    _ => a * b,
                };
                assert_eq!(label, expected, "{text}");
            }
        }
    }

    #[test]
    fn a_draw_depends_on_its_arguments_alone() {
        assert_eq!(draw(17, 3, 0.5), draw(17, 3, 0.5));
        let texts = |seed| {
            (0..50)
                .map(move |index| draw(index, seed, 1.0).0)
                .collect::<Vec<_>>()
        };
        assert_ne!(texts(1), texts(2));
        assert!(texts(1).iter().collect::<HashSet<_>>().len() > 45);
    }

    #[test]
    fn operands_stay_within_the_level_and_every_answer_comes_as_often() {
        let mut times = [0u32; 9];
        for index in 0..9_000 {
            let (text, label) = draw(index, 3, 0.0);
            let terms: Vec<i64> = text[..3].split('+').map(|n| n.parse().unwrap()).collect();
            assert!(terms.iter().all(|n| (0..=4).contains(n)), "{text}");
            times[label as usize] += 1;
        }
        assert!(times.iter().all(|n| (850..1150).contains(n)), "{times:?}");
        for index in 0..500 {
            let (text, _) = draw(index, 3, 0.25);
            let at = text[1..].find(['+', '-']).unwrap() + 1;
            let (a, b) = (&text[..at], &text[at + 1..text.len() - 1]);
            assert!(
                [a, b]
                    .iter()
                    .all(|n| (0..=20).contains(&n.parse::<i64>().unwrap())),
                "{text}"
            );
        }
    }

    #[test]
    fn the_easiest_level_meets_all_of_its_sums() {
        let texts: HashSet<_> = (0..2_000).map(|index| draw(index, 0, 0.0).0).collect();
        assert_eq!(texts.len(), (LEVELS[0].largest_term as usize + 1).pow(2));
    }
}
