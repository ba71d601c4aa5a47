//! A server for one command, inside this process: the same wiring as `serve`, but without a port, and with a
//! temporary folder.
//!
//! The folder is inside the data folder. It shares with that data folder's server what is expensive to create and
//! contains nothing about jobs: programs, images, empty disks.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use orchestrator::{DataFolder, Orchestrator};
use sandbox::Backend;
use store::LocalDatabase as _;
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::http;
use tower::ServiceExt;

use super::host_reports;
use super::running_config::RunningConfig;
use crate::client::{Client, InProcess, RequestHandler};
use crate::config::Config;
use crate::config::database::DATABASE;
use crate::host::backend;
use crate::output::say;
use crate::signals;

/// The parent of the temporary folders, in the data folder.
const PARENT: &str = "once";
/// Buffer size of a stream between a command and the server.
const STREAM_BYTES: usize = 64 * 1024;
/// Folders shared with the server of the data folder.
const SHARED: [&str; 3] = ["bin", "disks", "images"];

/// A running one-shot server.
pub(crate) struct OneShot {
    orchestrator: Orchestrator,
    backend: Arc<dyn Backend>,
    config: Config,
    folder: TempDir,
}

impl OneShot {
    /// Starts the server and returns a client for it.
    pub(crate) async fn start(mut config: Config) -> Result<(Self, Client)> {
        let (folder, data) = make_folder(&config.data)?;
        switch_folder(&mut config, folder.path());
        let backend = backend::make(&config)?;
        // Skips the full host check, because a failed start says what is missing. The ping is needed because nobody
        // would wait for a stopped engine.
        if let Some(engine) = backend.engine() {
            engine.ping().await?;
        }
        let store = DATABASE.open(folder.path())?;
        let orchestrator =
            Orchestrator::start(data, store, Arc::clone(&backend), config.jobs.clone()).await?;
        let running = Arc::new(RunningConfig::fixed(config.clone()));
        let reports = host_reports::reports(&running, &backend);
        let router = server::router(orchestrator.clone(), reports, &config.http);
        let streams = router.clone();
        let connect = Arc::new(move || {
            let (ours, theirs) = tokio::io::duplex(STREAM_BYTES);
            tokio::spawn(server::serve_stream(streams.clone(), theirs));
            ours
        });
        let handle: RequestHandler = Arc::new(move |request| {
            let router = router.clone();
            Box::pin(async move {
                let request: http::Request<reqwest::Body> =
                    request.try_into().context("preparing the request")?;
                let Ok(response) = router.oneshot(request).await;
                Ok(response.map(|body| reqwest::Body::wrap_stream(body.into_data_stream())).into())
            })
        });
        let application = InProcess { handle, connect };
        Ok((Self { orchestrator, backend, config, folder }, Client::in_process(application)?))
    }

    /// Shuts down: sandboxes first, then the folder. Also cleans up after earlier one-shot servers that were killed.
    /// A signal skips the cleanup, which is then left to the next run.
    pub(crate) async fn end(self) {
        tokio::select! {
            () = self.clean_up() => {}
            () = signals::termination_or_interrupt() => say("the next run removes what is left"),
        }
    }

    async fn clean_up(self) {
        self.orchestrator.shutdown().await;
        destroy_all(&*self.backend).await;
        let mut config = self.config;
        if let Some(parent) = self.folder.path().parent().map(Path::to_owned) {
            let ours = with_folder_lock(&parent, || drop(self.folder));
            // Best effort: leaving it behind does no harm.
            drop(ours);
            let _ = fs::remove_dir_all(&config.run_dir);
            for (left, lock) in with_folder_lock(&parent, || abandoned_folders(&parent)).unwrap_or_default() {
                switch_folder(&mut config, &left);
                if let Ok(backend) = backend::make(&config) {
                    destroy_all(&*backend).await;
                }
                let _ = with_folder_lock(&parent, || fs::remove_dir_all(&left));
                let _ = fs::remove_dir_all(&config.run_dir);
                drop(lock);
            }
        }
        // It is outside of the data folder, and other servers of this user may have folders in it.
        let _ = fs::remove_dir(&config.default_paths.run);
        drop(self.orchestrator);
    }
}

/// Runs `act` while no other process creates, locks or removes a folder here. Afterwards each folder is either locked
/// by its user or abandoned.
fn with_folder_lock<T>(parent: &Path, act: impl FnOnce() -> T) -> std::io::Result<T> {
    let turn = fs::File::open(parent)?;
    turn.lock()?;
    Ok(act())
}

/// Creates and locks a folder for this run, with symlinks to the shared folders.
fn make_folder(data: &Path) -> Result<(TempDir, DataFolder)> {
    let parent = data.join(PARENT);
    let make = || -> Result<(TempDir, DataFolder)> {
        for folder in SHARED.map(|name| data.join(name)).iter().chain([&parent]) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        with_folder_lock(&parent, || {
            let folder = tempfile::Builder::new().prefix("run-").tempdir_in(&parent)?;
            for name in SHARED {
                symlink(data.join(name), folder.path().join(name))?;
            }
            let taken = DataFolder::open(folder.path())?;
            Ok((folder, taken))
        })?
    };
    make().with_context(|| {
        format!(
            "creating a folder for the run in {}; choose another location with CAISSON_DATA",
            parent.display()
        )
    })
}

/// Switches the configuration to another folder. A one-shot server needs one disk and no spare ones.
fn switch_folder(config: &mut Config, folder: &Path) {
    config.data = folder.to_owned();
    config.run_dir = config.default_paths.run_dir_of(folder);
    config.sandbox.ready_disks = Some(0);
}

/// The abandoned folders, locked by this process.
fn abandoned_folders(parent: &Path) -> Vec<(PathBuf, DataFolder)> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let taken = |path: PathBuf| DataFolder::open(&path).ok().map(|lock| (path, lock));
    entries.flatten().filter_map(|entry| taken(entry.path())).collect()
}

async fn destroy_all(backend: &dyn Backend) {
    for id in backend.list().await.unwrap_or_default() {
        // The next run finds the remains again.
        let _ = backend.destroy(id).await;
    }
    // Waits because an ordinary user may not delete files of subordinate ids itself.
    if let Some(cleanup) = backend.cleanup() {
        let _ = cleanup.finish().await;
    }
}
