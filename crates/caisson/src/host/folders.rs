//! Checks a server's folders for `doctor`: whether they are usable, tested without leaving anything in them.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use sandbox::namespace::check_run_folder;
use sandbox::{BackendKind, Check, CheckState, SandboxError};
use tempfile::TempDir;

use crate::config::Config;

/// Name prefix of temporary folders for tests.
const SCRATCH_PREFIX: &str = ".caisson-doctor-";

pub(super) struct Folders {
    /// One check per folder.
    pub(super) checks: Vec<Check>,
    /// A temporary folder for tests: next to the data if possible, otherwise in the host's folder for temporary
    /// files.
    pub(super) scratch: Option<TempDir>,
}

impl Folders {
    /// Checks the folders of a configuration.
    pub(super) fn inspect(config: &Config) -> Self {
        let data = try_in(&config.data);
        let mut checks = vec![check("data folder", "--data", &config.data, data.as_ref().err())];
        // Containers have their sockets elsewhere.
        if config.backend == BackendKind::Namespace {
            checks.push(run_folder(&config.run_dir));
        }
        let scratch = data.ok().or_else(|| scratch_in(&std::env::temp_dir()).ok());
        Self { checks, scratch }
    }
}

fn run_folder(folder: &Path) -> Check {
    let name = "run folder";
    let tried = try_in(folder);
    let found = check(name, "--run-dir", folder, tried.as_ref().err());
    match check_run_folder(folder) {
        Err(SandboxError::HostUnsupported { what, remedy }) if found.state == CheckState::Good => {
            Check { name: name.into(), state: CheckState::Missing, found: what, remedy: Some(remedy) }
        }
        _ => found,
    }
}

/// Creates a temporary folder in `folder`, or in its closest existing parent.
fn try_in(folder: &Path) -> io::Result<TempDir> {
    if folder.is_symlink() && !folder.exists() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it is a dangling symlink"));
    }
    scratch_in(existing(folder))
}

fn scratch_in(folder: &Path) -> io::Result<TempDir> {
    let made = tempfile::Builder::new().prefix(SCRATCH_PREFIX).tempdir_in(folder);
    // Drops the name of the temporary folder, which would confuse users.
    made.map_err(|error| error.kind().into())
}

/// The folder itself, or its closest existing parent.
fn existing(folder: &Path) -> &Path {
    folder.ancestors().find(|path| path.symlink_metadata().is_ok()).unwrap_or(Path::new("/"))
}

fn check(name: &str, flag: &str, folder: &Path, error: Option<&io::Error>) -> Check {
    let shown = folder.display();
    let Some(error) = error else {
        let found = if folder.exists() { shown.to_string() } else { format!("{shown}, will be created") };
        return Check { name: name.into(), state: CheckState::Good, found, remedy: None };
    };
    let remedy = remedy(flag, folder, error.kind());
    let found = format!("{shown} cannot be used: {error}");
    Check { name: name.into(), state: CheckState::Missing, found, remedy: Some(remedy) }
}

/// The command that makes a folder usable, or the flag for another folder.
fn remedy(flag: &str, folder: &Path, kind: io::ErrorKind) -> String {
    let user = rustix::process::geteuid().as_raw();
    let owner = fs::metadata(folder).ok().map(|metadata| metadata.uid());
    let shown = folder.display();
    match (kind, owner) {
        (io::ErrorKind::PermissionDenied, Some(owner)) if owner == user => format!("chmod u+rwx {shown}"),
        (io::ErrorKind::PermissionDenied, Some(owner)) => {
            format!(
                "run caisson as its owner (sudo -u '#{owner}' caisson serve), or choose another folder: {flag} FOLDER"
            )
        }
        (io::ErrorKind::PermissionDenied, None) => format!("sudo install -d -m 0700 -o '{user}' {shown}"),
        (io::ErrorKind::StorageFull, _) => "free some disk space".into(),
        _ => format!("choose another folder: {flag} FOLDER"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looked(folder: &Path) -> Check {
        check("data folder", "--data", folder, try_in(folder).as_ref().err())
    }

    #[test]
    fn folder_check_leaves_no_traces() {
        let root = tempfile::tempdir().unwrap();
        let (there, missing) = (root.path().to_owned(), root.path().join("a/b"));
        assert_eq!((looked(&there).state, looked(&missing).state), (CheckState::Good, CheckState::Good));
        assert!(looked(&missing).found.ends_with("will be created"), "{}", looked(&missing).found);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn unusable_folder_is_reported_with_a_remedy() {
        let root = tempfile::tempdir().unwrap();
        let file = root.path().join("file");
        fs::write(&file, "").unwrap();
        let link = root.path().join("link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        for path in [file.clone(), file.join("below"), link] {
            let check = looked(&path);
            assert_eq!(check.state, CheckState::Missing, "{check:?}");
            assert!(check.found.contains("cannot be used: "), "{check:?}");
            assert!(check.remedy.is_some_and(|remedy| remedy.contains("--data FOLDER")));
        }
    }
}
