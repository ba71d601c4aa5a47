//! The web page in a real browser, against the real server with real sandboxes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod actions;
mod agents;
mod arrange;
mod cards;
mod dropped;
mod elsewhere;
mod everyone;
mod figures;
mod files;
mod follow;
mod jobs;
mod keyboard;
mod live;
mod login;
mod long;
mod lost;
mod notebook;
mod panes;
mod rich;
mod seals;
mod start;
mod states;
mod support;
mod unsaved;
mod viewers;
