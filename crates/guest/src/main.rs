//! The daemon inside every sandbox: processes, files, ports, the egress entrance and the call journal, served on one
//! link. As the sandbox's first process it also reaps what others leave behind.
//!
//! One thread runs the event loop; three more, made at the start, touch files and the X server with the agent's rights;
//! where the agent has the guest's own user id a fifth forks. No thread is made later: a job that has used up its processes must not be able
//! to stop the guest.

mod arguments;
mod awake;
mod calls;
mod connections;
mod desktop;
mod domain;
mod egress;
mod error;
mod fence;
mod files;
mod follow;
mod guest;
mod home;
mod input;
mod kernels;
mod kill;
mod notify;
mod output;
mod pace;
mod ports;
mod process;
mod quiet;
mod reap;
mod relay;
mod requests;
mod serve;
mod services;
mod shelter;
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

/// The error with its causes.
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
