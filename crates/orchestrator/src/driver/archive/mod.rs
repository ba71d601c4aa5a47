//! Converts the tar stream of a workspace to a zip, and writes a manifest beside it. The stream comes from the sandbox
//! and is treated as hostile: names are checked, links stay links and must not lead outside, sizes are bounded.

mod links;
mod manifest;
mod own_files;
pub(crate) mod tar_extension;
mod tar_source;
#[cfg(test)]
mod tests;

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Component, Path, PathBuf};

use job::Artifact;
use sha2::{Digest, Sha256};
use tar::{Archive, Entry, EntryType};
use time::OffsetDateTime;
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipWriter};

use self::links::Links;
use self::manifest::{LeftOut, Manifest, ManifestFile, ManifestLink};
use self::own_files::OwnFiles;
use self::tar_extension::PaxHeader;
use crate::data_folder::result_files::{LEARNED_POLICY, MANIFEST};
use crate::egress::Provenance;

pub(crate) use self::own_files::is_own;
pub(crate) use self::tar_source::{ChannelReader, Piece, TarSource, open_tar, save_tar};

/// Maximum number of entries in one archive.
const MAX_ENTRIES: u64 = 2_000_000;
/// Read buffer size.
const READ_BYTES: usize = 32 * 1024;
/// Smaller files are not compressed: the overhead would exceed the gain.
const SMALLEST_PACKED: u64 = 256;
/// Maximum length of a name and of a link target; the kernel's `PATH_MAX`.
const MAX_PATH_BYTES: usize = 4096;

/// Reason for leaving out: the name or the link target is longer than any valid path.
const NAME_TOO_LONG: &str = "name_too_long";
/// Reason for leaving out: too many names become the same through replacement of invalid UTF-8 or through redaction.
const NAME_NOT_UNIQUE: &str = "name_not_unique";
/// Reason for leaving out: pipes, sockets and devices, and files that could not be read or are larger than the
/// sandbox's disk.
const NOT_PACKED: &str = "not_packed";

/// What the manifest says about a zip besides its files.
pub(super) struct ZipMetadata {
    pub(super) job: String,
    /// What the zip is made from: the workspace or a checkpoint.
    pub(super) source: &'static str,
    /// Where downloaded files came from.
    pub(super) provenance: Provenance,
}

/// Writes `output.zip` from a tar stream, completely or not at all. The manifest and what is taken from `.caisson/` of
/// the workspace become files beside it.
pub(super) fn zip_from_tar(tar: impl TarSource, target: &Path, about: &ZipMetadata) -> io::Result<Artifact> {
    let partial = target.with_extension("zip.partial");
    let mut own = OwnFiles::beside(target);
    removed_on_failure(&partial, || write_zip(tar, [&partial, target], about, &mut own))
        .inspect_err(|_| own.discard())
}

/// Removes the partial file if writing fails: the disk may be full.
pub(super) fn removed_on_failure<T>(partial: &Path, write: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    write().inspect_err(|_| drop(std::fs::remove_file(partial)))
}

fn write_zip(
    tar: impl TarSource,
    [partial, target]: [&Path; 2],
    about: &ZipMetadata,
    own: &mut OwnFiles,
) -> io::Result<Artifact> {
    let mut zip = ZipWriter::new(BufWriter::new(File::create(partial)?));
    let mut manifest = Manifest::new(about.job.clone(), about.provenance.downloads.clone());
    let mut archive = Archive::new(tar);
    let mut buffer = vec![0; READ_BYTES];
    let mut count = 0;
    let mut next = PaxHeader::default();
    for entry in archive.entries()?.raw(true) {
        let mut entry = entry?;
        if next.hear(&mut entry)? {
            continue;
        }
        count += 1;
        if count > MAX_ENTRIES {
            return Err(io::Error::other(format!("the workspace has more than {MAX_ENTRIES} entries")));
        }
        add_entry(&mut zip, &mut manifest, own, entry, std::mem::take(&mut next), &mut buffer)?;
    }
    archive.into_inner().finish()?.into_iter().for_each(|name| manifest.leave_out(name, NOT_PACKED));
    add_links(&mut zip, &mut manifest)?;
    let file = zip.finish()?.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.sync_all()?;
    let bytes = file.metadata()?.len();
    drop(file);
    let sha256 = copy_hashed(&mut File::open(partial)?, &mut io::sink(), &mut buffer)?;
    // Streamed, never built in memory: a job may have millions of files.
    own.write(MANIFEST, |out| write_json(out, &manifest))?;
    if let Some(learned) = &about.provenance.learned {
        let policy = serde_json::json!({ "egress": learned });
        own.write(LEARNED_POLICY, |out| write_json(out, &policy))?;
    }
    own.publish()?;
    std::fs::rename(partial, target)?;
    sync_folder(target)?;
    Ok(Artifact {
        name: "output.zip".into(),
        bytes,
        files: manifest.files.len() as u64,
        sha256,
        source: about.source.to_owned(),
    })
}

