//! What a `--sglang-config` file says: models, the groups of servers of each, and the flags of both.
//!
//! It checks every word alone and reports all of them at once. What the whole adds up to is `launch`'s to say.

use super::flags::Flag;
use super::yaml::{self, Key, Node, Value};
use crate::config::problem::{Place, Problem};
use crate::config::schema::nearest;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// A file and what it says.
#[derive(Clone, Debug)]
pub struct ServerFile {
    source: Source,
    /// In the file's order.
    pub models: Vec<ModelSaid>,
}

/// A value and its bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct Said<T> {
    /// The value.
    pub value: T,
    /// Where.
    pub span: Range<usize>,
}

/// One model.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelSaid {
    /// What it is called.
    pub name: Said<String>,
    /// An HF directory; the run's where none is said.
    pub model_path: Option<Said<PathBuf>>,
    /// Whether it is the one that is trained.
    pub update_weights: Option<Said<bool>>,
    /// GPUs of one server, where a group does not say it.
    pub num_gpus_per_engine: Option<Said<u32>>,
    /// Flags of all its servers.
    pub overrides: Vec<Flag>,
    /// Its servers.
    pub groups: Vec<GroupSaid>,
}

/// One group of servers.
#[derive(Clone, Debug, PartialEq)]
pub struct GroupSaid {
    /// What its servers do.
    pub worker_type: Said<WorkerType>,
    /// GPUs of all of them.
    pub num_gpus: Said<u32>,
    /// GPUs of one.
    pub num_gpus_per_engine: Option<Said<u32>>,
    /// Flags of its servers.
    pub overrides: Vec<Flag>,
}

/// What the servers of a group do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkerType {
    /// Prefill and decode.
    Regular,
    /// Prompts only; their keys and values go to a decode server.
    Prefill,
    /// Responses only.
    Decode,
    /// There are none: the GPUs are somebody else's.
    Placeholder,
}

const WORKER_TYPES: [(&str, WorkerType); 4] = [
    ("regular", WorkerType::Regular),
    ("prefill", WorkerType::Prefill),
    ("decode", WorkerType::Decode),
    ("placeholder", WorkerType::Placeholder),
];
const MODEL_KEYS: [&str; 7] = [
    "name",
    "model_path",
    "update_weights",
    "num_gpus_per_engine",
    "overrides",
    "server_groups",
    "engine_groups",
];
const GROUP_KEYS: [&str; 4] = [
    "worker_type",
    "num_gpus",
    "num_gpus_per_engine",
    "overrides",
];

/// A file's name and text, for pointing at.
#[derive(Clone, Debug)]
struct Source {
    name: String,
    text: Arc<str>,
}

impl ServerFile {
    /// Read a file's text.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn parse(name: &str, text: &str) -> Result<Self, Vec<Problem>> {
        let mut reader = Reader {
            source: Source {
                name: name.into(),
                text: text.into(),
            },
            problems: Vec::new(),
        };
        let models = match yaml::parse(text) {
            Ok(root) => reader.root(root),
            Err(wrong) => {
                reader.refuse(
                    wrong.span,
                    format!("{name} is not valid YAML: {}", wrong.message),
                    "indent with spaces, write `key: value`, and say every key once",
                );
                Vec::new()
            }
        };
        if reader.problems.is_empty() {
            Ok(Self {
                source: reader.source,
                models,
            })
        } else {
            reader.problems.sort_by_key(Problem::offset);
            Err(reader.problems)
        }
    }

    /// What is wrong at `span`, with its cure.
    pub fn problem(
        &self,
        span: &Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Problem {
        self.source.problem(span.clone(), message, help)
    }

    /// As it was given.
    pub fn name(&self) -> &str {
        &self.source.name
    }
}

impl Source {
    fn problem(
        &self,
        span: Range<usize>,
        message: impl Into<String>,
        help: impl Into<String>,
    ) -> Problem {
        Problem::new(message).help(help).at(Some(Place {
            name: self.name.clone(),
            text: self.text.clone(),
            span,
        }))
    }
}

struct Reader {
    source: Source,
    problems: Vec<Problem>,
}

impl Reader {
    fn refuse(&mut self, span: Range<usize>, message: impl Into<String>, help: impl Into<String>) {
        let problem = self.source.problem(span, message, help);
        self.problems.push(problem);
    }

