//! Cgroups for an unprivileged user: a subtree that root has delegated to that user.
//!
//! The delegated root is the cgroup of this process or, for v2, one of its ancestors in which the user may create
//! cgroups and enable controllers for them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::cgroup::{Controller, Hierarchy};

/// Where the server moves itself if its own cgroup must be empty before it can have child cgroups with limits.
const SERVER_CGROUP: &str = "caisson-server";
const WANTED: [&str; 3] = ["memory", "cpu", "pids"];

/// Finds cgroups in which this process may create others; `None` if nothing was delegated.
#[must_use]
pub fn find() -> Option<Hierarchy> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let own = current_cgroups(&mounts, &fs::read_to_string("/proc/self/cgroup").ok()?);
    if let Some(group) = &own.version_2
        && let Some(root) =
            group.ancestors().take_while(|group| is_delegated(group)).find(|group| enable_controllers(group))
    {
        return Some(Hierarchy::V2 { root: root.to_path_buf() });
    }
    let is_usable = |group: &PathBuf| may_write(group) && may_write(&group.join("tasks"));
    let roots: BTreeMap<_, _> = own.version_1.into_iter().filter(|(_, group)| is_usable(group)).collect();
    (!roots.is_empty()).then_some(Hierarchy::V1 { roots })
}

#[derive(Debug, Default, PartialEq, Eq)]
struct CurrentCgroups {
    version_2: Option<PathBuf>,
    version_1: BTreeMap<Controller, PathBuf>,
}

/// The directories of the cgroups that a process is in.
fn current_cgroups(mounts: &str, memberships: &str) -> CurrentCgroups {
    let mut found = CurrentCgroups::default();
    for line in mounts.lines() {
        let Some((before, after)) = line.split_once(" - ") else { continue };
        let mut before = before.split(' ').skip(3);
        let (Some(root), Some(target)) = (before.next(), before.next()) else { continue };
        let mut kind = after.split(' ');
        let (kind, options) = (kind.next(), kind.nth(1).unwrap_or_default());
        let directory_of = |names: &str| {
            let path = membership(memberships, names)?;
            let below = Path::new(path).strip_prefix(root).ok()?;
            Some(Path::new(target).join(below))
        };
        match kind {
            Some("cgroup2") => found.version_2 = found.version_2.take().or_else(|| directory_of("")),
            Some("cgroup") => {
                for controller in Controller::ALL {
                    if options.split(',').any(|option| option == controller.name())
                        && let Some(group) = directory_of(controller.name())
                    {
                        found.version_1.insert(controller, group);
                    }
                }
            }
            _ => {}
        }
    }
    found
}

/// The path of a cgroup in the hierarchy of a controller; the empty name means v2.
fn membership<'a>(memberships: &'a str, controller: &str) -> Option<&'a str> {
    memberships.lines().find_map(|line| {
        let mut parts = line.splitn(3, ':').skip(1);
        let (names, path) = (parts.next()?, parts.next()?);
        names.split(',').any(|name| name == controller).then_some(path)
    })
}

fn may_write(path: &Path) -> bool {
    access(path, Access::WRITE_OK).is_ok()
}

fn is_delegated(group: &Path) -> bool {
    may_write(group)
        && ["cgroup.procs", "cgroup.subtree_control"].iter().all(|name| may_write(&group.join(name)))
}

/// Enables controllers for the children of this cgroup. A cgroup that contains processes cannot do that; if this
/// process is the only one, it moves into a child cgroup first.
fn enable_controllers(group: &Path) -> bool {
    let owned = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    if !WANTED.iter().all(|name| owned.split_whitespace().any(|word| word == *name)) {
        return false;
    }
    let enable = || fs::write(group.join("cgroup.subtree_control"), "+memory +cpu +pids").is_ok();
    enable() || (move_to_child_cgroup(group) && enable())
}

fn move_to_child_cgroup(group: &Path) -> bool {
    let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
    let own = std::process::id().to_string();
    if processes.trim() != own {
        return false;
    }
    let aside = group.join(SERVER_CGROUP);
    // The directory may exist from an earlier server.
    let _ = fs::create_dir(&aside);
    fs::write(aside.join("cgroup.procs"), own).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_cgroup_is_found_in_every_hierarchy() {
        let mounts = "\
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
36 31 0:33 /box /sys/fs/cgroup/cpu,cpuacct rw shared:3 - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
";
        let found = current_cgroups(mounts, "4:memory:/user/me\n3:cpu,cpuacct:/box/me\n0::/user.slice/a:b\n");
        assert_eq!(found.version_2.as_deref(), Some(Path::new("/sys/fs/cgroup/unified/user.slice/a:b")));
        assert_eq!(found.version_1[&Controller::Memory], Path::new("/sys/fs/cgroup/memory/user/me"));
        assert_eq!(found.version_1[&Controller::Cpu], Path::new("/sys/fs/cgroup/cpu,cpuacct/me"));
        assert!(!found.version_1.contains_key(&Controller::Pids));
    }
}
