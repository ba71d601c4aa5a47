//! Creates the configured backend. The only module that knows which backends exist.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use sandbox::namespace::{FileAuditing, NamespaceBackend, NamespaceConfig};
use sandbox::{Backend, BackendKind};

use super::programs::{self, Programs};
use crate::config::Config;

/// What a backend is created for.
#[derive(Clone, Copy)]
enum Purpose<'a> {
    /// Running sandboxes, in the configured folders.
    Sandboxes,
    /// Inspecting the host; experiments go to this folder.
    Inspection(&'a Path),
}

/// The backend of this server.
pub(crate) fn make(config: &Config) -> Result<Arc<dyn Backend>> {
    // Sandboxes run as their own users, which must be able to read the files created for them. The data folder itself
    // denies access to others.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let programs = programs::install(&config.data.join("bin"))?;
    of_kind(config, programs, Purpose::Sandboxes)
}

/// A backend that only inspects the host and changes nothing outside `scratch`.
pub(crate) fn make_for_inspection(
    config: &Config,
    programs: Programs,
    scratch: &Path,
) -> Result<Arc<dyn Backend>> {
    of_kind(config, programs, Purpose::Inspection(scratch))
}

fn of_kind(config: &Config, programs: Programs, purpose: Purpose<'_>) -> Result<Arc<dyn Backend>> {
    match config.backend {
        BackendKind::Namespace => namespace(config, programs, purpose),
        BackendKind::Docker => docker(config, programs, purpose),
    }
}

fn namespace(config: &Config, programs: Programs, purpose: Purpose<'_>) -> Result<Arc<dyn Backend>> {
    let sandboxes: &Path = &config.data;
    let mut settings = NamespaceConfig::new(sandboxes, &config.run_dir, programs.launcher, programs.guest);
    settings.slots_dir = config.default_paths.slots_dir();
    settings.images_dir.clone_from(&config.images);
    let chosen = &config.namespace;
    settings.first_uid = chosen.first_uid.unwrap_or(settings.first_uid);
    settings.slots = chosen.slots.unwrap_or(settings.slots);
    settings.ready_disks = config.sandbox.ready_disks.unwrap_or(settings.ready_disks);
    settings.disk_reserve_unless_overcommitted =
        (!chosen.disk_overcommit).then_some(config.jobs.disk_reserve_bytes);
    if chosen.list_files == Some(false) {
        settings.file_audit = FileAuditing::Off;
    }
    if let Some(parent) = &chosen.cgroup_parent {
        settings.cgroup_parent.clone_from(parent);
    }
    let made = match purpose {
        Purpose::Sandboxes => NamespaceBackend::new(settings),
        Purpose::Inspection(scratch) => NamespaceBackend::for_inspection(settings, scratch),
    };
    Ok(Arc::new(made.context("preparing the sandboxes")?))
}

#[cfg(feature = "docker")]
fn docker(config: &Config, programs: Programs, purpose: Purpose<'_>) -> Result<Arc<dyn Backend>> {
    use sandbox::docker::{DockerBackend, DockerConfig, LinkChoice, Pull};

    use crate::config::docker::RawLink;

    let mut settings = DockerConfig::new(&config.data, programs.guest);
    let chosen = config.docker.clone();
    settings.host = chosen.host.unwrap_or(settings.host);
    settings.default_image = chosen.image.unwrap_or(settings.default_image);
    settings.images = chosen.images;
    settings.runtime = chosen.runtime;
    settings.pull = if chosen.pull { Pull::Missing } else { Pull::Never };
    settings.link = match chosen.link {
        RawLink::Auto => LinkChoice::Auto,
        RawLink::Socket => LinkChoice::Socket,
        RawLink::Exec => LinkChoice::Exec,
    };
    settings.ready_disks = config.sandbox.ready_disks.unwrap_or(settings.ready_disks);
    let made = match purpose {
        Purpose::Sandboxes => DockerBackend::new(settings),
        Purpose::Inspection(scratch) => DockerBackend::for_inspection(settings, scratch),
    };
    Ok(Arc::new(made.context("preparing the sandboxes")?))
}

#[cfg(not(feature = "docker"))]
fn docker(_config: &Config, _programs: Programs, _purpose: Purpose<'_>) -> Result<Arc<dyn Backend>> {
    anyhow::bail!("this program was built without the Docker backend (cargo feature `docker`)")
}
