//! Creating a sandbox: its directory and disk, then the launcher, which does the rest.

use std::io::{self, PipeReader};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use launcher::LaunchSpec;
use launcher::cgroup::Group;
use launcher::launch_file::{self, LAUNCH_FILE, LaunchFileContents};
use launcher::spec::{
    AGENT_ID, Disk, GUEST_DIRECTORY, LISTEN_FD, Network, Report, Root, STATE_FD, Seal, Users,
};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

use super::landlock_only::{self, HOW_TO_OPT_IN};
use super::users::Obstacle;
use super::{
    Inner, NamespaceBackend, UseNamespaces, apparmor, destroy, disk_monitor, launcher_process, own_ca, probe,
    seccomp,
};
use crate::error::{SandboxError, failed};
use crate::host::directories::make_private_directory;
use crate::host::disk;
use crate::limits::{LimitSupport as _, Plan, Unenforced};
use crate::spec::{Image, Isolation, Limits, SandboxId, SandboxSpec};

/// The strongest isolation of this backend.
const ISOLATION: Isolation = Isolation::Namespaces;
/// The maximum length of a launcher's report, in bytes.
const REPORT_BYTES: u64 = 64 << 10;
/// Directories that are writable as far as permissions allow. The rest of an image is read-only, whatever its
/// permissions.
const WRITABLE: [&str; 10] =
    ["/workspace", "/app", "/agent", "/tmp", "/var", "/home", "/run", "/opt", "/srv", "/mnt"];

/// What the sandbox was created from, except for its certificates; stored in its launch file.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record {
    pub(super) spec: SandboxSpec,
    pub(super) unenforced: Vec<Unenforced>,
    /// Recorded because a later server's configuration may point to a different cgroup.
    pub(super) cgroup: Option<Group>,
    /// The actual isolation, which may be stronger than requested.
    #[serde(default = "namespaces")]
    pub(super) isolation: Isolation,
}

/// Serde default: older records have no `isolation`, because namespaces were the only kind.
fn namespaces() -> Isolation {
    Isolation::Namespaces
}

/// A sandbox that its launcher is setting up.
struct PendingSandbox {
    /// The network namespace lent by this server, held open until the sandbox runs.
    network: Option<OwnedFd>,
    /// Where the launcher writes its one-line report.
    answer: PipeReader,
}

/// Creates a sandbox, or finds it already created. Returns when its guest runs, or when it is clear that it never will.
/// A sandbox that could not be started is removed.
pub(super) async fn create(
    backend: &NamespaceBackend,
    id: SandboxId,
    spec: &SandboxSpec,
) -> Result<(), SandboxError> {
    let turn = backend.locks.turn(id).await;
    let (backend, spec, asked) = (backend.clone(), spec.clone(), spec.isolation);
    let made = async move {
        let pending = backend.blocking(move |inner| start_launcher(inner, id, &spec)).await?;
        let Some(PendingSandbox { network, answer }) = pending else { return Ok(()) };
        let Err(error) = wait(&backend.inner, id, answer).await else { return Ok(()) };
        let clean_up = move |inner: &Inner| {
            drop(network);
            Ok(clean_up_failed_start(inner, id, asked, error))
        };
        Err(backend.blocking(clean_up).await?)
    };
    turn.run_to_completion(made).await
}

/// Validates the spec, creates directory and disk, and starts a launcher. `None` if the sandbox is already running.
fn start_launcher(
    inner: &Inner,
    id: SandboxId,
    spec: &SandboxSpec,
) -> Result<Option<PendingSandbox>, SandboxError> {
    if spec.isolation > ISOLATION {
        return Err(SandboxError::InsufficientIsolation { asked: spec.isolation, given: ISOLATION });
    }
    inner.layout.recreate()?;
    let directory = inner.layout.sandbox(id);
    if directory.exists() && is_running_already(inner, id, &directory)? {
        return Ok(None);
    }
    let laid_out = match choose_isolation(inner, spec.isolation)? {
        Isolation::Landlock => {
            let plan = inner.landlock_only_limits.plan(&spec.limits)?;
            refuse_images(spec)?;
            prepare_landlock_only(inner, id, spec, &plan, &directory).map(|()| None)
        }
        Isolation::Namespaces | Isolation::MicroVm => {
            let plan = inner.offer.plan(&spec.limits)?;
            let root = image_root(inner, spec)?;
            prepare_namespaces(inner, id, spec, &plan, root, &directory)
        }
    };
    let ordered = laid_out.and_then(|network| {
        let lent: Vec<_> = network.iter().map(AsFd::as_fd).collect();
        let answer = inner.standby.start_launcher(&directory.join(LAUNCH_FILE), &lent);
        let answer = answer.map_err(|source| {
            let step = "starting the launcher".into();
            SandboxError::Setup { id, step, source: Some(source) }
        })?;
        Ok(PendingSandbox { network, answer })
    });
    ordered.map(Some).map_err(|error| clean_up_failed_start(inner, id, spec.isolation, error))
}

