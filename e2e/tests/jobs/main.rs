//! Jobs on the real binary, over HTTP: one file for each topic.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod api;
mod backup;
mod basic;
mod callers;
mod crash;
mod egress;
mod escape;
mod files;
mod hostile;
mod limits;
mod loss;
mod operations;
mod paths;
mod pool;
mod sandboxes;
mod steps;
mod storage;
mod streams;
mod uploads;
