//! End-to-end tests: start the real binary and talk to it over HTTP only. The tests are in `tests/`.
//!
//! [`Server`] is one running binary with its own data folder, [`Job`] a job on it, [`Sandbox`] a bare sandbox,
//! [`Follower`] an event stream, [`Answer`] an HTTP response. [`source`] reads the repository for the rules in
//! `tests/tidy.rs`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "used by tests alone")]

mod api_response;
mod archive;
mod browser;
mod dedicated_engine;
mod engine;
mod event;
mod external_server;
mod free_port;
mod http;
pub mod images;
mod job;
mod leftovers;
pub mod markdown;
pub mod module_graph;
mod notebook;
mod package_clients;
mod processes;
mod raw_connection;
mod sandbox;
mod secret_host;
mod server;
pub mod source;
mod terminal;
mod websocket;

pub use api_response::Answer;
pub use archive::Archive;
pub use browser::{Browser, Page};
pub use dedicated_engine::DedicatedEngine;
pub use engine::Engine;
pub use event::{Event, Follower};
pub use external_server::{ExternalServer, host_name, respond};
pub use free_port::free_port;
pub use http::http_client;
pub use images::default_images;
pub use job::{Job, shell};
pub use notebook::{empty_notebook, run_cell};
pub use package_clients::{check_clients, git_files};
pub use processes::SandboxProcesses;
pub use raw_connection::RawConnection;
pub use sandbox::Sandbox;
pub use secret_host::SecretHost;
pub use server::{Options, Server, binary, wait_until};
pub use terminal::Terminal;
pub use websocket::{Finished, Said, Socket};
