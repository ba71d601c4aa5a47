//! The workspace archive that the guest sends at the end of a job: a tar stream that becomes the job's zip. No name
//! in the zip leads outside, and the zip is readable.
#![cfg_attr(fuzzing, no_main)]

use std::io;

use archive::{TarSource, ZipMetadata, zip_from_tar};
use data_folder::result_files::{MANIFEST, is_recorded_in_workspace};
use libfuzzer_sys::fuzz_target;

#[allow(dead_code, unused_imports)]
#[path = "../../crates/orchestrator/src/driver/archive/mod.rs"]
mod archive;
#[allow(dead_code)]
#[path = "parts/data_folder.rs"]
mod data_folder;
#[path = "parts/tar.rs"]
mod tar_parts;
#[allow(dead_code)]
#[path = "parts/unpack_folder.rs"]
mod unpack_folder;

/// Replaces the orchestrator's own module.
mod egress {
    #[derive(Clone, serde::Serialize)]
    pub(crate) struct Download;
    #[derive(Default)]
    pub(crate) struct Provenance {
        pub(crate) downloads: Vec<Download>,
        pub(crate) learned: Option<String>,
    }
}

impl TarSource for &[u8] {
    fn finish(self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

fuzz_target!(|bytes: &[u8]| {
    let Some((kind, rest)) = bytes.split_first() else { return };
    let tar = if kind & 1 == 0 { tar_parts::build_tar(rest) } else { rest.to_vec() };
    let target = unpack_folder::UNPACK_FOLDER.join("output.zip");
    let about =
        ZipMetadata { job: "job".into(), source: "workspace", provenance: egress::Provenance::default() };
    if let Ok(artifact) = zip_from_tar(tar.as_slice(), &target, &about) {
        assert_eq!((artifact.name.as_str(), artifact.source.as_str()), ("output.zip", "workspace"));
        assert!(artifact.bytes > 0 && artifact.sha256.len() == 64 && artifact.files < 1000);
        let mut zip = zip::ZipArchive::new(std::fs::File::open(&target).expect("the zip")).expect("a zip");
        for index in 0..zip.len() {
            let entry = zip.by_index(index).expect("an entry");
            let name = entry.name().expect("a name").into_owned();
            assert!(!name.starts_with('/') && !name.split('/').any(|part| part == ".."), "{name}");
        }
    }
    unpack_folder::assert_only(|name| {
        let name = name.strip_suffix(".partial").unwrap_or(name);
        ["output.zip", MANIFEST].contains(&name) || is_recorded_in_workspace(name)
    });
});
