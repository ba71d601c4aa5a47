//! Creates folders in the home directory that programs need but do not create: `npx` fails if the folder of npm's
//! global packages is missing.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, mkdirat, open, openat};
use rustix::io::Errno;

use crate::sys::{self, Agent};

/// Each folder with its parents. npm's prefix and the first entry of `PATH` point here.
const FOLDERS: [[&str; 2]; 2] = [[".local", "bin"], [".local", "lib"]];

/// Creates the folders as the agent. Ignores errors: a missing or inaccessible home must not prevent the start.
pub(crate) fn create_folders(home: &Path, agent: Option<Agent>) {
    // The default image already has the folders, and checking is cheaper than starting a thread.
    if FOLDERS.iter().all(|folders| open_folder(home, folders, |_, _| Ok(())).is_ok()) {
        return;
    }
    let make_all = || -> io::Result<()> {
        agent.map_or(Ok(()), sys::set_file_ids)?;
        FOLDERS.iter().try_for_each(|folders| open_folder(home, folders, make))
    };
    // Use a separate thread, because it keeps the agent's IDs until it ends.
    std::thread::scope(|scope| drop(scope.spawn(make_all).join()));
}

/// Opens the last of these folders. Calls `prepare` on each folder first. Follows no symbolic links: in a home that
/// was used before, a link must not lead the guest outside.
fn open_folder(
    home: &Path,
    folders: &[&str],
    prepare: impl Fn(&OwnedFd, &str) -> io::Result<()>,
) -> io::Result<()> {
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
    let mut above: OwnedFd = open(home, flags, Mode::empty())?;
    for folder in folders {
        prepare(&above, folder)?;
        above = openat(&above, *folder, flags, Mode::empty())?;
    }
    Ok(())
}

fn make(above: &OwnedFd, folder: &str) -> io::Result<()> {
    match mkdirat(above, folder, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn folders_are_created_idempotently() {
        let home = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            create_folders(home.path(), None);
            assert!(home.path().join(".local/bin").is_dir() && home.path().join(".local/lib").is_dir());
        }
    }

    #[test]
    fn symlinks_are_not_followed_and_missing_home_is_ignored() {
        let (home, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(elsewhere.path(), home.path().join(".local")).unwrap();
        create_folders(home.path(), None);
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
        create_folders(Path::new("/does/not/exist"), None);
    }
}
