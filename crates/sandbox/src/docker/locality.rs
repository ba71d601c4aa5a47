//! Whether the engine sees the server's files and the file systems that the server mounts.
//!
//! This is tested, not guessed. A socket on this host may lead to an engine elsewhere, and an engine on this host may
//! see a different file system than a server that runs in a container.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use bollard::Docker;
use bollard::models::{ContainerCreateBody, HostConfig, Mount, MountType, SystemInfo};
use bollard::query_parameters::{CreateContainerOptions, RemoveContainerOptions};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::engine::{self, NOT_FOUND};
use super::layout::Layout;
use crate::spec::SandboxId;

/// An image that no engine has.
const NO_IMAGE: &str = "caisson-probe:never";

/// What server and engine share.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Locality {
    /// The same files, including mounts.
    Shared,
    /// Nothing but the engine's API, for this reason.
    Remote(String),
}

/// Tests what server and engine share.
pub(super) async fn find(client: &Docker, info: &SystemInfo, host: &str, layout: &Layout) -> Locality {
    if !host.starts_with("unix://") {
        return Locality::Remote("the engine is reached over a network".into());
    }
    let options = info.security_options.as_deref().unwrap_or_default();
    if options.iter().any(|option| option.contains("rootless") || option.contains("name=userns")) {
        return Locality::Remote("the engine maps user ids".into());
    }
    if !rustix::process::geteuid().is_root() {
        return Locality::Remote("the server does not run as root".into());
    }
    let place = layout.trash().join(format!("probe-{}", SandboxId::generate()));
    let inside = match mount_probe(&place) {
        Ok(inside) => inside,
        Err(error) => {
            unmount_probe(&place);
            return Locality::Remote(format!("the server cannot mount file systems ({error})"));
        }
    };
    let is_seen = probe_mount(client, &inside).await;
    unmount_probe(&place);
    match is_seen {
        Ok(()) => Locality::Shared,
        Err(answer) => Locality::Remote(format!("the engine does not see the server's files ({answer})")),
    }
}

/// Mounts an empty file system that has one directory in it.
fn mount_probe(place: &Path) -> io::Result<PathBuf> {
    fs::create_dir_all(place)?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    mount("caisson-probe", place, "tmpfs", flags, c"size=64k,mode=0700")?;
    let inside = place.join("inside");
    fs::create_dir(&inside)?;
    Ok(inside)
}

fn unmount_probe(place: &Path) {
    let _ = unmount(place, UnmountFlags::DETACH);
    // Best effort: leaving it behind does no harm.
    let _ = fs::remove_dir(place);
}

/// An engine checks the mounts of a new container before it looks for the image. The image does not exist, so nothing
/// is created.
async fn probe_mount(client: &Docker, inside: &Path) -> Result<(), String> {
    let mount = Mount {
        typ: Some(MountType::BIND),
        source: Some(inside.display().to_string()),
        target: Some("/probe".into()),
        read_only: Some(true),
        ..Mount::default()
    };
    let body = ContainerCreateBody {
        image: Some(NO_IMAGE.into()),
        host_config: Some(HostConfig { mounts: Some(vec![mount]), ..HostConfig::default() }),
        ..ContainerCreateBody::default()
    };
    match client.create_container(None::<CreateContainerOptions>, body).await {
        Err(error) if engine::status(&error) == Some(NOT_FOUND) => Ok(()),
        Err(error) => Err(engine::message(&error)),
        Ok(made) => {
            let _ = client.remove_container(&made.id, None::<RemoveContainerOptions>).await;
            Ok(())
        }
    }
}
