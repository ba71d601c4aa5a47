//! Access control over the API and the CLI: keys, roles, owners, limits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod access_log;
mod connection_floods;
mod fixed_ports;
mod key_limits;
mod keyed_server;
mod keys;
mod logins;
mod max_limits;
mod permissions;
mod races;
mod request_floods;
mod shares;
mod streams;
mod tls;
mod user_actions;
mod views;
