//! Exports an image as a tar archive, an OCI layout, or a disk with an ext4 file system.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::process::geteuid;
use serde_json::json;
use sha2::{Digest, Sha256};
use tar::{Builder, EntryType, Header};

use crate::build_root::{self, remove_tree, require_program, with_all_ids};
use crate::error::ImageError;
use crate::oci::{architecture, blobs};
use crate::recipe::hex;
use crate::store::StoredImage;

/// The agent's user id and home directory.
const AGENT: u64 = 1000;
const AGENT_HOME: &str = "home/agent";
/// Overhead of an ext4 file system, plus free space.
const SPARE_BYTES: u64 = 256 << 20;

/// An export format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExportFormat {
    /// A tar archive of the root file system; `-` is standard output.
    Tar,
    /// A directory that is an OCI layout.
    Oci,
    /// A file with an ext4 file system.
    Ext4,
}

/// Exports an image to a path that does not exist yet.
///
/// # Errors
/// The path exists or cannot be written, or a program is missing.
pub fn export(image: &StoredImage, form: ExportFormat, target: &Path) -> Result<(), ImageError> {
    if form == ExportFormat::Tar && target == Path::new("-") {
        let output = BufWriter::new(io::stdout());
        return write_tar(&image.root, output).map(drop).map_err(ImageError::at("writing", target));
    }
    if fs::symlink_metadata(target).is_ok() {
        let taken = io::Error::new(io::ErrorKind::AlreadyExists, "it is there already; choose another name");
        return Err(ImageError::at("writing", target)(taken));
    }
    let mut partial = target.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    remove(&partial)?;
    let made = match form {
        ExportFormat::Tar => File::create(&partial)
            .and_then(|file| {
                write_tar(&image.root, BufWriter::new(file))?.into_inner().map_err(io::Error::from)
            })
            .and_then(|file| file.sync_all())
            .map_err(ImageError::at("writing", &partial)),
        ExportFormat::Oci => write_oci(image, &partial).map_err(ImageError::at("writing", &partial)),
        ExportFormat::Ext4 => write_ext4(&image.root, &partial),
    };
    let made = made.and_then(|()| fs::rename(&partial, target).map_err(ImageError::at("moving", &partial)));
    if made.is_err() {
        // Report the first failure, not this one.
        let _ = remove(&partial);
    }
    made
}

fn remove(partial: &Path) -> Result<(), ImageError> {
    if partial.is_file() {
        return fs::remove_file(partial).map_err(ImageError::at("removing", partial));
    }
    remove_tree(partial)
}

/// Writes all files sorted by name, so that the same image always gives the same archive.
fn write_tar<W: Write>(root: &Path, output: W) -> io::Result<W> {
    let mut builder = Builder::new(output);
    let mut names = HashMap::new();
    add(&mut builder, root, Path::new(""), &mut names)?;
    builder.into_inner()
}

fn add<W: Write>(
    builder: &mut Builder<W>,
    root: &Path,
    below: &Path,
    names: &mut HashMap<(u64, u64), PathBuf>,
) -> io::Result<()> {
    let mut entries: Vec<_> =
        fs::read_dir(root.join(below))?.map(|entry| Ok(entry?.file_name())).collect::<io::Result<_>>()?;
    entries.sort();
    for name in entries {
        let path = below.join(name);
        let full = root.join(&path);
        let metadata = fs::symlink_metadata(&full)?;
        let mut header = Header::new_gnu();
        header.set_mode(metadata.mode() & 0o7777);
        header.set_mtime(u64::try_from(metadata.mtime()).unwrap_or(0));
        let (uid, gid) = owner(&path, &metadata);
        header.set_uid(uid);
        header.set_gid(gid);
        header.set_size(0);
        if metadata.is_dir() {
            header.set_entry_type(EntryType::Directory);
            builder.append_data(&mut header, &path, io::empty())?;
            add(builder, root, &path, names)?;
        } else if metadata.is_symlink() {
            header.set_entry_type(EntryType::Symlink);
            builder.append_link(&mut header, &path, fs::read_link(&full)?)?;
        } else if metadata.is_file() {
            if metadata.nlink() > 1
                && let Some(first) = names.insert((metadata.dev(), metadata.ino()), path.clone())
            {
                header.set_entry_type(EntryType::Link);
                builder.append_link(&mut header, &path, &first)?;
                names.insert((metadata.dev(), metadata.ino()), first);
                continue;
            }
            header.set_entry_type(EntryType::Regular);
            header.set_size(metadata.len());
            builder.append_data(&mut header, &path, File::open(&full)?)?;
        }
    }
    Ok(())
}

