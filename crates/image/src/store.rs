//! The folder of images. Each image is `<name>/rootfs` with `<name>/image.json` beside it, and appears atomically.
//!
//! A sandbox holds a shared lock on the root file system that it uses, so removal can detect that the image is in
//! use.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, open, renameat_with};
use serde::{Deserialize, Serialize};
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;

use crate::build_root;
use crate::error::ImageError;
use crate::stage::Stage;

/// Name of the directory that holds the root file system.
const ROOT: &str = "rootfs";
/// Name of the file that holds an [`ImageRecord`].
const RECORD: &str = "image.json";
/// Prefix of entries that are being created or removed.
const WORK_PREFIX: &str = ".";
/// Prefix of folders in which an image is being created.
pub(crate) const WORK_NAME: &str = ".work-";

/// The name of an image; safe as a file name and in a URL.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
pub struct ImageName(String);

impl ImageName {
    /// The image of the agent's computer.
    #[must_use]
    pub fn default_image() -> Self {
        Self("default".to_owned())
    }

    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ImageName {
    type Err = ImageError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_plain =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"._-".contains(&byte);
        let starts_well = text.bytes().next().is_some_and(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
        // Skeletons of the image `host` are in the same folder.
        let is_reserved = text == "host" || text.starts_with("host-") || text.starts_with("over-");
        if starts_well && text.len() <= 64 && text.bytes().all(is_plain) && !is_reserved {
            return Ok(Self(text.to_owned()));
        }
        Err(ImageError::BadName(text.chars().filter(|c| !c.is_control()).take(80).collect()))
    }
}

impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Metadata of an image, stored beside it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageRecord {
    /// Where the image comes from: `recipe`, or what was imported.
    pub source: String,
    /// When the image was created, in RFC 3339.
    pub made_at: String,
    /// The name of the distribution, from its `os-release` file.
    pub system: String,
    /// Size on disk.
    pub bytes: u64,
    /// The digest of the recipe that the image was built from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recipe: Option<String>,
    /// The keys of the stages.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) stages: Vec<(Stage, String)>,
}

/// An image in the store.
#[derive(Debug, Clone)]
pub struct StoredImage {
    pub name: ImageName,
    /// The root file system.
    pub root: PathBuf,
    /// `None` if the image was put there by hand.
    pub record: Option<ImageRecord>,
}

#[derive(Debug, Clone)]
pub struct ImageStore {
    folder: PathBuf,
}

impl ImageStore {
    /// Opens a folder of images. The folder is created when the first image is added.
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// All images, sorted by name.
    pub fn list(&self) -> Result<Vec<StoredImage>, ImageError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(ImageError::at("listing", &self.folder))?,
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let mut images: Vec<StoredImage> = names.filter_map(|name| self.find(&name)).collect();
        images.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(images)
    }

    /// Finds an image; `None` if it does not exist.
    #[must_use]
    pub fn find(&self, name: &ImageName) -> Option<StoredImage> {
        let root = self.place(name).join(ROOT);
        let record = fs::read(self.place(name).join(RECORD)).ok();
        let record = record.and_then(|bytes| serde_json::from_slice(&bytes).ok());
        root.is_dir().then(|| StoredImage { name: name.clone(), root, record })
    }

    /// Finds an image.
    ///
    /// # Errors
    /// The image does not exist; the error names those that do.
    pub fn get(&self, name: &ImageName) -> Result<StoredImage, ImageError> {
        self.find(name).ok_or_else(|| {
            let known: Vec<String> =
                self.list().unwrap_or_default().into_iter().map(|image| image.name.0).collect();
            let known = if known.is_empty() { "none yet".to_owned() } else { known.join(", ") };
            ImageError::NoImage { name: name.0.clone(), known }
        })
    }

