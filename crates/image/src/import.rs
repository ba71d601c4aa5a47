//! Imports an image from a directory, a tar archive, an OCI layout, or a `docker save` archive.

use std::fs::{self, File};
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};

use serde::Serialize;
use tar::{Archive, EntryType};

use crate::build_root::remove_tree;
use crate::copy::{Skipped, copy_directory};
use crate::error::ImageError;
use crate::oci::{self, Layout};
use crate::store::{ImageName, ImageStore, describe};
use crate::unpack::{Entry, Kind, Unpacked, Unpacker, WhiteoutMode};

#[derive(Debug, Clone)]
pub struct ImportOptions {
    pub name: ImageName,
    /// A directory or a file; `-` is standard input.
    pub source: PathBuf,
    pub existing: IfExists,
    /// The maximum size of the image.
    pub most_bytes: u64,
}

/// How to handle an existing image with the same name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IfExists {
    /// Keep the existing image and fail.
    Keep,
    /// Replace the existing image.
    Replace,
}

/// The result of an import.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImportReport {
    pub name: ImageName,
    pub unpacked: Unpacked,
    /// The name of the distribution, from its `os-release` file.
    pub system: String,
    /// Warnings for the user.
    pub warnings: Vec<String>,
}

/// Imports an image.
///
/// # Errors
/// The source is unusable, or an image with this name already exists.
pub fn import(store: &ImageStore, options: &ImportOptions) -> Result<ImportReport, ImageError> {
    if options.existing == IfExists::Keep && store.find(&options.name).is_some() {
        return Err(ImageError::Exists(options.name.to_string()));
    }
    let (work, _lock) = store.work_folder(&options.name)?;
    let root = work.join("import");
    let result = fill(store, options, &work, &root).and_then(|(unpacked, left_out)| {
        let mut warnings = inspect_root(&root, unpacked).map_err(|why| bad(&options.source, &why))?;
        warnings.extend(left_out.warnings());
        let record = describe(&root, format!("imported: {}", shown(&options.source)))?;
        store.install(&options.name, &root, &record)?;
        Ok(ImportReport { name: options.name.clone(), unpacked, system: record.system, warnings })
    });
    // This also removes an unfinished build of the same name.
    let cleared = remove_tree(&work);
    let report = result?;
    cleared?;
    Ok(report)
}

fn shown(source: &Path) -> String {
    source
        .file_name()
        .unwrap_or(source.as_os_str())
        .to_string_lossy()
        .chars()
        .filter(|c| !c.is_control())
        .collect()
}

fn bad(source: &Path, why: &dyn std::fmt::Display) -> ImageError {
    ImageError::BadSource { what: source.display().to_string(), why: why.to_string() }
}

/// Unpacks the source, including an archive that contains an OCI layout.
fn fill(
    store: &ImageStore,
    options: &ImportOptions,
    work: &Path,
    root: &Path,
) -> Result<(Unpacked, Skipped), ImageError> {
    let source = &options.source;
    let make = |path: &Path| -> Result<Unpacker, ImageError> {
        remove_tree(path)?;
        fs::create_dir_all(path).map_err(ImageError::at("making", path))?;
        Unpacker::new(path, options.most_bytes).map_err(ImageError::at("opening", path))
    };
    let mut unpacker = make(root)?;
    if source.is_dir() {
        if let Some(layout) = Layout::find(source).map_err(|why| bad(source, &why))? {
            unpack_layers(&layout, &mut unpacker).map_err(|why| bad(source, &why))?;
            return Ok((unpacker.counts, Skipped::default()));
        }
        let left_out = copy_directory(source, store.folder(), &mut unpacker);
        return Ok((unpacker.counts, left_out.map_err(|why| bad(source, &why))?));
    }
    let input: Box<dyn Read> = if source == Path::new("-") {
        Box::new(io::stdin())
    } else {
        Box::new(File::open(source).map_err(ImageError::at("opening", source))?)
    };
    unpack_tar(decompress(input).map_err(|why| bad(source, &why))?, &mut unpacker)
        .map_err(|why| bad(source, &why))?;
    let counts = unpacker.counts;
    // An archive may contain a layout instead of a root file system.
    let Some(layout) = Layout::find(root).map_err(|why| bad(source, &why))? else {
        return Ok((counts, Skipped::default()));
    };
    let inner = work.join("layers");
    let mut unpacker = make(&inner)?;
    unpack_layers(&layout, &mut unpacker).map_err(|why| bad(source, &why))?;
    let counts = unpacker.counts;
    remove_tree(root)?;
    fs::rename(&inner, root).map_err(ImageError::at("moving", &inner))?;
    Ok((counts, Skipped::default()))
}

