//! Runs programs inside a root file system that is being built, and handles files that belong to other users.
//!
//! Root enters the root file system directly. An unprivileged user enters a user namespace with its subordinate ids,
//! in which it is root and may create files of other users.

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::process::geteuid;

use crate::error::ImageError;

const ENTER: &str = include_str!("enter.sh");
/// The maximum bytes read from a text file.
const MAX_BYTES: u64 = 4 << 20;
const PROGRAM_DIRECTORIES: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// The directories to mount when entering a root file system.
pub(crate) struct BuildRoot<'a> {
    pub(crate) root: &'a Path,
    /// Mounted at `/run/caisson-build/recipe`.
    pub(crate) recipe: &'a Path,
    /// Mounted at `/run/caisson-build/access`.
    pub(crate) access: &'a Path,
    /// Mounted where apt stores downloaded packages.
    pub(crate) archives: &'a Path,
}

impl BuildRoot<'_> {
    /// A command that runs a program inside.
    pub(crate) fn command(&self, program: &str) -> Result<Command, ImageError> {
        let mut command =
            namespaces(&["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"])?;
        command.args(["sh", "-c", ENTER, "enter"]);
        command.args([self.root, self.recipe, self.access, self.archives]).arg(program);
        Ok(command)
    }
}

/// Finds a program of the host by name.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    PROGRAM_DIRECTORIES.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
}

/// Finds a program of the host; fails if it is missing.
pub(crate) fn require_program(
    name: &str,
    purpose: &'static str,
    package: &'static str,
) -> Result<PathBuf, ImageError> {
    find_program(name).ok_or_else(|| ImageError::ProgramMissing {
        program: name.to_owned(),
        purpose,
        package,
    })
}

/// Starts a command line that runs in new namespaces, as root of them.
fn namespaces(flags: &[&str]) -> Result<Command, ImageError> {
    let mut command = Command::new(require_program("unshare", "makes namespaces", "util-linux")?);
    if !geteuid().is_root() {
        require_program("newuidmap", "gives lent ids to a user namespace", "uidmap")?;
        command.args(["--user", "--map-root-user", "--map-auto"]);
    }
    command.args(flags).arg("--");
    command.stdin(Stdio::null());
    Ok(command)
}

/// A command on the host that can access files of all ids available to this user.
pub(crate) fn with_all_ids(program: &str) -> Result<Command, ImageError> {
    if geteuid().is_root() {
        let mut command = Command::new(program);
        command.stdin(Stdio::null());
        return Ok(command);
    }
    let mut command = namespaces(&[])?;
    command.arg(program);
    Ok(command)
}

/// Runs a command on the host until it exits.
pub(crate) fn run(mut command: Command, doing: &str, path: &Path) -> Result<(), ImageError> {
    let output = command.output().map_err(ImageError::at(doing, path))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ImageError::at(doing, path)(io::Error::other(said)))
}

/// Deletes a tree, whichever users own its files; succeeds if it does not exist.
pub(crate) fn remove_tree(path: &Path) -> Result<(), ImageError> {
    match fs::remove_dir_all(path) {
        Ok(()) => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied && !geteuid().is_root() => {}
        Err(error) => return Err(ImageError::at("removing", path)(error)),
    }
    let mut command = with_all_ids("rm")?;
    command.arg("-rf").arg("--").arg(path);
    run(command, "removing", path)
}

/// Copies a tree with all its attributes.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> Result<(), ImageError> {
    let mut command = with_all_ids("cp")?;
    command.args(["-a", "--reflink=auto", "--"]).args([from, to]);
    run(command, "copying to", to)
}

/// Reads a text file inside a root file system. Symlinks are resolved inside it.
pub(crate) fn read_in_root(root: &Path, path: &str) -> Option<String> {
    let root = openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat2(root.as_fd(), path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
    let file = fs::File::from(file);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
