//! The HTTP server. No other crate handles HTTP.
//!
//! [`router`] builds the application for an orchestrator. [`serve`] serves it on TCP listeners and limits the time,
//! size and number of connections. Every request first passes the guard, which checks `Host` and `Origin`. Every
//! failure becomes a [`Problem`]. Content that comes out of a job is never served in a form that a browser would
//! execute.

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
/// The type that [`serve`] serves.
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
