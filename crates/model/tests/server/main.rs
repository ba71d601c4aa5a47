//! Tests of this crate against the scripted server, over real HTTP, with every API.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod answers;
mod chain;
mod discovery;
mod faults;
mod keys;
mod local_servers;
mod prompted;
mod requests;
mod support;
