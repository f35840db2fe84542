//! The way for agents that cannot be compiled to WebAssembly: each rollout becomes a session, and a session speaks
//! OpenAI's chat API.
//!
//! An agent asks for a session (`POST /v1/sessions`), talks to the policy with the session's key as API key
//! (`POST /v1/chat/completions`), and ends it (`POST /v1/sessions/end`), with a reward where the run asks for one. Tokens,
//! log-probs and who wrote what stay here: what the policy sampled is trained on as it was sampled, never as text that
//! came back. It refuses to sandbox anything: agents run where they were started, with all that their user may do.
//! Read `conversation.rs` for what counts as going on with a session.

mod conversation;
mod server;
#[cfg(test)]
mod tests;

use conversation::{Conversation, Refused};
use serde_json::{Map, Value};
use slime_core::ports::{
    BoxFuture, Generated, Generator, LiveError, LiveTrajectory, ScoreRequest, Scored, Turn,
    Verifier,
};
use slime_core::{Accounting, Message, Outcome, Verdict};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, oneshot};

/// What a run's gateway is told.
#[derive(Clone, Debug)]
pub struct GatewayConfig {
    /// Where it listens. Nobody is asked who he is, so this must be an address of this machine alone.
    pub address: SocketAddr,
    /// Whether the agents' rewards count. If so they are shown the gold answers; if not, the run's verifier scores.
    pub rewards: bool,
    /// How long a session may take once an agent has it.
    pub wall: Duration,
    /// At which temperature the run samples: a request may say the same, and nothing else.
    pub temperature: f64,
}

/// After this long without an agent, the log says where one is awaited.
const LONELY: Duration = Duration::from_secs(30);
/// Metrics of one verdict.
const MAX_METRICS: usize = 64;

/// Generator, and verifier where agents give rewards. Cheap to clone.
#[derive(Clone)]
pub struct Gateway(Arc<Shared>);

struct Shared {
    config: GatewayConfig,
    address: SocketAddr,
    state: Mutex<State>,
    /// A session waits for an agent.
    offered: Arc<Notify>,
    stop: Mutex<Option<oneshot::Sender<()>>>,
}

#[derive(Default)]
struct State {
    /// Keys of sessions that no agent has taken yet.
    waiting: VecDeque<String>,
    sessions: HashMap<String, Session>,
    /// What agents gave, by the rollout's seed, until it is asked for.
    rewards: HashMap<u64, Verdict>,
}

struct Session {
    /// What an agent is told of it.
    offer: Map<String, Value>,
    requests: mpsc::UnboundedSender<Request>,
}

/// What an agent wants of its session.
enum Request {
    /// It has taken the session.
    Taken,
    Chat {
        messages: Vec<Message>,
        max_tokens: u32,
        stop: Vec<String>,
        answer: oneshot::Sender<Result<Said, Refused>>,
    },
    End {
        how: Ending,
        answer: oneshot::Sender<()>,
    },
}

#[derive(Clone, Debug, PartialEq)]
enum Ending {
    /// The run's verifier scores.
    Done,
    Reward(Verdict),
    Failed(String),
}

/// A turn of the policy, and the tokens before it.
#[derive(Clone, Debug, PartialEq)]
struct Said {
    turn: Turn,
    context_tokens: usize,
}

impl Gateway {
    /// Listen, on a thread of its own.
    ///
    /// # Errors
    /// The address is not of this machine alone, or is taken.
    pub fn start(config: GatewayConfig) -> io::Result<Self> {
        if !config.address.ip().is_loopback() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "whoever reaches the gateway may train the policy, so it listens on 127.0.0.1 or [::1] only",
            ));
        }
        let listener = TcpListener::bind(config.address)?;
        listener.set_nonblocking(true)?;
        let (stop, stopped) = oneshot::channel();
        let offered = Arc::new(Notify::new());
        let shared = Arc::new(Shared {
            address: listener.local_addr()?,
            config,
            state: Mutex::default(),
            offered: Arc::clone(&offered),
            stop: Mutex::new(Some(stop)),
        });
        let run = server::Run {
            shared: Arc::downgrade(&shared),
            offered,
        };
        server::start(listener, run, stopped)?;
        Ok(Self(shared))
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.0.address
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Some(stop) = crate::lock(&self.stop).take() {
            let _ = stop.send(());
        }
    }
}

impl Generator for Gateway {
    fn name(&self) -> &str {
        "gateway"
    }

