//! When a job must stop: it was cancelled, or its time is over.

use std::future::pending;

use job::ControlRequest;
use tokio::sync::watch;

use super::{Driver, DriverExit};

impl Driver {
    /// Why the job must stop now; `None` if it may continue.
    pub(super) fn stop_now(&self) -> Option<DriverExit> {
        if self.is_cancelled() {
            return Some(DriverExit::Cancelled);
        }
        self.is_time_over().then_some(DriverExit::Deadline)
    }

    /// Returns when the job must stop.
    pub(super) async fn until_stop(&self) -> DriverExit {
        let mut control_request = self.control_request.clone();
        tokio::select! {
            () = wait_for_cancel(&mut control_request) => DriverExit::Cancelled,
            () = self.time_over() => DriverExit::Deadline,
        }
    }
}

/// Returns when the job is cancelled; otherwise never.
pub(super) async fn wait_for_cancel(control_request: &mut watch::Receiver<Option<ControlRequest>>) {
    let is_cancel = |request: &Option<ControlRequest>| *request == Some(ControlRequest::Cancel);
    if control_request.wait_for(is_cancel).await.is_err() {
        pending::<()>().await;
    }
}
