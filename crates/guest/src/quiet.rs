//! A guest that nobody has asked for anything for a moment gives memory back: many sandboxes wait most of the time.

use std::rc::Rc;
use std::time::Duration;

use tokio::time::timeout;

use crate::guest::Guest;

/// How long it must be quiet. Longer than a short job waits for its next request: what is given back too early has to be
/// mapped again.
const QUIET: Duration = Duration::from_secs(1);

/// Watches for ever. Whoever has served a request notifies `asked`.
pub(crate) async fn watch(guest: Rc<Guest>) {
    loop {
        guest.asked.notified().await;
        while timeout(QUIET, guest.asked.notified()).await.is_ok() {}
        protocol::give_back_program_pages();
    }
}