/// Refuses limits that cannot be enforced. Unavailable isolation is reported when the sandbox is created, not here.
pub(super) fn check_limits(inner: &Inner, limits: &Limits, isolation: Isolation) -> Result<(), SandboxError> {
    match choose_isolation(inner, isolation) {
        Ok(Isolation::Landlock) => inner.landlock_only_limits.plan(limits).map(drop),
        Ok(Isolation::Namespaces | Isolation::MicroVm) => inner.offer.plan(limits).map(drop),
        Err(_) => Ok(()),
    }
}

/// The isolation that the sandbox gets: namespaces if the host has them, less only if the spec accepts less.
fn choose_isolation(inner: &Inner, asked: Isolation) -> Result<Isolation, SandboxError> {
    if asked > Isolation::Landlock {
        // Namespaces are not probed first, because that would take longer than a failed start; see `clean_up_failed_start`.
        let may_try = inner.config.namespaces == UseNamespaces::WherePossible;
        return match probe::known_obstacle(inner) {
            None if may_try => Ok(Isolation::Namespaces),
            _ => Err(no_namespaces(inner)),
        };
    }
    if probe::namespaces(inner).is_ok() {
        return Ok(Isolation::Namespaces);
    }
    match landlock_only::obstacle(inner) {
        None => Ok(Isolation::Landlock),
        Some(Obstacle { found, remedy }) => Err(SandboxError::HostUnsupported { what: found, remedy }),
    }
}

/// The error for specs that require namespaces on a host without them.
fn no_namespaces(inner: &Inner) -> SandboxError {
    let Err(Obstacle { found, remedy }) = probe::namespaces(inner) else {
        return SandboxError::HostUnsupported { what: "no namespaces".into(), remedy: "try again".into() };
    };
    let remedy = match landlock_only::obstacle(inner) {
        None => format!("{remedy}, or {HOW_TO_OPT_IN}"),
        Some(_) => remedy.clone(),
    };
    SandboxError::HostUnsupported { what: format!("this host does not allow namespaces: {found}"), remedy }
}

/// Cleans up after a failed start, and returns the most helpful error.
fn clean_up_failed_start(
    inner: &Inner,
    id: SandboxId,
    asked: Isolation,
    error: SandboxError,
) -> SandboxError {
    if let Err(left) = destroy::remove(inner, id) {
        // The caller needs the first error. The remains are found again by their directory.
        tracing::warn!(sandbox = %id, error = &left as &dyn std::error::Error, "a sandbox that failed to start is not removed yet");
    }
    let is_for_namespaces = asked > Isolation::Landlock && matches!(error, SandboxError::Setup { .. });
    if is_for_namespaces && probe::namespaces(inner).is_err() { no_namespaces(inner) } else { error }
}

fn refuse_images(spec: &SandboxSpec) -> Result<(), SandboxError> {
    let image = match &spec.image {
        Image::Host => return Ok(()),
        Image::Named(name) => name.clone(),
        Image::Directory(path) if path.is_dir() => path.display().to_string(),
        Image::Directory(path) => return Err(SandboxError::NoImage(path.display().to_string())),
    };
    Err(SandboxError::HostUnsupported {
        what: format!("the image {image} needs its own root, which needs namespaces"),
        remedy: "use the image \"host\", which uses the programs of this host".into(),
    })
}

