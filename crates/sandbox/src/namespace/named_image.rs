//! Named images: root file systems in a folder, each in `<name>/rootfs`. This module does not care who puts them
//! there.
//!
//! An image is never modified. What every sandbox needs regardless of the image (the user `agent` and its home
//! directory, `/tmp`, `/etc/hosts`, the operator's trusted certificates) goes into a small layer over it, built once
//! per image.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use launcher::spec::{AGENT_ID, Root, Users};
use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};

use super::old_layers::mark_used;
use crate::HOST_IMAGE;
use crate::error::{SandboxError, failed};
use crate::host::certificates::pem_bodies;
use crate::host::java_store::{STORE, java_store};

/// Name of the root file system in an image's folder.
pub(super) const ROOT_FOLDER: &str = "rootfs";
/// The CA bundle that the environment variables of every process point to.
const BUNDLE: &str = "etc/ssl/certs/ca-certificates.crt";
/// Where distributions keep the bundle of all trusted certificates.
const BUNDLES: [&str; 4] = [
    BUNDLE,
    "etc/pki/tls/certs/ca-bundle.crt",
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",
    "etc/ssl/cert.pem",
];
/// The policy directory of Chromium, which reads no CA bundle.
pub(super) const BROWSER_POLICIES: &str = "etc/chromium/policies/managed";
/// The maximum size of a file that is read from an image, in bytes.
const MAX_FILE_BYTES: u64 = 8 << 20;
/// Increase when the way layers are built changes.
const VERSION: u32 = 3;

/// Which user the agent is inside, and who owns its files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum AgentUser {
    /// User 1000, whose files have this id on the host too: mounts map ids.
    Mapped,
    /// User 1000; the launcher changes the owner of its files.
    Given,
    /// User 0, because there is no other.
    Root,
}

impl AgentUser {
    pub(super) fn of(users: &Users) -> Self {
        match users {
            Users::Ranges(_) => Self::Mapped,
            Users::Lent { .. } => Self::Given,
            Users::Single => Self::Root,
        }
    }

    fn id(self) -> u32 {
        match self {
            Self::Mapped | Self::Given => AGENT_ID,
            Self::Root => 0,
        }
    }
}

/// Named images of one server.
pub(super) struct NamedImages {
    /// The folder of images.
    folder: PathBuf,
    /// The server's own folder, for the layers over the images.
    layers: PathBuf,
    agent: AgentUser,
    made: Mutex<BTreeMap<u64, PathBuf>>,
    /// Cache: the certificates of the last call, and their hash.
    last_hash: Mutex<Option<(Arc<[String]>, u64)>>,
}

impl NamedImages {
    pub(super) fn new(folder: PathBuf, layers: PathBuf, agent: AgentUser) -> Self {
        Self { folder, layers, agent, made: Mutex::default(), last_hash: Mutex::default() }
    }

