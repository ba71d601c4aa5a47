//! Reads OCI layouts and `docker save` archives: finds their layers and verifies the digests.
//!
//! All names are untrusted: digests are checked before they become part of a path, and paths are resolved below the
//! layout.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::recipe::hex;

/// The maximum size of an index, a manifest or a list of layers.
const MAX_DOCUMENT_BYTES: u64 = 8 << 20;
/// The maximum nesting of indexes.
const MAX_DEPTH: usize = 4;
const MAX_LAYERS: usize = 512;

#[derive(Deserialize)]
struct Index {
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct Descriptor {
    digest: String,
    #[serde(rename = "mediaType", default)]
    media_type: String,
    platform: Option<Platform>,
}

#[derive(Deserialize)]
struct Platform {
    architecture: String,
    os: String,
}

#[derive(Deserialize)]
struct Manifest {
    layers: Vec<Descriptor>,
}

#[derive(Deserialize)]
struct DockerSaveManifest {
    #[serde(rename = "Layers")]
    layers: Vec<String>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Layer {
    /// Path below the layout.
    pub(crate) path: String,
    /// Expected digest in hexadecimal, if known.
    pub(crate) digest: Option<String>,
}

/// A directory with layers.
pub(crate) struct Layout {
    folder: OwnedFd,
    layers: Vec<Layer>,
}

fn invalid(why: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.into())
}

impl Layout {
    /// Opens a directory as a layout; `None` if it is not one.
    pub(crate) fn find(folder: &Path) -> io::Result<Option<Self>> {
        let is_layout = folder.join("oci-layout").is_file() && folder.join("index.json").is_file();
        let is_saved = folder.join("manifest.json").is_file() && !folder.join("usr").exists();
        if !is_layout && !is_saved {
            return Ok(None);
        }
        let folder =
            openat(CWD, folder, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
        let mut layout = Self { folder, layers: Vec::new() };
        layout.layers =
            if is_layout { layout.read_index("index.json", None, 0)? } else { layout.read_docker_save()? };
        if layout.layers.is_empty() {
            return Err(invalid("it has no layers"));
        }
        if layout.layers.len() > MAX_LAYERS {
            return Err(invalid(format!(
                "it has {} layers, at most {MAX_LAYERS} are allowed",
                layout.layers.len()
            )));
        }
        Ok(Some(layout))
    }

    /// The layers, lowest first.
    pub(crate) fn layers(&self) -> &[Layer] {
        &self.layers
    }

    pub(crate) fn open(&self, layer: &Layer) -> io::Result<File> {
        self.open_path(&layer.path)
    }

    fn open_path(&self, path: &str) -> io::Result<File> {
        let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let file = openat2(&self.folder, path, flags, Mode::empty(), resolve)
            .map_err(|error| io::Error::new(io::Error::from(error).kind(), format!("{path} is missing")))?;
        let file = File::from(file);
        if !file.metadata()?.is_file() {
            return Err(invalid(format!("{path} is no file")));
        }
        Ok(file)
    }

    fn document<T: for<'de> Deserialize<'de>>(&self, path: &str, digest: Option<String>) -> io::Result<T> {
        let mut checked = DigestReader::new(self.open_path(path)?, digest);
        let mut bytes = Vec::new();
        (&mut checked).take(MAX_DOCUMENT_BYTES).read_to_end(&mut bytes)?;
        checked.finish()?;
        serde_json::from_slice(&bytes).map_err(|error| invalid(format!("{path}: {error}")))
    }

    fn read_index(&self, path: &str, digest: Option<String>, depth: usize) -> io::Result<Vec<Layer>> {
        if depth > MAX_DEPTH {
            return Err(invalid("its indexes refer to each other without end"));
        }
        let index: Index = self.document(path, digest)?;
        let fits = |descriptor: &&Descriptor| {
            descriptor
                .platform
                .as_ref()
                .is_none_or(|platform| platform.os == "linux" && platform.architecture == architecture())
        };
        let chosen = index
            .manifests
            .iter()
            .find(fits)
            .ok_or_else(|| invalid(format!("it has nothing for linux on {}", architecture())))?;
        let (path, digest) = blob(&chosen.digest)?;
        if chosen.media_type.contains("index") || chosen.media_type.contains("manifest.list") {
            return self.read_index(&path, Some(digest), depth + 1);
        }
        let manifest: Manifest = self.document(&path, Some(digest))?;
        let layers = manifest.layers.iter().map(|layer| {
            let (path, digest) = blob(&layer.digest)?;
            Ok(Layer { path, digest: Some(digest) })
        });
        layers.collect()
    }

    fn read_docker_save(&self) -> io::Result<Vec<Layer>> {
        let images: Vec<DockerSaveManifest> = self.document("manifest.json", None)?;
        let [image] = images.as_slice() else {
            return Err(invalid(format!("it holds {} images; save one", images.len())));
        };
        Ok(image.layers.iter().map(|path| Layer { path: path.clone(), digest: None }).collect())
    }
}

/// The path of a blob, and its digest without the algorithm prefix.
fn blob(digest: &str) -> io::Result<(String, String)> {
    let digits = digest.strip_prefix("sha256:").filter(|digits| {
        digits.len() == 64
            && digits.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
    });
    let digits = digits.ok_or_else(|| {
        let shown: String = digest.chars().filter(|c| !c.is_control()).take(100).collect();
        invalid(format!("`{shown}` is no sha256 digest"))
    })?;
    Ok((format!("blobs/sha256/{digits}"), digits.to_owned()))
}

/// This machine's CPU architecture, as named in OCI images.
pub(crate) fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// A reader that verifies the digest at the end.
pub(crate) struct DigestReader {
    file: File,
    hasher: Sha256,
    digest: Option<String>,
}

impl DigestReader {
    pub(crate) fn new(file: File, digest: Option<String>) -> Self {
        Self { file, hasher: Sha256::new(), digest }
    }

