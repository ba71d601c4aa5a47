//! The checks of this host: what it supports, what is missing, and how to fix that.

use std::fs;
use std::path::Path;

use launcher::cgroup::{Controller, Hierarchy};
use launcher::spec::Users;

use super::limits::HostLimits;
use super::users::Identity;
use super::{Inner, apparmor, file_audit, landlock_only, probe, users};
use crate::host::checks::{flawed, free_disk, good, program};
use crate::host::disk::Owners;
use crate::host::packages;
use crate::spec::{Check, CheckState};

/// The first kernel with idmapped mounts on overlayfs layers.
const OLDEST_KERNEL: (u32, u32) = (5, 19);
const LANDLOCK_WITH_SCOPES: i32 = 6;
/// Exists if systemd is the init system; see sd_booted(3).
const SYSTEMD_FOLDER: &str = "/run/systemd/system";

/// Runs all checks.
pub(super) fn checks(inner: &Inner) -> Vec<Check> {
    let offer = if probe::namespaces(inner).is_ok() { &inner.offer } else { &inner.landlock_only_limits };
    let mut checks = vec![
        kernel(),
        user(&inner.identity),
        namespaces(inner),
        without_namespaces(inner),
        overlay(),
        program("guest", &inner.config.guest),
        program("launcher", &inner.config.launcher),
        control_groups(offer, &inner.identity),
        disks(inner),
        landlock(launcher::landlock_version()),
        seccomp(),
        apparmor::check(),
        free_disk(&inner.config.state_dir),
    ];
    checks.extend(file_audit::check(inner));
    checks.extend(lingering(&inner.config.run_dir, &inner.identity));
    checks
}

fn kernel() -> Check {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    match parse_version(&release) {
        Some(version) if version >= OLDEST_KERNEL => good("kernel", release),
        _ => flawed(CheckState::Missing, "kernel", release, "use Linux 5.19 or newer"),
    }
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut parts = release.split(|c: char| !c.is_ascii_digit());
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

fn user(identity: &Identity) -> Check {
    let name = "user ids";
    match (&identity.users, &identity.obstacle) {
        (Users::Ranges(slots), _) => good(name, format!("root: {} ranges of 65536", slots.count)),
        (Users::Lent { slots, .. }, _) => {
            let (first, count) = (slots.first_uid, slots.count);
            good(
                name,
                format!("ordinary user with subordinate ids from {first}, for {count} sandboxes at a time"),
            )
        }
        (Users::Single, obstacle) => {
            let (found, remedy) =
                obstacle.as_ref().map_or(("", ""), |o| (o.found.as_str(), o.remedy.as_str()));
            let found = format!(
                "ordinary user without subordinate ids; the guest and its programs share one id: {found}"
            );
            flawed(CheckState::Weaker, name, found, remedy)
        }
    }
}

fn namespaces(inner: &Inner) -> Check {
    let name = "namespaces";
    match probe::namespaces(inner) {
        Ok(()) => good(name, "available, with mounts"),
        Err(obstacle) if landlock_only::obstacle(inner).is_none() => {
            let found = format!(
                "{}; jobs are refused unless they or the operator accept weaker isolation",
                obstacle.found
            );
            flawed(CheckState::Weaker, name, found, &obstacle.remedy)
        }
        Err(obstacle) => flawed(CheckState::Missing, name, &obstacle.found, &obstacle.remedy),
    }
}

fn without_namespaces(inner: &Inner) -> Check {
    let name = "Landlock alone";
    match landlock_only::obstacle(inner) {
        None => good(name, "available on request (isolation = \"landlock\")"),
        Some(obstacle) => flawed(CheckState::Weaker, name, obstacle.found, &obstacle.remedy),
    }
}

/// logind removes the socket folder when its user logs out, unless lingering is enabled for the user.
fn lingering(run_dir: &Path, identity: &Identity) -> Option<Check> {
    let name = "after logout";
    if identity.owners() == Owners::AsInside || !run_dir.starts_with("/run/user") {
        return None;
    }
    let users = fs::read_dir("/var/lib/systemd/linger").ok()?;
    let own = users::own_name().unwrap_or_default();
    if users.flatten().any(|entry| entry.file_name() == own.as_str()) {
        return Some(good(name, "sandboxes keep running"));
    }
    let found = format!("{} is removed, and sandboxes become unreachable", run_dir.display());
    Some(flawed(CheckState::Weaker, name, found, "loginctl enable-linger"))
}

fn overlay() -> Check {
    let name = "overlay file system";
    if launcher::has_file_system("overlay") {
        return good(name, "present");
    }
    flawed(CheckState::Missing, name, "not in this kernel", "modprobe overlay")
}

fn control_groups(offer: &HostLimits, identity: &Identity) -> Check {
    let name = "cgroups";
    let wanted = [Controller::Memory, Controller::Cpu, Controller::Pids, Controller::Freezer];
    let Some(hierarchy) = &offer.hierarchy else {
        let processes = match &offer.no_pids {
            None => "processes are counted by the user id",
            Some(_) => "processes are counted with all others of this user",
        };
        let found = format!("not usable; memory and CPU have no limit, {processes}");
        let has_systemd = Path::new(SYSTEMD_FOLDER).exists();
        let remedy = cgroup_remedy(identity.owners(), Hierarchy::find().as_ref(), has_systemd);
        return flawed(CheckState::Weaker, name, found, remedy);
    };
    let version = if matches!(hierarchy, Hierarchy::V2 { .. }) { "version 2" } else { "version 1" };
    let controllers = hierarchy.controllers();
    let missing: Vec<_> = wanted.iter().filter(|c| !controllers.contains(c)).map(|c| c.name()).collect();
    if missing.is_empty() {
        return good(name, format!("{version} with memory, cpu, pids and freezer"));
    }
    let found = format!("{version} without {}", missing.join(", "));
    flawed(CheckState::Weaker, name, found, "enable the missing controllers on the kernel's command line")
}

/// How to make cgroups usable, given the hierarchy that this host has mounted.
fn cgroup_remedy(owners: Owners, mounted: Option<&Hierarchy>, has_systemd: bool) -> &'static str {
    match (owners, mounted) {
        (Owners::AsInside, None) => "mount cgroup2 at /sys/fs/cgroup and let the server write to it",
        (Owners::AsInside, Some(_)) => "let the server write to the cgroups below /sys/fs/cgroup",
        (Owners::Server, Some(Hierarchy::V2 { .. })) if has_systemd => {
            "start the server by: systemd-run --user --scope -p Delegate=yes caisson serve"
        }
        // Only version 2 can be delegated to users by systemd.
        (Owners::Server, Some(_)) => {
            "run the server as root, or in cgroups that an administrator has given to this user"
        }
        (Owners::Server, None) => "run the server as root, with cgroup2 mounted at /sys/fs/cgroup",
    }
}

