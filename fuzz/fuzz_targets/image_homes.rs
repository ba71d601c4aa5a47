//! The home directory archive of an image, which the server unpacks as root: entries with any name and link in any
//! order. Nothing is written outside the disk, and nothing outside it changes mode or owner.
#![cfg_attr(fuzzing, no_main)]

use std::fs;
use std::os::unix::fs::MetadataExt;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/sandbox/src/docker/home.rs"]
mod home;
#[path = "parts/tar.rs"]
mod tar_parts;
#[path = "parts/unpack_folder.rs"]
mod unpack_folder;

fuzz_target!(|bytes: &[u8]| {
    let disk = unpack_folder::empty();
    let archive = unpack_folder::UNPACK_FOLDER.join("home.tar");
    fs::write(&archive, tar_parts::build_tar(bytes)).expect("an archive");
    let facts = || {
        ["", "witness"].map(|name| {
            let facts = fs::metadata(unpack_folder::UNPACK_FOLDER.join(name)).expect("its facts");
            (facts.mode(), facts.uid(), facts.gid(), facts.nlink())
        })
    };
    let before = facts();
    let _ = home::unpack_home(&archive, &disk);
    assert_eq!(facts(), before, "what lies beside the disk was changed");
    for entry in fs::read_dir(&disk).expect("the disk").flatten() {
        assert_eq!(entry.file_name(), home::HOME_DIRECTORY, "beside the home");
    }
    unpack_folder::assert_untouched(&["home.tar"]);
});
