//! A real server process with its own data folder.

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::Stage;
use crate::http::Connection;
use crate::sandboxes::Sandboxes;

/// Timeout for starting the server.
const PATIENCE: Duration = Duration::from_secs(20);
const PAUSE: Duration = Duration::from_millis(10);

/// A running server.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    folder: TempDir,
    process: Child,
}

impl Server {
    /// Starts a server with the given settings, in TOML, and waits until it is ready.
    pub(crate) async fn start(stage: &Stage, settings: &str) -> Result<Self> {
        let folder = short_folder()?;
        std::fs::write(folder.path().join("caisson.toml"), format!("log = \"warn\"\n{settings}"))?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let process = spawn(stage, folder.path(), address)?;
        let server = Self { address, folder, process };
        server.wait_until_ready().await?;
        Ok(server)
    }

    pub(crate) fn pid(&self) -> Result<u32> {
        self.process.id().context("the server has ended")
    }

    /// Kills the server with SIGKILL and starts it again on the same folder.
    pub(crate) async fn crash_and_restart(mut self, stage: &Stage) -> Result<Self> {
        self.process.kill().await.context("killing the server")?;
        self.process = spawn(stage, self.folder.path(), self.address)?;
        self.wait_until_ready().await?;
        Ok(self)
    }

    /// Kills the server and removes its sandboxes and its folder.
    pub(crate) async fn remove(mut self, stage: &Stage) -> Result<()> {
        self.process.kill().await.context("killing the server")?;
        let run_dir = run_dir(self.folder.path());
        let destroyed = Sandboxes::with_run_dir(stage, self.folder.path(), &run_dir)?.destroy_all().await;
        std::fs::remove_dir_all(&run_dir)?;
        destroyed
    }

    async fn wait_until_ready(&self) -> Result<()> {
        let ready = async {
            loop {
                if let Ok(mut connection) = Connection::open(self.address).await
                    && let Ok((200, _)) = connection.get("/readyz").await
                {
                    return;
                }
                tokio::time::sleep(PAUSE).await;
            }
        };
        if tokio::time::timeout(PATIENCE, ready).await.is_err() {
            let log = std::fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default();
            bail!("the server is not ready after {} s; its log: {log}", PATIENCE.as_secs());
        }
        Ok(())
    }
}

/// In memory, like the default socket folder of a root server.
fn run_dir(folder: &Path) -> PathBuf {
    Path::new("/run").join(folder.file_name().unwrap_or_default())
}

fn spawn(stage: &Stage, folder: &Path, address: SocketAddr) -> Result<Child> {
    let log = std::fs::File::options().create(true).append(true).open(folder.join("server.log"))?;
    let mut command = Command::new(&stage.caisson);
    command.arg("serve").arg("--config").arg(folder.join("caisson.toml")).arg("--data").arg(folder);
    command.arg("--run-dir").arg(run_dir(folder)).args(["--listen", &address.to_string()]);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).kill_on_drop(true);
    command.spawn().with_context(|| format!("starting {}", stage.caisson.display()))
}

/// A new folder with a short path, because it holds sockets.
pub(crate) fn short_folder() -> Result<TempDir> {
    tempfile::Builder::new().prefix("cb-").tempdir_in("/tmp").context("making a folder in /tmp")
}