    /// Removes an image and the unfinished build or import with the same name.
    ///
    /// # Errors
    /// Neither exists, a sandbox uses the image, or it is being built or imported.
    pub fn remove(&self, name: &ImageName) -> Result<(), ImageError> {
        let has_removed = self.remove_unfinished(name)?;
        if has_removed && self.find(name).is_none() {
            return Ok(());
        }
        let image = self.get(name)?;
        let Some(_held) = try_lock_exclusive(&image.root)? else {
            return Err(ImageError::InUse(name.0.clone()));
        };
        let place = self.place(name);
        let away = self.trash(name);
        fs::rename(&place, &away).map_err(ImageError::at("moving away", &place))?;
        build_root::remove_tree(&away)
    }

    /// Moves a finished root file system into the store, replacing an existing image with the same name.
    pub(crate) fn install(
        &self,
        name: &ImageName,
        made: &Path,
        record: &ImageRecord,
    ) -> Result<(), ImageError> {
        let fresh = self.folder.join(format!("{WORK_PREFIX}new-{name}"));
        build_root::remove_tree(&fresh)?;
        make_private(&fresh)?;
        fs::rename(made, fresh.join(ROOT)).map_err(ImageError::at("moving", made))?;
        let file = fresh.join(RECORD);
        let text = serde_json::to_vec_pretty(record).unwrap_or_default();
        fs::write(&file, text).map_err(ImageError::at("writing", &file))?;
        let place = self.place(name);
        let away = self.trash(name);
        if fs::symlink_metadata(&place).is_err() {
            fs::rename(&fresh, &place).map_err(ImageError::at("moving into place", &place))?;
        } else if renameat_with(CWD, &fresh, CWD, &place, RenameFlags::EXCHANGE).is_ok() {
            // Exchanging is atomic: at no time is the image missing.
            fs::rename(&fresh, &away).map_err(ImageError::at("moving away", &fresh))?;
        } else {
            // The file system cannot exchange two names.
            fs::rename(&place, &away).map_err(ImageError::at("moving away", &place))?;
            fs::rename(&fresh, &place).map_err(ImageError::at("moving into place", &place))?;
        }
        self.empty_trash();
        Ok(())
    }

    /// Deletes replaced images that no sandbox uses any more; the others are deleted after a later build.
    pub(crate) fn empty_trash(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        for entry in entries.flatten() {
            let is_trash = entry.file_name().to_string_lossy().starts_with(&format!("{WORK_PREFIX}old-"));
            // Failures are ignored: nothing depends on the deletion.
            let root = entry.path().join(ROOT);
            if is_trash && (!root.exists() || matches!(try_lock_exclusive(&root), Ok(Some(_)))) {
                let _ = build_root::remove_tree(&entry.path());
            }
        }
    }

    /// Creates and locks the folder for building an image.
    pub(crate) fn work_folder(&self, name: &ImageName) -> Result<(PathBuf, File), ImageError> {
        make_private(&self.folder)?;
        let folder = self.folder.join(format!("{WORK_NAME}{name}"));
        make_private(&folder)?;
        let path = folder.join("lock");
        let file = File::create(&path).map_err(ImageError::at("making", &path))?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok((folder, file)),
            Err(rustix::io::Errno::WOULDBLOCK) => Err(ImageError::Locked(name.0.clone())),
            Err(error) => Err(ImageError::at("locking", &path)(error.into())),
        }
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.folder
    }

    fn place(&self, name: &ImageName) -> PathBuf {
        self.folder.join(&name.0)
    }

    fn trash(&self, name: &ImageName) -> PathBuf {
        let now = OffsetDateTime::now_utc().unix_timestamp_nanos();
        self.folder.join(format!("{WORK_PREFIX}old-{name}-{now}"))
    }
}

/// Takes an exclusive lock on a root file system; `None` if a sandbox uses it.
fn try_lock_exclusive(root: &Path) -> Result<Option<rustix::fd::OwnedFd>, ImageError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory =
        open(root, flags, Mode::empty()).map_err(|error| ImageError::at("opening", root)(error.into()))?;
    match flock(&directory, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(directory)),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(ImageError::at("locking", root)(error.into())),
    }
}

fn make_private(path: &Path) -> Result<(), ImageError> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(ImageError::at("making", path))
}