fn write_json(out: &mut impl Write, content: &impl serde::Serialize) -> io::Result<()> {
    serde_json::to_writer_pretty(out, content).map_err(io::Error::from)
}

fn add_entry(
    zip: &mut ZipWriter<BufWriter<File>>,
    manifest: &mut Manifest,
    own: &mut OwnFiles,
    mut entry: Entry<'_, impl Read>,
    told: PaxHeader,
    buffer: &mut [u8],
) -> io::Result<()> {
    let raw = told.name.unwrap_or_else(|| entry.path_bytes().into_owned());
    let Some(name) = clean_name(&String::from_utf8_lossy(&raw)) else {
        return Ok(());
    };
    let size = entry.header().size()?;
    if told.size.is_some_and(|other| other != size) {
        return Err(io::Error::other(format!("`{name}` has two sizes")));
    }
    if is_own(&name) {
        return own.take(name, &mut entry, manifest);
    }
    if name.len() > MAX_PATH_BYTES {
        manifest.leave_out(name, NAME_TOO_LONG);
        return Ok(());
    }
    manifest.count_memory(name.len())?;
    let Some(name) = manifest.make_unique(&name) else {
        manifest.leave_out(name, NAME_NOT_UNIQUE);
        return Ok(());
    };
    let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
    let modified = entry.header().mtime().ok();
    match entry.header().entry_type() {
        EntryType::Regular | EntryType::Continuous => {
            zip.start_file(&name, options(mode, size, modified))?;
            let sha256 = copy_hashed(&mut entry, zip, buffer)?;
            manifest.files.push(ManifestFile { path: name, size, mode: format!("{mode:o}"), sha256 });
        }
        EntryType::Directory => zip.add_directory(&name, options(mode, 0, modified))?,
        EntryType::Symlink => {
            let target = told.target.or_else(|| entry.link_name_bytes().map(|target| target.into_owned()));
            let target = String::from_utf8_lossy(&target.unwrap_or_default()).into_owned();
            if target.len() > MAX_PATH_BYTES {
                manifest.leave_out(name, NAME_TOO_LONG);
                return Ok(());
            }
            // Counted twice, because checking where the links lead needs another copy.
            manifest.count_memory(name.len() + 2 * target.len())?;
            manifest.links.push(ManifestLink { path: name, target, modified });
        }
        _ => manifest.leave_out(name, NOT_PACKED),
    }
    Ok(())
}

/// Adds the links once all are known: where one leads may depend on others.
fn add_links(zip: &mut ZipWriter<BufWriter<File>>, manifest: &mut Manifest) -> io::Result<()> {
    let mut links = Links::default();
    for link in &manifest.links {
        links.add(&link.path, &link.target);
    }
    for link in std::mem::take(&mut manifest.links) {
        match links.escape_reason(&link.path) {
            None => {
                zip.add_symlink(&link.path, &link.target, options(0o777, 0, link.modified))?;
                manifest.links.push(link);
            }
            // Their names are already counted, so all of them can be listed.
            Some(how) => {
                let ManifestLink { path, target, .. } = link;
                manifest.left_out.push(LeftOut { path, reason: how.reason(), target: Some(target) });
            }
        }
    }
    Ok(())
}

fn options(mode: u32, size: u64, modified_s: Option<u64>) -> SimpleFileOptions {
    let (method, level) = match size {
        0..SMALLEST_PACKED => (CompressionMethod::Stored, None),
        _ => (CompressionMethod::Deflated, Some(3)),
    };
    SimpleFileOptions::default()
        .last_modified_time(modified_s.and_then(zip_time).unwrap_or_default())
        .compression_method(method)
        .compression_level(level)
        .unix_permissions(mode)
        .large_file(size > u64::from(u32::MAX) / 2)
}

/// Converts seconds since 1970 to the time format of zip: UTC, from 1980 on.
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

fn copy_hashed(from: &mut impl Read, to: &mut impl Write, buffer: &mut [u8]) -> io::Result<String> {
    let mut hash = Sha256::new();
    loop {
        let count = from.read(buffer)?;
        if count == 0 {
            return Ok(hex(&hash.finalize()));
        }
        hash.update(&buffer[..count]);
        to.write_all(&buffer[..count])?;
    }
}

/// A relative path that stays inside the folder where the archive is unpacked; `None` for the root and for anything
/// that leads out.
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
