//! The folders of a server, and their defaults for root and for an ordinary user.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::environment::variable;

const ROOT_DATA: &str = "/var/lib/caisson";
const ROOT_RUN: &str = "/run/caisson";

/// The folders for servers of one user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DefaultPaths {
    /// Jobs, database and sandboxes.
    pub(crate) data: PathBuf,
    /// Parent folder of sockets and user id locks, for all servers of this user.
    pub(crate) run: PathBuf,
}

impl DefaultPaths {
    /// The folders of a user whose environment variables `variable` returns.
    pub(crate) fn of(uid: u32, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        if uid == 0 {
            return Ok(Self { data: ROOT_DATA.into(), run: ROOT_RUN.into() });
        }
        let folder = |name: &str| variable(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let data = folder("XDG_DATA_HOME").or_else(|| Some(folder("HOME")?.join(".local/share")));
        let data = data.context("HOME is not set; choose a data folder with --data")?;
        let run = folder("XDG_RUNTIME_DIR")
            .map_or_else(|| PathBuf::from(format!("/tmp/caisson-{uid}")), |folder| folder.join("caisson"));
        Ok(Self { data: data.join("caisson"), run })
    }

    /// The socket folder that belongs to a data folder.
    pub(crate) fn run_dir_of(&self, data: &Path) -> PathBuf {
        self.run.join(short_name(data))
    }

    /// The folder of user id locks.
    pub(crate) fn slots_dir(&self) -> PathBuf {
        self.run.join("slots")
    }
}

/// A folder from a flag, the environment, the file, or the default.
pub(crate) fn pick(
    flag: Option<&Path>,
    name: &str,
    file: Option<PathBuf>,
    default: &Path,
) -> Result<PathBuf> {
    let path = flag
        .map(Path::to_owned)
        .or_else(|| variable(name).map(PathBuf::from))
        .or(file)
        .unwrap_or_else(|| default.into());
    std::path::absolute(&path).with_context(|| format!("finding the folder {}", path.display()))
}

/// A short name derived from a folder, so that two servers on one host do not share sockets.
fn short_name(folder: &Path) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in folder.as_os_str().as_encoded_bytes() {
        hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    }
    format!("{:08x}", hash as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_user_has_its_own_default_folders() {
        let root = DefaultPaths::of(0, |_| Some("/elsewhere".into())).unwrap();
        assert_eq!(root.data, Path::new("/var/lib/caisson"));
        let bare = DefaultPaths::of(1001, |name| (name == "HOME").then(|| "/home/ann".into())).unwrap();
        assert_eq!(bare.data, Path::new("/home/ann/.local/share/caisson"));
        assert_eq!(bare.run, Path::new("/tmp/caisson-1001"));
        let session = DefaultPaths::of(1001, |name| Some(format!("/{name}"))).unwrap();
        assert_eq!(session.data, Path::new("/XDG_DATA_HOME/caisson"));
        assert_eq!(session.run, Path::new("/XDG_RUNTIME_DIR/caisson"));
        assert!(DefaultPaths::of(1001, |_| None).unwrap_err().to_string().contains("--data"));
    }
}
