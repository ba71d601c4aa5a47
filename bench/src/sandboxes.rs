//! Uses the sandbox backends as libraries, as the server does.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use launcher::launch_file::LaunchFileContents;
use protocol::{
    CallKey, Exec, ExecEnd, ExecEvent, ExecUpdate, Follow, GuestClient, IncomingStreams, LinkCredentials,
    Program,
};
use sandbox::docker::{DockerBackend, DockerConfig};
use sandbox::namespace::{FileAuditing, NamespaceBackend, NamespaceConfig};
use sandbox::{Backend, Freezer, Image, Isolation, Limits, SandboxId, SandboxSpec};

use crate::Stage;
use crate::bare::TRUE;

/// Sandboxes below one directory.
pub(crate) struct Sandboxes {
    backend: Box<dyn Backend>,
    image: Image,
    directory: PathBuf,
}

/// A sandbox whose guest has answered.
pub(crate) struct RunningSandbox {
    pub(crate) id: SandboxId,
    client: GuestClient,
    calls: u32,
    _incoming: IncomingStreams,
}

impl Sandboxes {
    /// Sandboxes below `directory`, whose path must be short.
    pub(crate) fn new(stage: &Stage, directory: &Path) -> Result<Self> {
        Self::with_run_dir(stage, directory, &directory.join("run"))
    }

    /// Like [`Self::new`], with the sockets in `run`.
    pub(crate) fn with_run_dir(stage: &Stage, directory: &Path, run: &Path) -> Result<Self> {
        let config = NamespaceConfig::new(directory, run, &stage.launcher, &stage.guest);
        let backend = Box::new(NamespaceBackend::new(config)?);
        Ok(Self { backend, image: Image::Host, directory: directory.to_owned() })
    }

    /// Like [`Self::new`], with or without the log of accessed files.
    pub(crate) fn with_list(stage: &Stage, directory: &Path, list: FileAuditing) -> Result<Self> {
        let mut config =
            NamespaceConfig::new(directory, directory.join("run"), &stage.launcher, &stage.guest);
        config.file_audit = list;
        let backend = Box::new(NamespaceBackend::new(config)?);
        Ok(Self { backend, image: Image::Host, directory: directory.to_owned() })
    }

    /// The number of lines in a sandbox's log of accessed files, if there is one.
    pub(crate) async fn listed_lines(&self, id: SandboxId) -> Result<Option<usize>> {
        use std::io::Read as _;
        let Some(audit) = self.backend.file_audit() else { return Ok(None) };
        let Some(mut log) = audit.open(id).await? else { return Ok(None) };
        let mut text = String::new();
        log.read_to_string(&mut text)?;
        Ok(Some(text.lines().count()))
    }

    /// Sandboxes on a named image.
    pub(crate) fn of_image(stage: &Stage, directory: &Path, images: &Path, name: &str) -> Result<Self> {
        let run = directory.join("run");
        let mut config = NamespaceConfig::new(directory, run, &stage.launcher, &stage.guest);
        config.images_dir = images.to_owned();
        let backend = Box::new(NamespaceBackend::new(config)?);
        Ok(Self { backend, image: Image::Named(name.into()), directory: directory.to_owned() })
    }

    /// Sandboxes as containers of the baseline engine, on the same image.
    pub(crate) fn in_docker(stage: &Stage, directory: &Path) -> Result<Self> {
        let mut config = DockerConfig::new(directory, &stage.guest);
        config.host = format!("unix://{}", stage.docker.socket.display());
        config.default_image.clone_from(&stage.docker.image);
        let backend = Box::new(DockerBackend::new(config)?);
        Ok(Self { backend, image: Image::Named("default".into()), directory: directory.to_owned() })
    }

    /// Creates a sandbox with the default limits, connects, and runs `true` in it.
    pub(crate) async fn start(&self) -> Result<RunningSandbox> {
        let id = self.make().await?;
        let mut living = self.greet(id).await?;
        living.run_true().await?;
        Ok(living)
    }

    /// Creates a sandbox in which nothing has run.
    pub(crate) async fn start_idle(&self) -> Result<SandboxId> {
        let id = self.make().await?;
        drop(self.greet(id).await?);
        Ok(id)
    }

    /// Creates a sandbox, waits until its guest has greeted, and freezes it, as the pool does.
    pub(crate) async fn start_frozen(&self) -> Result<SandboxId> {
        let id = self.start_idle().await?;
        self.freezer()?.freeze(id).await?;
        Ok(id)
    }

    /// Resumes a frozen sandbox.
    pub(crate) async fn thaw(&self, id: SandboxId) -> Result<()> {
        Ok(self.freezer()?.thaw(id).await?)
    }

