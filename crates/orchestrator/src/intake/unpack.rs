//! Unpacks archives that are uploaded for a job. They are treated as hostile: links, devices, paths that leave the
//! workspace and decompression bombs are refused.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::Path;

use flate2::read::MultiGzDecoder;
use job::workspace_path;
use protocol::FileErrorCode;
use tar::EntryType;
use zip::ZipArchive;

use crate::core::upload_limits::{MAX_FILES, Room, too_large};
use crate::driver::archive::tar_extension::{ExtensionError, PaxHeader};
use crate::error::OrchestratorError;
use crate::error::file_error;
use crate::intake::zip_entry_count;

/// Maximum overhead of headers and padding in a tar, for each file that is allowed.
const OVERHEAD_BYTES: u64 = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArchiveKind {
    Zip,
    /// An uncompressed tar.
    Tar,
    /// A tar compressed with gzip.
    TarGz,
}

impl ArchiveKind {
    /// The kind according to the file name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        let name = name.to_ascii_lowercase();
        if name.ends_with(".zip") {
            Some(Self::Zip)
        } else if name.ends_with(".tar") {
            Some(Self::Tar)
        } else if name.ends_with(".tar.gz") || name.ends_with(".tgz") {
            Some(Self::TarGz)
        } else {
            None
        }
    }
}

/// What may still be unpacked from an archive.
struct Budget {
    room: Room,
    /// Remaining entries of the archive, whether or not they are unpacked.
    entries: u64,
    /// The bytes that were free at the start.
    whole: u64,
}

impl Budget {
    fn take_entry(&mut self) -> Result<(), OrchestratorError> {
        self.entries = self.entries.checked_sub(1).ok_or_else(too_many)?;
        Ok(())
    }

    /// Copies and counts the actual content, whatever size the archive claims.
    fn copy(&mut self, from: &mut impl Read, to: &mut File) -> Result<(), OrchestratorError> {
        let copied = io::copy(&mut from.take(self.room.bytes.saturating_add(1)), to).map_err(|error| {
            match error.kind() {
                // The errors that the archive readers return for damaged content.
                io::ErrorKind::InvalidData
                | io::ErrorKind::InvalidInput
                | io::ErrorKind::UnexpectedEof
                | io::ErrorKind::FileTooLarge
                | io::ErrorKind::Other => broken_tar(error, self.whole),
                _ => OrchestratorError::io("unpacking an archive")(error),
            }
        })?;
        self.room.bytes = self.room.bytes.checked_sub(copied).ok_or_else(|| too_large(self.whole))?;
        Ok(())
    }
}

/// Unpacks an archive into a folder that contains no links.
pub(crate) fn unpack(
    archive: &Path,
    kind: ArchiveKind,
    target: &Path,
    room: Room,
) -> Result<(), OrchestratorError> {
    let file = File::open(archive).map_err(OrchestratorError::io("opening an uploaded archive"))?;
    let whole = room.bytes;
    let mut budget = Budget { room, entries: MAX_FILES, whole };
    match kind {
        ArchiveKind::Zip => unpack_zip(file, target, &mut budget),
        ArchiveKind::Tar => unpack_tar(BufReader::new(file), target, &mut budget),
        ArchiveKind::TarGz => unpack_tar(MultiGzDecoder::new(BufReader::new(file)), target, &mut budget),
    }
}

fn broken(error: impl std::fmt::Display) -> OrchestratorError {
    file_error(FileErrorCode::Other, format!("the archive cannot be read: {error}"))
}

/// Like [`broken`], for a tar, whose reader also fails when the size limit is reached.
fn broken_tar(error: io::Error, whole: u64) -> OrchestratorError {
    if error.kind() == io::ErrorKind::FileTooLarge { too_large(whole) } else { broken(error) }
}

fn too_many() -> OrchestratorError {
    file_error(FileErrorCode::TooLarge, format!("the archive has more than {MAX_FILES} entries"))
}

fn refused(name: &str, why: &str) -> OrchestratorError {
    file_error(FileErrorCode::OutsideWorkspace, format!("the archive has `{name}`, which {why}"))
}

/// The path of an entry in the workspace; `None` for the root of the archive.
fn place(name: &str) -> Result<Option<String>, OrchestratorError> {
    if name.trim_matches(['/', '.']).is_empty() && !name.contains("..") {
        return Ok(None);
    }
    if name.starts_with('/') || name.contains('\\') {
        return Err(refused(name, "is no relative path"));
    }
    workspace_path(name).map(Some).map_err(|_| refused(name, "leads out of the workspace"))
}

