//! The root file system of image `host`: a skeleton with a clean `/etc`, with the host's `/usr` mounted over it.
//!
//! A list (`host_image.json`) names the files taken from the host's `/etc`; of those, only files that every user of
//! the host may read are copied. The skeleton's directory is named after a hash of its content, so a running sandbox
//! keeps the one it has.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use launcher::spec::{Bind, Root};
use serde::Deserialize;

use super::old_layers::mark_used;
use crate::error::{SandboxError, failed};
use crate::host::disk::Owners;
use crate::host::java_store::{STORE, java_store};

const SOURCE: &str = include_str!("host_image.json");
/// The CA bundle of a sandbox, relative to its root.
pub(super) const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Recipe {
    links: Vec<String>,
    directories: Vec<Directory>,
    etc: Vec<Entry>,
    files: Vec<TextFile>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Directory {
    path: String,
    mode: String,
    owner: Option<u32>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    name: String,
    #[serde(rename = "reason")]
    _reason: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TextFile {
    path: String,
    lines: Vec<String>,
}

/// Increase when the way skeletons are built changes.
const VERSION: u32 = 1;

/// Skeletons of one server, by the certificates added to them.
pub(super) struct HostImages {
    directory: PathBuf,
    host: PathBuf,
    owners: Owners,
    made: Mutex<BTreeMap<Vec<String>, Root>>,
}

impl HostImages {
    /// Builds skeletons below `directory` from the root of the host in `host`.
    pub(super) fn new(directory: PathBuf, host: impl Into<PathBuf>, owners: Owners) -> Self {
        Self { directory, host: host.into(), owners, made: Mutex::default() }
    }

    /// The layers of image `host` with these certificates added. Built on first use.
    pub(super) fn get(&self, extra_ca: &[String]) -> Result<Root, SandboxError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(root) = made.get(extra_ca).filter(|root| root.lower.exists()) {
            return Ok(root.clone());
        }
        let root = self.make(extra_ca)?;
        made.insert(extra_ca.to_vec(), root.clone());
        Ok(root)
    }

    fn make(&self, extra_ca: &[String]) -> Result<Root, SandboxError> {
        let recipe: Recipe = serde_json::from_str(SOURCE)
            .map_err(|error| failed("reading the recipe of", &self.directory, io::Error::other(error)))?;
        let partial = self.directory.join(format!("host-{}.partial", std::process::id()));
        let build = || -> io::Result<Root> {
            let lower = self.directory.join(format!("host-{:016x}", self.key(&recipe, extra_ca)?));
            if !lower.exists() {
                remove_if_there(&partial)?;
                self.build(&recipe, &partial, extra_ca)?;
                // Another process may have been faster.
                match fs::rename(&partial, &lower) {
                    Err(_) if lower.exists() => fs::remove_dir_all(&partial)?,
                    other => other?,
                }
            }
            mark_used(&lower)?;
            Ok(Root { lower, over: None, binds: self.binds(&recipe)? })
        };
        build().map_err(|source| failed("building the host image in", &partial, source))
    }

    /// A hash that changes with everything that goes into the skeleton. Files count by size and modification time:
    /// reading them all would take longer than the rest of a start.
    fn key(&self, recipe: &Recipe, extra_ca: &[String]) -> io::Result<u64> {
        let mut hasher = DefaultHasher::new();
        (SOURCE, VERSION, extra_ca, rustix::process::getuid().as_raw()).hash(&mut hasher);
        for name in &recipe.links {
            hash_metadata(&self.host.join(name), HashDepth::Itself, &mut hasher)?;
        }
        let etc = self.host.join("etc");
        for entry in &recipe.etc {
            for name in self.matching_entries(&entry.name)? {
                hash_metadata(&etc.join(name), HashDepth::Tree, &mut hasher)?;
            }
        }
        Ok(hasher.finish())
    }

    /// What is mounted from the host over the skeleton.
    fn binds(&self, recipe: &Recipe) -> io::Result<Vec<Bind>> {
        let mut binds = vec![Bind { source: self.host.join("usr"), target: "usr".into() }];
        for name in &recipe.links {
            let source = self.host.join(name);
            if fs::symlink_metadata(&source).is_ok_and(|metadata| !metadata.is_symlink()) {
                binds.push(Bind { source, target: name.into() });
            }
        }
        Ok(binds)
    }

    /// Host paths that a sandbox without its own root may read in place: the same that the other sandboxes see as
    /// mounts.
    pub(super) fn readable(&self) -> io::Result<Vec<PathBuf>> {
        let recipe: Recipe = serde_json::from_str(SOURCE)?;
        let mut paths: Vec<_> = self.binds(&recipe)?.into_iter().map(|bind| bind.source).collect();
        for entry in &recipe.etc {
            paths.extend(
                self.matching_entries(&entry.name)?.into_iter().map(|name| self.host.join("etc").join(name)),
            );
        }
        Ok(paths)
    }

    /// Entries of the host's `/etc` that match a name; a trailing `*` matches any suffix.
    fn matching_entries(&self, name: &str) -> io::Result<Vec<OsString>> {
        let Some(prefix) = name.strip_suffix('*') else { return Ok(vec![name.into()]) };
        let mut matching_entries = Vec::new();
        for entry in fs::read_dir(self.host.join("etc"))? {
            let name = entry?.file_name();
            if name.to_string_lossy().starts_with(prefix) {
                matching_entries.push(name);
            }
        }
        matching_entries.sort();
        Ok(matching_entries)
    }

    fn build(&self, recipe: &Recipe, root: &Path, extra_ca: &[String]) -> io::Result<()> {
        fs::create_dir_all(root)?;
        fs::set_permissions(root, fs::Permissions::from_mode(0o755))?;
        for directory in &recipe.directories {
            let path = root.join(&directory.path);
            fs::create_dir(&path)?;
            let mode = u32::from_str_radix(&directory.mode, 8).map_err(io::Error::other)?;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode))?;
            if let (Some(owner), Owners::AsInside) = (directory.owner, self.owners) {
                chown(&path, Some(owner), Some(owner))?;
            }
        }
        for name in &recipe.links {
            self.link_or_mount_point(name, root)?;
        }
        for entry in &recipe.etc {
            self.copy_from_etc(&entry.name, root)?;
        }
        for file in &recipe.files {
            fs::write(root.join(&file.path), file.lines.join("\n") + "\n")?;
        }
        add_certificates(root, extra_ca)
    }

    /// On most hosts `/bin` and the like are symlinks into `/usr`. On others they are directories and become mount
    /// points here.
    fn link_or_mount_point(&self, name: &str, root: &Path) -> io::Result<()> {
        let source = self.host.join(name);
        let Ok(metadata) = fs::symlink_metadata(&source) else { return Ok(()) };
        if metadata.is_symlink() {
            return symlink(fs::read_link(&source)?, root.join(name));
        }
        fs::create_dir(root.join(name))
    }

    /// Copies an entry from the host's `/etc`.
    fn copy_from_etc(&self, name: &str, root: &Path) -> io::Result<()> {
        for name in self.matching_entries(name)? {
            let target = root.join("etc").join(&name);
            if let Some(parent) = target.parent() {
                fs::create_dir_all(parent)?;
            }
            copy(&self.host.join("etc").join(name), &target)?;
        }
        Ok(())
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// Copies world-readable content. Keeps symlinks; skips devices, sockets and files that others may not read.
fn copy(source: &Path, target: &Path) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(source) else { return Ok(()) };
    if metadata.is_symlink() {
        return symlink(fs::read_link(source)?, target);
    }
    if metadata.mode() & 0o004 == 0 {
        return Ok(());
    }
    if metadata.is_file() {
        fs::copy(source, target)?;
        let mode = metadata.mode() & 0o755;
        return fs::set_permissions(target, fs::Permissions::from_mode(mode));
    }
    if metadata.is_dir() {
        fs::create_dir_all(target)?;
        for entry in fs::read_dir(source)? {
            let name = entry?.file_name();
            copy(&source.join(&name), &target.join(&name))?;
        }
    }
    Ok(())
}

