//! Traces for OpenTelemetry, where the configuration names a collector: requests, jobs, calls.
//!
//! The other crates make spans of `tracing` with the target [`TARGET`]; [`layer`] turns those, and no others, into spans with ids, [`export`] sends
//! them in batches over OTLP/HTTP as JSON. Written here because it is two screens, and the usual crates would bring a second HTTP client and a
//! code generator (docs/decisions/0038). A collector that is away costs nothing but the spans: what does not fit the queue is dropped and
//! counted in the log.

mod export;
mod layer;

pub(crate) use export::{Exporter, Telemetry, start};
pub(crate) use layer::SpanLayer;

/// The target of spans that are meant for a collector.
pub(crate) const TARGET: &str = "caisson_trace";
