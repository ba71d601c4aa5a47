//! The namespace backend used as a library, as the server uses it.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use protocol::{
    CallKey, Exec, ExecEnd, ExecEvent, ExecUpdate, Follow, GuestClient, IncomingStreams, Program,
};
use sandbox::namespace::{NamespaceBackend, NamespaceConfig};
use sandbox::{Backend, Image, Isolation, Limits, SandboxId, SandboxSpec};

use crate::Stage;
use crate::bare::TRUE;

/// Sandboxes below one directory.
pub(crate) struct Sandboxes {
    backend: NamespaceBackend,
    directory: PathBuf,
}

/// A sandbox whose guest has answered.
pub(crate) struct Living {
    /// Its name.
    pub(crate) id: SandboxId,
    client: GuestClient,
    calls: u32,
    _incoming: IncomingStreams,
}

impl Sandboxes {
    /// Sandboxes below this directory, which must have a short path.
    pub(crate) fn new(stage: &Stage, directory: &Path) -> Result<Self> {
        let run = directory.join("run");
        let config = NamespaceConfig::new(directory, run, &stage.launcher, &stage.guest);
        Ok(Self { backend: NamespaceBackend::new(config)?, directory: directory.to_owned() })
    }

    /// Makes a sandbox with the default limits, connects and runs `true` in it.
    pub(crate) async fn start(&self) -> Result<Living> {
        let spec = SandboxSpec {
            image: Image::Host,
            isolation: Isolation::Namespaces,
            limits: Limits::default(),
            extra_ca: Vec::new(),
            labels: std::collections::BTreeMap::new(),
        };
        let id = SandboxId::generate();
        self.backend.create(id, &spec).await?;
        let (client, _, incoming) = GuestClient::connect(self.backend.connect(id).await?).await?;
        let mut living = Living { id, client, calls: 0, _incoming: incoming };
        living.run_true().await?;
        Ok(living)
    }

    /// Ends a sandbox and removes every trace.
    pub(crate) async fn destroy(&self, id: SandboxId) -> Result<()> {
        Ok(self.backend.destroy(id).await?)
    }

    /// Destroys all sandboxes below the directory, whoever made them.
    pub(crate) async fn destroy_all(&self) -> Result<()> {
        for id in self.backend.list().await? {
            self.backend.destroy(id).await?;
        }
        Ok(())
    }

    /// Process ids of the guest and of its launcher.
    pub(crate) fn processes(&self, id: SandboxId) -> Result<[u32; 2]> {
        let path = self.directory.join("sandboxes").join(id.to_string()).join("running.json");
        let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
        let running: serde_json::Value = serde_json::from_slice(&text)?;
        let guest = running["guest_pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
        let guest = guest.with_context(|| format!("{} names no guest", path.display()))?;
        Ok([guest, parent(guest)?])
    }
}

impl Living {
    /// Runs `true` inside and waits for its end.
    pub(crate) async fn run_true(&mut self) -> Result<()> {
        self.calls += 1;
        let exec = Exec {
            key: CallKey::new(self.calls.to_string(), 1),
            program: Program::Arguments(vec![TRUE.into()]),
            environment: std::collections::BTreeMap::new(),
            directory: None,
            stdin: None,
            keep_stdin_open: false,
            terminal: None,
            timeout_ms: None,
            kill_grace_ms: 1000,
        };
        let mut follower = self.client.exec(exec, Follow::Capped).await?;
        loop {
            if let ExecUpdate::Event(ExecEvent::Ended(outcome)) = follower.next().await? {
                ensure!(outcome.end == ExecEnd::Code(0), "true ended with {:?}", outcome.end);
                return Ok(());
            }
        }
    }
}

/// The parent of a process.
pub(crate) fn parent(pid: u32) -> Result<u32> {
    let status =
        std::fs::read_to_string(format!("/proc/{pid}/status")).context("reading a process's status")?;
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.and_then(|text| text.trim().parse().ok()).with_context(|| format!("process {pid} has no parent"))
}

/// Bytes of memory of a process, its share of what it shares with others (PSS).
pub(crate) fn proportional_bytes(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let Some(kib) = text.lines().find_map(|line| line.strip_prefix("Pss:")) else {
        bail!("{path} has no line Pss");
    };
    Ok(kib.trim().trim_end_matches(" kB").trim().parse::<f64>()? * 1024.0)
}
