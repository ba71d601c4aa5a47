//! Brings the workspace home: out of the sandbox as tar, onto the disk as zip.

use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use protocol::{FileDownload, ProtocolError};
use sandbox::{Ended, EndedReason};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::archive::{self, About, ChannelReader, Piece};
use super::covered_tar::CoveredTar;
use super::{Driver, Stop, describe};
use crate::error::OrchestratorError;
use crate::event::{EventBody, NewEvent};
use crate::outward::provenance;
use crate::recorder::Why;
use crate::state::{Happening, Outcome};
use crate::store::Kinds;
use crate::view::JobView;

/// How long the guest may be silent while it packs.
const SILENCE_PATIENCE: Duration = Duration::from_secs(60);
/// How many pieces wait between the link and the thread that writes.
const PIECES_WAITING: usize = 16;

impl Driver {
    /// Collects the workspace and ends the job.
    pub(super) async fn collect(&mut self, view: &JobView) -> Result<(), OrchestratorError> {
        let outcome = view.outcome();
        let why = view.code.clone().map(|code| Why { code, reason: view.reason.clone().unwrap_or_default() });
        if view.artifact.is_some() {
            return self.recorder.change(Vec::new(), Happening::Ended(outcome), why).await;
        }
        match self.fetch_output().await {
            Ok(artifact) => {
                let mut stored: Vec<NewEvent> = self.pin_file_list().await.into_iter().collect();
                stored.push(EventBody::ArtifactStored(artifact).into());
                self.recorder.change(stored, Happening::Ended(outcome), why).await
            }
            Err(Stop::Failed(error)) if !matches!(error, OrchestratorError::Fenced(_)) => {
                let why = why.unwrap_or_else(|| Why::new("collect_failed", describe(&error)));
                let outcome = if outcome == Outcome::Complete { Outcome::Failed } else { outcome };
                let note = EventBody::Note {
                    text: format!("the workspace could not be collected: {}", describe(&error)),
                };
                let mut events: Vec<NewEvent> = self.pin_file_list().await.into_iter().collect();
                events.push(note.into());
                self.recorder.change(events, Happening::Ended(outcome), Some(why)).await
            }
            Err(stop) => self.stop(stop).await,
        }
    }

    async fn fetch_output(&mut self) -> Result<crate::event::Artifact, Stop> {
        let target = self.core.folder.output(self.recorder.job());
        self.keep_file_list().await;
        let about = Arc::new(self.about_archive("workspace").await?);
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

    /// What the zip says of itself beside its files.
    async fn about_archive(&self, source: &'static str) -> Result<About, OrchestratorError> {
        if let Some(outward) = &self.outward {
            outward.flush().await;
        }
        let job = self.recorder.job();
        let log = match self.recorder.has_connections().await {
            true => self.core.store.all_events(job, Kinds::Only(&["egress"]), 0).await?,
            false => Vec::new(),
        };
        let network_log = self.core.folder.network_log(job);
        let provenance = provenance(&log, &self.spec.egress);
        let file_log = self.core.folder.file_log(job);
        Ok(About { job: job.to_string(), source, provenance, network_log, file_log })
    }

    /// Packs the workspace and hands the stream to a thread that writes it to the target.
    pub(super) async fn pack<T, F>(&self, target: PathBuf, write: F) -> Result<Packed<T>, Stop>
    where
        T: Send + 'static,
        F: FnOnce(ChannelReader, PathBuf) -> io::Result<T> + Send + 'static,
    {
        // Nothing larger fits the disk, unless it has holes.
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
        let cover = CoveredTar::new(self.recorder.redactor());
        let sent = send_pieces(&mut download, pieces, limit, cover).await;
        let written =
            writing.await.map_err(|error| OrchestratorError::io(shown.clone())(io::Error::other(error)))?;
        match (sent, written) {
            (Ok(()), Ok(result)) => Ok(Packed::Done(result)),
            (Err(PackError::Link(error)), _) => Ok(Packed::Broken(error)),
            (Err(PackError::Silent), _) => Err(Stop::Lost(Ended {
                reason: EndedReason::Lost,
                detail: "the guest fell silent while the workspace was packed".into(),
            })),
            (Err(PackError::TooLarge), _) => {
                Err(Stop::Failed(OrchestratorError::io("collecting the workspace")(io::Error::other(
                    format!("it unpacks to more than {} MiB, twice its disk", limit / 1024 / 1024),
                ))))
            }
            (_, Err(error)) => Err(Stop::Failed(OrchestratorError::io(format!("writing {shown}"))(error))),
        }
    }

    /// Ends a job whose sandbox is lost for good, with what the last checkpoint holds.
    pub(super) async fn end_from_checkpoint(
        &mut self,
        outcome: Outcome,
        why: Option<Why>,
    ) -> Result<(), OrchestratorError> {
        let view = self.recorder.view().await;
        let mut events: Vec<NewEvent> = self.pin_file_list().await.into_iter().collect();
        if let Some(steps) = view.checkpoint_steps
            && view.artifact.is_none()
        {
            let saved = self.core.folder.checkpoint(self.recorder.job(), steps);
            let target = self.core.folder.output(self.recorder.job());
            let about = self.about_archive("checkpoint").await?;
            let made = tokio::task::spawn_blocking(move || {
                archive::zip_from_tar(archive::open_tar(&saved)?, &target, &about)
            });
            match made.await {
                Ok(Ok(artifact)) => events.push(EventBody::ArtifactStored(artifact).into()),
                Ok(Err(error)) => {
                    tracing::warn!(job = %self.recorder.job(), %error, "the checkpoint cannot be read")
                }
                Err(error) => {
                    tracing::warn!(job = %self.recorder.job(), %error, "the checkpoint cannot be read")
                }
            }
        }
        self.recorder.change(events, Happening::Ended(outcome), why).await
    }
}

/// What came of packing.
pub(super) enum Packed<T> {
    /// All is written.
    Done(T),
    /// The link broke; it may be tried again.
    Broken(ProtocolError),
}

enum PackError {
    Link(ProtocolError),
    Silent,
    TooLarge,
}

/// Passes the stream on to the writing thread, with the values of secrets covered; a stream that did not end well ends in an
/// error there too.
async fn send_pieces(
    download: &mut FileDownload,
    pieces: mpsc::Sender<Piece>,
    limit: u64,
    mut cover: CoveredTar,
) -> Result<(), PackError> {
    let mut total = 0;
    loop {
        match timeout(SILENCE_PATIENCE, download.next()).await {
            Ok(Ok(Some(bytes))) => {
                total += bytes.len() as u64;
                if total > limit {
                    return Err(PackError::TooLarge);
                }
                // A writer that has given up says why itself.
                if pieces.send(Piece::Bytes(cover.push(bytes))).await.is_err() {
                    return Ok(());
                }
            }
            Ok(Ok(None)) => {
                let _ = pieces.send(Piece::Bytes(cover.finish())).await;
                let left_out = download.left_out().iter().map(|name| cover.cover_name(name)).collect();
                let _ = pieces.send(Piece::End { left_out }).await;
                return Ok(());
            }
            Ok(Err(error)) => return Err(PackError::Link(error)),
            Err(_) => return Err(PackError::Silent),
        }
    }
}