    fn root(&mut self, root: Option<Node>) -> Vec<ModelSaid> {
        let shape = "write `sglang:` and below it one `- name: …` for each model";
        let name = self.source.name.clone();
        let Some(root) = root else {
            self.refuse(0..0, format!("{name} says nothing"), shape);
            return Vec::new();
        };
        let span = root.span.clone();
        let pairs = self.pairs(root, "the file", &["sglang"]);
        let Some((key, list)) = pairs.into_iter().find(|(key, _)| key.name == "sglang") else {
            if self.problems.is_empty() {
                self.refuse(span, format!("{name} names no models"), shape);
            }
            return Vec::new();
        };
        let models = self.items(&key, list, "models");
        let models: Vec<_> = models
            .into_iter()
            .filter_map(|node| self.model(node))
            .collect();
        for (i, model) in models.iter().enumerate() {
            if models[..i].iter().any(|m| m.name.value == model.name.value) {
                self.refuse(
                    model.name.span.clone(),
                    format!("two models are called `{}`", model.name.value),
                    "give each a name of its own",
                );
            }
        }
        models
    }

    fn model(&mut self, node: Node) -> Option<ModelSaid> {
        let (span, before) = (node.span.clone(), self.problems.len());
        let pairs = self.pairs(node, "a model", &MODEL_KEYS);
        if pairs.is_empty() {
            return None;
        }
        let named = pairs.iter().find(|(key, _)| key.name == "name");
        let name = match named.map(|(_, node)| (node, node.as_text())) {
            Some((node, Some(text))) if !text.is_empty() && !node.is_null() => Said {
                value: text.to_owned(),
                span: node.span.clone(),
            },
            Some((node, _)) => {
                let what = format!("a model's name is {}", node.kind());
                self.refuse(node.span.clone(), what, "give it a word");
                return None;
            }
            None => {
                self.refuse(span, "a model has no name", "add `name: WORD`");
                return None;
            }
        };
        let mut model = ModelSaid {
            name,
            model_path: None,
            update_weights: None,
            num_gpus_per_engine: None,
            overrides: Vec::new(),
            groups: Vec::new(),
        };
        let mut has_groups = None;
        for (key, node) in pairs {
            match key.name.as_str() {
                // An empty value is as good as none.
                "model_path" | "update_weights" | "num_gpus_per_engine" if node.is_null() => {}
                "model_path" => match node.as_text() {
                    Some(text) => {
                        model.model_path = Some(Said {
                            value: text.into(),
                            span: node.span,
                        });
                    }
                    None => self.expected(&key, &node, "a path"),
                },
                "update_weights" => match node.as_bool() {
                    Some(value) => {
                        model.update_weights = Some(Said {
                            value,
                            span: node.span,
                        });
                    }
                    None => self.expected(&key, &node, "true or false"),
                },
                "num_gpus_per_engine" => model.num_gpus_per_engine = self.count(&key, &node),
                "overrides" => model.overrides = self.flags(node),
                "server_groups" | "engine_groups" => {
                    if has_groups.replace(()).is_some() {
                        self.refuse(
                            key.span.clone(),
                            "`server_groups` and `engine_groups` are two names of one list",
                            "keep `server_groups`",
                        );
                    }
                    let groups = self.items(&key, node, "groups of servers");
                    model.groups = groups
                        .into_iter()
                        .filter_map(|node| self.group(node))
                        .collect();
                }
                _ => {}
            }
        }
        if has_groups.is_none() && self.problems.len() == before {
            self.refuse(
                model.name.span.clone(),
                format!("the model `{}` has no servers", model.name.value),
                "add `server_groups:` with `- {worker_type: regular, num_gpus: N}`",
            );
        }
        Some(model)
    }

    fn group(&mut self, node: Node) -> Option<GroupSaid> {
        let (span, before) = (node.span.clone(), self.problems.len());
        let pairs = self.pairs(node, "a group of servers", &GROUP_KEYS);
        if pairs.is_empty() {
            return None;
        }
        let (mut worker_type, mut num_gpus, mut per_engine) = (None, None, None);
        let mut overrides = Vec::new();
        for (key, node) in pairs {
            match key.name.as_str() {
                "worker_type" => worker_type = self.worker_type(&key, &node),
                "num_gpus" => num_gpus = self.count(&key, &node),
                "num_gpus_per_engine" if node.is_null() => {}
                "num_gpus_per_engine" => per_engine = self.count(&key, &node),
                "overrides" => overrides = self.flags(node),
                _ => {}
            }
        }
        if let (Some(worker_type), Some(num_gpus)) = (worker_type.clone(), num_gpus.clone()) {
            return Some(GroupSaid {
                worker_type,
                num_gpus,
                num_gpus_per_engine: per_engine,
                overrides,
            });
        }
        if self.problems.len() == before {
            let (what, cure) = match worker_type {
                None => (
                    "does not say what its servers do",
                    "add `worker_type: regular`",
                ),
                Some(_) => ("has no GPUs", "add `num_gpus: N`"),
            };
            self.refuse(span, format!("a group of servers {what}"), cure);
        }
        None
    }

