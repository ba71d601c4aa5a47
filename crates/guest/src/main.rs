//! The daemon inside every sandbox. It serves processes, files, ports, outgoing connections and the call journal over
//! one link. As PID 1 of the sandbox, it also reaps orphaned processes.
//!
//! One thread runs the event loop. Two more access files with the agent's permissions. If the agent has the guest's
//! own user ID, another thread forks the children. All of these start with the guest, because a job that has
//! exhausted its process limit must not be able to stop the guest. Only the thread for the X server starts later,
//! when the desktop is first used.

mod active_time;
mod arguments;
mod connect_redirect;
mod desktop;
mod egress;
mod error;
mod files;
mod follow;
mod forker;
mod guest;
mod home;
mod idle_memory;
mod input;
mod journal;
mod kernels;
mod landlock;
mod landlock_only;
mod output;
mod ports;
mod process;
mod process_mark;
mod process_tree;
mod random;
mod reap;
mod relay;
mod reply;
mod requests;
mod resources;
mod seccomp;
mod serve;
mod services;
mod spawn;
mod start;
mod sys;
mod terminal;

use std::error::Error;
use std::process::ExitCode;

use arguments::Command;
use error::GuestError;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("caisson-guest: {}", describe(&error));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), GuestError> {
    match arguments::parse(std::env::args().skip(1))? {
        Command::Serve(serve) => start::serve(serve),
        Command::Relay { socket } => relay::relay(&socket),
    }
}

/// Formats an error with its causes.
fn describe(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
