//! The sandbox against real components: the hostile guest, the first-party plugins, and hand-made broken ones.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up has failed"
)]

mod asynchronous;
mod building;
mod contract;
mod endings;
mod folders;
mod generating;
mod hostile;
mod isolation;
mod loading;
mod offline;
mod programs;
mod support;
mod timing;
