//! Turns the tar stream of a workspace into a zip with a manifest. The stream comes from the sandbox and is treated
//! as hostile: names are checked, links stay links, sizes are bounded.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Component, Path, PathBuf};

use bytes::{Buf, Bytes};
use serde::Serialize;
use sha2::{Digest, Sha256};
use tar::{Archive, Entry, EntryType};
use time::OffsetDateTime;
use tokio::sync::mpsc;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use crate::event::Artifact;

/// Where we put what belongs to us in the zip.
const OWN_FOLDER: &str = ".caisson";
const MANIFEST: &str = ".caisson/manifest.json";
/// The most entries of one archive.
const MAX_ENTRIES: u64 = 2_000_000;

/// What an asynchronous task sends to the thread that writes.
pub(super) enum Piece {
    /// Part of the archive.
    Bytes(Bytes),
    /// All has come; these paths are not in it.
    End {
        /// Paths in the workspace.
        left_out: Vec<String>,
    },
}

/// Pieces that an asynchronous task sends, read by a thread. Without [`Piece::End`] the stream has broken off.
pub(super) struct ChannelReader {
    receiver: mpsc::Receiver<Piece>,
    current: Bytes,
    left_out: Option<Vec<String>>,
}

impl ChannelReader {
    pub(super) fn new(receiver: mpsc::Receiver<Piece>) -> Self {
        Self { receiver, current: Bytes::new(), left_out: None }
    }
}

/// A tar stream that knows at its end what it does not hold.
pub(super) trait TarSource: Read {
    /// Reads to the end; what is not in the archive, or an error where it broke off.
    fn finish(self) -> io::Result<Vec<String>>;
}

impl TarSource for ChannelReader {
    fn finish(mut self) -> io::Result<Vec<String>> {
        io::copy(&mut self, &mut io::sink())?;
        Ok(self.left_out.unwrap_or_default())
    }
}

impl Read for ChannelReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.receiver.blocking_recv() {
                Some(Piece::Bytes(bytes)) => self.current = bytes,
                Some(Piece::End { left_out }) => self.left_out = Some(left_out),
                None if self.left_out.is_some() => return Ok(0),
                None => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the stream broke off")),
            }
        }
        let count = self.current.len().min(buffer.len());
        self.current.copy_to_slice(&mut buffer[..count]);
        Ok(count)
    }
}

#[derive(Serialize)]
struct Manifest {
    job: String,
    files: Vec<ManifestFile>,
    links: Vec<ManifestLink>,
    left_out: Vec<String>,
}

#[derive(Serialize)]
struct ManifestFile {
    path: String,
    size: u64,
    mode: String,
    sha256: String,
}

#[derive(Serialize)]
struct ManifestLink {
    path: String,
    target: String,
}

/// Writes `output.zip` from a tar stream: complete or not at all.
pub(super) fn zip_from_tar(
    tar: impl TarSource,
    target: &Path,
    job: &str,
    source: &str,
) -> io::Result<Artifact> {
    let partial = target.with_extension("zip.partial");
    let mut zip = ZipWriter::new(BufWriter::new(File::create(&partial)?));
    let mut manifest =
        Manifest { job: job.to_owned(), files: Vec::new(), links: Vec::new(), left_out: Vec::new() };
    let mut archive = Archive::new(BufReader::with_capacity(256 * 1024, tar));
    let mut count = 0;
    for entry in archive.entries()? {
        count += 1;
        if count > MAX_ENTRIES {
            return Err(io::Error::other(format!("the workspace has more than {MAX_ENTRIES} entries")));
        }
        add_entry(&mut zip, &mut manifest, entry?)?;
    }
    manifest.left_out.extend(archive.into_inner().into_inner().finish()?);
    zip.start_file(MANIFEST, options(0o644, 0, None)).map_err(io::Error::other)?;
    zip.write_all(&serde_json::to_vec_pretty(&manifest)?)?;
    let file = zip.finish().map_err(io::Error::other)?.into_inner().map_err(io::Error::other)?;
    file.sync_all()?;
    let bytes = file.metadata()?.len();
    drop(file);
    let sha256 = hash_file(&partial)?;
    std::fs::rename(&partial, target)?;
    sync_folder(target)?;
    Ok(Artifact {
        name: "output.zip".into(),
        bytes,
        files: manifest.files.len() as u64,
        sha256,
        source: source.to_owned(),
    })
}

fn add_entry(
    zip: &mut ZipWriter<BufWriter<File>>,
    manifest: &mut Manifest,
    mut entry: Entry<'_, impl Read>,
) -> io::Result<()> {
    let raw = entry.path_bytes().into_owned();
    let Some(name) = clean_name(&String::from_utf8_lossy(&raw)) else {
        return Ok(());
    };
    if name == MANIFEST {
        return Ok(());
    }
    let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
    let size = entry.header().size()?;
    let modified = entry.header().mtime().ok();
    match entry.header().entry_type() {
        EntryType::Regular | EntryType::Continuous => {
            zip.start_file(&name, options(mode, size, modified)).map_err(io::Error::other)?;
            let sha256 = copy_hashed(&mut entry, zip)?;
            manifest.files.push(ManifestFile { path: name, size, mode: format!("{mode:o}"), sha256 });
        }
        EntryType::Directory => {
            zip.add_directory(&name, options(mode, 0, modified)).map_err(io::Error::other)?
        }
        EntryType::Symlink => {
            let target = entry.link_name_bytes().map(|target| String::from_utf8_lossy(&target).into_owned());
            let target = target.unwrap_or_default();
            zip.add_symlink(&name, &target, options(0o777, 0, modified)).map_err(io::Error::other)?;
            manifest.links.push(ManifestLink { path: name, target });
        }
        _ => manifest.left_out.push(name),
    }
    Ok(())
}