/// The metadata of a newly created root file system.
pub(crate) fn describe(root: &Path, source: String) -> Result<ImageRecord, ImageError> {
    let now = OffsetDateTime::now_utc();
    let made_at = now.replace_nanosecond(0).unwrap_or(now).format(&Rfc3339).unwrap_or_default();
    let bytes = size_of(root).map_err(ImageError::at("measuring", root))?;
    Ok(ImageRecord { source, made_at, system: system_of(root), bytes, recipe: None, stages: Vec::new() })
}

/// The name of the distribution in `os-release`.
fn system_of(root: &Path) -> String {
    let files = ["etc/os-release", "usr/lib/os-release"];
    let text = files.iter().find_map(|file| build_root::read_in_root(root, file)).unwrap_or_default();
    let value = |key: &str| {
        text.lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
            .map(|value| value.trim_matches('"'))
    };
    let name = value("PRETTY_NAME").or_else(|| value("NAME")).unwrap_or("unknown");
    name.chars().filter(|c| !c.is_control()).take(80).collect()
}

/// Size on disk; a file with several hard links counts once.
pub(crate) fn size_of(root: &Path) -> io::Result<u64> {
    let mut total = 0;
    let mut seen = std::collections::HashSet::new();
    let mut waiting = vec![root.to_owned()];
    while let Some(folder) = waiting.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                waiting.push(entry.path());
            }
            if metadata.nlink() < 2 || metadata.is_dir() || seen.insert((metadata.dev(), metadata.ino())) {
                total += metadata.blocks() * 512;
            }
        }
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> ImageName {
        text.parse().unwrap()
    }

    #[test]
    fn image_names_are_validated() {
        for good in ["default", "alpine-3.20", "a", "7"] {
            assert!(good.parse::<ImageName>().is_ok(), "{good}");
        }
        for bad in ["", "host", "host-1", "over-1", "..", "a/b", ".a", "-a", "A", "a b", &"x".repeat(65)] {
            let error = bad.parse::<ImageName>().unwrap_err().to_string();
            assert!(error.contains("lower-case"), "{bad}: {error}");
        }
    }

    #[test]
    fn an_image_is_listed_replaced_and_removed() {
        let folder = tempfile::tempdir().unwrap();
        let store = ImageStore::new(folder.path().join("images"));
        assert!(store.list().unwrap().is_empty());
        for content in ["first", "second"] {
            let (work, _lock) = store.work_folder(&name("small")).unwrap();
            fs::create_dir_all(work.join("made/etc")).unwrap();
            fs::write(work.join("made/etc/os-release"), format!("PRETTY_NAME=\"{content}\"\n")).unwrap();
            let record = describe(&work.join("made"), "a test".into()).unwrap();
            store.install(&name("small"), &work.join("made"), &record).unwrap();
            let listed = store.list().unwrap();
            assert_eq!(listed.len(), 1);
            assert_eq!(listed[0].record.as_ref().unwrap().system, content);
        }
        store.remove(&name("small")).unwrap();
        let error = store.remove(&name("small")).unwrap_err().to_string();
        assert_eq!(error, "there is no image `small`; there are: none yet");
    }

    #[test]
    fn an_image_in_use_cannot_be_removed_until_released() {
        let folder = tempfile::tempdir().unwrap();
        let store = ImageStore::new(folder.path());
        let root = folder.path().join("small/rootfs");
        fs::create_dir_all(&root).unwrap();
        let held = File::open(&root).unwrap();
        flock(&held, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(matches!(store.remove(&name("small")), Err(ImageError::InUse(_))));
        drop(held);
        store.remove(&name("small")).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn an_image_cannot_be_built_twice_concurrently() {
        let folder = tempfile::tempdir().unwrap();
        let store = ImageStore::new(folder.path());
        let held = store.work_folder(&name("small")).unwrap();
        assert!(matches!(store.work_folder(&name("small")), Err(ImageError::Locked(_))));
        drop(held);
        assert!(store.work_folder(&name("small")).is_ok());
    }
}
