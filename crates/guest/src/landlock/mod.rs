//! The Landlock domain of programs in a sandbox without namespaces. It is narrower than the guest's own: no access to
//! the journal, to other users' terminals, or to any TCP port.

mod sys;

use std::io;
use std::path::Path;

use rustix::fs::{Mode, OFlags, open};

use crate::landlock_only::LandlockOnly;

// Access rights from linux/landlock.h.
const EXECUTE: u64 = 1;
const WRITE_FILE: u64 = 1 << 1;
const READ_FILE: u64 = 1 << 2;
const READ_DIRECTORY: u64 = 1 << 3;
const MAKE_CHARACTER_DEVICE: u64 = 1 << 6;
const MAKE_BLOCK_DEVICE: u64 = 1 << 11;
const DEVICE_CONTROL: u64 = 1 << 15;
/// All file access rights of Landlock ABI version 5.
const ALL: u64 = (1 << 16) - 1;

/// Moves the calling thread, and the processes it forks, into the domain. This is irreversible.
pub(crate) fn enter(landlock_only: &LandlockOnly) -> io::Result<()> {
    let rules = sys::make(ALL)?;
    let add = |path: &Path, rights: u64| -> io::Result<()> {
        let file = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
        sys::allow(&rules, &file, rights)
    };
    add(&landlock_only.tree, ALL & !MAKE_CHARACTER_DEVICE & !MAKE_BLOCK_DEVICE)?;
    add(Path::new("/proc"), READ_FILE | READ_DIRECTORY)?;
    for path in &landlock_only.readable {
        let directory = if path.is_dir() { READ_DIRECTORY } else { 0 };
        add(path, EXECUTE | READ_FILE | directory)?;
    }
    for path in &landlock_only.devices {
        add(path, READ_FILE | WRITE_FILE | DEVICE_CONTROL)?;
    }
    sys::restrict_thread(&rules)
}
