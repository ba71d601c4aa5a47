//! Performs one file operation in the sandbox, exactly once, across link failures and server restarts.

use std::time::Duration;

use job::{CallEnd, CallRef, CallStatus};
use protocol::{
    CallKey, CallStatus as GuestCallStatus, FileError, FileOperation, FileReply, FileResult, ProtocolError,
};
use tokio::time::Instant;

use super::call::key_of;
use super::{Driver, DriverExit};
use crate::error::OrchestratorError;

/// Pause before asking again about an operation that was started over another link.
const ASK_AGAIN: Duration = Duration::from_millis(20);

impl Driver {
    pub(super) async fn run_file_call(
        &self,
        call: &CallRef,
        operation: FileOperation,
    ) -> Result<CallEnd, DriverExit> {
        let started = Instant::now();
        let result = self.perform_file_operation(Some(key_of(call)), operation).await?;
        let mut end = CallEnd {
            duration_ms: u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX),
            ..CallEnd::default()
        };
        match result {
            Ok(reply) => end.result = Some(present(reply)),
            Err(error) => {
                end.status = CallStatus::Failed;
                end.reason = Some(error.message.clone());
                end.code = Some(OrchestratorError::from(error).code().to_owned());
            }
        }
        Ok(end)
    }

    /// Performs an operation; exactly once if it has a key.
    pub(super) async fn perform_file_operation(
        &self,
        key: Option<CallKey>,
        operation: FileOperation,
    ) -> Result<Result<FileReply, FileError>, DriverExit> {
        loop {
            let client = self.guest().await?;
            let asked = match &key {
                None => client.file(None, operation.clone()).await,
                Some(key) => match client.call_status(key.clone()).await {
                    Ok(GuestCallStatus::Unknown) => client.file(Some(key.clone()), operation.clone()).await,
                    Ok(GuestCallStatus::File(FileResult::Ok(reply))) => Ok(reply),
                    Ok(GuestCallStatus::File(FileResult::Error(error))) => Err(error.into()),
                    Ok(GuestCallStatus::Running { .. }) => {
                        tokio::time::sleep(ASK_AGAIN).await;
                        continue;
                    }
                    Ok(GuestCallStatus::Ended(_) | GuestCallStatus::Answered) => {
                        Err(ProtocolError::Unexpected("something else for a file operation".into()))
                    }
                    Err(error) => Err(error),
                },
            };
            match asked {
                Ok(reply) => return Ok(Ok(reply)),
                Err(ProtocolError::File(error)) => return Ok(Err(error)),
                Err(error) => self.after_break(error).await?,
            }
        }
    }
}

/// The part of a reply that is logged.
fn present(reply: FileReply) -> serde_json::Value {
    serde_json::to_value(reply).unwrap_or_default()
}
