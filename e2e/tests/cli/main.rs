//! The command line of the real binary, as people and scripts type it: one file for each topic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod config;
mod jobs;
mod run;
mod sandboxes;
mod typed;
