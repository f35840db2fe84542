//! The engine as clients meet it: real HTTP on a free port, the built-in byte tokenizer, a small random model.
//! The oracles are the network's own full forward, HF transformers' log-probs, and the same request asked alone.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail like tests")]

mod control;
mod generate;
mod handed;
mod openai;
mod refusals;
mod stream;
mod support;
mod weights;
