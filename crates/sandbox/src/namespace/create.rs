//! Making a sandbox: its directory and disk, then the launcher, which does the rest.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use launcher::LaunchSpec;
use launcher::cgroup::Group;
use launcher::spec::{
    AGENT_ID, Disk, GUEST_DIRECTORY, LAUNCH_FILE, LISTEN_FD, RUNNING_FILE, Report, Root, STATE_FD, Users,
};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::Command;

use super::layout::{failed, make_private_directory};
use super::limits::{Plan, Unenforced};
use super::observe::read_json;
use super::{Inner, destroy, disk, owner, preflight, seccomp};
use crate::error::SandboxError;
use crate::spec::{Image, Isolation, SandboxId, SandboxSpec};

/// What this backend gives.
pub(super) const ISOLATION: Isolation = Isolation::Namespaces;
/// Name of the file that holds a [`Record`].
pub(super) const RECORD_FILE: &str = "sandbox.json";
const LOG_FILE: &str = "launcher.log";
/// The most bytes of a launcher's answer.
const REPORT_BYTES: u64 = 64 << 10;
/// Where programs may write as far as permissions let them. The rest of an image is read-only, whatever its permissions.
const WRITABLE: [&str; 9] = ["/workspace", "/app", "/tmp", "/var", "/home", "/run", "/opt", "/srv", "/mnt"];

/// What a sandbox was asked to be, kept beside it.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) spec: SandboxSpec,
    pub(super) unenforced: Vec<Unenforced>,
    /// The control group, which a later server might have to look for elsewhere.
    pub(super) cgroup: Option<Group>,
}

/// A sandbox that only needs its launcher.
pub(super) struct Prepared {
    directory: PathBuf,
}

/// Checks the wish and makes directory and disk. `None` when the sandbox runs already.
pub(super) fn prepare(
    inner: &Inner,
    id: SandboxId,
    spec: &SandboxSpec,
) -> Result<Option<Prepared>, SandboxError> {
    if spec.isolation > ISOLATION {
        return Err(SandboxError::TooWeak { asked: spec.isolation, given: ISOLATION });
    }
    let directory = inner.layout.sandbox(id);
    if directory.exists() && is_running_already(inner, id, &directory)? {
        return Ok(None);
    }
    let plan = inner.offer.plan(&spec.limits)?;
    let root = find_root(inner, spec)?;
    let result = lay_out(inner, id, spec, &plan, root, &directory);
    if result.is_err() {
        destroy::destroy(inner, id)?;
    }
    result.map(|()| Some(Prepared { directory }))
}

/// What an earlier attempt has left: a sandbox, or remains of one that never ran, which are removed.
fn is_running_already(inner: &Inner, id: SandboxId, directory: &Path) -> Result<bool, SandboxError> {
    let ran = || directory.join(RUNNING_FILE).exists();
    let end = Instant::now() + inner.config.start_timeout;
    loop {
        let alive =
            owner::find(directory).map_err(|source| failed("looking at", directory, source))?.is_some();
        match (alive, ran()) {
            (true, true) => return Ok(true),
            (false, true) => {
                let why = "it has ended and must be destroyed before it can be made again".into();
                return Err(SandboxError::NotRunning { id, why });
            }
            (true, false) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            (_, false) => {
                destroy::destroy(inner, id)?;
                return Ok(false);
            }
        }
    }
}

fn find_root(inner: &Inner, spec: &SandboxSpec) -> Result<Root, SandboxError> {
    match &spec.image {
        Image::Host => inner.host_images.get(&spec.extra_ca),
        Image::Directory(path) if path.is_dir() => Ok(Root { lower: path.clone(), binds: Vec::new() }),
        Image::Directory(path) => Err(SandboxError::NoImage(path.display().to_string())),
    }
}

fn lay_out(
    inner: &Inner,
    id: SandboxId,
    spec: &SandboxSpec,
    plan: &Plan,
    root: Root,
    directory: &Path,
) -> Result<(), SandboxError> {
    make_private_directory(&directory.join(GUEST_DIRECTORY))?;
    make_private_directory(&inner.layout.run_directory(id))?;
    let disk = make_disk(inner, plan, directory)?;
    let launch = describe(inner, id, plan, root, disk, directory)?;
    let record =
        Record { spec: spec.clone(), unenforced: plan.unenforced.clone(), cgroup: launch.cgroup.clone() };
    write_json(&directory.join(RECORD_FILE), &record)?;
    // Last: its presence means that a launcher may come.
    write_json(&directory.join(LAUNCH_FILE), &launch)
}

