//! A teacher in servers of its own: it reads what the student wrote and says how likely each token was to it.
//!
//! Its weights never change, so any server may answer, and asking again is safe. It refuses to know what is made of the
//! answers: the trainer subtracts.

use crate::RolloutError;
use crate::pool::endpoint::input_logprobs::input_logprobs;
use crate::pool::{Address, Server};
use futures::{StreamExt, TryStreamExt};
use slime_core::RolloutRecord;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Tries of one record, each at the next server.
const TRIES: usize = 6;

/// Servers that hold one teacher.
pub struct Teacher {
    servers: Vec<Server>,
    next: AtomicUsize,
    concurrency: usize,
    deadline: Duration,
}

impl Teacher {
    /// The teacher that `servers` hold; `concurrency` requests at once.
    ///
    /// # Errors
    /// No server, or the system has no room for a client.
    pub fn new(
        servers: Vec<Address>,
        concurrency: usize,
        deadline: Duration,
    ) -> Result<Self, RolloutError> {
        let config = |reason: String| RolloutError::Config {
            what: "teacher".into(),
            reason,
        };
        if servers.is_empty() {
            return Err(config("no server is given".into()));
        }
        // Internal traffic goes through nobody's proxy.
        let client = reqwest::Client::builder().no_proxy().build();
        let client = client.map_err(|e| config(e.to_string()))?;
        let servers = servers.into_iter();
        Ok(Self {
            servers: servers
                .map(|a| Server::new(a, client.clone(), deadline))
                .collect(),
            next: AtomicUsize::new(0),
            concurrency: concurrency.max(1),
            deadline,
        })
    }

    /// Fill `teacher_log_probs` of every record that trains.
    ///
    /// # Errors
    /// A record that no server could read, after some tries.
    pub async fn fill(&self, records: &mut [RolloutRecord]) -> Result<(), RolloutError> {
        let trains = |r: &RolloutRecord| r.is_scored() && r.loss_mask.contains(&1);
        let asked: Vec<usize> = (0..records.len())
            .filter(|&i| trains(&records[i]))
            .collect();
        let answers: Vec<(usize, Vec<f64>)> = {
            let records = &*records;
            let one = |index: usize| async move {
                let logprobs = self.read(&records[index].tokens).await?;
                Ok::<_, RolloutError>((index, logprobs))
            };
            futures::stream::iter(asked)
                .map(|index| Box::pin(one(index)))
                .buffered(self.concurrency)
                .try_collect()
                .await?
        };
        for (index, logprobs) in answers {
            let record = &mut records[index];
            let first = record.tokens.len() - record.response_length;
            let of = |(offset, mask): (usize, &u8)| match mask {
                1 => logprobs[first + offset - 1] as f32,
                _ => 0.0,
            };
            record.teacher_log_probs = record.loss_mask.iter().enumerate().map(of).collect();
        }
        Ok(())
    }

    async fn read(&self, tokens: &[u32]) -> Result<Vec<f64>, RolloutError> {
        let mut last = String::new();
        for attempt in 0..TRIES {
            let at = self.next.fetch_add(1, Ordering::Relaxed) % self.servers.len();
            let server = &self.servers[at];
            match input_logprobs(server, tokens, self.deadline).await {
                Ok(logprobs) => return Ok(logprobs),
                Err(error) => {
                    last = format!("{}: {error}", server.address());
                    if error.is_refusal() {
                        break;
                    }
                }
            }
            tokio::time::sleep(Duration::from_millis(100 << attempt)).await;
        }
        Err(RolloutError::NoEngine {
            reason: format!("the teacher did not answer, {last}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use wiremock::matchers::{method, path};
    use wiremock::{Mock, MockServer, Request, ResponseTemplate};

    fn record(tokens: &[u32], mask: &[u8], outcome: &str) -> RolloutRecord {
        RolloutRecord {
            tokens: tokens.to_vec(),
            response_length: mask.len(),
            loss_mask: mask.to_vec(),
            reward: (outcome == "scored").then_some(0.0),
            outcome: outcome.into(),
            ..RolloutRecord::default()
        }
    }

    /// A token's log-prob is minus its id.
    fn answer(request: &Request) -> ResponseTemplate {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        assert_eq!(
            (&body["return_logprob"], &body["logprob_start_len"]),
            (&json!(true), &json!(0))
        );
        assert_eq!(body["sampling_params"]["max_new_tokens"], 0);
        let ids: Vec<u32> = serde_json::from_value(body["input_ids"].clone()).unwrap();
        let list: Vec<Value> = ids
            .iter()
            .enumerate()
            .map(|(i, id)| {
                if i == 0 {
                    json!([null, id, null])
                } else {
                    json!([-f64::from(*id), id, null])
                }
            })
            .collect();
        ResponseTemplate::new(200)
            .set_body_json(json!({"text": "", "meta_info": {"input_token_logprobs": list}}))
    }

    async fn server() -> MockServer {
        let server = MockServer::builder().start().await;
        let mock = Mock::given(method("POST"))
            .and(path("/generate"))
            .respond_with(answer);
        mock.mount(&server).await;
        server
    }

    #[tokio::test]
    async fn every_trained_token_gets_the_teachers_log_prob_and_no_other_does() {
        let (good, dead) = (server().await, "127.0.0.1:9");
        let addresses = vec![
            Address::parse(dead).unwrap(),
            Address::parse(&good.uri()).unwrap(),
        ];
        let teacher = Teacher::new(addresses, 4, Duration::from_secs(5)).unwrap();
        let mut records = [
            record(&[9, 8, 1, 2, 3], &[1, 0, 1], "scored"),
            record(&[9, 5, 6], &[1, 1], "timeout"),
            record(&[9, 4], &[1], "scored"),
        ];
        teacher.fill(&mut records).await.unwrap();
        assert_eq!(records[0].teacher_log_probs, [-1.0, 0.0, -3.0]);
        assert!(
            records[1].teacher_log_probs.is_empty(),
            "nothing of it trains"
        );
        assert_eq!(records[2].teacher_log_probs, [-4.0]);
        assert!(records.iter().all(|r| r.validate().is_ok()));
    }

    #[tokio::test]
    async fn a_teacher_that_refuses_is_told_in_its_own_words() {
        let server = MockServer::builder().start().await;
        let refusal = ResponseTemplate::new(400)
            .set_body_json(json!({"error": {"message": "input is too long"}}));
        Mock::given(method("POST"))
            .respond_with(refusal)
            .mount(&server)
            .await;
        let teacher = Teacher::new(
            vec![Address::parse(&server.uri()).unwrap()],
            1,
            Duration::from_secs(5),
        )
        .unwrap();
        let error = teacher
            .fill(&mut [record(&[1, 2], &[1], "scored")])
            .await
            .unwrap_err();
        assert!(error.to_string().contains("input is too long"), "{error}");
    }
}