fn disks(inner: &Inner) -> Check {
    let name = "sized disks";
    if let Err(obstacle) = probe::namespaces(inner) {
        let found = "not available without namespaces; disks have no limit";
        return flawed(CheckState::Weaker, name, found, &obstacle.remedy);
    }
    match &inner.offer.no_disks {
        None => good(name, "loop devices and mkfs.ext4"),
        Some(why) => {
            let remedy = match inner.identity.owners() {
                Owners::AsInside => {
                    format!("modprobe loop && {}", packages::install("e2fsprogs", "e2fsprogs"))
                }
                Owners::Server => "start the server as root".into(),
            };
            flawed(CheckState::Weaker, name, format!("{why}; disks have no limit"), &remedy)
        }
    }
}

fn landlock(version: i32) -> Check {
    let name = "Landlock";
    match version {
        LANDLOCK_WITH_SCOPES.. => good(name, format!("version {version}")),
        1.. => flawed(
            CheckState::Weaker,
            name,
            format!("version {version}, which cannot restrict signals and abstract sockets"),
            "use Linux 6.12 or newer",
        ),
        _ => flawed(CheckState::Weaker, name, "absent", "add landlock to the kernel's lsm= parameter"),
    }
}

fn seccomp() -> Check {
    let name = "seccomp";
    match fs::read_to_string("/proc/sys/kernel/seccomp/actions_avail") {
        Ok(actions) if actions.split_whitespace().any(|action| action == "errno") => good(name, "filters"),
        _ => flawed(CheckState::Missing, name, "absent", "use a kernel with CONFIG_SECCOMP_FILTER"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_versions_are_compared_as_numbers() {
        assert!(parse_version("6.18.44-fc").unwrap() > OLDEST_KERNEL);
        assert!(parse_version("5.4.0-generic").unwrap() < OLDEST_KERNEL);
        assert!(parse_version("unknown").is_none());
    }

    #[test]
    fn cgroup_advice_fits_the_host() {
        let (one, two) = (Hierarchy::V1 { roots: Default::default() }, Hierarchy::V2 { root: "/".into() });
        let for_user = |mounted, has_systemd| cgroup_remedy(Owners::Server, mounted, has_systemd);
        assert!(for_user(Some(&two), true).contains("systemd-run --user"));
        for (mounted, has_systemd) in [(Some(&one), true), (Some(&two), false), (None, true)] {
            let remedy = for_user(mounted, has_systemd);
            assert!(!remedy.contains("systemd-run") && remedy.contains("as root"), "{remedy}");
        }
        let for_root = |mounted| cgroup_remedy(Owners::AsInside, mounted, true);
        assert!(for_root(None).contains("mount cgroup2") && !for_root(Some(&one)).contains("mount cgroup2"));
    }

    #[test]
    fn every_failed_check_has_a_remedy() {
        for version in [0, 3] {
            let check = landlock(version);
            assert_eq!(check.state, CheckState::Weaker);
            assert!(check.remedy.is_some());
        }
        assert_eq!(landlock(7).state, CheckState::Good);
    }
}
