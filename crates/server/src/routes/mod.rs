//! The routes by subject. Each handler takes a request apart, asks the orchestrator, and writes the answer.

pub(crate) mod basic;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod exec_stream;
pub(crate) mod files;
pub(crate) mod health;
pub(crate) mod jobs;
pub(crate) mod metrics;
pub(crate) mod pages;
pub(crate) mod ports;
pub(crate) mod sandboxes;
pub(crate) mod stats;