    fn worker_type(&mut self, key: &Key, node: &Node) -> Option<Said<WorkerType>> {
        let text = node.as_text().unwrap_or_default();
        if let Some((_, value)) = WORKER_TYPES.iter().find(|(name, _)| *name == text) {
            return Some(Said {
                value: *value,
                span: node.span.clone(),
            });
        }
        if text == "encoder" {
            self.refuse(
                node.span.clone(),
                "servers that only encode images are not launched here",
                "use `regular`, whose servers encode for themselves",
            );
            return None;
        }
        let meant = nearest(text, WORKER_TYPES.iter().map(|(name, _)| (*name, *name)));
        let help = match meant {
            Some(meant) => format!("did you mean `{meant}`?"),
            None => "write regular, prefill, decode or placeholder".into(),
        };
        let what = format!("`{}` is {}", key.name, node.kind());
        self.refuse(node.span.clone(), what, help);
        None
    }

    fn count(&mut self, key: &Key, node: &Node) -> Option<Said<u32>> {
        match node.as_text().map(str::parse) {
            Some(Ok(0)) => {
                let what = format!("`{}` is 0", key.name);
                let help = "it must be 1 or more; leave out a group without GPUs";
                self.refuse(node.span.clone(), what, help);
                None
            }
            Some(Ok(value)) => Some(Said {
                value,
                span: node.span.clone(),
            }),
            _ => {
                self.expected(key, node, "a whole number of 1 or more");
                None
            }
        }
    }

    fn flags(&mut self, node: Node) -> Vec<Flag> {
        if node.is_null() {
            return Vec::new();
        }
        let Value::Map(pairs) = node.value else {
            let what = format!("`overrides` is {}", node.kind());
            let help = "write one `flag: value` a line, like `mem_fraction_static: 0.8`";
            self.refuse(node.span, what, help);
            return Vec::new();
        };
        let mut flags: Vec<Flag> = Vec::new();
        for (key, value) in pairs {
            let flag = Flag::from_yaml(&key, &value);
            if matches!(flag.name.as_str(), "--model-path" | "--model") {
                let help =
                    "write `model_path` beside the model's `name`: all of its servers hold one";
                let what = format!("{} cannot be overridden", flag.name);
                self.refuse(key.span, what, help);
            } else if let Some(reason) = flag.is_the_hosts() {
                let what = format!("{} cannot be overridden", flag.name);
                self.refuse(key.span, what, reason);
            } else if flags.iter().any(|other| other.name == flag.name) {
                let what = format!("{} is said twice", flag.name);
                self.refuse(
                    key.span,
                    what,
                    "`-` and `_` are the same in a flag; keep one",
                );
            } else {
                flags.push(flag);
            }
        }
        flags
    }

    fn expected(&mut self, key: &Key, node: &Node, what: &str) {
        let message = format!("`{}`: expected {what}, found {}", key.name, node.kind());
        self.refuse(node.span.clone(), message, format!("write {what}"));
    }

    /// A list that is not empty.
    fn items(&mut self, key: &Key, node: Node, what: &str) -> Vec<Node> {
        let kind = node.kind();
        match node.value {
            Value::List(items) if !items.is_empty() => items,
            Value::List(_) => {
                let message = format!("`{}` is empty", key.name);
                self.refuse(key.span.clone(), message, format!("list the {what}"));
                Vec::new()
            }
            _ => {
                let message = format!("`{}`: expected a list of {what}, found {kind}", key.name);
                self.refuse(node.span, message, "begin each with `- `");
                Vec::new()
            }
        }
    }

    /// A mapping's pairs; its keys are among `known`.
    fn pairs(&mut self, node: Node, what: &str, known: &[&'static str]) -> Vec<(Key, Node)> {
        let kind = node.kind();
        let Value::Map(pairs) = node.value else {
            let message = format!("{what}: expected keys and values, found {kind}");
            self.refuse(
                node.span,
                message,
                format!("its keys are {}", known.join(", ")),
            );
            return Vec::new();
        };
        for (key, _) in &pairs {
            if known.contains(&key.name.as_str()) {
                continue;
            }
            let help = match nearest(&key.name, known.iter().map(|name| (*name, *name))) {
                Some(meant) => format!("did you mean `{meant}`?"),
                None if known.contains(&"overrides") => format!(
                    "the keys of {what} are {}; a server's flag belongs in `overrides`",
                    known.join(", ")
                ),
                None => format!("the keys of {what} are {}", known.join(", ")),
            };
            self.refuse(
                key.span.clone(),
                format!("unknown key `{}` of {what}", key.name),
                help,
            );
        }
        pairs
    }
}
