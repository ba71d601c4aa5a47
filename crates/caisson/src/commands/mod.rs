//! One file a command.

pub(crate) mod backup;
pub(crate) mod doctor;
pub(crate) mod openapi;
pub(crate) mod progress;
pub(crate) mod run;
pub(crate) mod serve;

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use sandbox::namespace::{NamespaceBackend, NamespaceConfig};

use crate::config::Config;
use crate::embedded;

/// The command could not be carried out.
pub(crate) const EXIT_TROUBLE: u8 = 2;

/// Prints what the command is for. A reader that has seen enough, such as `head`, is no error.
pub(crate) fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(error).context("writing the output")
        }
        _ => Ok(()),
    }
}

/// The backend of this host.
pub(crate) fn backend(config: &Config) -> Result<NamespaceBackend> {
    let programs = embedded::install(&config.data.join("bin"))?;
    let sandboxes: &Path = &config.data;
    let mut settings = NamespaceConfig::new(sandboxes, &config.run_dir, programs.launcher, programs.guest);
    let chosen = &config.sandbox;
    settings.first_uid = chosen.first_uid.unwrap_or(settings.first_uid);
    settings.slots = chosen.slots.unwrap_or(settings.slots);
    settings.ready_disks = chosen.ready_disks.unwrap_or(settings.ready_disks);
    if let Some(parent) = &chosen.cgroup_parent {
        settings.cgroup_parent.clone_from(parent);
    }
    NamespaceBackend::new(settings).context("preparing the sandboxes")
}
