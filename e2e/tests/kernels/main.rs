//! Code in live kernels, notebooks, dev servers and terminals, on the default image.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod code;
mod expose;
mod kernel_loss;
mod notebook;
mod ports;
mod takeover;
mod terminal;

use e2e::{Options, Server, default_images};

/// Starts a server that has the default image.
fn server() -> Server {
    server_with("")
}

fn server_with(config: &str) -> Server {
    let images = default_images();
    let config = format!("images = {:?}\n{config}", images.display().to_string());
    Server::start_with(Options { config, ..Options::default() })
}
