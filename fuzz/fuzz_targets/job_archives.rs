//! Archives uploaded with a job: zip, tar, compressed tar; unchanged and with corrected checksums. Nothing is written
//! outside the folder, no link is created, and no more than the limit is unpacked.
#![cfg_attr(fuzzing, no_main)]

use std::fs;
use std::path::Path;

use libfuzzer_sys::fuzz_target;
use unpack::ArchiveKind;
use upload_limits::Room;

#[allow(dead_code)]
#[path = "../../crates/orchestrator/src/driver/archive/tar_extension.rs"]
mod tar_extension;
#[path = "parts/tar.rs"]
mod tar_parts;
#[allow(dead_code)]
#[path = "../../crates/orchestrator/src/intake/unpack.rs"]
mod unpack;
#[allow(dead_code)]
#[path = "parts/unpack_folder.rs"]
mod unpack_folder;
#[allow(dead_code)]
#[path = "../../crates/orchestrator/src/core/upload_limits.rs"]
mod upload_limits;
#[path = "../../crates/orchestrator/src/intake/zip_entry_count.rs"]
mod zip_entry_count;

/// Mirrors the module paths of the orchestrator.
mod core {
    pub(crate) use crate::upload_limits;
}
mod driver {
    pub(crate) mod archive {
        pub(crate) use crate::tar_extension;
    }
}
mod intake {
    pub(crate) use crate::zip_entry_count;
}
/// Replaces the orchestrator's own module, which has more in it.
mod error {
    #[derive(Debug)]
    pub(crate) struct OrchestratorError;

    impl OrchestratorError {
        pub(crate) fn io<E>(_: impl Into<String>) -> impl FnOnce(E) -> Self {
            |_| Self
        }
    }

    pub(crate) fn file_error(_: protocol::FileErrorCode, _: String) -> OrchestratorError {
        OrchestratorError
    }
}
const MOST_BYTES: u64 = 10_000;
const MOST_ENTRIES: u64 = 300;

/// Total size and number of the files in the folder.
fn check(folder: &Path) -> (u64, u64) {
    let (mut bytes, mut count) = (0, 0);
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let facts = entry.path().symlink_metadata().expect("what is there has facts");
        assert!(facts.is_file() || facts.is_dir(), "{}", entry.path().display());
        let (inside, others) = if facts.is_dir() { check(&entry.path()) } else { (facts.len(), 0) };
        bytes += inside;
        count += 1 + others;
    }
    (bytes, count)
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let (kind, content) = match kind % 4 {
        0 => (ArchiveKind::Zip, rest.to_vec()),
        1 => (ArchiveKind::TarGz, rest.to_vec()),
        2 => (ArchiveKind::Tar, rest.to_vec()),
        _ => (ArchiveKind::Tar, tar_parts::build_tar(rest)),
    };
    let folder = unpack_folder::empty();
    let archive = unpack_folder::UNPACK_FOLDER.join("archive");
    fs::write(&archive, content).expect("writing an archive");
    let _ = unpack::unpack(&archive, kind, &folder, Room { bytes: MOST_BYTES, entries: MOST_ENTRIES });
    let (bytes, count) = check(&folder);
    // The unpacker writes one byte over the limit to detect the excess.
    assert!(bytes <= MOST_BYTES + 1 && count <= MOST_ENTRIES, "{bytes} bytes in {count} entries");
    unpack_folder::assert_untouched(&["archive"]);
});
