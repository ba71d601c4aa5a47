//! The Docker engine used as a baseline, driven through its command line as users do.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::bare;

/// A Docker engine with one small image.
#[derive(Debug, Clone)]
pub(crate) struct Docker {
    /// Path of the engine's socket.
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

    /// `docker run --network none IMAGE true`; leaves the container behind, under the given name.
    pub(crate) fn run_true_and_keep(&self, name: &str) -> Result<()> {
        bare::run(self.command().args(["run", "--name", name, "--network", "none", &self.image, "true"]))
    }

    /// `docker create --network none IMAGE true`: creates a container to run later; returns its id.
    pub(crate) fn create(&self) -> Result<String> {
        self.answer(&["create", "--network", "none", &self.image, "true"])
    }

    /// Starts an idle container; returns its id.
    pub(crate) fn start_idle(&self) -> Result<String> {
        self.answer(&["run", "--detach", "--network", "none", &self.image, "sleep", "600"])
    }

    /// The host process id of a container's first process.
    pub(crate) fn pid(&self, container: &str) -> Result<u32> {
        let pid = self.answer(&["inspect", "--format", "{{.State.Pid}}", container])?;
        pid.parse().with_context(|| format!("reading the process id {pid:?}"))
    }

    /// Removes a container in any state.
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
