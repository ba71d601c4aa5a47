//! Collects the workspace: out of the sandbox as tar, onto the disk as zip with its result files.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use job::{
    Artifact, ControlRequest, EventBody, EventKind, JobId, JobSpec, JobView, Kinds, NewEvent, Outcome,
    Transition, Work,
};
use protocol::{FileDownload, ProtocolError};
use sandbox::{DiskState, EndReason, Ended, SandboxError};
use store::StoreError;
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::archive::{self, ChannelReader, Piece, ZipMetadata};
use super::pin_files::pin_result_files;
use super::redacted_tar::RedactedTar;
use super::step_history::write_step_history;
use super::{Driver, DriverExit, describe};

use crate::core::Core;
use crate::egress::provenance;
use crate::error::OrchestratorError;
use crate::recorder::StateReason;
use crate::recorder::operator_wait::Retries;

/// How long the guest may be silent while it packs.
const SILENCE_TIMEOUT: Duration = Duration::from_secs(60);
/// The source that a zip names if it was not made from the workspace.
const CHECKPOINT: &str = "checkpoint";
/// Capacity of the channel from the link to the writing thread.
const PIECES_WAITING: usize = 16;

impl Driver {
    /// Collects the workspace and ends the job.
    pub(super) async fn collect(&mut self, view: &JobView) -> Result<(), OrchestratorError> {
        let outcome = view.outcome();
        let why = view
            .code
            .clone()
            .map(|code| StateReason { code, reason: view.reason.clone().unwrap_or_default() });
        if view.artifact.is_some() {
            return self.recorder.change(Vec::new(), Transition::Ended(outcome), why).await;
        }
        if outcome == Outcome::Cancelled
            && let Err(stop) = self.ensure_guest_responds().await
        {
            return self.stop(stop).await;
        }
        self.capture_last_screen(view).await;
        let recorder = Arc::clone(&self.recorder);
        let mut tries = recorder.waiting().tries();
        let fetched = loop {
            match self.fetch_output().await {
                Err(DriverExit::Failed(error)) if error.needs_operator() => {
                    if self.wait_before_retry(&mut tries, &error).await == StoreWait::Cancelled {
                        return self
                            .recorder
                            .change(
                                Vec::new(),
                                Transition::Ended(Outcome::Cancelled),
                                Some(cancelled_without_result()),
                            )
                            .await;
                    }
                }
                other => break other,
            }
        };
        drop(tries);
        match fetched {
            Ok(artifact) => {
                let mut stored = self.pin_result_files().await;
                stored.push(EventBody::ArtifactStored(artifact).into());
                self.recorder.change(stored, Transition::Ended(outcome), why).await
            }
            Err(DriverExit::Failed(error))
                if !matches!(error, OrchestratorError::Store(StoreError::Fenced(_))) =>
            {
                let why = why.unwrap_or_else(|| StateReason::new("collect_failed", describe(&error)));
                let outcome = if outcome == Outcome::Complete { Outcome::Failed } else { outcome };
                let note = EventBody::Note {
                    text: format!("the workspace could not be collected: {}", describe(&error)),
                };
                self.end_from_checkpoint(vec![note.into()], outcome, Some(why)).await
            }
            Err(stop) => self.stop(stop).await,
        }
    }

    async fn fetch_output(&mut self) -> Result<Artifact, DriverExit> {
        let target = self.core.folder.output(self.recorder.job());
        self.save_file_list().await?;
        let about = Arc::new(self.zip_metadata("workspace").await?);
        loop {
            match self
                .pack(target.clone(), {
                    let about = Arc::clone(&about);
                    move |reader, target| archive::zip_from_tar(reader, &target, &about)
                })
                .await?
            {
                Packed::Done(artifact) => return Ok(artifact),
                Packed::Broken(error) => self.after_break(error).await?,
            }
        }
    }

    async fn pin_result_files(&self) -> Vec<NewEvent> {
        pin_result_files(&self.core, self.recorder.job()).await
    }