fn unpack_zip(mut file: File, target: &Path, budget: &mut Budget) -> Result<(), OrchestratorError> {
    let claimed = zip_entry_count::most_entries(&mut file)
        .map_err(OrchestratorError::io("reading an uploaded archive"))?;
    if claimed > budget.entries {
        return Err(too_many());
    }
    let mut archive = ZipArchive::new(file).map_err(broken)?;
    // Refuse an archive that declares itself too large, before writing anything to disk.
    if archive.decompressed_size().is_some_and(|claimed| claimed > u128::from(budget.room.bytes)) {
        return Err(too_large(budget.whole));
    }
    for index in 0..archive.len() {
        budget.take_entry()?;
        let mut entry = archive.by_index(index).map_err(broken)?;
        let name = entry.name().map_err(broken)?.into_owned();
        let Some(path) = place(&name)? else { continue };
        if entry.is_symlink() {
            return Err(refused(&name, "is a link"));
        }
        if entry.is_dir() {
            budget.room.make_directory(target, &path)?;
            continue;
        }
        let mode = entry.unix_mode().unwrap_or(0o644);
        let mut out = budget.room.make_file(target, &path, mode)?;
        budget.copy(&mut entry, &mut out)?;
    }
    Ok(())
}

/// Limits the output of a decompressor. Skipped entries count too, because they must be decompressed as well.
struct LimitedReader<R> {
    inner: R,
    left: u64,
}

impl<R: Read> Read for LimitedReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let most = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let count = self.inner.read(&mut buffer[..most])?;
        self.left -= count as u64;
        Ok(count)
    }
}

