//! Running programs inside a root file system that is being made, and dealing with files whose owners are not us.
//!
//! Root enters it directly. An ordinary user enters a user namespace with the ids that the host lends to it, in which it is
//! root and may make files of other users.

use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::process::geteuid;

use crate::error::ImageError;

const ENTER: &str = include_str!("enter.sh");
/// The most bytes of a file that is read for facts.
const MOST_BYTES: u64 = 4 << 20;
const PROGRAM_DIRECTORIES: [&str; 6] =
    ["/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"];

/// What a root file system is entered with.
pub(crate) struct Entrance<'a> {
    /// The root file system.
    pub(crate) root: &'a Path,
    /// Shown inside at `/run/caisson-build/recipe`.
    pub(crate) recipe: &'a Path,
    /// Shown inside at `/run/caisson-build/access`.
    pub(crate) access: &'a Path,
    /// Shown inside where apt keeps what it has fetched.
    pub(crate) archives: &'a Path,
}

impl Entrance<'_> {
    /// A command that runs a program inside.
    pub(crate) fn command(&self, program: &str) -> Result<Command, ImageError> {
        let mut command =
            namespaces(&["--mount", "--pid", "--fork", "--kill-child", "--propagation", "private"])?;
        command.args(["sh", "-c", ENTER, "enter"]);
        command.args([self.root, self.recipe, self.access, self.archives]).arg(program);
        Ok(command)
    }
}

/// A program of the host, by its name.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    PROGRAM_DIRECTORIES.iter().map(|folder| Path::new(folder).join(name)).find(|path| path.exists())
}

/// A program of the host that must be there.
pub(crate) fn need_program(
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

/// The beginning of a command in new namespaces, as root of them.
fn namespaces(flags: &[&str]) -> Result<Command, ImageError> {
    let mut command = Command::new(need_program("unshare", "makes namespaces", "util-linux")?);
    if !geteuid().is_root() {
        need_program("newuidmap", "gives lent ids to a user namespace", "uidmap")?;
        command.args(["--user", "--map-root-user", "--map-auto"]);
    }
    command.args(flags).arg("--");
    command.stdin(Stdio::null());
    Ok(command)
}

/// A command of the host that may touch files of all ids that we have.
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

/// Runs a command of the host to its end.
pub(crate) fn run(mut command: Command, doing: &str, path: &Path) -> Result<(), ImageError> {
    let output = command.output().map_err(ImageError::at(doing, path))?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(ImageError::at(doing, path)(io::Error::other(said)))
}

/// Deletes a tree, whoever its files belong to; succeeds when it is not there.
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

/// Copies a tree as it is.
pub(crate) fn copy_tree(from: &Path, to: &Path) -> Result<(), ImageError> {
    let mut command = with_all_ids("cp")?;
    command.args(["-a", "--reflink=auto", "--"]).args([from, to]);
    run(command, "copying to", to)
}

/// A text file inside a root file system, its links followed inside alone.
pub(crate) fn read_in_root(root: &Path, path: &str) -> Option<String> {
    let root = openat(CWD, root, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let file = openat2(root.as_fd(), path, flags, Mode::empty(), ResolveFlags::IN_ROOT).ok()?;
    let file = fs::File::from(file);
    if !file.metadata().ok()?.is_file() {
        return None;
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}
