//! The home directory archive of an image, which the server unpacks as root: entries with any name and link in any
//! order. Nothing is written outside the disk, and nothing outside it changes mode or owner.
#![cfg_attr(fuzzing, no_main)]

use std::fs;
use std::os::unix::fs::MetadataExt;

use libfuzzer_sys::fuzz_target;

#[path = "../../crates/sandbox/src/docker/home.rs"]
mod home;
#[path = "parts/room.rs"]
mod room;
#[path = "parts/tar.rs"]
mod tar_parts;

fuzz_target!(|bytes: &[u8]| {
    let disk = room::empty();
    let archive = room::ROOM.join("home.tar");
    fs::write(&archive, tar_parts::tar_of(bytes)).expect("an archive");
    let facts = || {
        ["", "witness"].map(|name| {
            let facts = fs::metadata(room::ROOM.join(name)).expect("its facts");
            (facts.mode(), facts.uid(), facts.gid(), facts.nlink())
        })
    };
    let before = facts();
    let _ = home::unpack_home(&archive, &disk);
    assert_eq!(facts(), before, "what lies beside the disk was changed");
    for entry in fs::read_dir(&disk).expect("the disk").flatten() {
        assert_eq!(entry.file_name(), home::HOME_DIRECTORY, "beside the home");
    }
    room::assert_untouched(&["home.tar"]);
});
