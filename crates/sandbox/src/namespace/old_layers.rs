//! Removes what was built for images and is no longer used: skeletons of the host and layers over named images. A new
//! one is built whenever its inputs change, so they pile up.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use launcher::launch_file::LaunchFileContents;

use super::layout::Layout;
use super::named_image::ROOT_FOLDER;

/// Name prefixes of skeletons and layers.
const PREFIXES: [&str; 2] = ["host-", "over-"];
/// Length of the hash in their names.
const KEY_DIGITS: usize = 16;
/// Layers unused by new processes for this long are removed. Building one again takes milliseconds.
const KEPT_FOR: Duration = Duration::from_secs(24 * 3600);

/// Records that a layer was used now.
pub(super) fn mark_used(layer: &Path) -> io::Result<()> {
    File::open(layer)?.set_modified(SystemTime::now())
}

/// Moves old layers that belong to no sandbox to the trash. Call this before the first sandbox is created.
pub(super) fn trash_unused(layout: &Layout) {
    let Ok(used) = used_by_sandboxes(&layout.sandboxes()) else {
        tracing::info!("keeping unused layers: cannot read which layers a sandbox uses");
        return;
    };
    let Ok(entries) = fs::read_dir(layout.images()) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        // An image may happen to have such a name.
        let is_image = path.join(ROOT_FOLDER).exists();
        if is_image
            || !is_layer(&entry.file_name().to_string_lossy())
            || used.contains(&path)
            || !is_old(&path)
        {
            continue;
        }
        let Some(name) = path.file_name() else { continue };
        if let Err(error) = fs::rename(&path, layout.trash().join(name)) {
            tracing::warn!(path = %path.display(), %error, "cannot remove an unused layer");
        }
    }
}

/// Whether a name is a prefix followed by a hash, or by the suffix of an interrupted build.
fn is_layer(name: &str) -> bool {
    let rest = PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
    let is_key = |rest: &str| rest.len() == KEY_DIGITS && rest.bytes().all(|byte| byte.is_ascii_hexdigit());
    rest.is_some_and(|rest| is_key(rest) || rest.ends_with(".partial"))
}

fn is_old(path: &Path) -> bool {
    let modified = fs::symlink_metadata(path).and_then(|metadata| metadata.modified());
    modified.is_ok_and(|time| time.elapsed().is_ok_and(|age| age > KEPT_FOR))
}

fn used_by_sandboxes(sandboxes: &Path) -> io::Result<BTreeSet<PathBuf>> {
    let mut used = BTreeSet::new();
    for entry in fs::read_dir(sandboxes)? {
        let text = LaunchFileContents::read(&entry?.path())?;
        if let Some(spec) = text.map(|text| text.spec()).transpose()?.flatten() {
            used.extend([Some(spec.root.lower), spec.root.over].into_iter().flatten());
        }
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn age(path: &Path, hours: u64) {
        fs::create_dir_all(path).unwrap();
        let then = SystemTime::now() - Duration::from_secs(hours * 3600);
        File::open(path).unwrap().set_modified(then).unwrap();
    }

    #[test]
    fn only_old_unused_layers_are_removed() {
        let folder = tempfile::tempdir().unwrap();
        let layout = Layout::new(folder.path(), &folder.path().join("run"), &folder.path().join("slots"));
        layout.prepare().unwrap();
        let images = layout.images();
        age(&images.join("host-0000000000000001"), 25);
        age(&images.join("host-0000000000000002"), 23);
        age(&images.join("host-7.partial"), 25);
        age(&images.join("over-0000000000000001"), 25);
        age(&images.join("default"), 500);
        age(&images.join("over-engineered"), 500);
        fs::create_dir_all(images.join("host-000000000000000a/rootfs")).unwrap();
        age(&images.join("host-000000000000000a"), 500);
        age(&images.join("host-0000000000000003"), 25);
        mark_used(&images.join("host-0000000000000003")).unwrap();
        let all = fs::read_dir(&images).unwrap().count();
        let sandbox = layout.sandboxes().join("of-another-version");
        fs::create_dir_all(&sandbox).unwrap();
        fs::write(sandbox.join("launch.jsonl"), "{}\n{\"root\":7}\n").unwrap();
        trash_unused(&layout);
        assert_eq!(fs::read_dir(&images).unwrap().count(), all, "what it uses cannot be known");
        fs::remove_dir_all(&sandbox).unwrap();
        trash_unused(&layout);
        let mut left: Vec<_> =
            fs::read_dir(&images).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        left.sort();
        let kept =
            ["host-0000000000000002", "host-0000000000000003", "host-000000000000000a", "over-engineered"];
        assert_eq!(left, [&["default"], &kept[..]].concat());
        assert_eq!(fs::read_dir(layout.trash()).unwrap().count(), 3);
    }
}
