//! Access control over the API and the CLI: keys, roles, owners, limits.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod abuse;
mod ceilings;
mod deeds;
mod flood;
mod journal;
mod keys;
mod limits;
mod logins;
mod races;
mod shares;
mod streams;
mod support;
mod table;
mod tls;
mod views;