fn make_disk(inner: &Inner, plan: &Plan, directory: &Path) -> Result<Disk, SandboxError> {
    if let Some(mib) = plan.disk_mib {
        let image = directory.join("disk.img");
        inner.disks.take(mib, &image)?;
        return Ok(Disk::Image(image));
    }
    let tree = directory.join("disk");
    disk::make_directories(&tree, inner.identity.owners())
        .map_err(|source| failed("making", &tree, source))?;
    Ok(Disk::Directory(tree))
}

fn describe(
    inner: &Inner,
    id: SandboxId,
    plan: &Plan,
    root: Root,
    disk: Disk,
    directory: &Path,
) -> Result<LaunchSpec, SandboxError> {
    let config = &inner.config;
    let seccomp = seccomp::programs().map_err(|why| SandboxError::HostUnfit {
        what: format!("the seccomp filter cannot be compiled: {why}"),
        remedy: "use a supported processor".into(),
    })?;
    Ok(LaunchSpec {
        directory: directory.to_path_buf(),
        socket: inner.layout.socket(id)?,
        guest: config.guest.clone(),
        guest_arguments: guest_arguments(&inner.identity.users, config.egress_port),
        root,
        disk,
        users: inner.identity.preferring(id.as_u128()),
        cgroup: new_group(inner, id),
        limits: plan.limits,
        seccomp: seccomp.to_vec(),
        writable: WRITABLE.map(String::from).to_vec(),
        apparmor_profile: preflight::apparmor_profile(),
        trace: config.trace,
    })
}

/// The control group that a sandbox has, where it has one.
pub(super) fn group(inner: &Inner, id: SandboxId) -> Option<Group> {
    let record: Option<Record> = read_json(&inner.layout.sandbox(id).join(RECORD_FILE)).ok().flatten();
    record.map_or_else(|| new_group(inner, id), |record| record.cgroup)
}

/// The control group of a new sandbox, where the host has any.
fn new_group(inner: &Inner, id: SandboxId) -> Option<Group> {
    let hierarchy = inner.offer.hierarchy.clone()?;
    Some(Group { hierarchy, name: format!("{}/{id}", inner.config.cgroup_parent) })
}

fn guest_arguments(users: &Users, egress_port: u16) -> Vec<String> {
    let agent = match users {
        Users::Ranges(_) | Users::Lent { .. } => AGENT_ID,
        // There is no other id: the guest runs everything as itself.
        Users::Single => 0,
    };
    let (agent, listen, state) = (agent.to_string(), LISTEN_FD.to_string(), STATE_FD.to_string());
    let port = egress_port.to_string();
    let words = [
        "serve",
        "--listen-fd",
        &listen,
        "--state-fd",
        &state,
        "--workspace",
        "/workspace",
        "--agent-uid",
        &agent,
        "--agent-gid",
        &agent,
        "--egress-port",
        &port,
    ];
    words.map(String::from).to_vec()
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), SandboxError> {
    let write = || -> io::Result<()> { fs::write(path, serde_json::to_vec(value)?) };
    write().map_err(|source| failed("writing", path, source))
}

/// Starts the launcher and waits for its one line.
pub(super) async fn start(inner: &Inner, id: SandboxId, prepared: Prepared) -> Result<(), SandboxError> {
    let setup =
        |step: &str, source: io::Error| SandboxError::Setup { id, step: step.into(), source: Some(source) };
    let log = fs::File::create(prepared.directory.join(LOG_FILE)).map_err(|e| setup("opening the log", e))?;
    let mut child = Command::new(&inner.config.launcher)
        .arg(prepared.directory.join(LAUNCH_FILE))
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(log)
        .spawn()
        .map_err(|source| setup("starting the launcher", source))?;
    let output =
        child.stdout.take().ok_or_else(|| setup("starting the launcher", io::Error::other("no output")))?;
    // Collects the launcher's exit status whenever it comes. The launcher itself does not depend on us.
    tokio::spawn(async move { child.wait().await });
    let mut answer = Vec::new();
    let read = async { output.take(REPORT_BYTES).read_to_end(&mut answer).await };
    match tokio::time::timeout(inner.config.start_timeout, read).await {
        Ok(result) => result.map_err(|source| setup("hearing from the launcher", source))?,
        Err(_) => return Err(setup("waiting for the launcher", io::ErrorKind::TimedOut.into())),
    };
    match serde_json::from_slice(&answer) {
        Ok(Report::Ready) => Ok(()),
        Ok(Report::Failed { step, cause, errno }) => {
            let source = errno.map_or_else(|| io::Error::other(cause), io::Error::from_raw_os_error);
            Err(SandboxError::Setup { id, step, source: Some(source) })
        }
        Err(_) => {
            Err(SandboxError::Setup { id, step: "the launcher ended without a word".into(), source: None })
        }
    }
}
