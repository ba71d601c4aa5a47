//! The addresses that the API listens on.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context, Result, bail};
use store::LocalDatabase as _;

use super::database::DATABASE;
use super::environment::variable;

/// The addresses from flags, the environment, the file, or the default.
pub(crate) fn pick(flags: &[SocketAddr], file: Option<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>> {
    let picked = named(flags, file)?;
    let twice = |address: &&SocketAddr| picked.iter().filter(|other| other == address).count() > 1;
    // Port 0 is assigned dynamically, so it may be used twice.
    if let Some(address) = picked.iter().filter(|address| address.port() != 0).find(twice) {
        bail!("listen: {address} is listed more than once");
    }
    Ok(picked)
}

fn named(flags: &[SocketAddr], file: Option<Vec<SocketAddr>>) -> Result<Vec<SocketAddr>> {
    if !flags.is_empty() {
        return Ok(flags.to_vec());
    }
    if let Some(text) = variable("CAISSON_LISTEN") {
        return text
            .split(',')
            .map(|part| {
                let part = part.trim();
                part.parse().with_context(|| {
                    format!("CAISSON_LISTEN: `{part}` is not an IP address and port such as 127.0.0.1:8000")
                })
            })
            .collect();
    }
    match file {
        Some(list) if list.is_empty() => bail!("listen: is empty; set at least one address"),
        Some(list) => Ok(list),
        None => Ok(vec![SocketAddr::from(([127, 0, 0, 1], 8000))]),
    }
}

/// Without keys, everyone who can reach the server controls it, so it must not be reachable from outside by accident.
/// Checks the addresses of one setting.
pub(crate) fn check_reach(setting: &str, addresses: &[SocketAddr], data: &Path) -> Result<()> {
    match addresses.iter().find(|address| !address.ip().is_loopback()) {
        Some(address) if !DATABASE.has_keys(data) => bail!(
            "{setting}: {address} is a public address, and this server has no API keys: anyone who can reach it can run \
             anything. Create a key first (`caisson keys add NAME --role admin --data {}`), use a loopback address \
             such as 127.0.0.1, or set --insecure-listen (insecure_listen = true) if something else restricts access",
            data.display()
        ),
        _ => Ok(()),
    }
}
