//! End-to-end tests: start the real binary and talk to it over HTTP only. The tests are in `tests/`.
//!
//! [`Server`] is one running binary with its own data folder, [`Job`] a job on it, [`Sandbox`] a bare sandbox,
//! [`Follower`] an event stream, [`Answer`] an HTTP response. [`source`] reads the repository for the rules in
//! `tests/tidy.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "used by tests alone")]

mod answer;
mod archive;
mod browser;
mod clients;
mod engine;
mod event;
mod free_port;
mod http;
pub mod images;
mod job;
mod leftovers;
pub mod module_graph;
mod notebook;
mod outside;
mod own_engine;
mod processes;
mod raw;
mod sandbox;
mod server;
mod socket;
pub mod source;
mod trusting;

pub use answer::Answer;
pub use archive::Archive;
pub use browser::{Browser, Page};
pub use clients::{check_clients, git_files};
pub use engine::Engine;
pub use event::{Event, Follower};
pub use free_port::free_port;
pub use http::http_client;
pub use images::default_images;
pub use job::{Job, shell};
pub use notebook::{empty_notebook, run_cell};
pub use outside::{Outside, host_name, whole};
pub use own_engine::OwnEngine;
pub use processes::SandboxProcesses;
pub use raw::RawConnection;
pub use sandbox::Sandbox;
pub use server::{Options, Server, binary, wait_until};
pub use socket::{Finished, Said, Socket};
pub use trusting::SecretHost;
