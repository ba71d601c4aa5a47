//! The CLI of the real binary as people and scripts use it: one file per topic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod agent;
mod cli_command;
mod config;
mod described_server;
mod doctor;
mod errors;
mod images;
mod jobs;
mod models;
mod ports;
mod run;
mod sandboxes;
mod terminal;
mod unprivileged_user;