/// Reads headers one by one, including extension headers, so that a long one is never read into memory.
fn unpack_tar(reader: impl Read, target: &Path, budget: &mut Budget) -> Result<(), OrchestratorError> {
    let whole = budget.whole;
    let left = whole.saturating_add(MAX_FILES * OVERHEAD_BYTES);
    let mut archive = tar::Archive::new(LimitedReader { inner: reader, left });
    let mut next = PaxHeader::default();
    for entry in archive.entries().map_err(broken)?.raw(true) {
        budget.take_entry()?;
        let mut entry = entry.map_err(|error| broken_tar(error, whole))?;
        let is_extension = next.hear(&mut entry).map_err(|error| match error {
            ExtensionError::TooLong(problem) => file_error(FileErrorCode::TooLarge, problem),
            ExtensionError::Unreadable(error) => broken_tar(error, whole),
        })?;
        if is_extension {
            continue;
        }
        let PaxHeader { name, size, .. } = std::mem::take(&mut next);
        let name = name.unwrap_or_else(|| entry.path_bytes().into_owned());
        let name = String::from_utf8_lossy(&name).into_owned();
        if size.is_some_and(|size| size != entry.size()) {
            return Err(refused(&name, "is 8 GiB or larger, or has two sizes"));
        }
        let Some(path) = place(&name)? else { continue };
        match entry.header().entry_type() {
            EntryType::Directory => budget.room.make_directory(target, &path)?,
            EntryType::Regular | EntryType::Continuous => {
                let mode = entry.header().mode().unwrap_or(0o644);
                let mut out = budget.room.make_file(target, &path, mode)?;
                budget.copy(&mut entry, &mut out)?;
            }
            EntryType::Symlink | EntryType::Link => return Err(refused(&name, "is a link")),
            _ => return Err(refused(&name, "is neither a file nor a directory")),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;

    use super::*;
    use crate::core::upload_limits::{MAX_DEPTH, Used};

    fn zip_with(name: &str, content: &[u8]) -> Vec<u8> {
        let mut writer = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        writer.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        writer.write_all(content).unwrap();
        writer.finish().unwrap().into_inner()
    }

    fn unpack_bytes(
        bytes: &[u8],
        kind: ArchiveKind,
        budget: u64,
    ) -> Result<tempfile::TempDir, OrchestratorError> {
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive");
        fs::write(&archive, bytes).unwrap();
        let room = Room { bytes: budget, entries: MAX_FILES };
        unpack(&archive, kind, &folder.path().join("upload"), room).map(|()| folder)
    }

    /// A tar with an empty file for each name.
    fn tar_of_empty_files(names: &[String]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for name in names {
            let mut header = tar::Header::new_gnu();
            header.set_size(0);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, io::empty()).unwrap();
        }
        builder.into_inner().unwrap()
    }

    #[test]
    fn zip_that_declares_itself_too_large_is_not_unpacked() {
        let mut writer = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        for (name, content) in [("small", vec![1]), ("zeros", vec![0; 1 << 20])] {
            writer.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
            writer.write_all(&content).unwrap();
        }
        let folder = tempfile::tempdir().unwrap();
        let archive = folder.path().join("archive");
        fs::write(&archive, writer.finish().unwrap().into_inner()).unwrap();
        let room = Room { bytes: 1000, entries: MAX_FILES };
        let target = folder.path().join("upload");
        let error = unpack(&archive, ArchiveKind::Zip, &target, room).unwrap_err();
        assert_eq!(error.code(), "file_too_large", "{error}");
        assert!(!target.join("small").exists());
    }

    #[test]
    fn deeply_nested_entry_is_refused() {
        let deep = |names: usize| tar_of_empty_files(&[["d"].repeat(names - 1).join("/") + "/file"]);
        let error = unpack_bytes(&deep(2000), ArchiveKind::Tar, 1000).unwrap_err();
        assert_eq!(error.code(), "file_too_large", "{error}");
        assert!(error.to_string().contains("is 2000 names deep, at most 128 are allowed"), "{error}");
        assert!(error.to_string().len() < 300, "{error}");
        unpack_bytes(&deep(MAX_DEPTH), ArchiveKind::Tar, 1000).unwrap();
    }

    #[test]
    fn new_directories_and_empty_files_count_and_existing_ones_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let (archive, target) = (folder.path().join("archive"), folder.path().join("upload"));
        fs::write(&archive, tar_of_empty_files(&["a/b/one".into(), "a/b/two".into()])).unwrap();
        let unpack_with = |entries: u64| {
            unpack(&archive, ArchiveKind::Tar, &target, Room { bytes: 10, entries })
                .map_err(|error| error.to_string())
        };
        assert!(unpack_with(3).unwrap_err().contains("at most 200000 files and directories"));
        fs::remove_dir_all(&target).unwrap();
        unpack_with(4).unwrap();
        unpack_with(0).unwrap();
        assert_eq!(Room::beside(Used::of(&target), 10).entries, MAX_FILES - 4);
    }

    #[test]
    fn a_zip_is_unpacked() {
        let folder = unpack_bytes(&zip_with("a/b.txt", b"hello"), ArchiveKind::Zip, 100).unwrap();
        assert_eq!(fs::read(folder.path().join("upload/a/b.txt")).unwrap(), b"hello");
    }

    #[test]
    fn paths_outside_the_workspace_are_refused() {
        for name in ["../evil", "a/../../evil", "/etc/passwd"] {
            let error = unpack_bytes(&zip_with(name, b"x"), ArchiveKind::Zip, 100).unwrap_err();
            assert!(error.to_string().contains(name), "{error}");
            assert_eq!(error.code(), "path_outside_workspace");
        }
    }

    #[test]
    fn an_archive_that_grows_beyond_the_disk_is_refused() {
        let bomb = zip_with("zeros", &vec![0; 1 << 20]);
        assert!(bomb.len() < 10_000);
        assert_eq!(unpack_bytes(&bomb, ArchiveKind::Zip, 1000).unwrap_err().code(), "file_too_large");
    }

    #[test]
    fn links_in_a_tar_are_refused() {
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::Symlink);
        header.set_size(0);
        builder.append_link(&mut header, "link", "/etc/passwd").unwrap();
        let error = unpack_bytes(&builder.into_inner().unwrap(), ArchiveKind::Tar, 1000).unwrap_err();
        assert!(error.to_string().contains("`link`, which is a link"), "{error}");
    }

    #[test]
    fn a_link_in_a_zip_is_refused() {
        let mut writer = zip::ZipWriter::new(io::Cursor::new(Vec::new()));
        writer.add_symlink("link", "/etc/passwd", zip::write::SimpleFileOptions::default()).unwrap();
        let zip = writer.finish().unwrap().into_inner();
        let error = unpack_bytes(&zip, ArchiveKind::Zip, 1000).unwrap_err();
        assert!(error.to_string().contains("`link`, which is a link"), "{error}");
    }

    /// A tar that consists of only a header of this kind and size.
    fn tar_with_header(kind: EntryType, size: u64) -> Vec<u8> {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(kind);
        header.set_size(size);
        header.set_cksum();
        header.as_bytes().to_vec()
    }

    #[test]
    fn a_long_header_is_refused_before_it_is_read() {
        for kind in
            [EntryType::GNULongName, EntryType::GNULongLink, EntryType::XHeader, EntryType::XGlobalHeader]
        {
            let tar = tar_with_header(kind, 1 << 40);
            let error = unpack_bytes(&tar, ArchiveKind::Tar, 1000).unwrap_err();
            assert_eq!(error.code(), "file_too_large", "{kind:?}: {error}");
            assert!(error.to_string().contains("1099511627776 bytes"), "{kind:?}: {error}");
        }
    }

    #[test]
    fn gnu_and_pax_long_names_are_supported() {
        let long = format!("{}/file", "d".repeat(150));
        let mut builder = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(3);
        header.set_mode(0o644);
        builder.append_data(&mut header, &long, &b"gnu"[..]).unwrap();
        let pax = format!("{}/other", "p".repeat(150));
        builder.append_pax_extensions([("path", pax.as_bytes()), ("mtime", b"1.5"), ("size", b"3")]).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(3);
        header.set_mode(0o644);
        builder.append_data(&mut header, "short", &b"pax"[..]).unwrap();
        let folder = unpack_bytes(&builder.into_inner().unwrap(), ArchiveKind::Tar, 1000).unwrap();
        assert_eq!(fs::read(folder.path().join("upload").join(long)).unwrap(), b"gnu");
        assert_eq!(fs::read(folder.path().join("upload").join(pax)).unwrap(), b"pax");
    }

    #[test]
    fn pax_path_outside_the_workspace_is_refused() {
        let mut builder = tar::Builder::new(Vec::new());
        builder.append_pax_extensions([("path", &b"../evil"[..])]).unwrap();
        let mut header = tar::Header::new_ustar();
        header.set_size(1);
        builder.append_data(&mut header, "good", &b"x"[..]).unwrap();
        let error = unpack_bytes(&builder.into_inner().unwrap(), ArchiveKind::Tar, 1000).unwrap_err();
        assert_eq!(error.code(), "path_outside_workspace", "{error}");
    }

    #[test]
    fn too_many_entries_are_refused() {
        let header = tar_with_header(EntryType::Directory, 0);
        let mut entry = header;
        entry[..1].copy_from_slice(b".");
        let mut header = tar::Header::from_byte_slice(&entry).clone();
        header.set_cksum();
        let count = usize::try_from(MAX_FILES).unwrap() + 1;
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        for _ in 0..count {
            packer.write_all(header.as_bytes()).unwrap();
        }
        let error = unpack_bytes(&packer.finish().unwrap(), ArchiveKind::TarGz, 1000).unwrap_err();
        assert!(error.to_string().contains("more than 200000 entries"), "{error}");
        // A zip that claims too many entries is refused before its central directory is read.
        let mut zip = b"PK\x06\x06".to_vec();
        zip.extend([0; 28]);
        zip.extend(5_000_000_u64.to_le_bytes());
        zip.extend([0; 16]);
        zip.extend(b"PK\x06\x07");
        zip.extend([0; 16]);
        zip.extend(b"PK\x05\x06\0\0\0\0\xff\xff\xff\xff");
        zip.extend([0; 10]);
        let error = unpack_bytes(&zip, ArchiveKind::Zip, 1000).unwrap_err();
        assert!(error.to_string().contains("more than 200000 entries"), "{error}");
    }

    #[test]
    fn skipped_entries_count_towards_the_size_limit() {
        let mut packer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        // A directory entry with content, which unpacking skips.
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(EntryType::Directory);
        header.set_path("directory").unwrap();
        header.set_size(4 << 30);
        header.set_cksum();
        packer.write_all(header.as_bytes()).unwrap();
        let zeros = vec![0; 1 << 20];
        for _ in 0..((MAX_FILES * OVERHEAD_BYTES) >> 20) + 2 {
            packer.write_all(&zeros).unwrap();
        }
        let error = unpack_bytes(&packer.finish().unwrap(), ArchiveKind::TarGz, 1 << 20).unwrap_err();
        assert_eq!(error.code(), "file_too_large", "{error}");
    }

    #[test]
    fn invalid_archive_is_refused() {
        for kind in [ArchiveKind::Zip, ArchiveKind::TarGz] {
            assert!(unpack_bytes(b"garbage garbage garbage", kind, 1000).is_err());
        }
    }
}
