//! HTTP: the only crate that knows it.
//!
//! [`router`] turns an orchestrator into an application, [`serve`] gives it to connections with bounds on time, size
//! and number. Every request first passes the guard (`Host`, `Origin`), every failure becomes a [`Problem`]. What comes
//! out of a job is never served as something that a browser would run.

mod answers;
mod body;
mod connection;
mod download;
mod error;
mod event_stream;
mod extract;
mod guard;
mod openapi;
mod problem;
mod router;
mod routes;
mod serve;
mod settings;
mod uploads;
mod websocket;

pub use error::ServerError;
pub use openapi::openapi;
pub use problem::Problem;
pub use router::router;
pub use serve::serve;
pub use settings::ServerSettings;
