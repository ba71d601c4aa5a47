//! Tests of hosts with secrets: the proxy terminates TLS, replaces placeholders by values, and never reveals a
//! value.

#![allow(clippy::unwrap_used, reason = "tests")]

mod answers;
mod fixture;
mod hosts;
mod placeholders;
#[path = "../support/mod.rs"]
mod support;
mod values;
mod web_sockets;
