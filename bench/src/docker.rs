//! The Docker engine that is compared with, through its own command line as users type it.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bare;

/// A Docker engine with one small image.
#[derive(Debug, Clone)]
pub(crate) struct Docker {
    /// Where the engine listens.
    pub(crate) socket: PathBuf,
    /// An image that has `true` and `sleep`.
    pub(crate) image: String,
}

impl Docker {
    fn command(&self) -> Command {
        let mut command = Command::new("docker");
        command.arg("--host").arg(format!("unix://{}", self.socket.display()));
        command
    }

    /// `docker run --rm --network none IMAGE true`
    pub(crate) fn run_true(&self) -> Result<()> {
        bare::run(self.command().args(["run", "--rm", "--network", "none", &self.image, "true"]))
    }

    /// `docker run --network none IMAGE true`; gives the container that is left.
    pub(crate) fn run_true_and_keep(&self, name: &str) -> Result<()> {
        bare::run(self.command().args(["run", "--name", name, "--network", "none", &self.image, "true"]))
    }

    /// `docker create --network none IMAGE true`, which stores a container to be run later; gives its id.
    pub(crate) fn create(&self) -> Result<String> {
        self.answer(&["create", "--network", "none", &self.image, "true"])
    }

    /// Starts a container that does nothing; gives its id.
    pub(crate) fn start_idle(&self) -> Result<String> {
        self.answer(&["run", "--detach", "--network", "none", &self.image, "sleep", "600"])
    }

    /// The process id of a container's first process.
    pub(crate) fn pid(&self, container: &str) -> Result<u32> {
        let pid = self.answer(&["inspect", "--format", "{{.State.Pid}}", container])?;
        pid.parse().with_context(|| format!("reading the process id {pid:?}"))
    }

    /// Removes a container, whatever it does.
    pub(crate) fn remove(&self, container: &str) -> Result<()> {
        self.answer(&["rm", "--force", container]).map(drop)
    }

    fn answer(&self, arguments: &[&str]) -> Result<String> {
        let output = tokio::task::block_in_place(|| self.command().args(arguments).output());
        let output = output.context("starting docker")?;
        let said = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "docker {} failed: {}", arguments.join(" "), said.trim());
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }
}
