//! Named models in servers of their own, for judges. Their weights never change and nobody trains on their tokens.
//!
//! Any server of a name may answer, and asking again is safe. Read `teacher.rs` for the model that scores tokens instead.

use crate::RolloutError;
use crate::pool::endpoint::chat_completions::chat_completions;
use crate::pool::{Address, Server};
use slime_core::ports::{Ask, BoxFuture, LiveError, ModelAnswer, Models};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Semaphore;

/// Tries of one question, each at the next server.
const TRIES: usize = 6;

/// Servers by the name of the model they hold.
pub struct NamedModels {
    servers: BTreeMap<String, Vec<Server>>,
    next: AtomicUsize,
    room: Semaphore,
    deadline: Duration,
}

impl NamedModels {
    /// The models that these servers hold; `concurrency` questions at once.
    ///
    /// # Errors
    /// A name without a server, or the system has no room for a client.
    pub fn new(
        models: BTreeMap<String, Vec<Address>>,
        concurrency: usize,
        deadline: Duration,
    ) -> Result<Self, RolloutError> {
        let config = |what: &str, reason: String| RolloutError::Config {
            what: what.to_owned(),
            reason,
        };
        // Internal traffic goes through nobody's proxy.
        let client = reqwest::Client::builder().no_proxy().build();
        let client = client.map_err(|e| config("models", e.to_string()))?;
        let mut servers = BTreeMap::new();
        for (name, addresses) in models {
            if addresses.is_empty() {
                return Err(config(&name, "the model has no server".into()));
            }
            let own = addresses
                .into_iter()
                .map(|address| Server::new(address, client.clone(), deadline));
            servers.insert(name, own.collect());
        }
        Ok(Self {
            servers,
            next: AtomicUsize::new(0),
            room: Semaphore::new(concurrency.max(1)),
            deadline,
        })
    }

    async fn answer(&self, ask: Ask) -> Result<ModelAnswer, LiveError> {
        let Some(servers) = self.servers.get(&ask.model) else {
            let names: Vec<&str> = self.servers.keys().map(String::as_str).collect();
            return Err(LiveError::InvalidInput(format!(
                "there is no model `{}`, but: {}",
                ask.model,
                names.join(", ")
            )));
        };
        let _room = self
            .room
            .acquire()
            .await
            .map_err(|_| LiveError::Cancelled)?;
        let mut last = String::new();
        for attempt in 0..TRIES {
            let at = self.next.fetch_add(1, Ordering::Relaxed) % servers.len();
            match chat_completions(&servers[at], &ask, self.deadline).await {
                Ok(answer) => return Ok(answer),
                Err(error) if error.is_refusal() => {
                    return Err(LiveError::InvalidInput(error.to_string()));
                }
                Err(error) => last = format!("{}: {error}", servers[at].address()),
            }
            tokio::time::sleep(Duration::from_millis(100 << attempt)).await;
        }
        Err(LiveError::Unavailable(format!(
            "the model `{}` did not answer, {last}",
            ask.model
        )))
    }
}

impl Models for NamedModels {
    fn names(&self) -> Vec<String> {
        self.servers.keys().cloned().collect()
    }

    fn ask(&self, ask: Ask) -> BoxFuture<'_, Result<ModelAnswer, LiveError>> {
        Box::pin(self.answer(ask))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use slime_core::{FinishReason, Message};
    use wiremock::matchers::{method, path};
    use wiremock::{Mock, MockServer, Request, ResponseTemplate};

    fn ask(model: &str) -> Ask {
        Ask {
            model: model.into(),
            messages: vec![Message::new("user", "Good?")],
            max_tokens: 7,
            temperature: 0.5,
            seed: 42,
        }
    }

    /// Says back what it was asked for.
    fn echo(request: &Request) -> ResponseTemplate {
        let body: Value = serde_json::from_slice(&request.body).unwrap();
        let text = format!(
            "{} {} {}",
            body["messages"][0]["content"].as_str().unwrap(),
            body["max_tokens"],
            body["temperature"]
        );
        ResponseTemplate::new(200).set_body_json(json!({
            "choices": [{"message": {"role": "assistant", "content": text}, "finish_reason": "length"}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 7, "total_tokens": 10},
        }))
    }

    fn models(addresses: &[&str]) -> NamedModels {
        let addresses = addresses.iter().map(|text| Address::parse(text).unwrap());
        let all = BTreeMap::from([("judge".to_owned(), addresses.collect())]);
        NamedModels::new(all, 2, Duration::from_secs(5)).unwrap()
    }

    #[tokio::test]
    async fn a_question_goes_to_a_server_that_answers_and_its_tokens_are_counted() {
        let server = MockServer::builder().start().await;
        let mock = Mock::given(method("POST")).and(path("/v1/chat/completions"));
        mock.respond_with(echo).mount(&server).await;
        let models = models(&["127.0.0.1:9", &server.uri()]);
        let answer = models.ask(ask("judge")).await.unwrap();
        assert_eq!(
            (answer.text.as_str(), answer.num_tokens, answer.finish),
            ("Good? 7 0.5", 7, FinishReason::Length)
        );
        let unknown = models.ask(ask("other")).await.unwrap_err();
        assert!(unknown.to_string().contains("but: judge"), "{unknown}");
    }

    #[tokio::test]
    async fn a_refused_question_is_not_asked_again() {
        let server = MockServer::builder().start().await;
        let refusal = ResponseTemplate::new(400)
            .set_body_json(json!({"error": {"message": "input is too long"}}));
        let mock = Mock::given(method("POST")).respond_with(refusal).expect(1);
        mock.mount(&server).await;
        let error = models(&[&server.uri()])
            .ask(ask("judge"))
            .await
            .unwrap_err();
        assert!(matches!(&error, LiveError::InvalidInput(words) if words.contains("too long")));
    }
}
