//! Talks to a server: requests, event streams, interactive commands.

pub(crate) mod described;
pub(crate) mod encoding;
pub(crate) mod events;
pub(crate) mod exec;
mod http_client;
pub(crate) mod ids;
pub(crate) mod websocket;

pub(crate) use http_client::{Client, InProcess, RequestHandler};
