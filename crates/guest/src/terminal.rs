//! Terminals for processes that request one.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use protocol::TerminalSize;
use rustix::fs::{Mode, OFlags, open as open_file};
use rustix::process::{parent_process_death_signal, set_parent_process_death_signal};
use rustix::pty::{OpenptFlags, ioctl_tiocgptpeer, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::sys::{self, Agent};

/// Opens a terminal owned by the agent. Returns its nonblocking master side and its slave side.
pub(crate) fn open(size: TerminalSize, agent: Option<Agent>) -> io::Result<(OwnedFd, OwnedFd)> {
    // The kernel assigns a new terminal to the filesystem IDs of the process that opens `/dev/ptmx`. Changing these
    // IDs resets two process attributes, which are restored below: the protection from ptrace, and the signal that
    // kills the guest when its launcher dies.
    let tie = parent_process_death_signal()?;
    if let Some(agent) = agent {
        sys::set_file_ids(agent)?;
    }
    let opened = open_pair();
    if agent.is_some() {
        sys::set_file_ids(Agent { uid: 0, gid: rustix::process::getegid().as_raw() })?;
        sys::forbid_ptrace();
        set_parent_process_death_signal(tie)?;
    }
    let (master, slave) = opened?;
    resize(&master, size)?;
    rustix::io::ioctl_fionbio(&master, true)?;
    Ok((master, slave))
}

fn open_pair() -> io::Result<(OwnedFd, OwnedFd)> {
    let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC;
    let master = open_file("/dev/ptmx", flags, Mode::empty())?;
    unlockpt(&master)?;
    let slave = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    Ok((master, slave))
}

/// Resizes the terminal. The kernel notifies the processes with SIGWINCH.
pub(crate) fn resize(master: impl AsFd, size: TerminalSize) -> io::Result<()> {
    let size = Winsize { ws_row: size.rows, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
    Ok(tcsetwinsize(master, size)?)
}
