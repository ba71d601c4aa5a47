//! Trying what every sandbox needs, once. Numbers in `/proc/sys` do not tell it: some hosts let anybody make a namespace
//! and refuse every mount in it.

use std::fs;
use std::path::Path;

use launcher::LaunchError;
use launcher::spec::{Probe, Users};

use super::users::Obstacle;
use super::{Inner, destroy, owner};

/// Settings of a host that keep ordinary users from namespaces, the value that does, and the command that changes it.
const SWITCHES: [(&str, &str, &str); 3] = [
    (
        "/proc/sys/kernel/apparmor_restrict_unprivileged_userns",
        "1",
        "sysctl -w kernel.apparmor_restrict_unprivileged_userns=0",
    ),
    ("/proc/sys/kernel/unprivileged_userns_clone", "0", "sysctl -w kernel.unprivileged_userns_clone=1"),
    ("/proc/sys/user/max_user_namespaces", "0", "sysctl -w user.max_user_namespaces=15000"),
];
/// Files that tell a container from a host.
const CONTAINER_MARKS: [&str; 2] = ["/.dockerenv", "/run/.containerenv"];

/// Whether namespaces can be made here and file systems be mounted in them. Tried once.
pub(super) fn namespaces(inner: &Inner) -> &Result<(), Obstacle> {
    inner.namespaces.get_or_init(|| attempt(inner).map_err(|error| explain(&error, &inner.identity.users)))
}

fn attempt(inner: &Inner) -> Result<(), LaunchError> {
    let directory = inner.layout.trash().join(format!("probe-{}", std::process::id()));
    let order = Probe { users: inner.identity.users.clone(), directory: directory.clone() };
    let answer = owner::ask(&inner.config.launcher, "--probe", &order);
    destroy::throw_away_probe(inner, &directory);
    match answer {
        Ok(None) => Ok(()),
        Ok(Some(complaint)) => Err(complaint),
        Err(error) => Err(LaunchError::new("starting the launcher", error)),
    }
}

fn explain(error: &LaunchError, users: &Users) -> Obstacle {
    let found = format!("{}: {}", error.step, error.source);
    let set = |(path, value, _): &&(&str, &str, &str)| {
        fs::read_to_string(path).is_ok_and(|text| text.trim() == *value)
    };
    if let Some((_, _, command)) = SWITCHES.iter().find(set) {
        return Obstacle { found, remedy: (*command).into() };
    }
    let in_container = CONTAINER_MARKS.iter().any(|mark| Path::new(mark).exists());
    let remedy = match users {
        _ if in_container => {
            "start the container with --security-opt seccomp=unconfined --security-opt systempaths=unconfined"
        }
        Users::Lent { .. } => "chmod u+s /usr/bin/newuidmap /usr/bin/newgidmap",
        Users::Ranges(_) | Users::Single => "use a kernel with CONFIG_USER_NS and overlayfs",
    };
    Obstacle { found, remedy: remedy.into() }
}