fn unpack_layers(layout: &Layout, unpacker: &mut Unpacker) -> io::Result<()> {
    unpacker.set_whiteout_mode(WhiteoutMode::Layer);
    for layer in layout.layers() {
        let file = layout.open(layer)?;
        let mut checked = oci::DigestReader::new(file, layer.digest.clone());
        unpack_tar(decompress(Box::new(&mut checked))?, unpacker)
            .map_err(|error| io::Error::new(error.kind(), format!("layer {}: {error}", layer.path)))?;
        checked.finish()?;
    }
    Ok(())
}

/// Detects the compression and returns the decompressed stream.
fn decompress<'a>(input: Box<dyn Read + 'a>) -> io::Result<Box<dyn Read + 'a>> {
    let mut input = BufReader::with_capacity(1 << 18, input);
    let mut head = [0; 6];
    let mut count = 0;
    while count < head.len() {
        match input.read(&mut head[count..])? {
            0 => break,
            more => count += more,
        }
    }
    let whole = io::Cursor::new(head[..count].to_vec()).chain(input);
    let unsupported = |name: &str| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            format!("it is packed with {name}; unpack it first, or pack it with gzip or zstd"),
        )
    };
    match head {
        [0x1f, 0x8b, ..] => Ok(Box::new(flate2::read::MultiGzDecoder::new(whole))),
        [0x28, 0xb5, 0x2f, 0xfd, ..] => Ok(Box::new(zstd::stream::read::Decoder::new(whole)?)),
        [0xfd, b'7', b'z', b'X', b'Z', 0] => Err(unsupported("xz")),
        [b'B', b'Z', b'h', ..] => Err(unsupported("bzip2")),
        [b'P', b'K', 3, 4, ..] => Err(unsupported("zip")),
        _ => Ok(Box::new(whole)),
    }
}

fn unpack_tar(input: Box<dyn Read + '_>, unpacker: &mut Unpacker) -> io::Result<()> {
    let mut archive = Archive::new(input);
    let broken = |error: io::Error| {
        io::Error::new(io::ErrorKind::InvalidData, format!("it is no tar archive, or it is damaged: {error}"))
    };
    for entry in archive.entries().map_err(broken)? {
        let mut entry = entry.map_err(broken)?;
        let header = entry.header();
        let kind = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse => {
                Kind::File { bytes: entry.size() }
            }
            EntryType::Directory => Kind::Directory,
            EntryType::Symlink => Kind::Symlink(link_of(&entry)?),
            EntryType::Link => Kind::HardLink(link_of(&entry)?),
            EntryType::XGlobalHeader
            | EntryType::XHeader
            | EntryType::GNULongName
            | EntryType::GNULongLink => continue,
            _ => Kind::Special,
        };
        let described = Entry {
            path: entry.path().map_err(broken)?.into_owned(),
            kind,
            mode: header.mode().map_err(broken)?,
            // Ids out of range become `nobody`.
            uid: header.uid().unwrap_or(u64::MAX),
            gid: header.gid().unwrap_or(u64::MAX),
            modified_s: i64::try_from(header.mtime().unwrap_or(0)).unwrap_or(0),
        };
        unpacker.unpack_entry(&described, &mut entry)?;
    }
    Ok(())
}

fn link_of<R: Read>(entry: &tar::Entry<'_, R>) -> io::Result<PathBuf> {
    let target =
        entry.link_name()?.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "a link to nothing"))?;
    Ok(target.into_owned())
}

/// Returns warnings about a root file system; fails if it is not one.
fn inspect_root(root: &Path, unpacked: Unpacked) -> Result<Vec<String>, String> {
    let has = |path: &str| fs::symlink_metadata(root.join(path)).is_ok();
    if !["bin", "usr", "etc", "nix", "sbin"].iter().any(|path| has(path)) {
        return Err("there is no root file system in it: neither bin nor usr nor etc".into());
    }
    let mut warnings = Vec::new();
    if crate::build_root::read_in_root(root, "bin/sh").is_none() {
        warnings.push("it has no /bin/sh that can be found: `shell` steps will fail on it".to_owned());
    }
    if unpacked.left_out > 0 {
        warnings.push(format!("{} device files, sockets or pipes were left out", unpacked.left_out));
    }
    Ok(warnings)
}