fn prepare_landlock_only(
    inner: &Inner,
    id: SandboxId,
    spec: &SandboxSpec,
    plan: &Plan,
    directory: &Path,
) -> Result<(), SandboxError> {
    make_private_directory(&directory.join(GUEST_DIRECTORY))?;
    let landlock_only = landlock_only::prepare(inner, id, spec)?;
    let launch = LaunchSpec {
        guest_arguments: landlock_only::guest_arguments(&landlock_only),
        seccomp: seccomp::landlock_only_program().map_err(no_filter)?.to_owned(),
        writable: Vec::new(),
        apparmor_profile: None,
        seal: Seal::LandlockOnly(landlock_only.clone()),
        ..describe(inner, id, plan, placeholder_root(), Disk::Directory(landlock_only.tree), directory)?
    };
    write_records(spec, plan, Isolation::Landlock, &launch, directory)
}

/// A placeholder: the launcher ignores the root of a sandbox without namespaces.
fn placeholder_root() -> Root {
    Root { lower: "/".into(), over: None, binds: Vec::new() }
}

/// Checks what an earlier attempt left: a running sandbox, or the remains of one that never ran, which are removed.
fn is_running_already(inner: &Inner, id: SandboxId, directory: &Path) -> Result<bool, SandboxError> {
    let looking = |source| failed("looking at", directory, source);
    let end = Instant::now() + inner.config.start_timeout;
    loop {
        let alive = launcher_process::find(directory).map_err(looking)?.is_some();
        let text = LaunchFileContents::read(directory).map_err(looking)?;
        let ran = text.as_ref().is_some_and(|text| text.running().is_some());
        // A launcher whose guest has ended lives on for a moment.
        let has_ended = text.is_some_and(|text| text.ended().is_some());
        match (alive && !has_ended, ran) {
            (true, true) => return Ok(true),
            (false, true) => {
                let why = "it has ended and must be destroyed before it can be created again".into();
                return Err(SandboxError::NotRunning { id, why });
            }
            (true, false) if Instant::now() < end => std::thread::sleep(Duration::from_millis(1)),
            (_, false) => {
                destroy::remove(inner, id)?;
                return Ok(false);
            }
        }
    }
}

fn image_root(inner: &Inner, spec: &SandboxSpec) -> Result<Root, SandboxError> {
    match &spec.image {
        Image::Host => inner.host_images.get(&spec.extra_ca),
        Image::Directory(path) if path.is_dir() => {
            Ok(Root { lower: path.clone(), over: None, binds: Vec::new() })
        }
        Image::Directory(path) => Err(SandboxError::NoImage(path.display().to_string())),
        Image::Named(name) => inner.named_images.get(name, &spec.extra_ca),
    }
}

fn prepare_namespaces(
    inner: &Inner,
    id: SandboxId,
    spec: &SandboxSpec,
    plan: &Plan,
    root: Root,
    directory: &Path,
) -> Result<Option<OwnedFd>, SandboxError> {
    make_private_directory(&directory.join(GUEST_DIRECTORY))?;
    let lent = lend_network(inner);
    let disk = make_disk(inner, plan, directory)?;
    let root = own_ca::add(inner, spec, root, directory)?;
    let network = if lent.is_some() { Network::Lent } else { Network::Own };
    let launch = LaunchSpec { network, ..describe(inner, id, plan, root, disk, directory)? };
    write_records(spec, plan, Isolation::Namespaces, &launch, directory)?;
    Ok(lent)
}

/// Lends a network namespace of the server, if it can: an ordinary user's sandbox creates everything itself.
fn lend_network(inner: &Inner) -> Option<OwnedFd> {
    let Users::Ranges(_) = inner.identity.users else { return None };
    inner.networks.lend()
}

fn write_records(
    spec: &SandboxSpec,
    plan: &Plan,
    isolation: Isolation,
    launch: &LaunchSpec,
    directory: &Path,
) -> Result<(), SandboxError> {
    let (unenforced, cgroup) = (plan.unenforced.clone(), launch.cgroup.clone());
    // The certificates are already part of the root that was built with them.
    let spec = SandboxSpec { extra_ca: Arc::default(), ..spec.clone() };
    let record = Record { spec, unenforced, cgroup, isolation };
    // Written last: once this file exists, a launcher may start.
    launch_file::write(directory, &record, launch)
        .map_err(|source| failed("writing the launch file in", directory, source))
}

