//! OpenTelemetry traces of requests, jobs and calls, if the configuration names a collector.
//!
//! The other crates create `tracing` spans with the target [`TARGET`]. [`layer`] turns only those into spans with
//! ids, and [`export`] sends them in batches over OTLP/HTTP as JSON. This is our own code because it is short, and
//! the usual crates would add a second HTTP client and a code generator (docs/decisions/0033-traces). If the collector is
//! down, only spans are lost: spans that do not fit the queue are dropped and counted in the log.

mod export;
mod layer;

pub(crate) use export::{Exporter, Telemetry, start};
pub(crate) use layer::SpanLayer;

/// The target of exported spans.
pub(crate) const TARGET: &str = "caisson_trace";
