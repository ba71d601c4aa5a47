//! The handlers by subject. Each one takes its input from the request, calls the orchestrator and builds the
//! response.

pub(crate) mod app;
pub(crate) mod audit;
pub(crate) mod basic;
pub(crate) mod code;
pub(crate) mod context;
pub(crate) mod control;
pub(crate) mod demo;
pub(crate) mod desktop;
pub(crate) mod downloads;
pub(crate) mod events;
pub(crate) mod exec;
mod exec_input;
pub(crate) mod exec_stream;
pub(crate) mod files;
pub(crate) mod health;
pub(crate) mod host;
pub(crate) mod jobs;
pub(crate) mod keys;
pub(crate) mod login;
pub(crate) mod metrics;
pub(crate) mod models;
pub(crate) mod network;
pub(crate) mod pages;
pub(crate) mod ports;
pub(crate) mod sandboxes;
pub(crate) mod shares;
pub(crate) mod stats;
pub(crate) mod terminal;
mod uploads;