    fn freezer(&self) -> Result<&dyn Freezer> {
        self.backend.freezer().context("this host has no freezer control group")
    }

    /// Opens a link.
    pub(crate) async fn greet(&self, id: SandboxId) -> Result<RunningSandbox> {
        let (client, _, incoming) =
            GuestClient::connect(self.backend.connect(id).await?, LinkCredentials::new("bench", 1)).await?;
        Ok(RunningSandbox { id, client, calls: 0, _incoming: incoming })
    }

    async fn make(&self) -> Result<SandboxId> {
        let spec = SandboxSpec {
            image: self.image.clone(),
            isolation: Isolation::Namespaces,
            limits: Limits::default(),
            extra_ca: Default::default(),
            own_ca: None,
            labels: std::collections::BTreeMap::new(),
        };
        let id = SandboxId::generate();
        self.backend.create(id, &spec).await?;
        Ok(id)
    }

    /// Removes a sandbox completely.
    pub(crate) async fn destroy(&self, id: SandboxId) -> Result<()> {
        Ok(self.backend.destroy(id).await?)
    }

    /// Destroys all sandboxes below the directory, no matter who created them.
    pub(crate) async fn destroy_all(&self) -> Result<()> {
        for id in self.backend.list().await? {
            self.backend.destroy(id).await?;
        }
        Ok(())
    }

    /// Process ids of the guest and of its launcher.
    pub(crate) fn processes(&self, id: SandboxId) -> Result<[u32; 2]> {
        let path = self.directory.join("sandboxes").join(id.to_string());
        let text = LaunchFileContents::read(&path)
            .with_context(|| format!("reading what is in {}", path.display()))?;
        let running = text.and_then(|text| text.running());
        let guest = running.with_context(|| format!("{} names no guest", path.display()))?.guest_pid;
        Ok([guest, parent(guest)?])
    }
}

impl RunningSandbox {
    /// Runs `true` inside and waits for its end.
    pub(crate) async fn run_true(&mut self) -> Result<()> {
        self.run(Program::Arguments(vec![TRUE.into()])).await
    }

    /// Runs a command line inside, which must succeed.
    pub(crate) async fn run_shell(&mut self, command: &str) -> Result<()> {
        self.run(Program::Shell(command.into())).await
    }

    /// Uploads a file into the workspace.
    pub(crate) async fn upload(&mut self, name: &str, from: &Path) -> Result<()> {
        use std::io::Read as _;
        let mut upload = self.client.upload(name.to_owned(), None).await?;
        let mut file = std::fs::File::open(from)?;
        let mut piece = vec![0; 1 << 20];
        loop {
            match file.read(&mut piece)? {
                0 => break,
                count => upload.write(&piece[..count]).await?,
            }
        }
        upload.finish().await?;
        Ok(())
    }

    async fn run(&mut self, program: Program) -> Result<()> {
        self.calls += 1;
        let path = ("PATH".to_owned(), "/usr/local/bin:/usr/bin:/bin".to_owned());
        let exec = Exec {
            key: CallKey::new(self.calls.to_string(), 1),
            program,
            environment: [path].into(),
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
                ensure!(outcome.end == ExecEnd::Code(0), "it ended with {:?}", outcome.end);
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

/// A process and all of its descendants.
pub(crate) fn process_tree(first: u32) -> Result<Vec<u32>> {
    let names = std::fs::read_dir("/proc").context("listing processes")?.flatten();
    let pids = names.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let parents: Vec<(u32, u32)> = pids.filter_map(|pid| Some((pid, parent(pid).ok()?))).collect();
    let mut all = vec![first];
    let mut at = 0;
    while let Some(pid) = all.get(at).copied() {
        all.extend(parents.iter().filter(|(_, parent)| *parent == pid).map(|(child, _)| *child));
        at += 1;
    }
    Ok(all)
}

/// The proportional set size (PSS) of a process in bytes: shared memory counts in proportion.
pub(crate) fn proportional_bytes(pid: u32) -> Result<f64> {
    bytes_of(pid, "Pss:")
}

/// The resident set size (RSS) of a process in bytes.
pub(crate) fn resident_bytes(pid: u32) -> Result<f64> {
    bytes_of(pid, "Rss:")
}

fn bytes_of(pid: u32, name: &str) -> Result<f64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let text = std::fs::read_to_string(&path).with_context(|| format!("reading {path}"))?;
    let Some(kib) = text.lines().find_map(|line| line.strip_prefix(name)) else {
        bail!("{path} has no line {name}");
    };
    Ok(kib.trim().trim_end_matches(" kB").trim().parse::<f64>()? * 1024.0)
}
