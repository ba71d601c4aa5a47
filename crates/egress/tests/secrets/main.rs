//! Hosts that a secret names: TLS ends in the proxy, placeholders become values, and nothing shows the value.

#![allow(clippy::unwrap_used, reason = "tests")]

mod answers;
mod hosts;
mod placeholders;
mod scene;
#[path = "../support/mod.rs"]
mod support;
mod values;
mod web_sockets;
