//! Files uploaded for a job: stored in its folder while it is a draft, and copied into its workspace when it starts.
//!
//! Only this file, `unpack.rs` and `upload_room.rs` write to that folder, and they never create links there, so a
//! path that was checked once stays inside. `unpack.rs` decides what archives may contain, and `upload_room.rs` how
//! much a draft may contain.

use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use job::{
    ContentDigest, EventBody, Fence, JobId, JobSpec, JobState, JobView, NewEvent, Submitter, Transition,
    UserAction, UserActionKind, within, workspace_path,
};
use protocol::FileErrorCode;
use store::{Created, NewRecord};
use uuid::Uuid;

use crate::core::Orchestrator;
use crate::core::upload_limits::{Room, Used, create, path_error, too_large};
use crate::error::OrchestratorError;
use crate::error::file_error;
use crate::intake::form_upload;
use crate::intake::submission::{Accepted, Repeated};
use crate::intake::unpack::{ArchiveKind, unpack};

impl Orchestrator {
    /// Adds a whole file to a draft, or nothing; returns its size.
    ///
    /// # Errors
    /// The job is not a draft, the path leaves the workspace, or the files exceed the job's disk.
    pub async fn upload_file(
        &self,
        id: JobId,
        path: &str,
        mode: Option<u32>,
        body: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<u64, OrchestratorError> {
        let most = self.max_upload_bytes(id).await?;
        let relative =
            workspace_path(path).map_err(|problem| file_error(FileErrorCode::OutsideWorkspace, problem))?;
        let uploads = self.core.folder.upload(id);
        let size = || fs::symlink_metadata(uploads.join(&relative)).map_or(0, |metadata| metadata.len());
        let most = most.saturating_add(size());
        let incoming = Incoming::receive(&self.core.folder.job(id), mode, most, body).await?;
        // Other requests may have added files or started the job in the meantime.
        let _alone = self.core.uploads.of(id).await;
        let (mut room, used) = self.count_memory(id).await?;
        let replaced = size();
        if incoming.content.bytes() > room.bytes.saturating_add(replaced) {
            return Err(too_large(room.bytes));
        }
        let entries_before = room.entries;
        let target = room.prepare_file(&uploads, &relative)?;
        let put = UserAction::to_file(UserActionKind::FilePut, &relative).with_content(&incoming.content);
        let keep = async { incoming.keep(&target).map_err(|error| path_error(&relative, error)) };
        let kept = self.audited(id, put, keep).await?;
        let bytes = used.bytes.saturating_add(kept).saturating_sub(replaced);
        let entries = used.entries + (entries_before - room.entries);
        self.core.uploads.note(id, Used { bytes, entries });
        Ok(kept)
    }

    /// Creates a directory in a draft.
    pub(crate) async fn upload_directory(&self, id: JobId, path: &str) -> Result<(), OrchestratorError> {
        self.draft(id).await?;
        let relative =
            workspace_path(path).map_err(|problem| file_error(FileErrorCode::OutsideWorkspace, problem))?;
        let _alone = self.core.uploads.of(id).await;
        let (mut room, _) = self.count_memory(id).await?;
        let make = async { room.make_directory(&self.core.folder.upload(id), &relative) };
        self.audited(id, UserAction::to_file(UserActionKind::DirectoryMade, &relative), make).await
    }

    /// Unpacks an archive into a draft.
    ///
    /// # Errors
    /// The job is not a draft, or the archive is refused; the error names the entry and the reason.
    pub async fn upload_archive(
        &self,
        id: JobId,
        kind: ArchiveKind,
        body: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<(), OrchestratorError> {
        let most = self.max_upload_bytes(id).await?;
        let incoming = Incoming::receive(&self.core.folder.job(id), None, most, body).await?;
        let target = self.core.folder.upload(id);
        let _alone = self.core.uploads.of(id).await;
        let (room, _) = self.count_memory(id).await?;
        let unpacking = tokio::task::spawn_blocking(move || unpack(&incoming.path, kind, &target, room));
        unpacking
            .await
            .map_err(|error| OrchestratorError::io("unpacking an archive")(io::Error::other(error)))?
    }

    /// Removes a draft with its files, because the request that created it failed.
    ///
    /// # Errors
    /// The job is not a draft.
    pub async fn discard_draft(&self, id: JobId) -> Result<(), OrchestratorError> {
        self.draft(id).await?;
        let mut news = self.watch(id);
        let mut view = self.cancel(id).await?;
        while !view.state.is_over() && news.changed().await.is_ok() {
            view = self.core.store.job(id).await?;
        }
        self.delete(id).await
    }

    /// Removes a file from a draft.
    ///
    /// # Errors
    /// The job is not a draft, or there is no such file.
    pub async fn remove_upload(&self, id: JobId, path: &str) -> Result<(), OrchestratorError> {
        let relative =
            workspace_path(path).map_err(|problem| file_error(FileErrorCode::OutsideWorkspace, problem))?;
        // Under the lock, because the files of a started job are being read.
        let _alone = self.core.uploads.of(id).await;
        self.draft(id).await?;
        self.core.uploads.usage_cache().remove(&id);
        let target = self.core.folder.upload(id).join(&relative);
        let remove = async {
            let removed =
                if target.is_dir() { fs::remove_dir_all(&target) } else { fs::remove_file(&target) };
            removed.map_err(|error| path_error(&relative, error))
        };
        self.audited(id, UserAction::to_file(UserActionKind::FileDeleted, &relative), remove).await
    }

    /// Starts a draft.
    ///
    /// # Errors
    /// The job is not a draft.
    pub async fn start_draft(&self, id: JobId) -> Result<JobView, OrchestratorError> {
        // With the lock, no file is half-written, and none is added or removed once the job has started.
        let _alone = self.core.uploads.of(id).await;
        let view = self.draft(id).await?;
        if form_upload::is_receiving(&view) {
            return Err(OrchestratorError::WrongState {
                job: id,
                state: view.state,
                problem: "its files are still being uploaded; it starts afterwards".into(),
            });
        }
        self.begin(&view).await
    }

    /// Starts a draft, even while its files are being received.
    pub(crate) async fn begin(&self, view: &JobView) -> Result<JobView, OrchestratorError> {
        let id = view.job_id;
        let mut spec = self.core.store.spec(id).await?;
        self.check_model(spec.agent.model.as_deref())?;
        // The operator's rules may have changed since the job was submitted.
        self.check_policy(&spec)?;
        let submitter = spec.submitter.clone();
        self.bound(&mut spec, submitter.as_ref())?;
        let mut events = Vec::new();
        let (state, code, reason) = self.first_state(&spec).await?;
        let mut _turn = None;
        if state == JobState::Queued {
            _turn = self.check_allowance(spec.submitter.as_ref()).await?;
            let state = view.state.after(Transition::Submitted)?;
            events.push(EventBody::StateChanged { state, code: None, reason: None });
        } else {
            events.push(EventBody::StateChanged { state, code, reason });
        }
        let events = events.into_iter().map(|body| NewEvent::from(body).with_actor(self.actor())).collect();
        self.core.store.append(id, Fence::Anybody, events).await?;
        self.core.queue_changed.notify_one();
        Ok(self.core.store.job(id).await?)
    }

    /// Creates a new job with the same specification and files as another one.
    ///
    /// # Errors
    /// There is no such job, or the queue is full.
    pub async fn retry(
        &self,
        id: JobId,
        submitter: Option<Submitter>,
    ) -> Result<Accepted, OrchestratorError> {
        let mut spec = self.core.store.spec(id).await?;
        self.check_model(spec.agent.model.as_deref())?;
        // The operator's current rules apply, not those of the original job.
        self.check_policy(&spec)?;
        spec.egress_settings.allowance =
            within(spec.egress_settings.allowance, self.core.settings().defaults.allowance);
        self.bound(&mut spec, submitter.as_ref())?;
        let _turn = self.check_allowance(submitter.as_ref()).await?;
        spec.submitter = submitter;
        self.check_queue().await?;
        let copy = JobId::generate();
        let created = self.create_copy(id, copy, spec).await;
        if created.is_err() {
            // No job refers to these files.
            let _ = tokio::fs::remove_dir_all(self.core.folder.upload(copy)).await;
        }
        created
    }

    /// Copies the files of a job and creates another one with them.
    async fn create_copy(
        &self,
        id: JobId,
        copy: JobId,
        spec: JobSpec,
    ) -> Result<Accepted, OrchestratorError> {
        let (from, to) = (self.core.folder.upload(id), self.core.folder.upload(copy));
        let copying =
            tokio::task::spawn_blocking(move || if from.is_dir() { copy_tree(&from, &to) } else { Ok(()) });
        copying
            .await
            .map_err(io::Error::other)
            .and_then(|copied| copied)
            .map_err(OrchestratorError::io("copying the files of the job"))?;
        let (state, code, reason) = self.first_state(&spec).await?;
        let hint = reason.clone();
        let events = vec![EventBody::StateChanged { state, code, reason }.into()];
        match self.core.store.create(NewRecord { id: copy, spec, events, idempotency: None }).await? {
            Created::New(view) => {
                self.count_queued();
                self.core.queue_changed.notify_one();
                Ok(Accepted { view: *view, repeated: Repeated::No, hint })
            }
            Created::Repeated(_) | Created::Mismatch => Err(OrchestratorError::IdempotencyMismatch),
        }
    }

    pub(crate) async fn draft(&self, id: JobId) -> Result<JobView, OrchestratorError> {
        let view = self.core.store.job(id).await?;
        if view.state != JobState::Draft {
            return Err(OrchestratorError::WrongState {
                job: id,
                state: view.state,
                problem: "it is not a draft; submit it with `\"start\": false` to add files first".into(),
            });
        }
        Ok(view)
    }

    async fn disk_bytes(&self, id: JobId) -> Result<u64, OrchestratorError> {
        self.draft(id).await?;
        let spec = self.core.store.spec(id).await?;
        Ok(spec.limits.disk_mib.value().saturating_mul(1024 * 1024))
    }

    /// The most that may be received for a draft, according to the cached usage. Checked exactly once the data has
    /// arrived.
    async fn max_upload_bytes(&self, id: JobId) -> Result<u64, OrchestratorError> {
        let disk_bytes = self.disk_bytes(id).await?;
        let used = self.core.uploads.usage_cache().get(&id).copied().unwrap_or_default();
        Ok(Room::beside(used, disk_bytes).bytes)
    }

    /// What may still be added to a draft, for a caller that holds its lock and changes it. Counts the files only if
    /// the usage is not cached: counting for each added file would take quadratic time.
    async fn count_memory(&self, id: JobId) -> Result<(Room, Used), OrchestratorError> {
        let disk_bytes = self.disk_bytes(id).await?;
        let known = self.core.uploads.usage_cache().remove(&id);
        let used = match known {
            Some(used) => used,
            None => {
                let folder = self.core.folder.upload(id);
                let counting = tokio::task::spawn_blocking(move || Used::of(&folder));
                counting.await.map_err(|error| {
                    OrchestratorError::io("counting the files of a draft")(io::Error::other(error))
                })?
            }
        };
        Ok((Room::beside(used, disk_bytes), used))
    }
}

/// A file that is being received. Removed on drop unless [`Incoming::keep`] was called.
struct Incoming {
    path: PathBuf,
    content: ContentDigest,
}

impl Incoming {
    async fn receive(
        folder: &Path,
        mode: Option<u32>,
        budget: u64,
        mut body: impl Stream<Item = io::Result<Bytes>> + Send + Unpin,
    ) -> Result<Self, OrchestratorError> {
        let path = folder.join(format!("incoming-{}", Uuid::now_v7()));
        let mut incoming = Self { path, content: ContentDigest::default() };
        let mut file = fs::create_dir_all(folder)
            .and_then(|()| create(&incoming.path, mode.unwrap_or(0o644)))
            .map_err(OrchestratorError::io("making a file for an upload"))?;
        while let Some(bytes) = body.next().await {
            let bytes = bytes.map_err(OrchestratorError::io("reading the body of the request"))?;
            incoming.content.add(&bytes);
            if incoming.content.bytes() > budget {
                return Err(too_large(budget));
            }
            file.write_all(&bytes).map_err(OrchestratorError::io("writing an upload"))?;
        }
        Ok(incoming)
    }

    /// Moves the file to `target` and returns its size.
    fn keep(self, target: &Path) -> io::Result<u64> {
        fs::rename(&self.path, target)?;
        Ok(self.content.bytes())
    }
}

impl Drop for Incoming {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

fn copy_tree(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy_tree(&entry.path(), &target)?;
        } else {
            fs::copy(entry.path(), target)?;
        }
    }
    Ok(())
}
