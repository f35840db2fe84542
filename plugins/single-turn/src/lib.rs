//! Let the policy write one turn, with all the tokens that fit. The host's built-in generator does the same.
#![forbid(unsafe_code)]

use slime_sdk_generator::{Error, Generator, Sampling, Trajectory, export};

/// The whole plugin.
pub struct SingleTurn;

impl Generator for SingleTurn {
    fn generate(start: Trajectory) -> Result<Vec<Trajectory>, Error> {
        start.sample(&Sampling::default())?;
        Ok(vec![start])
    }
}

export!(SingleTurn);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_policy_writes_exactly_one_turn() {
        let done = SingleTurn::generate(Trajectory::scripted("2 + 2 =", [" 4", " 5"])).unwrap();
        assert_eq!(
            done.iter().map(Trajectory::response).collect::<Vec<_>>(),
            [" 4"]
        );
    }
}
