//! The configuration: reads the file, the environment and flags, and checks them. The only module that reads the
//! environment.

mod addresses;
mod agent;
pub(crate) mod backend;
pub(crate) mod check;
#[cfg(test)]
mod check_tests;
mod checked;
pub(crate) mod client_environment;
mod context;
pub(crate) mod database;
mod default_paths;
pub(crate) mod docker;
mod egress;
pub(crate) mod environment;
mod example;
mod expose;
mod file;
mod http;
mod jobs;
pub(crate) mod limits;
mod listen;
mod load;
mod mcp;
mod model;
mod namespace;
mod oidc;
mod sandbox;
mod tls;
mod written;

pub(crate) use checked::Config;
#[cfg(test)]
pub(crate) use {
    example::{EXAMPLE, known_settings},
    file::RawConfig,
};