    /// Prepares everything for a zip but the files of the workspace.
    async fn zip_metadata(&self, source: &'static str) -> Result<ZipMetadata, OrchestratorError> {
        if let Some(egress) = &self.egress {
            egress.flush().await;
        }
        let has_connections = self.recorder.has_connections().await;
        zip_metadata(&self.core, self.recorder.job(), &self.spec, source, has_connections).await
    }

    /// Packs the workspace in the sandbox and sends the stream to a thread that writes it to the target.
    pub(super) async fn pack<T, F>(&self, target: PathBuf, write: F) -> Result<Packed<T>, DriverExit>
    where
        T: Send + 'static,
        F: FnOnce(ChannelReader, PathBuf) -> io::Result<T> + Send + 'static,
    {
        // A sandbox frozen by a disk shortage would hold on to a half-written file, which takes up room itself.
        tokio::select! {
            biased;
            error = self.core.host_disk.low() => return Err(DriverExit::Failed(error)),
            whole = self.ensure_workspace_intact(IntegrityCheck::Sync) => whole?,
        }
        // No file larger than the disk fits on it, except a sparse one.
        let disk_bytes = self.spec.limits.disk_mib.value().saturating_mul(1024 * 1024);
        let client = self.guest().await?;
        let mut download = match client.pack(String::new(), Vec::new(), Some(disk_bytes)).await {
            Ok(download) => download,
            Err(error) => return Ok(Packed::Broken(error)),
        };
        let (pieces, receiver) = mpsc::channel(PIECES_WAITING);
        let shown = target.display().to_string();
        let writing = tokio::task::spawn_blocking(move || write(ChannelReader::new(receiver), target));
        let limit = disk_bytes.saturating_mul(2);
        let cover = RedactedTar::new(self.recorder.redactor());
        let sent = tokio::select! {
            sent = self.send_pieces(&mut download, &pieces, limit, cover) => sent,
            error = self.core.host_disk.low() => Err(PackError::Stopped(DriverExit::Failed(error))),
        };
        drop(pieces);
        let written =
            writing.await.map_err(|error| OrchestratorError::io(shown.clone())(io::Error::other(error)))?;
        match (sent, written) {
            (Ok(()), Ok(result)) => Ok(Packed::Done(result)),
            (Err(PackError::Link(error)), _) => Ok(Packed::Broken(error)),
            (Err(PackError::Stopped(stop)), _) => Err(stop),
            (Err(PackError::Silent), _) => Err(DriverExit::Lost(Ended {
                reason: EndReason::Lost,
                detail: "the guest fell silent while the workspace was packed".into(),
            })),
            (Err(PackError::TooLarge), _) => {
                Err(DriverExit::Failed(OrchestratorError::io("collecting the workspace")(io::Error::other(
                    format!("it unpacks to more than {} MiB, twice its disk", limit / 1024 / 1024),
                ))))
            }
            (_, Err(error)) => {
                Err(DriverExit::Failed(OrchestratorError::io(format!("writing {shown}"))(error)))
            }
        }
    }

    /// Refuses a workspace that has lost data: its sandbox counts as lost, and the job falls back to the last good
    /// checkpoint.
    async fn ensure_workspace_intact(&self, look: IntegrityCheck) -> Result<(), DriverExit> {
        let sandbox = self.recorder.with_view(Self::sandbox_of).await?;
        let Some(monitor) = self.core.backend.disk_monitor() else { return Ok(()) };
        let looked = match look {
            IntegrityCheck::Sync => monitor.sync(sandbox).await,
            IntegrityCheck::Quick => monitor.state(sandbox).await,
        };
        match looked {
            Ok(DiskState::Whole) => Ok(()),
            Ok(DiskState::Damaged(why)) => Err(DriverExit::Lost(Ended {
                reason: EndReason::WorkspaceDamaged,
                detail: format!(
                    "the workspace is damaged: {why}; what was written since the last checkpoint is not used"
                ),
            })),
            Err(SandboxError::NotRunning { why, .. }) => {
                let ended = self.ended(sandbox).await?;
                Err(DriverExit::Lost(ended.unwrap_or(Ended { reason: EndReason::Lost, detail: why })))
            }
            // The state is unknown; ask again.
            Err(error) => Err(DriverExit::Failed(StoreError::Unavailable { why: describe(&error) }.into())),
        }
    }