fn options(mode: u32, size: u64, modified_s: Option<u64>) -> SimpleFileOptions {
    SimpleFileOptions::default()
        .last_modified_time(modified_s.and_then(zip_time).unwrap_or_default())
        .compression_method(CompressionMethod::Deflated)
        .compression_level(Some(3))
        .unix_permissions(mode)
        .large_file(size > u64::from(u32::MAX) / 2)
}

/// Seconds since 1970 as a zip has them: in UTC, from 1980 on.
fn zip_time(seconds: u64) -> Option<zip::DateTime> {
    let time = OffsetDateTime::from_unix_timestamp(i64::try_from(seconds).ok()?).ok()?;
    let year = u16::try_from(time.year()).ok()?;
    zip::DateTime::from_date_and_time(
        year,
        time.month().into(),
        time.day(),
        time.hour(),
        time.minute(),
        time.second(),
    )
    .ok()
}

fn copy_hashed(from: &mut impl Read, to: &mut impl Write) -> io::Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 128 * 1024];
    loop {
        let count = from.read(&mut buffer)?;
        if count == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
    }
}

/// A name that stays inside wherever the archive is unpacked; `None` for the root and for what leads out.
fn clean_name(name: &str) -> Option<String> {
    let mut clean = PathBuf::new();
    for part in Path::new(name).components() {
        match part {
            Component::Normal(part) => clean.push(part),
            Component::CurDir => {}
            Component::ParentDir | Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    let clean = clean.to_str()?.to_owned();
    (!clean.is_empty() && !clean.contains('\0')).then_some(clean)
}

fn hash_file(path: &Path) -> io::Result<String> {
    copy_hashed(&mut File::open(path)?, &mut io::sink())
}

pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Makes a rename durable.
fn sync_folder(file: &Path) -> io::Result<()> {
    match file.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Saves a tar stream compressed, complete or not at all; returns the size of the file.
pub(super) fn save_tar(mut tar: impl TarSource, target: &Path) -> io::Result<u64> {
    let partial = target.with_extension("partial");
    let file = File::create(&partial)?;
    zstd::stream::copy_encode(&mut tar, BufWriter::new(&file), 1)?;
    file.sync_all()?;
    let bytes = file.metadata()?.len();
    std::fs::rename(&partial, target)?;
    sync_folder(target)?;
    Ok(bytes)
}

/// Reads a saved tar stream.
pub(super) fn open_tar(path: &Path) -> io::Result<SavedTar> {
    Ok(SavedTar(zstd::stream::read::Decoder::new(File::open(path)?)?))
}

/// A tar stream from a file of ours.
pub(super) struct SavedTar(zstd::stream::read::Decoder<'static, BufReader<File>>);

impl Read for SavedTar {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.read(buffer)
    }
}

impl TarSource for SavedTar {
    fn finish(self) -> io::Result<Vec<String>> {
        Ok(Vec::new())
    }
}

/// Whether a name in a zip is ours and not the job's.
pub(crate) fn is_own(name: &str) -> bool {
    name == OWN_FOLDER || name == MANIFEST
}

#[cfg(test)]
mod tests {
    use super::*;

    impl TarSource for &[u8] {
        fn finish(self) -> io::Result<Vec<String>> {
            Ok(vec!["pipe".into()])
        }
    }

    fn tar_of(build: impl FnOnce(&mut tar::Builder<Vec<u8>>)) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        build(&mut builder);
        builder.into_inner().unwrap()
    }

    fn add(builder: &mut tar::Builder<Vec<u8>>, name: &str, content: &[u8]) {
        let mut header = tar::Header::new_gnu();
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_size(content.len() as u64);
        header.set_mode(0o640);
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }

    #[test]
    fn files_arrive_with_their_hash_in_the_manifest() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("output.zip");
        let tar = tar_of(|builder| add(builder, "a/b.txt", b"hello"));
        let artifact = zip_from_tar(tar.as_slice(), &target, "job", "workspace").unwrap();
        assert_eq!(artifact.files, 1);
        let mut zip = zip::ZipArchive::new(File::open(&target).unwrap()).unwrap();
        let mut text = String::new();
        zip.by_name("a/b.txt").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "hello");
        let manifest: serde_json::Value = serde_json::from_reader(zip.by_name(MANIFEST).unwrap()).unwrap();
        assert_eq!(manifest["left_out"][0], "pipe");
        assert_eq!(manifest["files"][0]["size"], 5);
        assert_eq!(
            manifest["files"][0]["sha256"],
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824"
        );
    }

    #[test]
    fn names_that_lead_out_are_left_out() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("output.zip");
        let tar = tar_of(|builder| {
            add(builder, "../evil", b"x");
            add(builder, "/etc/evil", b"x");
            add(builder, "good/../../evil", b"x");
            add(builder, "good", b"x");
        });
        assert_eq!(zip_from_tar(tar.as_slice(), &target, "job", "workspace").unwrap().files, 1);
    }

    #[test]
    fn a_stream_that_breaks_off_leaves_no_zip() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("output.zip");
        let mut tar = tar_of(|builder| add(builder, "a", &[7; 5000]));
        tar.truncate(2000);
        assert!(zip_from_tar(tar.as_slice(), &target, "job", "workspace").is_err());
        assert!(!target.exists());
    }
}
