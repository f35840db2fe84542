//! The sandbox against real components: the hostile guest, the first-party plugins, and hand-made broken ones.
#![allow(
    clippy::unwrap_used,
    reason = "a test that cannot be set up has failed"
)]

mod building;
mod endings;
mod generating;
mod isolation;
mod loading;
mod offline;
mod support;
mod timing;