    /// Waits before another attempt to store the result. Nothing is lost meanwhile: the result is still where it was.
    /// Cancelling the job again gives up on it.
    async fn wait_before_retry(&self, tries: &mut Retries<'_>, error: &OrchestratorError) -> StoreWait {
        let job = self.recorder.job();
        tracing::warn!(%job, %error, "the result cannot be stored, trying again");
        if tries.count() == 0 {
            let text = format!(
                "the result waits to be stored: {error}. It is tried again until there is room; cancelling the job gives it up"
            );
            // On a full disk, this may fail as well; `/readyz` reports the shortage in any case.
            let _ = self.recorder.append_now(vec![EventBody::Note { text }.into()]).await;
        }
        let mut control_request = self.control_request.clone();
        control_request.mark_unchanged();
        let cancelled = async {
            while control_request.changed().await.is_ok() {
                if *control_request.borrow_and_update() == Some(ControlRequest::Cancel) {
                    return;
                }
            }
            std::future::pending().await
        };
        tokio::select! {
            () = tries.pause(error) => StoreWait::TryAgain,
            () = cancelled => StoreWait::Cancelled,
        }
    }

    /// Ends a job whose sandbox is permanently lost, with the content of the last checkpoint as its result. The loss is
    /// recorded together with the end: a server that restarts in between finds the job unchanged.
    pub(super) async fn end_from_checkpoint(
        &mut self,
        loss: Vec<NewEvent>,
        outcome: Outcome,
        why: Option<StateReason>,
    ) -> Result<(), OrchestratorError> {
        let view = self.recorder.view().await;
        let mut events = loss;
        let mut artifact = None;
        if let Some(steps) = view.checkpoint_steps
            && view.artifact.is_none()
        {
            let recorder = Arc::clone(&self.recorder);
            let mut tries = recorder.waiting().tries();
            loop {
                match self.zip_checkpoint(steps).await {
                    Ok(stored) => artifact = Some(stored),
                    Err(error) if error.needs_operator() => {
                        if self.wait_before_retry(&mut tries, &error).await == StoreWait::TryAgain {
                            continue;
                        }
                        events.extend(self.pin_result_files().await);
                        let ended = Transition::Ended(Outcome::Cancelled);
                        return self.recorder.change(events, ended, Some(cancelled_without_result())).await;
                    }
                    Err(error) => {
                        let error = describe(&error);
                        tracing::warn!(job = %self.recorder.job(), error, "the checkpoint cannot be read");
                    }
                }
                break;
            }
        }
        events.extend(self.pin_result_files().await);
        if let Some(artifact) = artifact {
            events.push(EventBody::ArtifactStored(artifact).into());
        }
        self.recorder.change(events, Transition::Ended(outcome), why).await
    }

    async fn zip_checkpoint(&self, steps: usize) -> Result<Artifact, OrchestratorError> {
        let about = self.zip_metadata(CHECKPOINT).await?;
        zip_checkpoint(&self.core, self.recorder.job(), steps, about).await
    }
}

/// Builds the result of a job without a driver from its last checkpoint, and returns the events that record it; none
/// if the job has a result or no checkpoint.
pub(crate) async fn store_checkpoint_result(
    core: &Core,
    job: JobId,
) -> Result<Vec<NewEvent>, OrchestratorError> {
    let view = core.store.job(job).await?;
    let (Some(steps), None) = (view.checkpoint_steps, &view.artifact) else { return Ok(Vec::new()) };
    let spec = core.store.spec(job).await?;
    let about = zip_metadata(core, job, &spec, CHECKPOINT, true).await?;
    let artifact = zip_checkpoint(core, job, steps, about).await?;
    let mut events = pin_result_files(core, job).await;
    events.push(EventBody::ArtifactStored(artifact).into());
    Ok(events)
}

