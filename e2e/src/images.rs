//! Images for tests: the default image, which `./test` builds once per recipe, and small images created on the spot.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::server::binary;

/// A single static binary with a whole userland.
const BUSYBOX: &str = "/bin/busybox";

/// The folder that holds the image `default`: `CAISSON_TEST_IMAGES`, or where `./test` has built it.
#[must_use]
#[track_caller]
pub fn default_images() -> PathBuf {
    let folder = std::env::var_os("CAISSON_TEST_IMAGES").map_or_else(built_by_test, PathBuf::from);
    assert!(
        folder.join("default/rootfs").is_dir(),
        "{} has no image `default`: run `CAISSON_IMAGES={} {} image build`",
        folder.display(),
        folder.display(),
        binary().display()
    );
    folder
}

/// The folder name contains the recipe's digest, so that two checkouts do not rebuild each other's image.
fn built_by_test() -> PathBuf {
    let output = Command::new(binary())
        .args(["image", "list", "--json", "--data", "."])
        .output()
        .expect("listing images");
    let listed: Value = serde_json::from_slice(&output.stdout).expect("a list of images");
    let recipe = listed["recipe"].as_str().expect("the digest of the recipe");
    let cache = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from);
    let cache = cache.or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")));
    cache.expect("HOME is not set").join("caisson-tools").join(format!("images-{recipe}"))
}

/// Creates a root file system like Alpine's: static programs, no bash, no libc, no users, an almost empty `/etc`.
pub fn make_small_root(root: &Path) {
    assert!(Path::new(BUSYBOX).is_file(), "{BUSYBOX} is missing: apt-get install busybox-static");
    for folder in ["bin", "etc", "usr"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    fs::copy(BUSYBOX, root.join("bin/busybox")).unwrap();
    fs::set_permissions(root.join("bin/busybox"), fs::Permissions::from_mode(0o755)).unwrap();
    for name in [
        "sh", "ls", "cat", "id", "whoami", "touch", "mkdir", "rm", "grep", "stat", "true", "sleep", "cp",
        "ln",
    ] {
        symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    fs::write(root.join("etc/os-release"), "PRETTY_NAME=\"Small\"\n").unwrap();
}

/// Adds a small image to a folder of images.
pub fn add_small(images: &Path, name: &str) {
    make_small_root(&images.join(name).join("rootfs"));
}
