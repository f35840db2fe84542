//! The judge: reward 1 where the model says yes.

use slime_sdk_judge::{Error, Finished, Judge, Message, Model, Verdict, export};

struct Contract;

impl Judge for Contract {
    fn score(item: Finished, model: &dyn Model) -> Result<Verdict, Error> {
        let name = if item.prompt() == "other model" {
            "stranger"
        } else {
            "judge"
        };
        let question = format!("Is {} right?", item.response());
        let answer = model.ask(name, &[Message::new("user", question)], 8, 0.0)?;
        Ok(Verdict::reward(f64::from(answer.text == "yes")))
    }
}

export!(Contract);
