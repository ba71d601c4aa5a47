//! The section `[expose]`: ports on loopback that forward to the newest running job.

use anyhow::{Result, bail, ensure};
use serde::Deserialize;

/// Ports on loopback that forward to the newest running job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawExpose {
    pub(crate) novnc: Option<u16>,
    pub(crate) jupyter: Option<u16>,
    pub(crate) vnc: Option<u16>,
}

/// Checks that no port is 0 or used twice.
pub(crate) fn check(expose: RawExpose) -> Result<RawExpose> {
    let ports = [("novnc", expose.novnc), ("jupyter", expose.jupyter), ("vnc", expose.vnc)];
    for (index, (name, port)) in ports.iter().enumerate() {
        ensure!(*port != Some(0), "expose.{name}: 0 is not a port; leave the key out to switch it off");
        let duplicate = ports.iter().take(index).find(|(_, other)| port.is_some() && other == port);
        if let Some((other, _)) = duplicate {
            bail!("expose.{name}: is the same port as expose.{other}");
        }
    }
    Ok(expose)
}
