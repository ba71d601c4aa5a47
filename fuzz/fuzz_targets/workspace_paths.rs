//! Paths: the guest's resolver, which opens paths that the host names, and the host's own validation. In a workspace
//! full of symlinks to the outside, nothing outside is ever opened or created.
#![cfg_attr(fuzzing, no_main)]

use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use resolve::{Parents, RelativePath, Root, Workspace};
use rustix::fs::OFlags;

#[allow(dead_code)]
#[path = "../../crates/guest/src/error.rs"]
mod error;
#[path = "../../crates/guest/src/files/errors.rs"]
mod errors;
#[allow(dead_code)]
#[path = "../../crates/guest/src/files/resolve.rs"]
mod resolve;
/// Mirrors the module path in the guest.
mod files {
    pub(crate) use crate::errors;
}

/// The workspace, in a separate folder in memory.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = PathBuf::from(format!("/dev/shm/caisson-fuzz-{}", std::process::id()));
    let inside = folder.join("workspace");
    std::fs::create_dir_all(inside.join("a/b")).expect("folders");
    std::fs::write(folder.join("secret"), "secret").expect("a file");
    std::fs::write(inside.join("f"), "f").expect("a file");
    for (name, target) in [
        ("up", ".."),
        ("root", "/"),
        ("l", "a/b"),
        ("loop", "loop"),
        ("s", "../secret"),
        ("a/u", "../../secret"),
        ("p", "/proc/self/root"),
        ("m", "/proc/self/cwd"),
        ("a/b/x", "../.."),
        ("a/b/o", "../../../secret"),
    ] {
        std::os::unix::fs::symlink(target, inside.join(name)).expect("a link");
    }
    folder
});
static WORKSPACE: LazyLock<Workspace> =
    LazyLock::new(|| Workspace::open(&FOLDER.join("workspace")).expect("the workspace"));

fn assert_inside(fd: impl AsRawFd, path: &[u8]) {
    let real =
        std::fs::read_link(format!("/proc/self/fd/{}", fd.as_raw_fd())).expect("a descriptor has a path");
    assert!(
        real.starts_with(FOLDER.join("workspace")),
        "{} opens {}",
        String::from_utf8_lossy(path),
        real.display()
    );
}

fuzz_target!(|bytes: &[u8]| {
    if let Ok(text) = std::str::from_utf8(bytes)
        && let Ok(clean) = job::workspace_path(text)
    {
        let parts = Path::new(&clean).components();
        assert!(parts.clone().count() > 0 && !clean.starts_with('/') && !clean.contains('\0'), "{clean}");
        assert!(parts.into_iter().all(|part| matches!(part, std::path::Component::Normal(_))), "{clean}");
    }
    let Ok(path) = RelativePath::parse(bytes, Root::Allowed) else { return };
    assert_eq!(RelativePath::parse(path.to_bytes(), Root::Allowed).expect("a path that was cleaned"), path);
    for flags in [OFlags::PATH, OFlags::RDONLY, OFlags::RDWR] {
        if let Ok(fd) = WORKSPACE.open_existing(&path, flags) {
            assert_inside(fd, bytes);
        }
    }
    if let Ok(place) = WORKSPACE.place("looking at", &path, Parents::MustExist) {
        assert_inside(place.parent, bytes);
        assert!(!place.name.as_encoded_bytes().contains(&b'/'));
    }
    assert!(FOLDER.join("secret").exists());
});
