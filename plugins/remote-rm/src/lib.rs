//! A reward that a server computes, asked by slime's protocol: POST `{"prompt", "response", "label"}`, and the answer is
//! a JSON number, or an object with the number under `reward_key` of the metadata (else `reward` or `score`).
//!
//! A server that does not answer after three tries fails the rollout as the machine's fault, never with a reward.
//! Needs the grant `http` for the server and `env = { RM_URL = … }` for its address.
#![forbid(unsafe_code)]

use serde_json::{Value, json};
use slime_sdk_capabilities::http::{self, Request, Response};
use slime_sdk_verifier::{Error, ErrorCode, Finished, Verdict, Verifier, export};

const TRIES: usize = 3;
const TIME_LIMIT_MS: u32 = 3_000;

/// Asks a server.
pub struct RemoteRm;

impl Verifier for RemoteRm {
    // Whatever is finite: the server's range is its own.
    const REWARD_MIN: f64 = f64::MIN;
    const REWARD_MAX: f64 = f64::MAX;

    fn score(item: Finished) -> Result<Verdict, Error> {
        let url = std::env::var("RM_URL").map_err(|_| {
            Error::new(
                ErrorCode::Denied,
                "no reward server: grant env = { RM_URL = \"http://HOST:PORT/PATH\" }",
            )
        })?;
        let send = |body: &str| {
            let mut request = Request::post_json(&url, body);
            request.time_limit_ms = TIME_LIMIT_MS;
            http::send(&request).map_err(|error| Error::new(error.code, error.message))
        };
        ask(&item, send)
    }
}

fn ask(
    item: &Finished,
    mut send: impl FnMut(&str) -> Result<Response, Error>,
) -> Result<Verdict, Error> {
    let key = item.metadata("reward_key");
    let key: Option<String> = key.and_then(|json| serde_json::from_str(&json).ok());
    let body = json!({"prompt": item.prompt(), "response": item.response(), "label": item.label()});
    let body = body.to_string();
    let mut last = Error::new(ErrorCode::Unavailable, "nobody was asked");
    for _ in 0..TRIES {
        match send(&body) {
            Ok(answer) if answer.status == 200 => return verdict(&answer.body, key.as_deref()),
            Ok(answer) => {
                let message = format!("the reward server answered {}", answer.status);
                last = Error::new(ErrorCode::Unavailable, message);
            }
            Err(error)
                if error.code == ErrorCode::Unavailable || error.code == ErrorCode::TimedOut =>
            {
                last = error;
            }
            Err(error) => return Err(error),
        }
    }
    Err(last)
}

fn verdict(body: &[u8], key: Option<&str>) -> Result<Verdict, Error> {
    let bad = |what: String| Error::other(format!("the reward server's answer {what}"));
    let answer: Value =
        serde_json::from_slice(body).map_err(|error| bad(format!("is no JSON: {error}")))?;
    if let Some(reward) = answer.as_f64() {
        return Ok(Verdict::reward(reward));
    }
    let Value::Object(members) = &answer else {
        return Err(bad("is neither a number nor an object".into()));
    };
    let keys = key.map_or(vec!["reward", "score"], |key| vec![key]);
    let reward = keys.iter().find_map(|key| members.get(*key)?.as_f64());
    let reward = reward.ok_or_else(|| bad(format!("has no number `{}`", keys.join("` or `"))))?;
    let mut verdict = Verdict::reward(reward);
    for (name, value) in members
        .iter()
        .filter(|(name, _)| !keys.contains(&name.as_str()))
    {
        // Names that are too long for a metric, and more than a few, are the server's own affair.
        if let (Some(value), true) = (
            value.as_f64(),
            name.len() <= 64 && verdict.metrics.len() < 16,
        ) {
            verdict = verdict.with_metric(name, value);
        }
    }
    Ok(verdict)
}

export!(RemoteRm);

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(status: u16, body: &str) -> Result<Response, Error> {
        Ok(Response {
            status,
            headers: Vec::new(),
            body: body.as_bytes().to_vec(),
        })
    }

    fn reward(item: Finished, body: &str) -> Result<f64, Error> {
        ask(&item, |_| answered(200, body)).map(|verdict| verdict.reward)
    }

    #[test]
    fn prompt_response_and_label_are_sent_and_a_number_comes_back() {
        let item = Finished::new("q", "a\"").with_label("g");
        let got = ask(&item, |body| {
            assert_eq!(body, r#"{"prompt":"q","response":"a\"","label":"g"}"#);
            answered(200, "0.25")
        });
        assert_eq!(got.unwrap().reward, 0.25);
    }

    #[test]
    fn b26_an_object_needs_the_number_that_was_asked_for() {
        let item = || Finished::new("q", "a").with_metadata("reward_key", "\"acc\"");
        assert_eq!(reward(item(), r#"{"acc": 1, "fmt": 0}"#), Ok(1.0));
        assert!(reward(item(), r#"{"score": 1}"#).is_err());
        // B22: 0 is a number.
        let plain = || Finished::new("q", "a");
        assert_eq!(reward(plain(), r#"{"reward": 0.0, "score": 1}"#), Ok(0.0));
        assert!(reward(plain(), "\"1\"").is_err());
        assert!(reward(plain(), "oops").is_err());
    }

    #[test]
    fn a_server_that_fails_is_asked_again_and_never_becomes_a_zero() {
        let mut tries = 0;
        let item = Finished::new("q", "a");
        let got = ask(&item, |_| {
            tries += 1;
            if tries < 3 {
                answered(503, "")
            } else {
                answered(200, "1")
            }
        });
        assert_eq!(got.unwrap().reward, 1.0);
        let mut tries = 0;
        let got = ask(&item, |_| {
            tries += 1;
            answered(500, "1")
        });
        assert_eq!((got.unwrap_err().code, tries), (ErrorCode::Unavailable, 3));
        let mut tries = 0;
        let denied = ask(&item, |_| {
            tries += 1;
            Err(Error::new(ErrorCode::Denied, "not listed"))
        });
        assert_eq!((denied.unwrap_err().code, tries), (ErrorCode::Denied, 1));
    }
}
