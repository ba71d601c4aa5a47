//! Sandboxes without namespaces, for hosts that do not support them and jobs that accept that explicitly.
//!
//! The host's programs are read in place, as far as Landlock allows; what the sandbox writes goes to a directory tree
//! of its own. `docs/isolation.md` says what this protects against and what it does not.

use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use launcher::spec::{LANDLOCK_ONLY_DIRECTORIES, LISTEN_FD, LandlockOnly, PROXY_FD, STATE_FD};
use launcher::{MIN_LANDLOCK_ABI, landlock_version, process_mark};

use super::users::Obstacle;
use super::{Inner, host_image, own_ca};
use crate::error::{SandboxError, failed};
use crate::host::directories::make_private_directory;
use crate::host::disk::Owners;
use crate::host::java_store::java_store;
use crate::spec::{SandboxId, SandboxSpec};

/// The devices that every user of the host may use.
const DEVICES: [&str; 6] = ["/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty"];
/// Files for name lookups; image `host` has its own versions of them.
const NAME_SERVICE_FILES: [&str; 5] =
    ["/etc/passwd", "/etc/group", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf"];
/// The CA bundle of this sandbox, if it trusts more certificates than the host.
const BUNDLE: &str = "ca-certificates.crt";
/// The Java keystore of this sandbox.
const STORE: &str = "cacerts";
/// Name prefix of trees that are waiting to be deleted.
pub(super) const TRASH_PREFIX: &str = "trash-";

/// How to request such a sandbox; part of error messages.
pub(super) const HOW_TO_OPT_IN: &str = "accept sandboxes without namespaces: `\"isolation\": \"landlock\"` in the \
    request, `--isolation landlock` on the command line, or `isolation = \"landlock\"` below `[sandbox]` in the configuration (docs/isolation.md says what they lack)";

/// Why the host cannot run such sandboxes; `None` if it can.
pub(super) fn obstacle(inner: &Inner) -> Option<Obstacle> {
    let version = landlock_version();
    if version < MIN_LANDLOCK_ABI {
        return Some(Obstacle {
            found: format!("Landlock {version}, but restricting signals needs {MIN_LANDLOCK_ABI}"),
            remedy: "use Linux 6.12 or newer, with landlock in its lsm= parameter".into(),
        });
    }
    let first_uid = inner.config.first_uid;
    if inner.identity.owners() == Owners::AsInside && !has_user(first_uid) {
        return Some(Obstacle {
            found: format!("user id {first_uid} of the first sandbox does not exist in this container"),
            remedy: "set first_uid in [namespace] to an id listed in /proc/self/uid_map".into(),
        });
    }
    None
}

/// Whether a user id is mapped in this user namespace.
fn has_user(uid: u32) -> bool {
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.lines().any(|line| {
        let mut numbers = line.split_whitespace().map(|word| word.parse::<u64>().unwrap_or(0));
        let (first, _, count) = (numbers.next(), numbers.next(), numbers.next());
        let first = first.unwrap_or(0);
        (first..first + count.unwrap_or(0)).contains(&u64::from(uid))
    })
}

/// The root of everything a sandbox writes. If the sandbox has its own user, that user cannot traverse the server's
/// folders.
pub(super) fn tree(inner: &Inner, id: SandboxId) -> PathBuf {
    match inner.identity.owners() {
        Owners::AsInside => inner.config.landlock_only_dir.join(id.to_string()),
        Owners::Server => inner.layout.sandbox(id).join("tree"),
    }
}

/// Creates the tree and determines what the sandbox may access.
pub(super) fn prepare(
    inner: &Inner,
    id: SandboxId,
    spec: &SandboxSpec,
) -> Result<LandlockOnly, SandboxError> {
    let tree = tree(inner, id);
    if inner.identity.owners() == Owners::AsInside {
        make_tree(&inner.config.landlock_only_dir, &tree)?;
    }
    for name in LANDLOCK_ONLY_DIRECTORIES {
        make_private_directory(&tree.join(name))?;
    }
    let root = inner.host_images.get(&spec.extra_ca)?.lower;
    let bundle = match &spec.own_ca {
        Some(own) => own_ca::bundle_with(&root, own),
        None => fs::read_to_string(root.join(host_image::BUNDLE)).unwrap_or_default(),
    };
    let (target, store) = (tree.join(BUNDLE), tree.join(STORE));
    fs::write(&store, java_store(&bundle)).map_err(|source| failed("writing", &store, source))?;
    if spec.own_ca.is_some() || !spec.extra_ca.is_empty() {
        fs::write(&target, bundle).map_err(|source| failed("writing", &target, source))?;
    }
    let readable = inner.host_images.readable().map_err(|e| failed("looking at", Path::new("/etc"), e))?;
    let looked_up = NAME_SERVICE_FILES.iter().map(PathBuf::from);
    Ok(LandlockOnly {
        tree,
        readable: readable.into_iter().chain(looked_up).filter(|path| path.exists()).collect(),
        devices: DEVICES.iter().map(PathBuf::from).filter(|path| path.exists()).collect(),
        mark: process_mark::of(id.as_u128()),
    })
}

/// Creates the root of a tree. A run that ends may remove its empty parent folder at any time.
fn make_tree(parent: &Path, tree: &Path) -> Result<(), SandboxError> {
    loop {
        open_landlock_only_dir(parent)?;
        match fs::DirBuilder::new().mode(0o700).create(tree) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(failed("making", tree, error));
            }
            // If the parent was removed after the first check, another user may have created it. Now that it has an
            // entry, it stays.
            _ => return open_landlock_only_dir(parent),
        }
    }
}

/// Opens the parent folder of the trees: every user may traverse it, only root may list or write it.
fn open_landlock_only_dir(path: &Path) -> Result<(), SandboxError> {
    let metadata = loop {
        let made = fs::DirBuilder::new().recursive(true).mode(0o711).create(path);
        made.map_err(|source| failed("making", path, source))?;
        match fs::symlink_metadata(path) {
            // A run that has ended has just removed it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            found => break found.map_err(|source| failed("looking at", path, source))?,
        }
    };
    if metadata.is_dir()
        && metadata.uid() == rustix::process::geteuid().as_raw()
        && metadata.mode() & 0o022 == 0
    {
        return Ok(());
    }
    Err(SandboxError::HostUnsupported {
        what: format!("{} belongs to another user, or other users may write to it", path.display()),
        remedy: "remove it".into(),
    })
}

/// The command line arguments of the guest.
pub(super) fn guest_arguments(landlock_only: &LandlockOnly) -> Vec<String> {
    let list =
        |paths: &[PathBuf]| paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(":");
    let words = [
        "serve",
        "--listen-fd",
        &LISTEN_FD.to_string(),
        "--state-fd",
        &STATE_FD.to_string(),
        "--egress-fd",
        &PROXY_FD.to_string(),
        "--workspace",
        &landlock_only.tree.join("workspace").display().to_string(),
        "--home",
        &landlock_only.tree.join("home").display().to_string(),
        "--landlock-only",
        &landlock_only.tree.display().to_string(),
        "--readable",
        &list(&landlock_only.readable),
        "--devices",
        &list(&landlock_only.devices),
    ];
    words.map(String::from).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_user_is_mapped_and_highest_id_is_not() {
        assert!(has_user(rustix::process::geteuid().as_raw()));
        assert!(!has_user(u32::MAX));
    }
}
