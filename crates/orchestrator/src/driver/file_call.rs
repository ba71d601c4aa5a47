//! Performs one file operation in the sandbox, exactly once, across link failures and server restarts.

use std::time::Duration;

use protocol::{CallKey, CallStatus as GuestCallStatus, FileOperation, FileReply, FileResult, ProtocolError};
use tokio::time::Instant;

use super::{Driver, Stop};
use crate::error::OrchestratorError;
use crate::event::{CallEnd, CallRef, CallStatus};
use crate::request::{parse_mode, workspace_path};
use crate::step::StepTool;

/// Maximum number of bytes that a `read_file` step shows.
const MAX_READ_BYTES: u64 = 1024 * 1024;
/// Maximum number of entries that a `list_files` step shows.
const MAX_LISTED: u32 = 10_000;
/// Pause before asking again about an operation that was started over another link.
const ASK_AGAIN: Duration = Duration::from_millis(20);

impl Driver {
    pub(super) async fn run_file_call(
        &self,
        call: &CallRef,
        operation: FileOperation,
    ) -> Result<CallEnd, Stop> {
        let started = Instant::now();
        let key = CallKey::new(call.id.clone(), call.attempt);
        let result = loop {
            let client = self.guest().await?;
            let asked = match client.call_status(key.clone()).await {
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
            };
            match asked {
                Ok(reply) => break Ok(reply),
                Err(ProtocolError::File(error)) => break Err(error),
                Err(error) => self.after_break(error).await?,
            }
        };
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
}

/// The part of a reply that is logged.
fn present(reply: FileReply) -> serde_json::Value {
    serde_json::to_value(reply).unwrap_or_default()
}

/// The file operation of a step; `None` for other steps.
pub(super) fn operation_of(tool: &StepTool) -> Option<FileOperation> {
    // The paths were checked when the job was accepted; the guest checks them again.
    let clean = |path: &str| workspace_path(path).unwrap_or_else(|_| path.to_owned());
    Some(match tool {
        StepTool::Shell { .. }
        | StepTool::Python { .. }
        | StepTool::Typescript { .. }
        | StepTool::Code { .. }
        | StepTool::Gui(_)
        | StepTool::Browser(_) => return None,
        StepTool::WriteFile { path, content, mode } => FileOperation::Write {
            path: clean(path),
            content: content.clone(),
            mode: mode.as_deref().and_then(|mode| parse_mode(mode).ok()),
        },
        StepTool::ReadFile { path } => {
            FileOperation::Read { path: clean(path), offset: 0, limit_bytes: MAX_READ_BYTES }
        }
        StepTool::EditFile { path, old, new } => {
            FileOperation::Edit { path: clean(path), old: old.clone(), new: new.clone() }
        }
        StepTool::MoveFile { from, to } => FileOperation::Move { from: clean(from), to: clean(to) },
        StepTool::DeleteFile { path, recursive } => {
            FileOperation::Remove { path: clean(path), recursive: *recursive }
        }
        StepTool::ListFiles { path, depth } => FileOperation::List {
            path: if path.is_empty() { String::new() } else { clean(path) },
            depth: *depth,
            limit: MAX_LISTED,
            skip: Vec::new(),
        },
    })
}
