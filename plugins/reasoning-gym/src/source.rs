//! Draws puzzles: all tasks in turn, at the level that the run's difficulty stands for.

use crate::tasks::{LEVELS, TASKS};
use serde_json::json;
use slime_sdk_source::{Draw, Drawn, Error, Source, export};

/// All tasks in turn.
pub struct Puzzles;

impl Source for Puzzles {
    fn draw(draw: Draw) -> Result<Drawn, Error> {
        let mut random = draw.random();
        let task = &TASKS[random.below(TASKS.len() as u64) as usize];
        // Between two levels, in proportion: a difficulty that moves a little changes the prompts a little.
        let wanted = draw.difficulty.clamp(0.0, 1.0) * (LEVELS - 1) as f64;
        let above = random.below(1000) as f64 / 1000.0 < wanted.fract();
        let level = wanted as u64 + u64::from(above);
        let puzzle = (task.make)(&mut random, level);
        let question = format!(
            "{}\nThink, then give the answer alone between <answer> and </answer>.",
            puzzle.question
        );
        let metadata = json!({"task": task.name, "level": level, "question": puzzle.question});
        Ok(Drawn::user(question)
            .with_label(puzzle.answer)
            .with_metadata(metadata.to_string()))
    }
}

export!(Puzzles);

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(index: u64, difficulty: f64) -> String {
        let draw = Draw {
            index,
            seed: 5,
            difficulty,
        };
        assert_eq!(Puzzles::draw(draw), Puzzles::draw(draw));
        Puzzles::draw(draw).unwrap().metadata.unwrap()
    }

    #[test]
    fn the_level_follows_the_difficulty_in_small_steps() {
        let at = |difficulty: f64, level: u64| {
            let wanted = format!("\"level\":{level}");
            (0..400)
                .filter(|index| metadata(*index, difficulty).contains(&wanted))
                .count()
        };
        assert_eq!(at(0.0, 0), 400);
        assert_eq!(at(1.0, 4), 400);
        assert_eq!(at(0.5, 2), 400);
        let (low, high) = (at(0.3125, 1), at(0.3125, 2));
        assert_eq!(low + high, 400);
        assert!((60..140).contains(&high), "a quarter of the way: {high}");
    }

    #[test]
    fn all_tasks_come_up() {
        let all: String = (0..300).map(|index| metadata(index, 0.5)).collect();
        for task in &TASKS {
            let wanted = format!("\"task\":\"{}\"", task.name);
            assert!(all.contains(&wanted), "{}", task.name);
        }
    }
}
