//! Removes empty cgroups of sandboxes that ended long ago, for example when launcher and server were killed together.

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use launcher::cgroup::Group;

use super::Inner;
use crate::spec::SandboxId;

/// A younger cgroup may belong to a sandbox that another server on this host is creating.
const LEAST_AGE: Duration = Duration::from_secs(86_400);

/// Removes old cgroups. The kernel refuses to remove a cgroup with processes, so running sandboxes are safe.
pub(super) fn sweep(inner: &Inner) {
    let Some(hierarchy) = inner.offer.hierarchy.clone() else { return };
    let parent = Group { hierarchy, name: inner.config.cgroup_parent.clone() };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let is_over = |id: SandboxId| {
        let is_old = id.made_at().is_some_and(|made| made + LEAST_AGE < now);
        is_old && !inner.layout.sandbox(id).exists()
    };
    for directory in parent.directories() {
        remove_empty(&directory, is_over);
    }
}

fn remove_empty(parent: &Path, is_over: impl Fn(SandboxId) -> bool) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for entry in entries {
        let id = entry.file_name().to_str().and_then(|name| name.parse().ok());
        if id.is_some_and(&is_over) && fs::remove_dir(entry.path()).is_ok() {
            tracing::debug!(group = %entry.path().display(), "removed an empty cgroup");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_empty_cgroups_of_old_sandboxes_are_removed() {
        let parent = tempfile::tempdir().unwrap();
        let [over, alive, kept] = [(); 3].map(|()| SandboxId::generate());
        for name in [over.to_string(), kept.to_string(), "somebody-else".into()] {
            fs::create_dir(parent.path().join(name)).unwrap();
        }
        // A subdirectory stands in for processes: a non-empty directory cannot be removed either.
        fs::create_dir_all(parent.path().join(alive.to_string()).join("process")).unwrap();
        remove_empty(parent.path(), |id| id != kept);
        let entries = fs::read_dir(parent.path()).unwrap();
        let mut left: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        left.sort();
        let mut expected = [alive.to_string(), kept.to_string(), "somebody-else".into()];
        expected.sort();
        assert_eq!(left, expected);
    }

    #[test]
    fn sandbox_id_contains_its_creation_time() {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let made = SandboxId::generate().made_at().unwrap();
        assert!(made.abs_diff(now) < LEAST_AGE, "{made:?} {now:?}");
    }
}
