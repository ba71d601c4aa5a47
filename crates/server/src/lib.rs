//! HTTP: the only crate that knows it.
//!
//! [`router`] turns an orchestrator into an application, [`serve`] gives it to connections with bounds on time, size
//! and number. Every request first passes the guard (`Host`, `Origin`), every failure becomes a [`Problem`]. What comes
//! out of a job is never served as something that a browser would run.

mod access;
mod admission;
mod answers;
mod arrival;
mod authority;
mod body;
mod connection;
mod cookie_origin;
mod download;
mod error;
mod event_stream;
mod extract;
mod guard;
mod hold;
mod host;
mod openapi;
mod origins;
mod problem;
mod router;
mod routes;
mod serve;
mod settings;
mod tls;
mod uploads;
mod view_only;
mod websocket;

pub use access::{AccessLog, ClientSecret, OidcSettings};
/// Something that can be served.
pub use axum::Router as Application;
pub use error::ServerError;
pub use host::{HostReports, MakeReport};
pub use openapi::openapi;
pub use origins::{exposed_desktop, exposed_notebook, forward_desktop, previews};
pub use problem::Problem;
pub use router::router;
pub use serve::{serve, serve_stream};
pub use settings::ServerSettings;
pub use tls::Certificate;
