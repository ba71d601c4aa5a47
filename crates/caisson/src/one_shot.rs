//! A server for one run, inside this process: the same wiring as `serve`, no port, a folder that goes away.

use std::fs;
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

/// How the folders of one-shot servers begin, so that the next one finds what a killed one has left.
const PREFIX: &str = "caisson-run-";
/// A longer folder could not hold sockets, whose paths have at most 107 bytes.
const LONGEST_PARENT: usize = 40;

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
        let parent = parent_folder();
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .tempdir_in(&parent)
            .with_context(|| format!("making a folder for the run in {}", parent.display()))?;
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
        for left in parent.iter().flat_map(|parent| left_behind(parent)) {
            move_to(&mut config, &left);
            // Whoever holds the lock lives.
            let Ok(lock) = DataFolder::open(&config.data) else { continue };
            if let Ok(backend) = commands::backend(&config) {
                destroy_all(&backend).await;
            }
            drop(lock);
            // Nothing depends on it being gone.
            let _ = fs::remove_dir_all(&left);
        }
    }
}

/// The folder for temporary files, or the usual one where that is too long.
fn parent_folder() -> PathBuf {
    let chosen = std::env::temp_dir();
    if chosen.as_os_str().len() <= LONGEST_PARENT { chosen } else { "/tmp".into() }
}

/// A single run needs one disk, none in reserve.
fn move_to(config: &mut Config, folder: &Path) {
    config.data = folder.join("data");
    config.run_dir = folder.join("run");
    config.sandbox.ready_disks = Some(0);
}

fn left_behind(parent: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(parent) else { return Vec::new() };
    let ours = entries.flatten().filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    ours.map(|entry| entry.path()).filter(|path| path.join("data").is_dir()).collect()
}

async fn destroy_all(backend: &NamespaceBackend) {
    for id in backend.list().await.unwrap_or_default() {
        // What cannot be destroyed now is found again by the next run.
        let _ = backend.destroy(id).await;
    }
}
