//! The state that all requests share.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use protocol::{GuestStats, Link, LinkOwner};
use tokio::sync::{Notify, watch};

use crate::desktop::Desktop;
use crate::kernels::Kernels;
use crate::process_tree;
use crate::resources::Resources;
use crate::services::Services;

/// The guest's state. Lives on one thread.
pub(crate) struct Guest {
    /// Changes whenever the guest starts.
    pub(crate) boot_id: String,
    pub(crate) resources: Rc<Resources>,
    pub(crate) kernels: Rc<Kernels>,
    pub(crate) services: Rc<Services>,
    pub(crate) desktop: Rc<Desktop>,
    /// Decides whose links are accepted.
    pub(crate) link_owner: RefCell<LinkOwner>,
    /// The newest link that completed its handshake.
    pub(crate) newest_link: watch::Sender<Option<Link>>,
    /// Notified after the guest has served a request.
    pub(crate) request_served: Notify,
    /// Number of open outgoing connections.
    pub(crate) egress_connections: Cell<u32>,
}

impl Guest {
    /// Statistics for the host.
    pub(crate) fn stats(&self) -> GuestStats {
        let disk = self.resources.disk_free();
        GuestStats {
            processes: match self.resources.spawner.landlock_only {
                Some(_) => process_tree::count_descendants(),
                None => process_tree::count_processes(),
            },
            running_calls: self.resources.journal.running().get(),
            disk_free_bytes: disk.bytes,
            disk_total_bytes: disk.total_bytes,
            egress_connections: self.egress_connections.get(),
        }
    }
}