/// In an unprivileged user's folder, that user owns everything. In the archive, root owns it, except that the agent
/// owns its home directory.
fn owner(path: &Path, metadata: &fs::Metadata) -> (u64, u64) {
    if geteuid().is_root() {
        return (metadata.uid().into(), metadata.gid().into());
    }
    let id = if path.starts_with(AGENT_HOME) { AGENT } else { 0 };
    (id, id)
}

/// Hashes and counts everything written through it.
struct HashingWriter<W> {
    output: W,
    hasher: Sha256,
    bytes: u64,
}

impl<W> HashingWriter<W> {
    fn new(output: W) -> Self {
        Self { output, hasher: Sha256::new(), bytes: 0 }
    }
}

impl<W: Write> Write for HashingWriter<W> {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let count = self.output.write(buffer)?;
        self.hasher.update(&buffer[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

fn write_oci(image: &StoredImage, folder: &Path) -> io::Result<()> {
    let blobs = blobs(folder);
    fs::create_dir_all(&blobs)?;
    let partial = blobs.join("layer");
    let packed = HashingWriter::new(BufWriter::new(File::create(&partial)?));
    // Speed matters more here than size.
    let plain = HashingWriter::new(flate2::write::GzEncoder::new(packed, flate2::Compression::fast()));
    let plain = write_tar(&image.root, plain)?;
    let packed = plain.output.finish()?;
    packed.output.into_inner().map_err(io::Error::from)?.sync_all()?;
    let layer = hex(&packed.hasher.finalize());
    fs::rename(&partial, blobs.join(&layer))?;
    let created = image.record.as_ref().map(|record| record.made_at.clone());
    let config = json!({
        "created": created,
        "architecture": architecture(),
        "os": "linux",
        "config": {
            "User": "1000:1000",
            "WorkingDir": "/workspace",
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/home/agent", "LANG=C.UTF-8"],
            "Cmd": ["/bin/sh"],
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{}", hex(&plain.hasher.finalize()))]},
    });
    let config = write_blob(&blobs, &config, "application/vnd.oci.image.config.v1+json")?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [{
            "mediaType": "application/vnd.oci.image.layer.v1.tar+gzip",
            "digest": format!("sha256:{layer}"),
            "size": packed.bytes,
        }],
    });
    let mut manifest = write_blob(&blobs, &manifest, "application/vnd.oci.image.manifest.v1+json")?;
    manifest["platform"] = json!({"architecture": architecture(), "os": "linux"});
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": image.name});
    let index = json!({"schemaVersion": 2, "manifests": [manifest]});
    fs::write(folder.join("index.json"), index.to_string())?;
    fs::write(folder.join("oci-layout"), json!({"imageLayoutVersion": "1.0.0"}).to_string())
}

/// Writes a document under its digest and returns its descriptor.
fn write_blob(blobs: &Path, document: &serde_json::Value, kind: &str) -> io::Result<serde_json::Value> {
    let text = document.to_string();
    let digest = hex(&Sha256::digest(text.as_bytes()));
    fs::write(blobs.join(&digest), &text)?;
    Ok(json!({"mediaType": kind, "digest": format!("sha256:{digest}"), "size": text.len()}))
}

fn write_ext4(root: &Path, target: &Path) -> Result<(), ImageError> {
    let program = require_program("mkfs.ext4", "makes a file system", "e2fsprogs")?;
    let bytes = crate::store::size_of(root).map_err(ImageError::at("measuring", root))?;
    let file = File::create(target).map_err(ImageError::at("making", target))?;
    file.set_len(bytes + bytes / 4 + SPARE_BYTES).map_err(ImageError::at("sizing", target))?;
    let mut command = with_all_ids(&program.display().to_string())?;
    command.args(["-q", "-F", "-m0", "-L", "caisson", "-E", "root_owner=0:0", "-d"]).args([root, target]);
    build_root::run(command, "writing", target)
}
