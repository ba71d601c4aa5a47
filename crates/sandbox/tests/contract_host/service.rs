//! Infrastructure that starts guests as plain processes. It accepts a request at once and does the work later, as a
//! scheduler of containers does.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::Shutdown;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use sandbox::{EndReason, Ended, Image, Limit, LimitKind, SandboxId, SandboxSpec, allowed_range};

use super::wire::{Refusal, Reply, Request, State};

/// The user that guests run commands as.
const AGENT: u32 = 1000;
const TICK: Duration = Duration::from_millis(1);

/// Clones share all state.
#[derive(Clone)]
pub(crate) struct Service {
    directory: PathBuf,
    guest: PathBuf,
    state: Arc<(Mutex<Shared>, Condvar)>,
}

#[derive(Default)]
struct Shared {
    sandboxes: BTreeMap<SandboxId, Sandbox>,
    /// While set, no sandbox gets a place.
    is_full: bool,
    is_over: bool,
}

enum Sandbox {
    Waiting,
    Running {
        guest: Child,
        /// Whether the guest has accepted a connection.
        listens: bool,
    },
    Ended(Ended),
}

impl Service {
    /// Listens below a directory, which must exist.
    pub(crate) fn start(directory: &Path, guest: &Path) -> Self {
        let service = Self { directory: directory.into(), guest: guest.into(), state: Arc::default() };
        let listener = UnixListener::bind(service.socket()).unwrap();
        let accepting = service.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if accepting.state.0.lock().unwrap().is_over {
                    return;
                }
                let (service, stream) = (accepting.clone(), stream.unwrap());
                // A client that is gone is no failure of the service.
                std::thread::spawn(move || service.serve(stream));
            }
        });
        let scheduling = service.clone();
        std::thread::spawn(move || scheduling.schedule());
        service
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.directory.join("service.sock")
    }

    pub(crate) fn sandbox(&self, id: SandboxId) -> PathBuf {
        self.directory.join(id.to_string())
    }

    /// Whether there is a place for more sandboxes.
    pub(crate) fn set_full(&self, is_full: bool) {
        self.state.0.lock().unwrap().is_full = is_full;
        self.state.1.notify_all();
    }

    /// Ends a sandbox for a reason of the infrastructure.
    pub(crate) fn end(&self, id: SandboxId, reason: EndReason) {
        let mut shared = self.state.0.lock().unwrap();
        let ended = Ended { reason, detail: "the service ended it".into() };
        let before = shared.sandboxes.insert(id, Sandbox::Ended(ended));
        self.kill(id, before);
    }

    pub(crate) fn guest_pid(&self, id: SandboxId) -> Pid {
        match self.state.0.lock().unwrap().sandboxes.get(&id) {
            Some(Sandbox::Running { guest, .. }) => Pid::from_child(guest),
            _ => panic!("sandbox {id} does not run"),
        }
    }

    /// Ends all sandboxes and the service.
    pub(crate) fn stop(&self) {
        let mut shared = self.state.0.lock().unwrap();
        shared.is_over = true;
        for (id, sandbox) in std::mem::take(&mut shared.sandboxes) {
            self.kill(id, Some(sandbox));
        }
        drop(shared);
        self.state.1.notify_all();
        // Wakes the thread that accepts.
        let _ = UnixStream::connect(self.socket());
    }

    fn serve(&self, stream: UnixStream) -> io::Result<()> {
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line)?;
        let reply = match serde_json::from_str(&line)? {
            Request::Create { id, spec } => {
                self.create(id, &spec).map_or_else(Reply::Refused, |()| Reply::Done)
            }
            Request::Observe { id } => self.observe(id),
            Request::List => Reply::Listed(self.state.0.lock().unwrap().sandboxes.keys().copied().collect()),
            Request::Destroy { id } => {
                let mut shared = self.state.0.lock().unwrap();
                let before = shared.sandboxes.remove(&id);
                self.kill(id, before);
                let _ = fs::remove_dir_all(self.sandbox(id));
                Reply::Done
            }
            Request::Connect { id } => match UnixStream::connect(self.sandbox(id).join("link")) {
                Ok(guest) => {
                    answer(&stream, &Reply::Done)?;
                    return relay(stream, guest);
                }
                Err(error) => Reply::Refused(Refusal::NotRunning(error.to_string())),
            },
        };
        answer(&stream, &reply)
    }

    fn create(&self, id: SandboxId, spec: &SandboxSpec) -> Result<(), Refusal> {
        let image = match &spec.image {
            Image::Host => None,
            Image::Directory(path) => Some(path.display().to_string()),
            Image::Named(name) => Some(name.clone()),
        };
        image.map_or(Ok(()), |image| Err(Refusal::NoImage(image)))?;
        check_limits(spec)?;
        let mut shared = self.state.0.lock().unwrap();
        match self.look(&mut shared, id) {
            State::Missing => {
                shared.sandboxes.insert(id, Sandbox::Waiting);
                self.state.1.notify_all();
                Ok(())
            }
            State::Starting { .. } | State::Ready => Ok(()),
            State::Ended(ended) => Err(Refusal::NotRunning(ended.detail)),
        }
    }

    fn observe(&self, id: SandboxId) -> Reply {
        let state = self.look(&mut self.state.0.lock().unwrap(), id);
        let why = || "nothing limits plain processes".to_owned();
        let unenforced = match state {
            State::Missing => Vec::new(),
            _ => LimitKind::ALL.map(|kind| (kind, why())).to_vec(),
        };
        Reply::Observed { state, unenforced }
    }

    fn look(&self, shared: &mut Shared, id: SandboxId) -> State {
        let is_full = shared.is_full;
        match shared.sandboxes.get_mut(&id) {
            None => State::Missing,
            Some(Sandbox::Waiting) if is_full => {
                State::Starting { message: "there is no place for it".into() }
            }
            Some(Sandbox::Waiting) => State::Starting { message: "it gets a place".into() },
            Some(Sandbox::Ended(ended)) => State::Ended(ended.clone()),
            Some(Sandbox::Running { guest, listens }) => match guest.try_wait().unwrap() {
                None => {
                    // Tried until it succeeds once: a later connection would replace the link in use.
                    *listens = *listens || UnixStream::connect(self.sandbox(id).join("link")).is_ok();
                    let message = "the guest does not listen yet".into();
                    if *listens { State::Ready } else { State::Starting { message } }
                }
                Some(status) => {
                    let detail = match status.signal() {
                        Some(signal) => format!("the guest was killed by signal {signal}"),
                        None => format!("the guest ended with {status}"),
                    };
                    State::Ended(Ended { reason: EndReason::Lost, detail })
                }
            },
        }
    }

    /// Gives waiting sandboxes a place, as long as there is one.
    fn schedule(&self) {
        let (shared, changed) = &*self.state;
        let mut shared = shared.lock().unwrap();
        while !shared.is_over {
            if !shared.is_full {
                for (id, sandbox) in &mut shared.sandboxes {
                    if matches!(sandbox, Sandbox::Waiting) {
                        *sandbox = Sandbox::Running { guest: self.start_guest(*id), listens: false };
                    }
                }
            }
            shared = changed.wait(shared).unwrap();
        }
    }

    fn start_guest(&self, id: SandboxId) -> Child {
        let directory = self.sandbox(id);
        let [workspace, home] = ["workspace", "home"].map(|name| directory.join(name));
        for path in [&directory, &workspace, &home] {
            fs::create_dir(path).unwrap();
            fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
        }
        for path in [&workspace, &home] {
            chown(path, Some(AGENT), Some(AGENT)).unwrap();
        }
        Command::new(&self.guest)
            .arg("serve")
            .arg("--listen")
            .arg(directory.join("link"))
            .arg("--state")
            .arg(directory.join("state"))
            .arg("--workspace")
            .arg(workspace)
            .arg("--home")
            .arg(home)
            .stdin(Stdio::null())
            .spawn()
            .unwrap()
    }

    /// Kills the guest, and whatever it left running in the sandbox's directory.
    fn kill(&self, id: SandboxId, sandbox: Option<Sandbox>) {
        if let Some(Sandbox::Running { mut guest, .. }) = sandbox {
            let _ = guest.kill();
            let _ = guest.wait();
        }
        loop {
            let left = processes_in(&self.sandbox(id));
            if left.is_empty() {
                return;
            }
            for pid in left {
                let _ = kill_process(pid, Signal::KILL);
            }
            std::thread::sleep(TICK);
        }
    }
}

