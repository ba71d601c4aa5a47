//! A folder in memory for unpacking archives, with a canary file beside it.

use std::fs;
use std::path::PathBuf;
use std::sync::LazyLock;

/// The folder of this process.
pub(crate) static UNPACK_FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = PathBuf::from(format!("/dev/shm/caisson-fuzz-{}", std::process::id()));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("in")).expect("a folder");
    fs::write(folder.join("witness"), "here").expect("a file");
    folder
});

/// Returns an empty folder to unpack into.
pub(crate) fn empty() -> PathBuf {
    let inside = UNPACK_FOLDER.join("in");
    if fs::remove_dir(&inside).is_err() {
        let _ = fs::remove_dir_all(&inside);
    }
    fs::create_dir(&inside).expect("a folder");
    inside
}

/// Asserts that nothing was created or changed beside the folder, except files with these names.
pub(crate) fn assert_untouched(also: &[&str]) {
    assert_only(|name| also.contains(&name));
}

/// Asserts that nothing was created or changed beside the folder, except files with expected names.
pub(crate) fn assert_only(is_expected: impl Fn(&str) -> bool) {
    assert_eq!(fs::read(UNPACK_FOLDER.join("witness")).expect("the witness"), b"here");
    for entry in fs::read_dir(&*UNPACK_FOLDER).expect("the folder") {
        let name = entry.expect("an entry").file_name();
        let name = name.to_string_lossy();
        assert!(["in", "witness"].contains(&&*name) || is_expected(&name), "{name} is new");
    }
}