/// Writes the result files that are made from the log, and returns what the manifest says besides the files.
async fn zip_metadata(
    core: &Core,
    job: JobId,
    spec: &JobSpec,
    source: &'static str,
    has_connections: bool,
) -> Result<ZipMetadata, OrchestratorError> {
    let log = match has_connections {
        true => core.store.all_events(job, Kinds::Only(&[EventKind::Egress]), 0).await?,
        false => Vec::new(),
    };
    if matches!(spec.work, Work::Steps(_))
        && let Err(error) = write_step_history(core, job).await
    {
        if error.needs_operator() {
            return Err(error);
        }
        tracing::warn!(%job, error = describe(&error), "the history of the steps could not be written");
    }
    Ok(ZipMetadata { job: job.to_string(), source, provenance: provenance(&log, &spec.egress) })
}

async fn zip_checkpoint(
    core: &Core,
    job: JobId,
    steps: usize,
    about: ZipMetadata,
) -> Result<Artifact, OrchestratorError> {
    let saved = core.folder.checkpoint(job, steps);
    let target = core.folder.output(job);
    let made = tokio::task::spawn_blocking(move || {
        archive::zip_from_tar(archive::open_tar(&saved)?, &target, &about)
    });
    let made = made.await.map_err(io::Error::other).and_then(|made| made);
    made.map_err(OrchestratorError::io("making output.zip of the checkpoint"))
}

#[derive(PartialEq, Eq)]
enum StoreWait {
    TryAgain,
    Cancelled,
}

fn cancelled_without_result() -> StateReason {
    StateReason::new("cancelled", "cancelled while its result could not be stored; there is no output.zip")
}

/// Outcome of packing.
pub(super) enum Packed<T> {
    Done(T),
    /// The link broke; the caller may try again.
    Broken(ProtocolError),
}

/// How to determine whether a workspace is intact.
#[derive(Clone, Copy)]
enum IntegrityCheck {
    /// Writes everything back to the disk first.
    Sync,
    /// Uses what is already known.
    Quick,
}

enum PackError {
    Link(ProtocolError),
    Stopped(DriverExit),
    Silent,
    TooLarge,
}

impl Driver {
    /// Forwards the stream to the writing thread, with the values of secrets redacted. A stream that fails ends with
    /// an error there, too.
    async fn send_pieces(
        &self,
        download: &mut FileDownload,
        pieces: &mpsc::Sender<Piece>,
        limit: u64,
        mut cover: RedactedTar,
    ) -> Result<(), PackError> {
        let mut total = 0;
        loop {
            match timeout(SILENCE_TIMEOUT, download.next()).await {
                Ok(Ok(Some(bytes))) => {
                    total += bytes.len() as u64;
                    if total > limit {
                        return Err(PackError::TooLarge);
                    }
                    // A writer that has failed reports its own error.
                    if pieces.send(Piece::Bytes(cover.push(bytes))).await.is_err() {
                        return Ok(());
                    }
                }
                Ok(Ok(None)) => {
                    // Data may have been lost while the workspace was packed.
                    self.ensure_workspace_intact(IntegrityCheck::Quick).await.map_err(PackError::Stopped)?;
                    let _ = pieces.send(Piece::Bytes(cover.finish())).await;
                    let left_out = download.left_out().iter().map(|name| cover.redact_name(name)).collect();
                    let _ = pieces.send(Piece::End { left_out }).await;
                    return Ok(());
                }
                Ok(Err(error)) => return Err(PackError::Link(error)),
                Err(_) => return Err(PackError::Silent),
            }
        }
    }
}
