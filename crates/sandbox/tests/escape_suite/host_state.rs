//! Compares the host before and after an attempt: files, processes, mounts, network, kernel settings.
//!
//! Other tests run at the same time, so their traces are ignored: mounts in temporary directories, and processes that
//! belong neither to this test nor to the sandbox.

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use sandbox::SandboxId;

use super::AttackedBackend;

/// Kernel settings that the attempts target.
const SETTINGS: [&str; 16] = [
    "/proc/sys/kernel/core_pattern",
    "/proc/sys/kernel/modprobe",
    "/proc/sys/kernel/hostname",
    "/proc/sys/kernel/domainname",
    "/proc/sys/kernel/panic",
    "/proc/sys/kernel/randomize_va_space",
    "/proc/sys/kernel/yama/ptrace_scope",
    "/proc/sys/kernel/unprivileged_bpf_disabled",
    "/proc/sys/vm/overcommit_memory",
    "/proc/sys/net/ipv4/ip_forward",
    "/proc/sys/fs/suid_dumpable",
    "/proc/sys/fs/binfmt_misc/status",
    "/proc/swaps",
    "/sys/kernel/uevent_helper",
    "/sys/kernel/mm/transparent_hugepage/enabled",
    "/sys/class/net/lo/mtu",
];
/// Directories where everybody may create files, and directories where nobody may.
const PLACES: [&str; 14] = [
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/",
    "/root",
    "/home",
    "/run",
    "/usr",
    "/usr/bin",
    "/var",
    "/opt",
    "/srv",
    "/boot",
    "/sys/fs/cgroup",
];

/// Objects of the host that an attacker would target.
pub(super) struct HostTargets {
    folder: tempfile::TempDir,
    token: String,
    witness: Child,
    shared: (u32, String),
    watched: Vec<i32>,
    programs: Vec<PathBuf>,
    abstract_socket: UnixListener,
    named_socket: UnixListener,
    tcp: TcpListener,
}

impl HostTargets {
    pub(super) fn prepare(backend_under_attack: &impl AttackedBackend, id: SandboxId) -> Self {
        let folder = tempfile::Builder::new().prefix("co").tempdir().unwrap();
        // Every user may write to the directory; the attempt is to reach it.
        use std::os::unix::fs::PermissionsExt as _;
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        // Does not contain the sandbox's id: anything with the id in its name counts as a trace of the sandbox.
        let token = format!("caisson-escape-{}", SandboxId::generate());
        fs::write(folder.path().join("secret"), "secret").unwrap();
        fs::set_permissions(folder.path().join("secret"), fs::Permissions::from_mode(0o666)).unwrap();
        fs::hard_link(folder.path().join("secret"), folder.path().join("second")).unwrap();
        let witness = Command::new("sleep").arg0(format!("{token}-witness")).arg("100000").spawn().unwrap();
        let address = SocketAddr::from_abstract_name(&token).unwrap();
        let mut watched = backend_under_attack.outside(id);
        watched.extend([std::process::id(), witness.id()].map(|pid| i32::try_from(pid).unwrap()));
        let sockets = (
            UnixListener::bind_addr(&address).unwrap(),
            UnixListener::bind(folder.path().join("s")).unwrap(),
            TcpListener::bind("0.0.0.0:0").unwrap(),
        );
        sockets.0.set_nonblocking(true).unwrap();
        sockets.1.set_nonblocking(true).unwrap();
        sockets.2.set_nonblocking(true).unwrap();
        Self {
            shared: share(id),
            programs: backend_under_attack.programs(),
            watched,
            abstract_socket: sockets.0,
            named_socket: sockets.1,
            tcp: sockets.2,
            witness,
            token,
            folder,
        }
    }

    /// Python definitions that tell the scripts about the host.
    pub(super) fn python(&self, backend_under_attack: &impl AttackedBackend, id: SandboxId) -> String {
        let folder = self.folder.path().display();
        format!(
            "token, witness = {:?}, {:?}\noutside, guest = {:?}, {}\nsecret, socket_path, state = {:?}, {:?}, {:?}\n\
             abstract_name, port, shared_key, shared_id = {:?}, {}, {}, {}\n",
            self.token,
            format!("{}-witness", self.token),
            self.watched,
            backend_under_attack.guest_inside(id),
            format!("{folder}/secret"),
            format!("{folder}/s"),
            backend_under_attack.state(id).display().to_string(),
            self.token,
            self.tcp.local_addr().unwrap().port(),
            self.shared.0,
            self.shared.1,
        )
    }

    /// The current state of the host.
    pub(super) fn look(&self) -> HostState {
        let mut seen = HostState::default();
        for path in tree(self.folder.path()).into_iter().chain(self.programs.iter().cloned()) {
            let content = if path.is_file() { blake(&fs::read(&path).unwrap_or_default()) } else { 0 };
            seen.note(format!("file {}", path.display()), format!("{} {content}", facts(&path)));
        }
        for path in tree(Path::new("/etc")) {
            seen.note(format!("file {}", path.display()), facts(&path));
        }
        for place in PLACES {
            for entry in fs::read_dir(place).into_iter().flatten().flatten() {
                if entry.file_name().to_string_lossy().contains(&self.token) {
                    seen.note(format!("file {}", entry.path().display()), "made".into());
                }
            }
        }
        for path in SETTINGS {
            seen.note(path.into(), fs::read_to_string(path).unwrap_or_default());
        }
        for pid in &self.watched {
            seen.note(format!("process {pid}"), process(*pid));
        }
        seen.note("mounts".into(), mounts());
        seen.note("network".into(), network());
        seen.note("modules".into(), modules());
        seen.note("clock".into(), clock());
        seen
    }

