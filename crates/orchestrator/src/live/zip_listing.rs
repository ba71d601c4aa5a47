//! Directory listings of a finished job, read from its output.zip. A listing takes bounded memory, whatever the job's
//! files are called: the last names in sort order are dropped while it is built.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use protocol::{FileErrorCode, FileKind};
use zip::ZipArchive;

use crate::driver::is_own;
use crate::error::OrchestratorError;
use crate::live::files::{FileItem, FileListing, MAX_LISTED, file_error};

/// Maximum total size of the names and link targets of a listing.
const MAX_LISTED_BYTES: usize = 8 * 1024 * 1024;
/// Maximum length of a link target.
const MAX_LINK_BYTES: u64 = 4096;

/// Opens the output.zip of a job.
pub(crate) fn open_zip(path: &Path) -> Result<ZipArchive<File>, OrchestratorError> {
    let file = File::open(path).map_err(OrchestratorError::io("opening output.zip"))?;
    ZipArchive::new(file)
        .map_err(|error| OrchestratorError::io("reading output.zip")(io::Error::other(error)))
}

/// The entries below a directory down to `depth`, sorted by name.
pub(crate) fn list_zip(zip: &Path, path: String, depth: u32) -> Result<FileListing, OrchestratorError> {
    list(zip, path, depth, Room { entries: MAX_LISTED as usize, bytes: MAX_LISTED_BYTES })
}

/// Limits of a listing.
#[derive(Clone, Copy)]
struct Room {
    entries: usize,
    bytes: usize,
}

fn list(zip: &Path, path: String, depth: u32, room: Room) -> Result<FileListing, OrchestratorError> {
    let mut archive = open_zip(zip)?;
    let prefix = if path.is_empty() { String::new() } else { format!("{path}/") };
    let mut listed: BTreeMap<String, FileItem> = BTreeMap::new();
    let (mut bytes, mut truncated) = (0, false);
    let mut exists = path.is_empty();
    for index in 0..archive.len() {
        let Some(Ok(name)) = archive.name_for_index(index) else { continue };
        let is_directory = name.ends_with('/');
        let name = name.trim_end_matches('/');
        exists |= is_directory && name == path;
        let Some(rest) = name.strip_prefix(&prefix) else { continue };
        exists = true;
        // Zips of earlier versions contain our own folder. It is listed if its path is given.
        let is_hidden = is_own(name) && !is_own(&path);
        if rest.is_empty() || is_hidden || rest.split('/').count() > depth as usize {
            continue;
        }
        // Skip entries that would be dropped at once.
        if truncated && listed.last_key_value().is_none_or(|(last, _)| name >= last.as_str()) {
            continue;
        }
        let name = name.to_owned();
        let Some(item) = item(&mut archive, index, name.clone()) else { continue };
        bytes += weight(&item);
        if let Some(other) = listed.insert(name, item) {
            bytes -= weight(&other);
        }
        while listed.len() > room.entries || bytes > room.bytes {
            let Some((_, dropped)) = listed.pop_last() else { break };
            bytes -= weight(&dropped);
            truncated = true;
        }
    }
    if !exists {
        return Err(file_error(FileErrorCode::NotFound, format!("there is no directory `{path}`")));
    }
    Ok(FileListing { path, entries: listed.into_values().collect(), truncated })
}

fn weight(item: &FileItem) -> usize {
    2 * item.path.len() + item.link_target.as_ref().map_or(0, String::len)
}

fn item(archive: &mut ZipArchive<File>, index: usize, path: String) -> Option<FileItem> {
    let mut file = archive.by_index(index).ok()?;
    let kind = if file.is_dir() {
        FileKind::Directory
    } else if file.is_symlink() {
        FileKind::Symlink
    } else {
        FileKind::File
    };
    let mode = file.unix_mode().unwrap_or(0o644) & 0o777;
    let mut link_target = None;
    if kind == FileKind::Symlink {
        let mut target = String::new();
        link_target = (&mut file).take(MAX_LINK_BYTES).read_to_string(&mut target).ok().map(|_| target);
    }
    Some(FileItem { path, kind, size: file.size(), mode, modified_ms: 0, link_target })
}

#[cfg(test)]
mod tests {
    use super::*;
    use zip::write::SimpleFileOptions;

    fn zip_of(names: &[&str]) -> tempfile::NamedTempFile {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut writer = zip::ZipWriter::new(file.reopen().unwrap());
        for name in names {
            match name.strip_suffix('/') {
                Some(directory) => writer.add_directory(directory, SimpleFileOptions::default()).unwrap(),
                None => writer.start_file(*name, SimpleFileOptions::default()).unwrap(),
            }
        }
        writer.finish().unwrap();
        file
    }

    fn paths(listing: &FileListing) -> Vec<&str> {
        listing.entries.iter().map(|entry| entry.path.as_str()).collect()
    }

    #[test]
    fn zip_listing_is_sorted_and_includes_empty_directories() {
        let zip = zip_of(&["b", "a/", "a/two", "a/one", "a/in/three", "empty/", ".caisson/manifest.json"]);
        let listing = list_zip(zip.path(), String::new(), 1).unwrap();
        assert_eq!(paths(&listing), ["a", "b", "empty"]);
        assert!(!listing.truncated);
        assert_eq!(paths(&list_zip(zip.path(), ".caisson".into(), 1).unwrap()), [".caisson/manifest.json"]);
        assert_eq!(paths(&list_zip(zip.path(), "a".into(), 9).unwrap()), ["a/in/three", "a/one", "a/two"]);
        assert!(list_zip(zip.path(), "empty".into(), 1).unwrap().entries.is_empty());
        assert_eq!(list_zip(zip.path(), "none".into(), 1).unwrap_err().code(), "file_not_found");
    }

    #[test]
    fn truncated_zip_listing_keeps_the_first_names() {
        let zip = zip_of(&["e", "a", "d", "b", "c"]);
        let by_number = Room { entries: 3, bytes: 1000 };
        let listing = list(zip.path(), String::new(), 1, by_number).unwrap();
        assert_eq!((paths(&listing), listing.truncated), (vec!["a", "b", "c"], true));
        let long: Vec<String> = ["z", "x", "y"].iter().map(|name| name.repeat(100)).collect();
        let zip = zip_of(&long.iter().map(String::as_str).collect::<Vec<_>>());
        let by_bytes = Room { entries: 100, bytes: 450 };
        let listing = list(zip.path(), String::new(), 1, by_bytes).unwrap();
        assert_eq!(
            (paths(&listing), listing.truncated),
            (vec!["x".repeat(100).as_str(), "y".repeat(100).as_str()], true)
        );
    }
}
