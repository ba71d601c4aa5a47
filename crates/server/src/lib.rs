//! The HTTP server. No other crate handles HTTP.
//!
//! [`router`] builds the application for an orchestrator. [`serve`] serves it on TCP listeners and limits the time,
//! size and number of connections. Every request first passes the guard, which checks `Host` and `Origin`. Every
//! failure becomes a [`Problem`]. Content that comes out of a job is never served in a form that a browser would
//! execute.

mod access;
mod access_log;
mod answers;
mod clock;
mod error;
mod extract;
mod guard;
mod host_reports;
mod openapi;
mod origins;
mod problem;
mod router;
mod routes;
mod serve;
mod settings;
mod streams;

pub use access_log::AccessLog;
/// The type that [`serve`] serves.
pub use axum::Router as Application;
pub use error::ServerError;
pub use host_reports::{HostReports, ReportFn};
pub use origins::{exposed_desktop, exposed_notebook, forward_desktop, previews};
pub use problem::Problem;
pub use router::{openapi, router};
pub use serve::{serve, serve_stream};
pub use settings::{Certificate, ClientSecret, OidcSettings, ServerSettings};
