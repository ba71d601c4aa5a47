//! The host of calls that are part of a job's work: the driver reopens the link, and kills the call when the job must
//! stop.

use std::future::pending;
use std::time::Duration;

use futures::future::BoxFuture;
use protocol::{CallKey, GuestClient, ProtocolError};

use super::{CallHost, Interrupt};
use crate::driver::{Driver, DriverExit};
use crate::error::OrchestratorError;

pub(in crate::driver) struct JobCall<'a> {
    driver: &'a Driver,
    /// Ends when the caller has waited long enough.
    expiry: BoxFuture<'a, ()>,
}

impl<'a> JobCall<'a> {
    /// Waits until the call ends.
    pub(in crate::driver) fn until_end(driver: &'a Driver) -> Self {
        Self { driver, expiry: Box::pin(pending::<()>()) }
    }

    /// Waits for at most `wait`, not counting the time during which sandboxes are frozen.
    pub(in crate::driver) fn for_at_most(driver: &'a Driver, wait: Duration) -> Self {
        Self { driver, expiry: Box::pin(driver.core.host_disk.sleep_unfrozen(wait)) }
    }
}

impl CallHost for JobCall<'_> {
    type Exit = DriverExit;

    async fn client(&mut self) -> Result<GuestClient, DriverExit> {
        self.driver.guest().await
    }

    fn before_start(&mut self) -> Result<(), DriverExit> {
        self.driver.stop_now().map_or(Ok(()), Err)
    }

    async fn interrupted(&mut self) -> Interrupt<DriverExit> {
        tokio::select! {
            () = &mut self.expiry => Interrupt::Expired,
            stop = self.driver.until_stop() => Interrupt::Kill(stop),
        }
    }

    async fn after_break(&mut self, error: ProtocolError) -> Result<(), DriverExit> {
        self.driver.after_break(error).await
    }

    fn unrecorded(&self, error: OrchestratorError) -> Interrupt<DriverExit> {
        Interrupt::Kill(DriverExit::Failed(error))
    }

    fn kill_timeout(&self) -> Duration {
        self.driver.core.settings().guest_answer_timeout
    }
}

impl Driver {
    /// Lets the guest drop the output of a call whose output is in the log. Runs in the background.
    pub(in crate::driver) fn forget_call(&self, key: CallKey) {
        if let Some(client) = self.guest.borrow().clone() {
            tokio::spawn(async move {
                let _ = client.forget(key).await;
            });
        }
    }
}
