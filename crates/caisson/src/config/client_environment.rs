//! The environment variables of commands, about the server and the terminal.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use super::environment::variable;

/// The default server.
const DEFAULT_URL: &str = "http://127.0.0.1:8000";

/// The server's URL: from the flag, `CAISSON_URL`, or the default.
pub(crate) fn server_url(flag: Option<&str>) -> String {
    let url = flag.map(ToOwned::to_owned).or_else(named_url).unwrap_or_else(|| DEFAULT_URL.into());
    url.trim_end_matches('/').to_owned()
}

/// The URL in `CAISSON_URL`.
pub(crate) fn named_url() -> Option<String> {
    variable("CAISSON_URL")
}

/// The file with server certificates: from the flag, or `CAISSON_CA`.
pub(crate) fn ca_file(flag: Option<&Path>) -> Option<PathBuf> {
    flag.map(Path::to_owned).or_else(|| variable("CAISSON_CA").map(PathBuf::from))
}

/// The API key: from the file that the flag names, or `CAISSON_KEY`.
pub(crate) fn key(file: Option<&Path>) -> Result<Option<String>> {
    let Some(file) = file else { return Ok(variable("CAISSON_KEY")) };
    let text =
        std::fs::read_to_string(file).with_context(|| format!("reading the key in {}", file.display()))?;
    let key = text.trim();
    ensure!(!key.is_empty(), "{} is empty; it must contain an API key", file.display());
    Ok(Some(key.to_owned()))
}

/// The token of the user's takeover of a sandbox.
pub(crate) fn takeover_token() -> Option<String> {
    variable("CAISSON_TAKEOVER")
}

/// Whether the user has disabled colours (see no-color.org).
pub(crate) fn no_colour() -> bool {
    variable("NO_COLOR").is_some()
}

/// The terminal type, for programs in a sandbox.
pub(crate) fn terminal_kind() -> String {
    variable("TERM").unwrap_or_else(|| "xterm".into())
}

/// Whether this user has a screen, or has chosen a browser (see xdg-open), so that a page can be opened.
pub(crate) fn has_display() -> bool {
    cfg!(target_os = "macos")
        || ["DISPLAY", "WAYLAND_DISPLAY", "BROWSER"].into_iter().any(|name| variable(name).is_some())
}
