//! The verifier: the prompt says what to do.

use slime_sdk_verifier::{Error, FinishReason, Finished, Level, Verdict, Verifier, export, log};

struct Contract;

impl Verifier for Contract {
    fn score(item: Finished) -> Result<Verdict, Error> {
        match item.prompt().as_str() {
            "equal" => {
                let label = item
                    .label()
                    .ok_or_else(|| Error::invalid_gold("no label, no verdict"))?;
                let response = item.response();
                let hit = response.trim() == label.trim();
                Ok(Verdict::reward(f64::from(hit)).with_metric("bytes", response.len() as f64))
            }
            "metadata" => {
                let level = item.metadata("level").unwrap_or_default();
                let whole = item.metadata_json() == "{\"level\":3}";
                let none = item.metadata("absent").is_none();
                let hit = level == "3" && whole && none;
                Ok(Verdict::reward(f64::from(hit)))
            }
            "finish" => {
                let code = match item.finish_reason() {
                    Some(FinishReason::Stop) => 0.0,
                    Some(FinishReason::Length) => 1.0,
                    Some(FinishReason::Abort) => 2.0,
                    None => -1.0,
                };
                Ok(Verdict::reward(1.0).with_metric("finish", code))
            }
            "fail" => Err(Error::other("I give up")),
            "invalid" => Err(Error::invalid_input("not this")),
            "half" => Ok(Verdict::reward(0.5)
                .with_metric("a", 1.0)
                .with_metric("b", -2.5)),
            "two" => Ok(Verdict::reward(2.0)),
            "nan" => Ok(Verdict::reward(f64::NAN)),
            "log" => {
                (0..100).for_each(|line| log(Level::Debug, &format!("line {line}")));
                Ok(Verdict::reward(1.0))
            }
            "throw" => panic!("thrown"),
            "loop" => {
                let mut n = 0u64;
                loop {
                    n = std::hint::black_box(n.wrapping_add(1));
                }
            }
            "memory" => {
                let mut hoard = Vec::new();
                loop {
                    hoard.push(std::hint::black_box(vec![1u8; 1 << 20]));
                }
            }
            _ => Ok(Verdict::reward(0.0)),
        }
    }
}

export!(Contract);
