//! A server for one run, inside this process: the same wiring as `serve`, no port, a folder that goes away.
//!
//! The folder lies in the data folder and shares with the server there what takes long to make and says nothing of any
//! job: programs, images, empty disks.

use std::fs;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use orchestrator::{DataFolder, Orchestrator};
use sandbox::Backend;
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::http;
use tower::ServiceExt;

use crate::client::{Answer, Client, InProcess};
use crate::commands::{self, interrupt};
use crate::config::Config;

/// The folder in the data folder where those of one-shot servers are.
const PARENT: &str = "once";
/// Bytes on their way to or from a command.
const STREAM_BYTES: usize = 64 * 1024;
/// What is shared with the server of the data folder.
const SHARED: [&str; 3] = ["bin", "disks", "images"];

/// A server that lives as long as this.
pub(crate) struct OneShot {
    orchestrator: Orchestrator,
    backend: Arc<dyn Backend>,
    config: Config,
    folder: TempDir,
}

impl OneShot {
    /// Starts it and hands out a client.
    pub(crate) async fn start(mut config: Config) -> Result<(Self, Client)> {
        let (folder, data) = make_folder(&config.data)?;
        move_to(&mut config, folder.path());
        let backend = commands::backend::make(&config)?;
        // No look at the whole host first: a start that fails says what is missing. But nobody waits for an engine to be started.
        backend.ping().await?;
        let orchestrator = Orchestrator::start(data, Arc::clone(&backend), config.jobs.clone()).await?;
        let router =
            server::router(orchestrator.clone(), crate::host::reports(&config, &backend), &config.http);
        let streams = router.clone();
        let connect = Arc::new(move || {
            let (ours, theirs) = tokio::io::duplex(STREAM_BYTES);
            tokio::spawn(server::serve_stream(streams.clone(), theirs));
            ours
        });
        let answer: Answer = Arc::new(move |request| {
            let router = router.clone();
            Box::pin(async move {
                let request: http::Request<reqwest::Body> =
                    request.try_into().context("preparing the request")?;
                let Ok(response) = router.oneshot(request).await;
                Ok(response.map(|body| reqwest::Body::wrap_stream(body.into_data_stream())).into())
            })
        });
        let application = InProcess { answer, connect };
        Ok((Self { orchestrator, backend, config, folder }, Client::in_process(application)?))
    }

    /// Ends it: sandboxes first, then the folder. Also clears what an earlier one that was killed has left. Whoever does
    /// not want to wait for it leaves it to the next one.
    pub(crate) async fn end(self) {
        tokio::select! {
            () = self.clean_up() => {}
            () = interrupt::told_to_end() => commands::say("what is left is cleared by the next run"),
        }
    }

    async fn clean_up(self) {
        self.orchestrator.shutdown().await;
        destroy_all(&*self.backend).await;
        let mut config = self.config;
        if let Some(parent) = self.folder.path().parent().map(Path::to_owned) {
            let ours = in_turn(&parent, || drop(self.folder));
            // Nothing depends on these being gone.
            drop(ours);
            let _ = fs::remove_dir_all(&config.run_dir);
            for (left, lock) in in_turn(&parent, || left_behind(&parent)).unwrap_or_default() {
                move_to(&mut config, &left);
                if let Ok(backend) = commands::backend::make(&config) {
                    destroy_all(&*backend).await;
                }
                let _ = in_turn(&parent, || fs::remove_dir_all(&left));
                let _ = fs::remove_dir_all(&config.run_dir);
                drop(lock);
            }
        }
        drop(self.orchestrator);
    }
}

/// Does something while no other process makes, takes or removes a folder here: one that is there is locked by whoever
/// uses it, or left behind.
fn in_turn<T>(parent: &Path, act: impl FnOnce() -> T) -> std::io::Result<T> {
    let turn = fs::File::open(parent)?;
    turn.lock()?;
    Ok(act())
}

/// A folder of its own for this run, taken for this process, with links to what is shared.
fn make_folder(data: &Path) -> Result<(TempDir, DataFolder)> {
    let parent = data.join(PARENT);
    let make = || -> Result<(TempDir, DataFolder)> {
        for folder in SHARED.map(|name| data.join(name)).iter().chain([&parent]) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        in_turn(&parent, || {
            let folder = tempfile::Builder::new().prefix("run-").tempdir_in(&parent)?;
            for name in SHARED {
                symlink(data.join(name), folder.path().join(name))?;
            }
            let taken = DataFolder::open(folder.path())?;
            Ok((folder, taken))
        })?
    };
    make().with_context(|| {
        format!("making a folder for the run in {}; CAISSON_DATA names another one", parent.display())
    })
}

/// A single run needs one disk, none in reserve.
fn move_to(config: &mut Config, folder: &Path) {
    config.data = folder.to_owned();
    config.run_dir = config.places.run_dir_of(folder);
    config.sandbox.ready_disks = Some(0);
}

/// The folders that nobody uses, taken for this process.
fn left_behind(parent: &Path) -> Vec<(PathBuf, DataFolder)> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let taken = |path: PathBuf| DataFolder::open(&path).ok().map(|lock| (path, lock));
    entries.flatten().filter_map(|entry| taken(entry.path())).collect()
}

async fn destroy_all(backend: &dyn Backend) {
    for id in backend.list().await.unwrap_or_default() {
        // What cannot be destroyed now is found again by the next run.
        let _ = backend.destroy(id).await;
    }
    // An ordinary user may not delete files of lent ids itself.
    let _ = backend.settle().await;
}
