//! The resources that kernels, services, the desktop and the requests share.

use std::os::fd::AsFd;

use crate::files::Files;
use crate::journal::{DiskFree, Journal};
use crate::reap::Reaper;
use crate::spawn::Spawner;

/// The journal, the workspace, and the means to start processes.
pub(crate) struct Resources {
    pub(crate) journal: Journal,
    /// Starts processes.
    pub(crate) spawner: Spawner,
    /// Waits for processes to exit.
    pub(crate) reaper: Reaper,
    pub(crate) files: Files,
}

impl Resources {
    /// Free space on the workspace's disk.
    pub(crate) fn disk_free(&self) -> DiskFree {
        rustix::fs::fstatvfs(self.files.workspace.as_fd()).map_or_else(
            |_| DiskFree::default(),
            |disk| DiskFree {
                bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
                inodes: disk.f_favail,
                total_bytes: disk.f_blocks.saturating_mul(disk.f_frsize),
            },
        )
    }
}