/// Adds certificates to the bundle that programs trust, and writes a Java keystore with all of them.
fn add_certificates(root: &Path, extra_ca: &[String]) -> io::Result<()> {
    let bundle = root.join(BUNDLE);
    let mut text = fs::read_to_string(&bundle).unwrap_or_default();
    for certificate in extra_ca {
        if text.contains(certificate.trim()) {
            continue;
        }
        if !text.is_empty() && !text.ends_with('\n') {
            text.push('\n');
        }
        text.push_str(certificate.trim_end());
        text.push('\n');
    }
    let store = root.join(STORE);
    for path in [&bundle, &store] {
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
    }
    // The host's store may be a symlink whose target does not exist in a sandbox.
    match fs::remove_file(&store) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    fs::write(store, java_store(&text))?;
    if extra_ca.is_empty() { Ok(()) } else { fs::write(bundle, text) }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum HashDepth {
    Itself,
    Tree,
}

fn hash_metadata(path: &Path, depth: HashDepth, hasher: &mut DefaultHasher) -> io::Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    (path, metadata.mode(), metadata.uid()).hash(hasher);
    if metadata.is_symlink() {
        fs::read_link(path)?.hash(hasher);
    } else if metadata.is_file() {
        (metadata.len(), metadata.mtime(), metadata.mtime_nsec()).hash(hasher);
    } else if metadata.is_dir() && depth == HashDepth::Tree {
        let mut matching_entries: Vec<_> = fs::read_dir(path)?
            .map(|entry| entry.map(|entry| entry.file_name()))
            .collect::<Result<_, _>>()?;
        matching_entries.sort();
        for name in matching_entries {
            hash_metadata(&path.join(name), depth, hasher)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> tempfile::TempDir {
        let host = tempfile::tempdir().unwrap();
        let etc = host.path().join("etc");
        fs::create_dir_all(etc.join("ssl/certs")).unwrap();
        fs::create_dir_all(host.path().join("usr/bin")).unwrap();
        symlink("usr/bin", host.path().join("bin")).unwrap();
        fs::write(etc.join("ssl/certs/ca-certificates.crt"), "OLD\n").unwrap();
        fs::write(etc.join("shadow"), "secret").unwrap();
        fs::write(etc.join("passwd"), "someone:x:1234:\n").unwrap();
        fs::write(etc.join("profile"), "closed").unwrap();
        fs::set_permissions(etc.join("profile"), fs::Permissions::from_mode(0o600)).unwrap();
        host
    }

    #[test]
    fn removed_skeleton_is_rebuilt() {
        let (host, directory) = (host(), tempfile::tempdir().unwrap());
        let images = HostImages::new(directory.path().into(), host.path(), Owners::AsInside);
        fs::remove_dir_all(images.get(&[]).unwrap().lower).unwrap();
        assert!(images.get(&[]).unwrap().lower.join("etc/passwd").exists());
    }

    #[test]
    fn host_secrets_are_not_copied() {
        let (host, images) = (host(), tempfile::tempdir().unwrap());
        let root = HostImages::new(images.path().into(), host.path(), Owners::AsInside).get(&[]).unwrap();
        assert!(!root.lower.join("etc/shadow").exists());
        assert!(!root.lower.join("etc/profile").exists(), "not for everybody to read");
        assert!(!fs::read_to_string(root.lower.join("etc/passwd")).unwrap().contains("someone"));
        assert_eq!(fs::read_link(root.lower.join("bin")).unwrap(), Path::new("usr/bin"));
    }

    #[test]
    fn certificates_are_added_and_skeletons_are_shared() {
        let (host, directory) = (host(), tempfile::tempdir().unwrap());
        let images = HostImages::new(directory.path().into(), host.path(), Owners::AsInside);
        let plain = images.get(&[]).unwrap();
        let trusting = images.get(&["NEW".into()]).unwrap();
        assert_ne!(plain.lower, trusting.lower);
        assert_eq!(fs::read_to_string(trusting.lower.join(BUNDLE)).unwrap(), "OLD\nNEW\n");
        let again = HostImages::new(directory.path().into(), host.path(), Owners::AsInside);
        assert_eq!(again.get(&[]).unwrap(), plain);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    }
}