fn make_disk(inner: &Inner, plan: &Plan, directory: &Path) -> Result<Disk, SandboxError> {
    if let Some(mib) = plan.disk_mib {
        let image = directory.join(disk::DISK_FILE);
        let _turn = inner.making_disk.lock().unwrap_or_else(PoisonError::into_inner);
        disk_monitor::check_room(inner, mib)?;
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
    let seccomp = seccomp::program().map_err(no_filter)?;
    Ok(LaunchSpec {
        directory: directory.to_path_buf(),
        socket: inner.layout.socket(id)?,
        guest: config.guest.clone(),
        guest_arguments: guest_arguments(&inner.identity.users, config.egress_port),
        root,
        disk,
        users: inner.identity.preferring(id.as_u128()),
        cgroup: new_group(inner, id),
        limits: plan.launch_limits(),
        seccomp: seccomp.to_owned(),
        writable: WRITABLE.map(String::from).to_vec(),
        apparmor_profile: apparmor::profile(),
        trace: config.trace,
        seal: Seal::Namespaces,
        file_audit: config.file_audit,
        network: Network::Own,
    })
}

fn no_filter(why: &str) -> SandboxError {
    SandboxError::HostUnsupported {
        what: format!("the seccomp filter cannot be compiled: {why}"),
        remedy: "use a supported CPU architecture".into(),
    }
}

/// The sandbox's cgroup, if it has one.
pub(super) fn group(inner: &Inner, id: SandboxId) -> Option<Group> {
    let text = LaunchFileContents::read(&inner.layout.sandbox(id)).ok().flatten();
    group_of(inner, id, text.and_then(|text| text.record().ok().flatten()).as_ref())
}

/// Like [`group`], for a record that was read already.
pub(super) fn group_of(inner: &Inner, id: SandboxId, record: Option<&Record>) -> Option<Group> {
    record.map_or_else(|| new_group(inner, id), |record| record.cgroup.clone())
}

/// The cgroup of a new sandbox, if the host has cgroups.
fn new_group(inner: &Inner, id: SandboxId) -> Option<Group> {
    let hierarchy = inner.offer.hierarchy.clone()?;
    Some(Group { hierarchy, name: format!("{}/{id}", inner.config.cgroup_parent) })
}

fn guest_arguments(users: &Users, egress_port: u16) -> Vec<String> {
    let agent = match users {
        Users::Ranges(_) | Users::Lent { .. } => AGENT_ID,
        // There is no other id: the guest runs everything under its own.
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
        "--home",
        "/home/agent",
        "--agent-uid",
        &agent,
        "--agent-gid",
        &agent,
        "--egress-port",
        &port,
    ];
    words.map(String::from).to_vec()
}

/// Waits for the launcher's one-line report.
async fn wait(inner: &Inner, id: SandboxId, answer: PipeReader) -> Result<(), SandboxError> {
    let setup =
        |step: &str, source: io::Error| SandboxError::Setup { id, step: step.into(), source: Some(source) };
    let output = Receiver::from_owned_fd(answer.into())
        .map_err(|source| setup("receiving from the launcher", source))?;
    let mut answer = Vec::new();
    let read = async { output.take(REPORT_BYTES).read_to_end(&mut answer).await };
    match tokio::time::timeout(inner.config.start_timeout, read).await {
        Ok(result) => result.map_err(|source| setup("receiving from the launcher", source))?,
        Err(_) => return Err(setup("waiting for the launcher", io::ErrorKind::TimedOut.into())),
    };
    match serde_json::from_slice(&answer) {
        Ok(Report::Ready) => Ok(()),
        Ok(Report::ReadyWithoutFileAudit { cause, errno }) => {
            inner.missing_file_lists.warn(&cause, errno);
            Ok(())
        }
        Ok(Report::Failed { step, cause, errno }) => {
            let source = errno.map_or_else(|| io::Error::other(cause), io::Error::from_raw_os_error);
            Err(SandboxError::Setup { id, step, source: Some(source) })
        }
        Err(_) => Err(SandboxError::Setup {
            id,
            step: "the launcher exited without a message".into(),
            source: None,
        }),
    }
}
