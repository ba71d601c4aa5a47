//! Tests of this crate against the scripted server, over real HTTP, with every API.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod answers;
mod chain;
mod faults;
mod found;
mod keys;
mod kinds;
mod prompted;
mod requests;
mod support;
