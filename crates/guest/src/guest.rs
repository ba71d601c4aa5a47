//! The state that all requests share.

use std::cell::Cell;
use std::os::fd::AsFd;
use std::sync::Arc;

use protocol::{GuestStats, Link};
use tokio::sync::{Notify, watch};

use crate::calls::{DiskFree, Journal};
use crate::desktop::Desktop;
use crate::files::resolve::Workspace;
use crate::files::worker::Workers;
use crate::kernels::Kernels;
use crate::kill;
use crate::reap::Reaper;
use crate::services::Services;
use crate::spawn::Spawner;

/// The guest's state. Lives on one thread.
pub(crate) struct Guest {
    /// Changes whenever the guest starts.
    pub(crate) boot_id: String,
    pub(crate) journal: Journal,
    /// Starts processes.
    pub(crate) spawner: Spawner,
    /// Waits for processes to exit.
    pub(crate) reaper: Reaper,
    /// The directory that all file requests are confined to.
    pub(crate) workspace: Arc<Workspace>,
    /// The threads that access files.
    pub(crate) workers: Workers,
    pub(crate) kernels: Kernels,
    /// The newest link that completed its handshake.
    pub(crate) newest_link: watch::Sender<Option<Link>>,
    pub(crate) desktop: Desktop,
    pub(crate) services: Services,
    /// Notified after the guest has served a request.
    pub(crate) asked: Notify,
    /// Number of open outgoing connections.
    pub(crate) egress_connections: Cell<u32>,
}

impl Guest {
    /// Free space on the workspace's disk.
    pub(crate) fn disk_free(&self) -> DiskFree {
        rustix::fs::fstatvfs(self.workspace.as_fd()).map_or_else(
            |_| DiskFree::default(),
            |disk| DiskFree {
                bytes: disk.f_bavail.saturating_mul(disk.f_frsize),
                inodes: disk.f_favail,
                total_bytes: disk.f_blocks.saturating_mul(disk.f_frsize),
            },
        )
    }

    /// Statistics for the host.
    pub(crate) fn stats(&self) -> GuestStats {
        let disk = self.disk_free();
        GuestStats {
            processes: match self.spawner.shelter {
                Some(_) => kill::count_descendants(),
                None => kill::count_processes(),
            },
            running_calls: self.journal.running().get(),
            disk_free_bytes: disk.bytes,
            disk_total_bytes: disk.total_bytes,
            egress_connections: self.egress_connections.get(),
        }
    }
}