    /// Reads the rest and compares the digest.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        let Some(expected) = self.digest.take() else { return Ok(()) };
        io::copy(&mut self, &mut io::sink())?;
        if hex(&self.hasher.finalize()) == expected {
            return Ok(());
        }
        Err(invalid(format!("the blob sha256:{expected} has another content")))
    }
}

impl Read for DigestReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.hasher.update(&buffer[..count]);
        Ok(count)
    }
}

/// The blobs folder of a layout.
pub(crate) fn blobs(layout: &Path) -> PathBuf {
    layout.join("blobs/sha256")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_digest_becomes_a_path() {
        let good = format!("sha256:{}", "a1".repeat(32));
        assert_eq!(blob(&good).unwrap().0, format!("blobs/sha256/{}", "a1".repeat(32)));
        for bad in ["sha256:../../etc/passwd", "md5:00", "", &good.to_uppercase(), "sha256:abc"] {
            assert!(blob(bad).unwrap_err().to_string().contains("no sha256 digest"), "{bad}");
        }
    }

    #[test]
    fn invalid_and_foreign_indexes_are_rejected() {
        let place = tempfile::tempdir().unwrap();
        std::fs::write(place.path().join("oci-layout"), "{}").unwrap();
        let write = |text: &str| std::fs::write(place.path().join("index.json"), text).unwrap();
        let why = || Layout::find(place.path()).err().unwrap().to_string();
        write(r#"{"manifests": []}"#);
        assert!(why().contains("nothing for linux"), "{}", why());
        write(
            r#"{"manifests": [{"digest": "sha256:x", "platform": {"os": "plan9", "architecture": "z80"}}]}"#,
        );
        assert!(why().contains("nothing for linux"), "{}", why());
        write("not json");
        assert!(why().contains("index.json"), "{}", why());
    }
}