    /// Asserts that nobody connected to the host's listeners.
    pub(super) fn assert_nobody_came(&self) {
        assert!(self.abstract_socket.accept().is_err(), "somebody came to the abstract socket");
        assert!(self.named_socket.accept().is_err(), "somebody came to the named socket");
        assert!(self.tcp.accept().is_err(), "somebody came to the port");
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let name = entry.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse::<i32>().ok()) else { continue };
            let command = fs::read(entry.path().join("cmdline")).unwrap_or_default();
            let is_ours = self.watched.contains(&pid);
            assert!(
                is_ours || !String::from_utf8_lossy(&command).contains(&self.token),
                "process {pid} is left"
            );
        }
    }
}

impl Drop for HostTargets {
    fn drop(&mut self) {
        let _ = self.witness.kill();
        let _ = self.witness.wait();
        let _ = Command::new("ipcrm").args(["-m", &self.shared.1]).status();
    }
}

/// A host whose state must be the same afterwards.
pub(super) struct HostSnapshot {
    outside: HostTargets,
    before: HostState,
}

impl HostSnapshot {
    /// Records the current state.
    pub(super) fn begin(backend_under_attack: &impl AttackedBackend, id: SandboxId) -> Self {
        let outside = HostTargets::prepare(backend_under_attack, id);
        let before = outside.look();
        Self { outside, before }
    }

    /// Compares the state, while the sandbox still exists.
    pub(super) fn assert_untouched(&self) {
        assert_eq!(self.before.differences(&self.outside.look()), Vec::<String>::new());
        self.outside.assert_nobody_came();
    }
}

/// A recorded state of the host.
#[derive(Debug, Default)]
pub(super) struct HostState(BTreeMap<String, String>);

impl HostState {
    fn note(&mut self, what: String, how: String) {
        self.0.insert(what, how);
    }

    /// The differences between two states.
    pub(super) fn differences(&self, later: &Self) -> Vec<String> {
        let keys = self.0.keys().chain(later.0.keys().filter(|key| !self.0.contains_key(*key)));
        keys.filter(|key| self.0.get(*key) != later.0.get(*key))
            .map(|key| format!("{key} was {:?}, is {:?}", self.0.get(key), later.0.get(key)))
            .collect()
    }
}

fn tree(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.symlink_metadata().is_ok_and(|facts| facts.is_dir()) {
            found.extend(tree(&path));
        }
        found.push(path);
    }
    found
}

fn facts(path: &Path) -> String {
    match path.symlink_metadata() {
        Ok(it) => {
            format!("{:o} {}:{} {} {} {}", it.mode(), it.uid(), it.gid(), it.size(), it.nlink(), it.mtime())
        }
        Err(error) => error.kind().to_string(),
    }
}

fn blake(bytes: &[u8]) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// The attributes of a process that an attacker could change: its existence, ids, privileges, limits, priority, CPU
/// affinity.
fn process(pid: i32) -> String {
    let read = |name: &str| fs::read_to_string(format!("/proc/{pid}/{name}")).unwrap_or_else(|_| "-".into());
    let status = read("status");
    let kept = ["Uid:", "Gid:", "TracerPid:", "CapEff:", "CapBnd:", "NoNewPrivs:", "Cpus_allowed:"];
    let status: Vec<&str> =
        status.lines().filter(|line| kept.iter().any(|name| line.starts_with(name))).collect();
    let stat = read("stat");
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let stopped = fields.first().is_some_and(|state| ["T", "t", "Z"].contains(state));
    format!("{status:?} {:?} {} {} {stopped}", fields.get(16), read("oom_score_adj"), read("limits"))
}

fn mounts() -> String {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let theirs = ["/tmp/", "/var/tmp/", "/var/lib/docker/", "/run/docker/", "/run/user/"];
    let kept = mounts.lines().filter_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let place = *fields.get(4)?;
        (!theirs.iter().any(|start| place.starts_with(start))).then(|| fields[2..].join(" "))
    });
    kept.collect::<Vec<_>>().join("\n")
}

fn network() -> String {
    let mut devices: Vec<String> = fs::read_dir("/sys/class/net")
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.file_name().to_string_lossy().into_owned())
        .filter(|name| !["veth", "docker", "br-"].iter().any(|theirs| name.starts_with(theirs)))
        .collect();
    devices.sort();
    let read = |name: &str| fs::read_to_string(format!("/proc/net/{name}")).unwrap_or_default();
    format!("{devices:?}\n{}\n{}", read("route"), read("if_inet6"))
}

fn modules() -> String {
    let modules = fs::read_to_string("/proc/modules").unwrap_or_default();
    modules.lines().filter_map(|line| line.split(' ').next()).collect::<Vec<_>>().join(" ")
}

/// The difference between the wall clock and the time since boot, in tens of minutes: an attempt changes it by years.
fn clock() -> String {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    let up: f64 = fs::read_to_string("/proc/uptime").unwrap().split(' ').next().unwrap().parse().unwrap();
    let started = fs::metadata("/proc/1").and_then(|facts| facts.modified()).ok();
    format!("{} {}", ((now - up) / 100_000.0).round(), started.is_some())
}

/// Key and id of a shared memory segment on the host.
fn share(id: SandboxId) -> (u32, String) {
    let key = u32::try_from(id.as_u128() & 0x3fff_ffff).unwrap() + 1;
    let script = format!("import ctypes; print(ctypes.CDLL(None).shmget({key}, 4096, 0o1666))");
    let output = Command::new("/usr/bin/python3").args(["-c", &script]).output().unwrap();
    let shared = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    assert!(shared.parse::<u32>().is_ok(), "{}", String::from_utf8_lossy(&output.stderr));
    (key, shared)
}
