//! Saves the workspace between steps, so that a lost sandbox costs little, and restores it in a new one.

use std::io::{self, Write};
use std::time::Duration;

use bytes::Bytes;
use job::EventBody;
use protocol::GuestClient;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::archive;
use super::collect::Packed;
use super::{Driver, DriverExit};
use crate::driver::pack_folder::pack;
use crate::error::OrchestratorError;

/// Work shorter than this is repeated rather than saved.
const WORTH_SAVING: Duration = Duration::from_secs(2);
/// Saving may take at most 1/SHARE of the working time.
const SHARE: u32 = 10;

/// Decides when to save next: a checkpoint pays off when the work since the last one took much longer than saving
/// takes.
#[derive(Debug, Default)]
pub(super) struct CheckpointSchedule {
    worked: Duration,
    last_cost: Duration,
}

impl CheckpointSchedule {
    /// Counts time spent working.
    pub(super) fn worked(&mut self, time: Duration) {
        self.worked += time;
    }

    fn is_due(&self) -> bool {
        self.worked >= WORTH_SAVING.max(self.last_cost * SHARE)
    }

    fn saved(&mut self, cost: Duration) {
        self.worked = Duration::ZERO;
        self.last_cost = cost;
    }
}

impl Driver {
    /// Saves the workspace after a step if that pays off. After the last step it does not: the workspace is collected
    /// at once.
    pub(super) async fn checkpoint_if_due(
        &self,
        steps_done: usize,
        steps_total: usize,
    ) -> Result<(), DriverExit> {
        if steps_done == steps_total || !self.checkpoint_schedule().is_due() {
            return Ok(());
        }
        let started = Instant::now();
        let target = self.core.folder.checkpoint(self.recorder.job(), steps_done);
        let packed = self.pack(target, |reader, target| archive::save_tar(reader, &target)).await;
        match packed {
            Ok(Packed::Done(bytes)) => {
                self.recorder.record(EventBody::Checkpoint { steps: steps_done, bytes }).await?;
                self.remove_checkpoints(Some(steps_done));
            }
            Ok(Packed::Broken(error)) => self.after_break(error).await?,
            Err(stop @ DriverExit::Lost(_)) => return Err(stop),
            // A checkpoint is an optimization: the job goes on without it.
            Err(_) => tracing::warn!(job = %self.recorder.job(), "the workspace could not be saved"),
        }
        self.checkpoint_schedule().saved(started.elapsed());
        Ok(())
    }

    pub(super) fn checkpoint_schedule(&self) -> std::sync::MutexGuard<'_, CheckpointSchedule> {
        self.checkpoints.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Restores the saved workspace in a new sandbox.
    pub(super) async fn restore_checkpoint(
        &self,
        client: &GuestClient,
        steps: usize,
    ) -> Result<(), DriverExit> {
        let path = self.core.folder.checkpoint(self.recorder.job(), steps);
        unpack_into(client, move |sender| send_file(&path, sender)).await
    }

    /// Unpacks the uploaded files of the job into a new sandbox.
    pub(super) async fn bring_uploads(&self, client: &GuestClient) -> Result<(), DriverExit> {
        let folder = self.core.folder.upload(self.recorder.job());
        if !folder.is_dir() {
            return Ok(());
        }
        unpack_into(client, move |sender| pack(&folder, ChannelWriter { sender })).await
    }

    /// Removes all checkpoints except the given one.
    pub(super) fn remove_checkpoints(&self, keep_steps: Option<usize>) {
        let job = self.recorder.job();
        let kept = keep_steps.map(|steps| self.core.folder.checkpoint(job, steps));
        let Ok(entries) = std::fs::read_dir(self.core.folder.job(job)) else { return };
        for entry in entries.flatten() {
            let path = entry.path();
            if entry.file_name().to_string_lossy().starts_with("checkpoint-") && Some(&path) != kept.as_ref()
            {
                let _ = std::fs::remove_file(path);
            }
        }
    }
}

/// Unpacks a tar stream, which a thread produces, into the workspace.
async fn unpack_into(
    client: &GuestClient,
    make: impl FnOnce(&mpsc::Sender<Bytes>) -> io::Result<()> + Send + 'static,
) -> Result<(), DriverExit> {
    let (sender, mut pieces) = mpsc::channel::<Bytes>(16);
    let making = tokio::task::spawn_blocking(move || make(&sender));
    let mut upload = client.unpack(String::new()).await.map_err(OrchestratorError::from)?;
    while let Some(piece) = pieces.recv().await {
        upload.write(&piece).await.map_err(OrchestratorError::from)?;
    }
    making
        .await
        .map_err(io::Error::other)
        .and_then(|made| made)
        .map_err(OrchestratorError::io("reading the files of the job"))?;
    upload.finish().await.map_err(OrchestratorError::from)?;
    Ok(())
}

fn send_file(path: &std::path::Path, sender: &mpsc::Sender<Bytes>) -> io::Result<()> {
    io::copy(&mut archive::open_tar(path)?, &mut ChannelWriter { sender }).map(drop)
}

/// Sends what a thread writes to an async task.
struct ChannelWriter<'a> {
    sender: &'a mpsc::Sender<Bytes>,
}

impl Write for ChannelWriter<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let sent = self.sender.blocking_send(Bytes::copy_from_slice(bytes));
        sent.map(|()| bytes.len()).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_take_a_small_share_of_the_working_time() {
        let mut checkpoint_schedule = CheckpointSchedule::default();
        checkpoint_schedule.worked(Duration::from_millis(500));
        assert!(!checkpoint_schedule.is_due());
        checkpoint_schedule.worked(Duration::from_secs(2));
        assert!(checkpoint_schedule.is_due());
        checkpoint_schedule.saved(Duration::from_secs(1));
        checkpoint_schedule.worked(Duration::from_secs(9));
        assert!(!checkpoint_schedule.is_due());
        checkpoint_schedule.worked(Duration::from_secs(1));
        assert!(checkpoint_schedule.is_due());
    }
}
