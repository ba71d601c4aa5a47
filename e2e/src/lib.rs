//! Starts the real binary and speaks only HTTP with it. The tests are in `tests/`.
//!
//! [`Server`] is one running binary with a data folder of its own, [`Job`] a job on it, [`Sandbox`] a bare sandbox, [`Follower`] its events,
//! [`Answer`] what came back over HTTP. [`source`] reads the repository for the house rules.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "used by tests alone")]

mod answer;
mod archive;
mod event;
mod job;
mod leftovers;
mod processes;
mod raw;
mod sandbox;
mod server;
mod socket;
pub mod source;

pub use answer::Answer;
pub use archive::Archive;
pub use event::{Event, Follower};
pub use job::{Job, shell};
pub use processes::SandboxProcesses;
pub use raw::RawConnection;
pub use sandbox::Sandbox;
pub use server::{Options, Server, binary, free_port, wait_until};
pub use socket::{Finished, Said, Socket};