    /// The names of all images, sorted.
    pub(super) fn names(&self) -> Result<Vec<String>, SandboxError> {
        let entries = match fs::read_dir(&self.folder) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|source| failed("listing", &self.folder, source))?,
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        let mut names: Vec<String> =
            names.filter(|name| is_name(name) && self.folder.join(name).join(ROOT_FOLDER).is_dir()).collect();
        names.sort();
        Ok(names)
    }

    /// A version that changes when the name gets another image.
    pub(super) fn version(&self, name: &str) -> Option<String> {
        let facts = fs::metadata(self.folder.join(name).join(ROOT_FOLDER)).ok().filter(|_| is_name(name))?;
        Some(format!("{}-{}-{}.{}", facts.dev(), facts.ino(), facts.ctime(), facts.ctime_nsec()))
    }

    /// The layers of an image with these certificates added.
    pub(super) fn get(&self, name: &str, extra_ca: &Arc<[String]>) -> Result<Root, SandboxError> {
        let missing = || SandboxError::NoImage(name.to_owned());
        if !is_name(name) {
            return Err(missing());
        }
        // The image's folder may itself be a symlink.
        let lower = fs::canonicalize(self.folder.join(name).join(ROOT_FOLDER)).map_err(|_| missing())?;
        let facts = fs::metadata(&lower).map_err(|_| missing())?;
        if !facts.is_dir() {
            return Err(missing());
        }
        let mut hasher = DefaultHasher::new();
        (VERSION, &lower, facts.dev(), facts.ino(), facts.ctime(), facts.ctime_nsec()).hash(&mut hasher);
        (self.hash_of(extra_ca), self.agent).hash(&mut hasher);
        let over = self.layer(hasher.finish(), &lower, extra_ca)?;
        Ok(Root { lower, over: Some(over), binds: Vec::new() })
    }

    /// Builds a layer over an image for a single sandbox.
    pub(super) fn build_layer(&self, lower: &Path, layer: &Path, extra_ca: &[String]) -> io::Result<()> {
        LayerBuilder { image: lower, layer, agent: self.agent }.build(extra_ca)
    }

    /// Hashing all the certificates that a host trusts takes longer than looking a layer up, so the last hash is
    /// cached.
    fn hash_of(&self, extra_ca: &Arc<[String]>) -> u64 {
        let mut last_hash = self.last_hash.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last_hash {
            Some((known, hash)) if Arc::ptr_eq(known, extra_ca) => *hash,
            _ => {
                let mut hasher = DefaultHasher::new();
                extra_ca.hash(&mut hasher);
                last_hash.insert((Arc::clone(extra_ca), hasher.finish())).1
            }
        }
    }

    fn layer(&self, key: u64, lower: &Path, extra_ca: &[String]) -> Result<PathBuf, SandboxError> {
        let mut made = self.made.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(layer) = made.get(&key).filter(|layer| layer.exists()) {
            return Ok(layer.clone());
        }
        let layer = self.layers.join(format!("over-{key:016x}"));
        let partial = self.layers.join(format!("over-{key:016x}-{}.partial", std::process::id()));
        let build = || -> io::Result<()> {
            if layer.exists() {
                return mark_used(&layer);
            }
            match fs::remove_dir_all(&partial) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            LayerBuilder { image: lower, layer: &partial, agent: self.agent }.build(extra_ca)?;
            match fs::rename(&partial, &layer) {
                // Another process was faster.
                Err(_) if layer.exists() => fs::remove_dir_all(&partial),
                other => other,
            }
        };
        build().map_err(|source| failed("preparing the image in", lower, source))?;
        made.insert(key, layer.clone());
        Ok(layer)
    }
}

/// Whether a text is a valid image name: a plain file name that does not start with a dot.
fn is_name(name: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    name.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric())
        && name.len() <= 128
        && name != HOST_IMAGE
        && name.bytes().all(is_plain)
}

struct LayerBuilder<'a> {
    image: &'a Path,
    layer: &'a Path,
    agent: AgentUser,
}

