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
use sandbox::namespace::NamespaceBackend;
use tempfile::TempDir;
use tokio_tungstenite::tungstenite::http;
use tower::ServiceExt;

use crate::client::{Client, InProcess};
use crate::commands;
use crate::config::Config;

/// The folder in the data folder where those of one-shot servers are.
const PARENT: &str = "once";
/// What is shared with the server of the data folder.
const SHARED: [&str; 3] = ["bin", "disks", "images"];

/// A server that lives as long as this.
pub(crate) struct OneShot {
    orchestrator: Orchestrator,
    backend: Arc<NamespaceBackend>,
    config: Config,
    folder: TempDir,
}

impl OneShot {
    /// Starts it and hands out a client.
    pub(crate) async fn start(mut config: Config) -> Result<(Self, Client)> {
        let folder = make_folder(&config.data)?;
        move_to(&mut config, folder.path());
        let data = DataFolder::open(&config.data)?;
        let backend = Arc::new(commands::backend(&config)?);
        // No look at the whole host first: a start that fails says what is missing.
        let shared: Arc<dyn Backend> = Arc::<NamespaceBackend>::clone(&backend);
        let orchestrator = Orchestrator::start(data, shared, config.jobs.clone()).await?;
        let router = server::router(orchestrator.clone(), &config.http);
        let application: InProcess = Arc::new(move |request| {
            let router = router.clone();
            Box::pin(async move {
                let request: http::Request<reqwest::Body> =
                    request.try_into().context("preparing the request")?;
                let Ok(response) = router.oneshot(request).await;
                Ok(response.map(|body| reqwest::Body::wrap_stream(body.into_data_stream())).into())
            })
        });
        Ok((Self { orchestrator, backend, config, folder }, Client::in_process(application)?))
    }

    /// Ends it: sandboxes first, then the folder. Also clears what an earlier one that was killed has left.
    pub(crate) async fn end(self) {
        self.orchestrator.shutdown().await;
        destroy_all(&self.backend).await;
        let parent = self.folder.path().parent().map(Path::to_owned);
        drop(self.orchestrator);
        let mut config = self.config;
        drop(self.folder);
        // Nothing depends on it being gone.
        let _ = fs::remove_dir_all(&config.run_dir);
        for left in parent.iter().flat_map(|parent| left_behind(parent)) {
            move_to(&mut config, &left);
            // Whoever holds the lock lives.
            let Ok(lock) = DataFolder::open(&config.data) else { continue };
            if let Ok(backend) = commands::backend(&config) {
                destroy_all(&backend).await;
            }
            drop(lock);
            // Nothing depends on these being gone.
            let _ = fs::remove_dir_all(&left);
            let _ = fs::remove_dir_all(&config.run_dir);
        }
    }
}

/// A folder of its own for this run, with links to what is shared.
fn make_folder(data: &Path) -> Result<TempDir> {
    let parent = data.join(PARENT);
    let make = || -> std::io::Result<TempDir> {
        for folder in SHARED.map(|name| data.join(name)).iter().chain([&parent]) {
            fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        let folder = tempfile::Builder::new().prefix("run-").tempdir_in(&parent)?;
        for name in SHARED {
            symlink(data.join(name), folder.path().join(name))?;
        }
        Ok(folder)
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

fn left_behind(parent: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).collect()
}

async fn destroy_all(backend: &NamespaceBackend) {
    for id in backend.list().await.unwrap_or_default() {
        // What cannot be destroyed now is found again by the next run.
        let _ = backend.destroy(id).await;
    }
    // An ordinary user may not delete files of lent ids itself.
    let _ = backend.empty_trash().await;
}
