//! Checking the host: what it supports, what is missing, and how to fix that.

use std::fs;
use std::path::Path;
use std::sync::OnceLock;
use std::thread;

use launcher::cgroup::{Controller, Hierarchy};
use launcher::delegation;
use launcher::spec::Users;
use rustix::process::{Resource, getrlimit};

use super::host_image::Owners;
use super::limits::HostLimits;
use super::users::Identity;
use super::{Inner, NamespaceConfig, disk, landlock_only, probe, users};
use crate::error::SandboxError;
use crate::limits::{LimitSupport as _, host_open_files_share};
use crate::packages;
use crate::spec::{Capabilities, Check, CheckState, Isolation};

/// The AppArmor profile in `deploy/apparmor`.
const PROFILE: &str = "caisson-sandbox";
/// Where its source is: in an installed package, and in the repository.
const PROFILE_FILES: [&str; 2] = ["/etc/apparmor.d/caisson-sandbox", "deploy/apparmor/caisson-sandbox"];
/// The list of loaded profiles, which only root can read, and nobody in a container.
const LOADED_PROFILES: &str = "/sys/kernel/security/apparmor/profiles";
/// Where a thread selects the profile of the program that it will exec.
const EXEC_PROFILE: &str = "/proc/thread-self/attr/apparmor/exec";
/// The first kernel with idmapped mounts on overlayfs layers.
const OLDEST_KERNEL: (u32, u32) = (5, 19);
const LANDLOCK_WITH_SCOPES: i32 = 6;
const LOW_DISK_GIB: u64 = 5;

/// The limits that the host supports.
pub(super) fn offer(config: &NamespaceConfig, identity: &Identity) -> HostLimits {
    let open_files = getrlimit(Resource::Nofile).maximum.unwrap_or(u64::MAX);
    let (found, no_groups, no_disks) = match identity.owners() {
        Owners::AsInside => (Hierarchy::find(), None, disk_obstacle()),
        Owners::Server => (
            delegation::find(),
            Some("no control group is delegated to this user".into()),
            Some("loop devices need root".into()),
        ),
    };
    let hierarchy = found.filter(|hierarchy| match hierarchy.prepare_parent(&config.cgroup_parent) {
        Ok(()) => true,
        Err(error) => {
            tracing::warn!(step = error.step, error = %error.source, "control groups cannot be used");
            false
        }
    });
    let no_groups = no_groups.filter(|_| hierarchy.is_none());
    let host_open_files_share = host_open_files_share();
    HostLimits { hierarchy, no_groups, no_disks, no_pids: None, open_files, host_open_files_share }
}

/// The limits it supports for sandboxes without namespaces.
pub(super) fn offer_without_namespaces(with: &HostLimits, identity: &Identity) -> HostLimits {
    let each = "without a control group only each process by itself is limited";
    let shared = "the kernel counts them together with all others of this user";
    let has_groups = with.hierarchy.is_some();
    HostLimits {
        hierarchy: with.hierarchy.clone(),
        no_groups: (!has_groups).then(|| each.into()),
        no_disks: Some("a disk of its own needs a mount namespace".into()),
        no_pids: (!has_groups && identity.owners() == Owners::Server).then(|| shared.into()),
        open_files: with.open_files,
        host_open_files_share: with.host_open_files_share,
    }
}

pub(crate) fn disk_obstacle() -> Option<String> {
    if let Err(error) = fs::OpenOptions::new().read(true).write(true).open("/dev/loop-control") {
        return Some(format!("there are no loop devices: /dev/loop-control: {error}"));
    }
    disk::format_program().is_none().then(|| "mkfs.ext4 is missing (package e2fsprogs)".into())
}

/// The profile for guests, if the host has AppArmor and the profile is loaded.
pub(super) fn apparmor_profile() -> Option<String> {
    let is_loaded = match fs::read_to_string(LOADED_PROFILES) {
        Ok(list) => list.lines().any(|line| line.starts_with(&format!("{PROFILE} "))),
        Err(_) => can_choose_profile(),
    };
    is_loaded.then(|| PROFILE.into())
}

