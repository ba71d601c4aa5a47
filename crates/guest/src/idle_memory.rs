//! Returns memory to the kernel when the guest has been idle for a moment, because many sandboxes are idle most of
//! the time.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::timeout;

use crate::guest::Guest;

/// The idle time. It is longer than the pause between the requests of a short job, because memory returned too early
/// has to be mapped again.
const QUIET: Duration = Duration::from_secs(1);

/// Runs until the guest exits. The guest notifies `request_served` after each request that it serves.
pub(crate) async fn watch(guest: Rc<Guest>) {
    loop {
        guest.request_served.notified().await;
        while timeout(QUIET, guest.request_served.notified()).await.is_ok() {}
        protocol::release_program_pages();
    }
}
