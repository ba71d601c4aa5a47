//! The server's own log, on standard error.

use anyhow::{Context, Result};
use serde::Deserialize;
use tracing::Metadata;
use tracing_subscriber::filter::{FilterExt, LevelFilter, filter_fn};
use tracing_subscriber::layer::{Layered, SubscriberExt};
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, Registry, fmt, reload};

use crate::telemetry::{self, Exporter, Telemetry};

/// How log lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

/// The registry with the trace layer, below the log's own layer.
type WithTraceLayer = Layered<Option<Box<dyn Layer<Registry> + Send + Sync>>, Registry>;

/// Changes the log level at runtime.
pub(crate) struct LogLevel(reload::Handle<EnvFilter, WithTraceLayer>);

impl LogLevel {
    pub(crate) fn set(&self, level: &str) -> Result<()> {
        self.0.reload(filter(level)?).context("changing the log level")
    }
}

/// Parses a log level. A single word must be a level: as a module name it would silence everything else.
pub(crate) fn filter(level: &str) -> Result<EnvFilter> {
    let is_known = |part: &str| part.contains(['=', '[']) || part.trim().parse::<LevelFilter>().is_ok();
    let parsed = level.split(',').all(is_known).then(|| EnvFilter::builder().parse(level).ok()).flatten();
    parsed.with_context(|| {
        format!(
            "log: `{level}` is not valid; use off, error, warn, info, debug, trace, or a list such as info,server=debug"
        )
    })
}

/// Starts the log, and tracing if a collector is configured. The caller must run the returned exporter.
pub(crate) fn start(
    level: &str,
    format: LogFormat,
    collector: Option<Telemetry>,
) -> Result<(LogLevel, Option<Exporter>)> {
    let (spans, exporter) = collector.map(telemetry::start).unzip();
    let is_traced = |metadata: &Metadata<'_>| metadata.target() == telemetry::TARGET;
    let spans = spans.map(|layer| layer.with_filter(filter_fn(is_traced)).boxed());
    let (filter, handle) = reload::Layer::new(filter(level)?);
    // Trace spans do not appear in log lines, and the log level does not apply to them.
    let filter = filter.and(filter_fn(move |metadata| !is_traced(metadata)));
    let registry = tracing_subscriber::registry().with(spans);
    let lines = fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
            registry.with(lines.with_ansi(colours).with_target(false).with_filter(filter)).init();
        }
        // Flat, so that the job is a top-level field; without the span list, so that the current span appears only
        // once.
        LogFormat::Json => {
            let lines = lines.json().flatten_event(true).with_span_list(false);
            registry.with(lines.with_filter(filter)).init();
        }
    }
    Ok((LogLevel(handle), exporter))
}