impl LayerBuilder<'_> {
    fn build(&self, extra_ca: &[String]) -> io::Result<()> {
        fs::create_dir_all(self.layer)?;
        fs::set_permissions(self.layer, fs::Permissions::from_mode(0o755))?;
        for (path, mode) in [
            ("etc", 0o755),
            ("home", 0o755),
            ("home/agent", 0o755),
            ("mnt", 0o755),
            ("opt", 0o755),
            ("srv", 0o755),
            ("tmp", 0o1777),
            ("var", 0o755),
            ("var/tmp", 0o1777),
        ] {
            self.directory(path, mode)?;
        }
        if self.agent == AgentUser::Mapped {
            chown(self.layer.join("home/agent"), Some(AGENT_ID), Some(AGENT_ID))?;
        }
        self.users()?;
        self.write("etc/hosts", "127.0.0.1 localhost caisson\n::1 localhost ip6-localhost ip6-loopback\n")?;
        self.write("etc/hostname", "caisson\n")?;
        self.write("etc/resolv.conf", "# There is no name server: names are looked up by the proxy.\n")?;
        self.write("etc/machine-id", "00000000000000000000000000000001\n")?;
        if self.read("etc/nsswitch.conf").is_none() {
            self.write("etc/nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n")?;
        }
        self.certificates(extra_ca)
    }

    fn directory(&self, path: &str, mode: u32) -> io::Result<()> {
        let path = self.layer.join(path);
        fs::create_dir_all(&path)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(mode))
    }

    fn write(&self, path: &str, content: impl AsRef<[u8]>) -> io::Result<()> {
        let path = self.layer.join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(path, content)
    }

    fn read(&self, path: &str) -> Option<String> {
        read_inside(self.image, path)
    }

    /// Adds the agent to the image's users, replacing any user with its name or id.
    fn users(&self) -> io::Result<()> {
        let (id, text) = (self.agent.id(), self.agent.id().to_string());
        let shell = if self.read("bin/bash").is_some() { "/bin/bash" } else { "/bin/sh" };
        let agent = format!("agent:x:{id}:{id}:agent:/home/agent:{shell}");
        let others = self.read("etc/passwd").unwrap_or_default();
        let root = "root:x:0:0:root:/root:/bin/sh";
        // If both have id 0, programs show the name on the first line.
        let passwd = merge(&agent, &others, |field| field == text && id != 0, root);
        self.write("etc/passwd", &passwd)?;
        let others = self.read("etc/group").unwrap_or_default();
        let group = merge(&format!("agent:x:{id}:"), &others, |field| field == text && id != 0, "root:x:0:");
        self.write("etc/group", &group)
    }

    fn certificates(&self, extra_ca: &[String]) -> io::Result<()> {
        let found: Vec<(&str, String)> =
            BUNDLES.iter().filter_map(|path| Some((*path, self.read(path)?))).collect();
        let own = found.first().map(|(_, text)| text.as_str()).unwrap_or_default();
        let known: BTreeSet<String> = pem_bodies(own).into_iter().collect();
        let mut added: Vec<String> = Vec::new();
        for block in extra_ca.iter().flat_map(|text| pem_bodies(text)) {
            if !known.contains(&block) && !added.contains(&block) {
                added.push(block);
            }
        }
        if added.is_empty() && found.iter().any(|(path, _)| *path == BUNDLE) {
            return self.write(STORE, java_store(own));
        }
        let mut bundle = own.trim_end().to_owned();
        for block in &added {
            bundle += &format!("\n-----BEGIN CERTIFICATE-----\n{}-----END CERTIFICATE-----", lines(block));
        }
        let bundle = bundle.trim_start().to_owned() + "\n";
        self.write(STORE, java_store(&bundle))?;
        for path in found.iter().map(|(path, _)| *path).filter(|path| *path != BUNDLE).chain([BUNDLE]) {
            self.write(path, &bundle)?;
        }
        if !added.is_empty() && self.image.join("etc/chromium").is_dir() {
            let policy = serde_json::json!({ "CACertificates": added });
            self.write(&format!("{BROWSER_POLICIES}/caisson-certificates.json"), policy.to_string())?;
        }
        Ok(())
    }
}

