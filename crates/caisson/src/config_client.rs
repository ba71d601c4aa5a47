//! What commands take from the environment when they speak with a server and with the terminal.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

/// The server where nobody names one.
const DEFAULT_URL: &str = "http://127.0.0.1:8000";

/// The server that a command speaks with: the flag, then `CAISSON_URL`, then the default.
pub(crate) fn server_url(flag: Option<&str>) -> String {
    let url = flag.map(ToOwned::to_owned).or_else(named_url).unwrap_or_else(|| DEFAULT_URL.into());
    url.trim_end_matches('/').to_owned()
}

/// The server that `CAISSON_URL` names.
pub(crate) fn named_url() -> Option<String> {
    variable("CAISSON_URL")
}

/// The file with certificates of servers: of the flag, or `CAISSON_CA`.
pub(crate) fn ca_file(flag: Option<&Path>) -> Option<PathBuf> {
    flag.map(Path::to_owned).or_else(|| variable("CAISSON_CA").map(PathBuf::from))
}

/// The key for the server: of the file that the flag names, or `CAISSON_KEY`.
pub(crate) fn key(file: Option<&Path>) -> Result<Option<String>> {
    let Some(file) = file else { return Ok(variable("CAISSON_KEY")) };
    let text =
        std::fs::read_to_string(file).with_context(|| format!("reading the key in {}", file.display()))?;
    let key = text.trim();
    ensure!(!key.is_empty(), "{} is empty: it must hold a key", file.display());
    Ok(Some(key.to_owned()))
}

/// The token of a sandbox that the person in front has taken over.
pub(crate) fn takeover_token() -> Option<String> {
    variable("CAISSON_TAKEOVER")
}

/// Whether the person in front wants no colours (see no-color.org).
pub(crate) fn no_colour() -> bool {
    variable("NO_COLOR").is_some()
}

/// What kind of terminal is in front, for the programs inside a sandbox.
pub(crate) fn terminal_kind() -> String {
    variable("TERM").unwrap_or_else(|| "xterm".into())
}

fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}