/// For users who may not list the loaded profiles. Any user may select a profile; the kernel refuses one that does
/// not exist and logs that, so this tries only once. The selection ends with the thread.
fn can_choose_profile() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let choose = || fs::write(EXEC_PROFILE, format!("exec {PROFILE}"));
        let may_choose = Path::new(EXEC_PROFILE).exists() && own_profile().is_none();
        may_choose && matches!(thread::spawn(choose).join(), Ok(Ok(())))
    })
}

/// The profile that already confines this process, such as Docker's in a container.
fn own_profile() -> Option<String> {
    let current = fs::read_to_string("/proc/self/attr/apparmor/current").ok()?;
    Some(current.trim().strip_suffix(" (enforce)")?.to_owned())
}

/// Checks the host. Fails if anything is missing that every sandbox needs.
pub(super) fn preflight(inner: &Inner) -> Result<Capabilities, SandboxError> {
    let checks = checks(inner);
    if let Some(missing) = checks.iter().find(|check| check.state == CheckState::Missing) {
        return Err(SandboxError::HostUnsupported {
            what: format!("{}: {}", missing.name, missing.found),
            remedy: missing.remedy.clone().unwrap_or_default(),
        });
    }
    let (isolation, offer) = match probe::namespaces(inner) {
        Ok(()) => (Isolation::Namespaces, &inner.offer),
        Err(_) => (Isolation::Landlock, &inner.landlock_only_limits),
    };
    Ok(Capabilities { isolation, enforced: offer.enforced(), checks })
}

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
        apparmor(),
        free_disk(&inner.config.state_dir),
    ];
    checks.extend(lingering(&inner.config.run_dir, &inner.identity));
    checks
}

pub(crate) fn good(name: &str, found: impl Into<String>) -> Check {
    Check { name: name.into(), state: CheckState::Good, found: found.into(), remedy: None }
}

pub(crate) fn flawed(state: CheckState, name: &str, found: impl Into<String>, remedy: &str) -> Check {
    Check { name: name.into(), state, found: found.into(), remedy: Some(remedy.into()) }
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
                format!("an ordinary user with lent ids from {first} on, for {count} sandboxes at a time"),
            )
        }
        (Users::Single, obstacle) => {
            let (found, remedy) =
                obstacle.as_ref().map_or(("", ""), |o| (o.found.as_str(), o.remedy.as_str()));
            let found = format!("an ordinary user's own id alone, for the guest and what it runs: {found}");
            flawed(CheckState::Weaker, name, found, remedy)
        }
    }
}

fn namespaces(inner: &Inner) -> Check {
    let name = "namespaces";
    match probe::namespaces(inner) {
        Ok(()) => good(name, "made, with file systems mounted in them"),
        Err(obstacle) if landlock_only::obstacle(inner).is_none() => {
            let found =
                format!("{}; jobs are refused unless they or the operator accept less", obstacle.found);
            flawed(CheckState::Weaker, name, found, &obstacle.remedy)
        }
        Err(obstacle) => flawed(CheckState::Missing, name, &obstacle.found, &obstacle.remedy),
    }
}

fn without_namespaces(inner: &Inner) -> Check {
    let name = "Landlock alone";
    match landlock_only::obstacle(inner) {
        None => good(name, "possible, for those who accept it by name (isolation = \"landlock\")"),
        Some(obstacle) => flawed(CheckState::Weaker, name, obstacle.found, &obstacle.remedy),
    }
}