    fn generate(&self, start: Arc<dyn LiveTrajectory>, seed: u64) -> BoxFuture<'_, Generated> {
        Box::pin(async move {
            let begun = Instant::now();
            let failure = self.drive(&*start, seed).await;
            Generated {
                trajectories: start.finish(),
                failure,
                cost: Accounting {
                    wall: begun.elapsed(),
                    ..Accounting::default()
                },
            }
        })
    }
}

/// Takes the session from the list, however the rollout ended.
struct Open<'a>(&'a Shared, String);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let mut state = crate::lock(&self.0.state);
        state.sessions.remove(&self.1);
        state.waiting.retain(|key| *key != self.1);
    }
}

impl Gateway {
    /// Let an agent drive the rollout; `None` when it ended well.
    async fn drive(&self, live: &dyn LiveTrajectory, seed: u64) -> Option<Outcome> {
        let shared = &*self.0;
        let prompt = live.prompt();
        let mut conversation = match Conversation::new(&prompt) {
            Ok(conversation) => conversation,
            Err(reason) => return Some(Outcome::Error(reason)),
        };
        let offer = conversation.offer(&prompt, shared.config.rewards);
        let key = match key() {
            Ok(key) => key,
            Err(error) => return Some(Outcome::InfraFailed(error.to_string())),
        };
        let (sender, mut requests) = mpsc::unbounded_channel();
        {
            let mut state = crate::lock(&shared.state);
            let session = Session {
                offer,
                requests: sender,
            };
            state.sessions.insert(key.clone(), session);
            state.waiting.push_back(key.clone());
        }
        let _open = Open(shared, key);
        shared.offered.notify_one();
        let address = shared.address;
        while let Err(_elapsed) = tokio::time::timeout(LONELY, requests.recv()).await {
            tracing::warn!("no agent has asked for a session: POST http://{address}/v1/sessions");
        }
        let talk = self.talk(live, &mut conversation, &mut requests);
        let ended = tokio::time::timeout(shared.config.wall, talk).await;
        match ended {
            Ok(Ok(Ending::Done)) => None,
            Ok(Ok(Ending::Reward(verdict))) => {
                crate::lock(&shared.state).rewards.insert(seed, verdict);
                None
            }
            Ok(Ok(Ending::Failed(reason))) => Some(Outcome::Error(reason)),
            Ok(Err(outcome)) => Some(outcome),
            Err(_elapsed) => Some(Outcome::Timeout(format!(
                "the agent did not end its session within {} s",
                shared.config.wall.as_secs()
            ))),
        }
    }

    /// Answer the agent until it ends the session, or nothing can answer any more.
    async fn talk(
        &self,
        live: &dyn LiveTrajectory,
        conversation: &mut Conversation,
        requests: &mut mpsc::UnboundedReceiver<Request>,
    ) -> Result<Ending, Outcome> {
        while let Some(request) = requests.recv().await {
            match request {
                Request::Taken => {}
                Request::End { how, answer } => {
                    let _ = answer.send(());
                    return Ok(how);
                }
                Request::Chat {
                    messages,
                    max_tokens,
                    stop,
                    answer,
                } => {
                    let said = conversation.go_on(live, messages, max_tokens, stop).await;
                    let over = match &said {
                        Err(Refused::Live(LiveError::Cancelled)) => Some(Outcome::Cancelled(
                            "the host gave up on this rollout".into(),
                        )),
                        Err(Refused::Live(LiveError::Unavailable(reason))) => {
                            Some(Outcome::InfraFailed(reason.clone()))
                        }
                        _ => None,
                    };
                    let _ = answer.send(said);
                    if let Some(outcome) = over {
                        return Err(outcome);
                    }
                }
            }
        }
        Err(Outcome::Cancelled("the gateway closed".into()))
    }
}

impl Verifier for Gateway {
    fn name(&self) -> &str {
        "gateway"
    }

    fn score(&self, item: ScoreRequest) -> BoxFuture<'_, Scored> {
        let given = crate::lock(&self.0.state).rewards.remove(&item.seed);
        let outcome = match given {
            Some(verdict) => Outcome::Scored(verdict),
            None => Outcome::Error("the agent ended its session without a reward".into()),
        };
        Box::pin(std::future::ready(Scored {
            outcome,
            cost: Accounting::default(),
        }))
    }
}

/// The key of a session: who has it speaks for it.
fn key() -> io::Result<String> {
    use std::io::Read;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes.iter().fold(String::from("session-"), |text, byte| {
        format!("{text}{byte:02x}")
    }))
}