/// Reads a text file of an image. Symlinks are resolved within the image.
pub(super) fn read_inside(image: &Path, path: &str) -> Option<String> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let root = openat(CWD, image, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
    let file = openat2(root.ok()?.as_fd(), path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
    let file = fs::File::from(file);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// The agent's line, followed by all other lines except those with its name or id.
fn merge(agent: &str, others: &str, has_id: impl Fn(&str) -> bool, least: &str) -> String {
    let others: Vec<&str> = others
        .lines()
        .filter(|line| {
            let mut fields = line.split(':');
            let is_agent = fields.next() == Some("agent");
            !line.trim().is_empty() && !is_agent && !fields.nth(1).is_some_and(&has_id)
        })
        .collect();
    let others = if others.is_empty() { vec![least] } else { others };
    format!("{agent}\n{}\n", others.join("\n"))
}

fn lines(letters: &str) -> String {
    letters.as_bytes().chunks(64).map(|line| String::from_utf8_lossy(line).into_owned() + "\n").collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const ONE: &str = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    const TWO: &str = "-----BEGIN CERTIFICATE-----\nBBBB\n-----END CERTIFICATE-----\n";

    struct Place {
        folder: tempfile::TempDir,
    }

    impl Place {
        fn new() -> Self {
            let place = Self { folder: tempfile::tempdir().unwrap() };
            fs::create_dir_all(place.root().join("etc")).unwrap();
            fs::create_dir_all(place.folder.path().join("layers")).unwrap();
            place
        }

        fn root(&self) -> PathBuf {
            self.folder.path().join("images/small/rootfs")
        }

        fn images(&self, agent: AgentUser) -> NamedImages {
            NamedImages::new(self.folder.path().join("images"), self.folder.path().join("layers"), agent)
        }

        fn over(&self, agent: AgentUser, extra_ca: &[String]) -> PathBuf {
            self.images(agent).get("small", &Arc::from(extra_ca)).unwrap().over.unwrap()
        }
    }

    #[test]
    fn empty_image_gets_user_home_and_files() {
        let place = Place::new();
        let over = place.over(AgentUser::Given, &[]);
        let text = |path: &str| fs::read_to_string(over.join(path)).unwrap();
        assert_eq!(
            text("etc/passwd"),
            "agent:x:1000:1000:agent:/home/agent:/bin/sh\nroot:x:0:0:root:/root:/bin/sh\n"
        );
        assert!(text("etc/hosts").contains("localhost") && over.join("home/agent").is_dir());
        assert_eq!(fs::metadata(over.join("tmp")).unwrap().mode() & 0o7777, 0o1777);
        assert!(fs::read_dir(place.root().join("etc")).unwrap().next().is_none(), "the image stays as it is");
    }

    #[test]
    fn agent_replaces_the_user_with_its_id() {
        let place = Place::new();
        fs::write(
            place.root().join("etc/passwd"),
            "root:x:0:0::/root:/bin/sh\nubuntu:x:1000:1000::/home/ubuntu:/bin/sh\n",
        )
        .unwrap();
        let passwd = fs::read_to_string(place.over(AgentUser::Given, &[]).join("etc/passwd")).unwrap();
        assert!(
            passwd.contains("agent:x:1000:") && !passwd.contains("ubuntu") && passwd.contains("root:x:0:0"),
            "{passwd}"
        );
        let passwd = fs::read_to_string(place.over(AgentUser::Root, &[]).join("etc/passwd")).unwrap();
        assert!(passwd.starts_with("agent:x:0:0:") && passwd.contains("root:x:0:0"), "{passwd}");
    }

    #[test]
    fn certificates_are_added_wherever_the_image_keeps_them() {
        let place = Place::new();
        fs::create_dir_all(place.root().join("etc/pki/tls/certs")).unwrap();
        fs::write(place.root().join("etc/pki/tls/certs/ca-bundle.crt"), ONE).unwrap();
        fs::create_dir_all(place.root().join("etc/chromium")).unwrap();
        let over = place.over(AgentUser::Given, &[format!("{ONE}{TWO}")]);
        for path in [BUNDLE, "etc/pki/tls/certs/ca-bundle.crt"] {
            assert_eq!(fs::read_to_string(over.join(path)).unwrap(), format!("{ONE}{TWO}"), "{path}");
        }
        let policy =
            fs::read_to_string(over.join(BROWSER_POLICIES).join("caisson-certificates.json")).unwrap();
        assert_eq!(policy, r#"{"CACertificates":["BBBB"]}"#);
    }

    #[test]
    fn image_symlinks_stay_inside_the_image() {
        let place = Place::new();
        symlink("/etc/passwd", place.root().join("etc/passwd")).unwrap();
        symlink("/dev/zero", place.root().join("etc/group")).unwrap();
        let passwd = fs::read_to_string(place.over(AgentUser::Given, &[]).join("etc/passwd")).unwrap();
        assert_eq!(passwd.lines().count(), 2, "{passwd}");
    }

    #[test]
    fn only_plain_names_are_image_names() {
        let place = Place::new();
        let images = place.images(AgentUser::Given);
        assert_eq!(images.names().unwrap(), ["small"]);
        for name in ["", "..", "a/b", "../images/small", ".small", "host", "none"] {
            assert!(matches!(images.get(name, &Arc::default()), Err(SandboxError::NoImage(_))), "{name}");
        }
    }
}
