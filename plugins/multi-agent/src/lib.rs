//! Two solvers and a selector, all played by the policy. The solvers answer the prompt, the first of them then sees
//! both answers and settles on one. Every trajectory is returned and trained on; verifiers read the selector's.

use slime_sdk_generator::{Error, Generator, Message, Sampling, Trajectory, export, sample_all};

/// Two solvers and a selector.
pub struct MultiAgent;

impl Generator for MultiAgent {
    fn generate(start: Trajectory) -> Result<Vec<Trajectory>, Error> {
        let second = start.fork()?;
        let mut solved = Vec::new();
        for (trajectory, turn) in sample_all(vec![start, second], &Sampling::default()) {
            solved.push((trajectory, turn?));
        }
        let question = solved
            .iter()
            .enumerate()
            .map(|(index, (_, turn))| format!("Answer {}: {}\n", index + 1, turn.text))
            .chain(["Which is right? Give the final answer alone.".to_owned()])
            .collect::<String>();
        let mut trajectories: Vec<Trajectory> = solved.into_iter().map(|(t, _)| t).collect();
        // A copy, so that the first solver's own answer stays a trajectory of its own.
        let selector = trajectories[0].fork()?;
        selector.append(&Message::new("user", question))?;
        selector.sample(&Sampling::default())?;
        trajectories.push(selector);
        Ok(trajectories)
    }
}

export!(MultiAgent);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_answers_are_shown_to_the_selector_and_three_trajectories_come_back() {
        let start = Trajectory::scripted("2 + 2?", ["4", "final 4"]);
        let done = MultiAgent::generate(start).unwrap();
        let texts: Vec<String> = done.iter().map(Trajectory::response).collect();
        assert_eq!(texts[..2], ["4", "4"]);
        assert_eq!(
            texts[2],
            "4Answer 1: 4\nAnswer 2: 4\nWhich is right? Give the final answer alone.final 4"
        );
    }
}
