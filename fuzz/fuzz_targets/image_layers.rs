//! Image layers: entries with any name, link and whiteout in any order. Nothing is written outside the folder.
#![cfg_attr(fuzzing, no_main)]

use std::io::Read;
use std::path::PathBuf;

use libfuzzer_sys::fuzz_target;
use unpack::{Entry, Kind, Unpacker, WhiteoutMode};

#[path = "parts/tar.rs"]
mod tar_parts;
#[allow(dead_code)]
#[path = "../../crates/image/src/unpack.rs"]
mod unpack;
#[path = "parts/unpack_folder.rs"]
mod unpack_folder;

fuzz_target!(|bytes: &[u8]| {
    let Some((marks, rest)) = bytes.split_first() else { return };
    let folder = unpack_folder::empty();
    let Ok(mut unpacker) = Unpacker::new(&folder, 100_000) else { return };
    unpacker.set_whiteout_mode(if marks & 1 == 0 { WhiteoutMode::Plain } else { WhiteoutMode::Layer });
    let archive = tar_parts::build_tar(rest);
    let mut archive = tar::Archive::new(archive.as_slice());
    for entry in archive.entries().expect("a stream of entries") {
        let Ok(mut entry) = entry else { break };
        let header = entry.header();
        let link = entry.link_name().ok().flatten().map(PathBuf::from).unwrap_or_default();
        let kind = match header.entry_type() {
            tar::EntryType::Directory => Kind::Directory,
            tar::EntryType::Symlink => Kind::Symlink(link),
            tar::EntryType::Link => Kind::HardLink(link),
            tar::EntryType::Regular => Kind::File { bytes: entry.size() },
            _ => Kind::Special,
        };
        let Ok(path) = entry.path().map(PathBuf::from) else { continue };
        let facts =
            Entry { path, kind, mode: header.mode().unwrap_or(0), uid: 0, gid: 70_000, modified_s: 0 };
        let content: &mut dyn Read = &mut entry;
        if unpacker.unpack_entry(&facts, content).is_err() {
            break;
        }
    }
    unpack_folder::assert_untouched(&[]);
});