/// logind removes the socket folder when its user logs out, unless lingering is enabled for the user.
fn lingering(run_dir: &Path, identity: &Identity) -> Option<Check> {
    let name = "after logging out";
    if identity.owners() == Owners::AsInside || !run_dir.starts_with("/run/user") {
        return None;
    }
    let users = fs::read_dir("/var/lib/systemd/linger").ok()?;
    let own = users::own_name().unwrap_or_default();
    if users.flatten().any(|entry| entry.file_name() == own.as_str()) {
        return Some(good(name, "sandboxes go on"));
    }
    let found = format!("{} is removed, and sandboxes are out of reach", run_dir.display());
    Some(flawed(CheckState::Weaker, name, found, "loginctl enable-linger"))
}

fn overlay() -> Check {
    let name = "overlay file system";
    if launcher::has_file_system("overlay") {
        return good(name, "present");
    }
    flawed(CheckState::Missing, name, "not in this kernel", "modprobe overlay")
}

pub(crate) fn program(name: &str, path: &Path) -> Check {
    if path.starts_with("/proc/self/fd") {
        return good(name, "part of this program");
    }
    if path.is_file() {
        return good(name, path.display().to_string());
    }
    flawed(CheckState::Missing, name, format!("{} is missing", path.display()), "start the server anew")
}

fn control_groups(offer: &HostLimits, identity: &Identity) -> Check {
    let name = "control groups";
    let wanted = [Controller::Memory, Controller::Cpu, Controller::Pids, Controller::Freezer];
    let Some(hierarchy) = &offer.hierarchy else {
        let processes = match &offer.no_pids {
            None => "processes are counted by the user id",
            Some(_) => "processes are counted with all others of this user",
        };
        let found = format!("none that can be used; memory and cpu have no limit, {processes}");
        let remedy = match identity.owners() {
            Owners::AsInside => "mount cgroup2 at /sys/fs/cgroup and let the server write to it",
            Owners::Server => "start the server by: systemd-run --user --scope -p Delegate=yes caisson serve",
        };
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

fn disks(inner: &Inner) -> Check {
    let name = "sized disks";
    if let Err(obstacle) = probe::namespaces(inner) {
        let found = "not without namespaces; disks have no limit";
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
            format!("version {version}, which does not know signals and abstract sockets"),
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

fn apparmor() -> Check {
    let name = "AppArmor";
    let enabled = fs::read_to_string("/sys/module/apparmor/parameters/enabled").unwrap_or_default();
    if enabled.trim() != "Y" {
        return good(name, "not on this host; namespaces, Landlock and seccomp do not need it");
    }
    if apparmor_profile().is_some() {
        return good(name, format!("profile {PROFILE} is loaded"));
    }
    if let Some(own) = own_profile() {
        return good(name, format!("this process has profile {own}, and so have its sandboxes"));
    }
    let profile = PROFILE_FILES.iter().find(|file| Path::new(file).exists()).unwrap_or(&PROFILE_FILES[1]);
    let remedy = format!("apparmor_parser -r {profile}");
    flawed(CheckState::Weaker, name, format!("profile {PROFILE} is not loaded"), &remedy)
}

pub(crate) fn free_disk(directory: &Path) -> Check {
    let name = "free disk";
    // A folder that does not exist yet will be on the disk of its closest existing parent.
    let there = directory.ancestors().find(|path| path.exists()).unwrap_or(directory);
    let Ok(figures) = rustix::fs::statvfs(there) else {
        return flawed(
            CheckState::Weaker,
            name,
            format!("{} cannot be read", directory.display()),
            "check the path",
        );
    };
    let gib = (figures.f_bavail.saturating_mul(figures.f_frsize)) >> 30;
    let found = format!("{gib} GiB in {}", directory.display());
    if gib >= LOW_DISK_GIB {
        return good(name, found);
    }
    flawed(CheckState::Weaker, name, found, "free some disk, or move the data directory")
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
    fn every_failed_check_has_a_remedy() {
        for version in [0, 3] {
            let check = landlock(version);
            assert_eq!(check.state, CheckState::Weaker);
            assert!(check.remedy.is_some());
        }
        assert_eq!(landlock(7).state, CheckState::Good);
    }
}
