//! Keeps a bare sandbox alive until it is deleted or has been idle for too long.

use std::time::Duration;

use super::stop::wait_for_cancel;
use super::{Driver, DriverExit};
use crate::recorder::StateReason;

/// Maximum time between two checks of the clock: the sandbox may have been used in the meantime.
const MAX_SLEEP: Duration = Duration::from_secs(3600);

impl Driver {
    /// Returns why the session ends.
    pub(super) async fn hold_sandbox(&mut self) -> Result<StateReason, DriverExit> {
        self.interrupt_api_calls().await?;
        loop {
            let mut control_request = self.control_request.clone();
            let client = tokio::select! {
                () = wait_for_cancel(&mut control_request) => return Err(DriverExit::Cancelled),
                client = self.guest() => client?,
            };
            let idle_ms = self.idle_ms.borrow_and_update().unwrap_or(i64::MAX);
            let left_ms = idle_ms.saturating_sub(self.used.idle_ms());
            if left_ms <= 0 {
                return Ok(StateReason::new("ttl", format!("not used for {} s", idle_ms / 1000)));
            }
            let left = Duration::from_millis(u64::try_from(left_ms).unwrap_or(0)).min(MAX_SLEEP);
            tokio::select! {
                () = wait_for_cancel(&mut self.control_request) => return Err(DriverExit::Cancelled),
                // Getting the guest again distinguishes a broken link from a lost sandbox.
                _ = client.link().closed() => {}
                () = tokio::time::sleep(left) => {}
                _ = self.idle_ms.changed() => {}
            }
        }
    }
}
