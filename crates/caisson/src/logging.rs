//! The server's own log, on standard error.

use anyhow::{Context, Result};
use tracing_subscriber::EnvFilter;

use crate::config_file::LogFormat;

/// Starts the log.
pub(crate) fn start(level: &str, format: LogFormat) -> Result<()> {
    let filter = EnvFilter::builder()
        .parse(level)
        .with_context(|| format!("log: `{level}` is not a level such as `info` or `debug`"))?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
            builder.with_ansi(colours).with_target(false).init();
        }
        // Flat, so that the job is where everybody looks for it.
        LogFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}