/// The processes whose current directory is in this one.
pub(crate) fn processes_in(directory: &Path) -> Vec<Pid> {
    let number = |entry: &fs::DirEntry| entry.file_name().to_str()?.parse().ok();
    let is_in = |entry: &fs::DirEntry| {
        fs::read_link(entry.path().join("cwd")).is_ok_and(|current| current.starts_with(directory))
    };
    let entries = fs::read_dir("/proc").unwrap().flatten();
    entries.filter(is_in).filter_map(|entry| Pid::from_raw(number(&entry)?)).collect()
}

/// Refuses values that no host allows, and requirements that nobody enforces here.
fn check_limits(spec: &SandboxSpec) -> Result<(), Refusal> {
    let limits = &spec.limits;
    for (kind, limit) in [
        (LimitKind::Memory, limits.memory_mib),
        (LimitKind::Cpu, limits.cpu_millis),
        (LimitKind::Pids, limits.pids),
        (LimitKind::OpenFiles, limits.open_files),
        (LimitKind::Disk, limits.disk_mib),
    ] {
        let (least, most) = allowed_range(kind);
        let value = limit.value();
        if !(least..=most).contains(&value) {
            let allowed = format!("{least} to {most} are allowed");
            return Err(Refusal::OutOfRange { limit: kind, value, allowed });
        }
        if let Limit::Required(_) = limit {
            let why = "nothing limits plain processes".into();
            return Err(Refusal::Unenforceable { limit: kind, why });
        }
    }
    Ok(())
}

fn answer(mut stream: &UnixStream, reply: &Reply) -> io::Result<()> {
    let mut line = serde_json::to_vec(reply)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Copies bytes in both directions until both are at their end.
fn relay(mut client: UnixStream, mut guest: UnixStream) -> io::Result<()> {
    let (mut from_guest, mut to_client) = (guest.try_clone()?, client.try_clone()?);
    let back = std::thread::spawn(move || {
        let copied = io::copy(&mut from_guest, &mut to_client);
        let _ = to_client.shutdown(Shutdown::Both);
        copied
    });
    let copied = io::copy(&mut client, &mut guest);
    let _ = guest.shutdown(Shutdown::Both);
    let _ = back.join();
    copied.map(drop)
}
