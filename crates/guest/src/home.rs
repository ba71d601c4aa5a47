//! Folders that programs expect in a home and do not make: `npx` fails where the one of npm's global packages is missing.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, mkdirat, open, openat};
use rustix::io::Errno;

use crate::sys::{self, Agent};

/// Each with the folders above it; npm's prefix and the first entry of `PATH` lead here.
const FOLDERS: [[&str; 2]; 2] = [[".local", "bin"], [".local", "lib"]];

/// Makes them as the agent, whose home it is. One that is missing or closed is no reason not to start.
pub(crate) fn make_ready(home: &Path, agent: Option<Agent>) {
    // The host's own image has them, and a thread costs more than a look.
    if FOLDERS.iter().all(|folders| open_folder(home, folders, |_, _| Ok(())).is_ok()) {
        return;
    }
    let make_all = || -> io::Result<()> {
        agent.map_or(Ok(()), sys::set_file_ids)?;
        FOLDERS.iter().try_for_each(|folders| open_folder(home, folders, make))
    };
    // A thread of its own: it stays the agent's until it ends.
    std::thread::scope(|scope| drop(scope.spawn(make_all).join()));
}

/// Opens the last of these folders, each of which `prepare` sees first. Follows no link: a guest that starts again in a home that
/// was used must not be led out of it.
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
    fn the_folders_are_there_afterwards_and_again() {
        let home = tempfile::tempdir().unwrap();
        for _ in 0..2 {
            make_ready(home.path(), None);
            assert!(home.path().join(".local/bin").is_dir() && home.path().join(".local/lib").is_dir());
        }
    }

    #[test]
    fn a_link_leads_nowhere_and_a_missing_home_harms_nobody() {
        let (home, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        symlink(elsewhere.path(), home.path().join(".local")).unwrap();
        make_ready(home.path(), None);
        assert_eq!(std::fs::read_dir(elsewhere.path()).unwrap().count(), 0);
        make_ready(Path::new("/does/not/exist"), None);
    }
}
