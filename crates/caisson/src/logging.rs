//! The server's own log, on standard error.

use anyhow::{Context, Result};
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt, reload};

use crate::config_file::LogFormat;

/// Changes the level of the log while it is written.
pub(crate) struct LogLevel(reload::Handle<EnvFilter, Registry>);

impl LogLevel {
    /// Sets another level.
    pub(crate) fn set(&self, level: &str) -> Result<()> {
        self.0.reload(filter(level)?).context("changing the level of the log")
    }
}

/// What a level lets through. A word alone must be a level: as the name of a module it would silence everything else.
pub(crate) fn filter(level: &str) -> Result<EnvFilter> {
    let is_known = |part: &str| part.contains(['=', '[']) || part.trim().parse::<LevelFilter>().is_ok();
    let parsed = level.split(',').all(is_known).then(|| EnvFilter::builder().parse(level).ok()).flatten();
    parsed.with_context(|| {
        format!(
            "log: `{level}` is neither a level (off, error, warn, info, debug, trace) nor a list such as info,server=debug"
        )
    })
}

/// Starts the log.
pub(crate) fn start(level: &str, format: LogFormat) -> Result<LogLevel> {
    let (filter, handle) = reload::Layer::new(filter(level)?);
    let registry = tracing_subscriber::registry().with(filter);
    let lines = fmt::layer().with_writer(std::io::stderr);
    match format {
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
            registry.with(lines.with_ansi(colours).with_target(false)).init();
        }
        // Flat, so that the job is where everybody looks for it.
        LogFormat::Json => registry.with(lines.json().flatten_event(true)).init(),
    }
    Ok(LogLevel(handle))
}
