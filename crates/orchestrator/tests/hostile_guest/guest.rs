//! The lying guest, and a backend that connects to it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use bytes::Bytes;
use protocol::frame::{FrameKind, MAX_OUTPUT_BYTES, MAX_PAYLOAD_BYTES};
use protocol::{
    ByteStream, CallStatus, ExecEnd, ExecEvent, ExecOutcome, FileReply, FileResult, Follow, GuestRequest,
    GuestStats, Link, LinkRefusal, MessageStream, OutputChunk, OutputStream, Reply, Request, Side, VERSION,
    Welcome,
};
use sandbox::{
    Admission, Backend, BackendKind, Capabilities, Check, Engine, GuestStream, Image, Images, Isolation,
    Limit, LimitKind, Limits, Observed, Phase, SandboxError, SandboxId, SandboxSpec, Usage,
};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::sync::watch;

/// Length of a name that is longer than any file name can be.
const LONG_NAME_BYTES: usize = 32 * 1024 * 1024;

/// Exit code of a killed process.
pub(crate) const KILLED: i32 = 137;

/// What every sandbox uses, as seen from outside.
pub(crate) const USAGE: Usage = Usage {
    memory_bytes: 3 << 20,
    memory_peak_bytes: 4 << 20,
    cpu_micros: 1000,
    pids: 2,
    oom_kills: 0,
    pids_refused: 0,
};
/// What every guest reports.
pub(crate) const STATS: GuestStats = GuestStats {
    processes: 2,
    running_calls: 1,
    disk_free_bytes: 3 << 30,
    disk_total_bytes: 4 << 30,
    egress_connections: 0,
};

/// Kinds of misbehavior that no honest guest shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Misbehavior {
    Garbage,
    HangUp,
    FutureVersion,
    NoWelcome,
    LaterOwner,
    LongFrame,
    EndlessMessage,
    WrongAnswer,
    NoJson,
    Data,
    Silence,
    EndlessOutput,
    JumpingNumbers,
    EndlessWorkspace,
    LongName,
    UnaskedResults,
    OtherCall,
    Flood,
    /// The program itself fails, not the guest: creating a sandbox panics, once.
    PanicOnce,
    /// Creating a sandbox panics every time.
    Panic,
    /// Creating a sandbox never finishes, because its image is never pulled.
    NeverMade,
    /// A sandbox is requested and never becomes ready, because no host has room for it.
    NeverReady,
    /// The host's disk has no room for a sandbox.
    NoRoom,
    /// No lie: a call runs until it is killed or [`FakeBackend::ends_with`] is set.
    Held,
    /// No lie: output of a call does not reach the log before [`FakeBackend::is_log_served`] is set.
    LogLagsBehind,
}

/// A backend whose guests misbehave as currently set.
#[derive(Default)]
pub(crate) struct FakeBackend {
    lie: Mutex<Option<Misbehavior>>,
    sandboxes: Mutex<BTreeSet<SandboxId>>,
    /// Number of panics so far.
    pub(crate) panics: watch::Sender<u32>,
    /// Number of sandboxes whose creation never finishes.
    pub(crate) never_made: watch::Sender<u32>,
    /// How often a sandbox was observed that is still starting.
    pub(crate) observed_starting: watch::Sender<u32>,
    /// Set by the test to end [`Misbehavior::LogLagsBehind`].
    pub(crate) is_log_served: watch::Sender<bool>,
    /// The exit code of a call under [`Misbehavior::Held`].
    pub(crate) ends_with: watch::Sender<Option<i32>>,
    /// Once set, the guest answers no further requests.
    pub(crate) is_stopped: watch::Sender<bool>,
    /// While set, the backend is unavailable.
    pub(crate) is_backend_stopped: watch::Sender<bool>,
    /// Number of times that all links were broken.
    breaks: watch::Sender<u32>,
    /// Number of times that all guests were restarted.
    restarts: watch::Sender<u32>,
}

impl FakeBackend {
    /// Stops the backend and all sandboxes; see [`FakeBackend::is_backend_stopped`].
    pub(crate) fn stop_backend(&self) {
        self.is_backend_stopped.send_replace(true);
        self.sandboxes.lock().unwrap().clear();
        self.breaks.send_modify(|count| *count += 1);
    }

    /// Restarts the guests: their links break, and they forget their calls.
    pub(crate) fn restart_guests(&self) {
        self.restarts.send_modify(|count| *count += 1);
        self.breaks.send_modify(|count| *count += 1);
    }

    pub(crate) fn sandboxes(&self) -> Vec<SandboxId> {
        self.sandboxes.lock().unwrap().iter().copied().collect()
    }

    fn answers(&self) -> Result<(), SandboxError> {
        let away =
            || SandboxError::Unavailable { what: "the engine is stopped".into(), remedy: "start it".into() };
        if *self.is_backend_stopped.borrow() { Err(away()) } else { Ok(()) }
    }

    pub(crate) fn set_misbehavior(&self, lie: Option<Misbehavior>) {
        *self.lie.lock().unwrap() = lie;
    }
}

#[async_trait]
impl Backend for FakeBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Namespace
    }

    async fn preflight(&self) -> Result<Capabilities, SandboxError> {
        let enforced = LimitKind::ALL.to_vec();
        Ok(Capabilities { isolation: Isolation::Namespaces, enforced, checks: Vec::new() })
    }

    async fn checks(&self) -> Vec<Check> {
        Vec::new()
    }

    async fn create(&self, id: SandboxId, spec: &SandboxSpec) -> Result<(), SandboxError> {
        self.answers()?;
        if let Image::Named(name) = &spec.image {
            return Err(SandboxError::NoImage(name.clone()));
        }
        self.check_limits(&spec.limits, spec.isolation).await?;
        let lie = *self.lie.lock().unwrap();
        if matches!(lie, Some(Misbehavior::PanicOnce | Misbehavior::Panic)) {
            if lie == Some(Misbehavior::PanicOnce) {
                self.set_misbehavior(None);
            }
            self.panics.send_modify(|count| *count += 1);
            panic!("a fault in the program");
        }
        if lie == Some(Misbehavior::NeverMade) {
            self.sandboxes.lock().unwrap().insert(id);
            self.never_made.send_modify(|count| *count += 1);
            return std::future::pending().await;
        }
        if lie == Some(Misbehavior::NoRoom) {
            let source = std::io::ErrorKind::StorageFull.into();
            return Err(SandboxError::Io { doing: "making a disk".into(), source });
        }
        self.sandboxes.lock().unwrap().insert(id);
        Ok(())
    }

    async fn observe(&self, id: SandboxId) -> Result<Observed, SandboxError> {
        self.answers()?;
        let is_there = self.sandboxes.lock().unwrap().contains(&id);
        let phase = match *self.lie.lock().unwrap() {
            _ if !is_there => Phase::Missing,
            Some(Misbehavior::NeverReady) => {
                self.observed_starting.send_modify(|count| *count += 1);
                Phase::Starting { message: "no host has room for it".into() }
            }
            _ => Phase::Ready,
        };
        Ok(Observed { phase, usage: USAGE, unenforced: Vec::new() })
    }

    async fn list(&self) -> Result<Vec<SandboxId>, SandboxError> {
        self.answers()?;
        Ok(self.sandboxes())
    }

    async fn connect(&self, id: SandboxId) -> Result<GuestStream, SandboxError> {
        self.answers()?;
        if !self.sandboxes.lock().unwrap().contains(&id) {
            return Err(SandboxError::NotRunning { id, why: "it is gone".into() });
        }
        let (host, guest) = tokio::io::duplex(1 << 20);
        let lie = *self.lie.lock().unwrap();
        let signals = Signals {
            ends_with: self.ends_with.clone(),
            is_stopped: self.is_stopped.subscribe(),
            boot: *self.restarts.borrow(),
        };
        tokio::spawn(live(guest, lie, self.is_log_served.subscribe(), signals, self.breaks.subscribe()));
        Ok(Box::new(host))
    }

    async fn destroy(&self, id: SandboxId) -> Result<(), SandboxError> {
        self.answers()?;
        self.sandboxes.lock().unwrap().remove(&id);
        Ok(())
    }

    fn engine(&self) -> Option<&dyn Engine> {
        Some(self)
    }

    fn images(&self) -> Option<&dyn Images> {
        Some(self)
    }

    fn admission(&self) -> Option<&dyn Admission> {
        Some(self)
    }
}

#[async_trait]
impl Engine for FakeBackend {
    async fn ping(&self) -> Result<(), SandboxError> {
        self.answers()
    }
}

#[async_trait]
impl Images for FakeBackend {
    async fn names(&self) -> Result<Vec<String>, SandboxError> {
        self.answers()?;
        Ok(vec!["host".to_owned()])
    }
}

#[async_trait]
impl Admission for FakeBackend {
    async fn check_limits(&self, limits: &Limits, _: Isolation) -> Result<(), SandboxError> {
        self.answers()?;
        match limits.pids {
            Limit::Default(_) => Ok(()),
            Limit::Required(_) => Err(SandboxError::LimitUnenforceable {
                limit: LimitKind::Pids,
                why: "nobody counts them".into(),
            }),
        }
    }
}

/// How a test controls a guest.
#[derive(Clone)]
struct Signals {
    ends_with: watch::Sender<Option<i32>>,
    is_stopped: watch::Receiver<bool>,
    boot: u32,
}

async fn live(
    mut stream: impl ByteStream,
    lie: Option<Misbehavior>,
    is_log_served: watch::Receiver<bool>,
    signals: Signals,
    mut breaks: watch::Receiver<u32>,
) {
    match lie {
        Some(Misbehavior::HangUp) => return,
        Some(Misbehavior::Garbage) => {
            let garbage: Vec<u8> =
                (0..200_000u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            let _ = stream.write_all(&garbage).await;
            return;
        }
        _ => {}
    }
    let (link, mut incoming) = Link::start(stream, Side::Guest);
    let link = Arc::new(link);
    loop {
        let stream = tokio::select! {
            Some(stream) = incoming.next() => stream,
            Ok(()) = breaks.changed() => return link.close(),
            else => return,
        };
        let (link, is_log_served, signals) = (Arc::clone(&link), is_log_served.clone(), signals.clone());
        tokio::spawn(async move {
            let _ = serve(stream, &link, lie, is_log_served, signals).await;
        });
    }
}

async fn serve(
    mut stream: MessageStream,
    link: &Link,
    lie: Option<Misbehavior>,
    mut is_log_served: watch::Receiver<bool>,
    Signals { ends_with, is_stopped, boot }: Signals,
) -> Result<(), protocol::ProtocolError> {
    let request: Request = stream.receive_message().await?;
    if *is_stopped.borrow() {
        return std::future::pending().await;
    }
    match request {
        Request::Hello(_) if lie == Some(Misbehavior::NoWelcome) => stream.send(&Reply::Done).await?,
        Request::Hello(_) if lie == Some(Misbehavior::LaterOwner) => {
            stream.send(&Reply::LinkRefused(LinkRefusal::OlderGeneration { newest: u64::MAX })).await?;
        }
        Request::Hello(_) => {
            let (newest, oldest) =
                if lie == Some(Misbehavior::FutureVersion) { (u16::MAX, u16::MAX) } else { (VERSION, 1) };
            let welcome = Welcome {
                newest_version: newest,
                oldest_version: oldest,
                boot_id: format!("boot-{boot}"),
                build: "liar".into(),
            };
            stream.send(&Reply::Welcome(welcome)).await?;
        }
        Request::Follow { follow: Follow::Capped, .. } if lie == Some(Misbehavior::LogLagsBehind) => {
            // An error means that the test has ended.
            let _ = is_log_served.wait_for(|is_served| *is_served).await;
            return call(stream, link, None).await;
        }
        Request::Exec { .. } | Request::Follow { .. } if lie == Some(Misbehavior::Held) => {
            stream.send(&ExecEvent::Started { pid: 7 }).await?;
            let end = *ends_with.subscribe().wait_for(Option::is_some).await.unwrap();
            stream.send(&ended(end.unwrap(), 0)).await?;
        }
        Request::CallStatus { .. } if lie == Some(Misbehavior::Held) => {
            stream.send(&Reply::Call(CallStatus::Running { next_sequence: 0 })).await?;
        }
        Request::Kill { .. } if lie == Some(Misbehavior::Held) => {
            ends_with.send_replace(Some(KILLED));
            stream.send(&Reply::Done).await?;
        }
        Request::Exec { .. } | Request::Follow { .. } => return call(stream, link, lie).await,
        Request::CallStatus { .. } => stream.send(&Reply::Call(CallStatus::Unknown)).await?,
        Request::Pack { .. } => {
            let chunk = vec![0; MAX_PAYLOAD_BYTES];
            if lie == Some(Misbehavior::LongName) {
                stream.send_data(&long_name_header()).await?;
                let name = vec![b'n'; MAX_PAYLOAD_BYTES];
                for _ in 0..LONG_NAME_BYTES.div_ceil(MAX_PAYLOAD_BYTES) {
                    stream.send_data(&name).await?;
                }
            }
            while lie == Some(Misbehavior::EndlessWorkspace) {
                stream.send_data(&endless_entry(&chunk)).await?;
            }
            stream.send_data(&[0; 1024]).await?;
            stream.send_data_end().await?;
            stream.send(&Reply::File(FileResult::Ok(FileReply::Packed { left_out: Vec::new() }))).await?;
        }
        Request::Stats => stream.send(&Reply::Stats(STATS)).await?,
        Request::File { .. } => stream.send(&Reply::File(FileResult::Ok(FileReply::Done))).await?,
        _ => stream.send(&Reply::Done).await?,
    }
    stream.close().await
}

/// A tar header for an impossibly long name.
fn long_name_header() -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNULongName);
    header.set_size(LONG_NAME_BYTES as u64);
    header.set_cksum();
    header.as_bytes().to_vec()
}

/// One file of an endless workspace.
fn endless_entry(content: &[u8]) -> Vec<u8> {
    let mut header = tar::Header::new_gnu();
    header.set_path("endless").unwrap();
    header.set_size(content.len() as u64);
    header.set_mode(0o644);
    header.set_cksum();
    let mut entry = header.as_bytes().to_vec();
    entry.extend_from_slice(content);
    entry
}

fn ended(code: i32, next_sequence: u64) -> ExecEvent {
    ExecEvent::Ended(ExecOutcome {
        end: ExecEnd::Code(code),
        duration_ms: 1,
        output_bytes: 0,
        output_lines: 0,
        dropped_bytes: 0,
        next_sequence,
        disk_free_bytes: 1 << 30,
        disk_free_inodes: 1 << 20,
        note: None,
        kernel: None,
    })
}

fn chunk(sequence: u64, bytes: &[u8]) -> OutputChunk {
    OutputChunk { sequence, stream: OutputStream::Stdout, bytes: Bytes::copy_from_slice(bytes) }
}

async fn call(
    mut stream: MessageStream,
    link: &Link,
    lie: Option<Misbehavior>,
) -> Result<(), protocol::ProtocolError> {
    stream.send(&ExecEvent::Started { pid: 7 }).await?;
    match lie {
        Some(Misbehavior::LongFrame) => {
            let mut raw = stream.into_raw();
            raw.write_all(&[FrameKind::Output as u8, 0xff, 0xff, 0xff, 0xff]).await?;
            raw.flush().await?;
            return std::future::pending().await;
        }
        Some(Misbehavior::EndlessMessage) => {
            let mut raw = stream.into_raw();
            let mut part = vec![FrameKind::MessagePart as u8, 0, 1, 0, 0];
            part.resize(5 + MAX_PAYLOAD_BYTES, b' ');
            loop {
                raw.write_all(&part).await?;
                raw.flush().await?;
            }
        }
        Some(Misbehavior::WrongAnswer) => stream.send(&Reply::Ports { ports: vec![1] }).await?,
        Some(Misbehavior::NoJson) => {
            let mut raw = stream.into_raw();
            raw.write_all(&[FrameKind::MessageEnd as u8, 0, 0, 0, 4, b'n', b'o', b'p', b'e']).await?;
            raw.flush().await?;
            return std::future::pending().await;
        }
        Some(Misbehavior::Data) => stream.send_data(b"data").await?,
        Some(Misbehavior::Silence) => return std::future::pending().await,
        Some(Misbehavior::EndlessOutput) => {
            let bytes = vec![b'x'; MAX_OUTPUT_BYTES];
            for sequence in 0.. {
                stream.send_output(&chunk(sequence, &bytes)).await?;
            }
        }
        Some(Misbehavior::JumpingNumbers) => {
            for sequence in [5, 3, u64::MAX, 0, u64::MAX - 1, 7, 7, 7] {
                stream.send_output(&chunk(sequence, b"forged")).await?;
            }
            stream.send(&ended(1, u64::MAX)).await?;
        }
        Some(Misbehavior::UnaskedResults) => {
            for _ in 0..20 {
                let mut own = link.open().await?;
                own.send(&ended(0, 0)).await?;
                own.send_output(&chunk(0, b"forged")).await?;
                own.close().await?;
            }
            stream.send_output(&chunk(0, b"honest")).await?;
            stream.send(&ended(0, 1)).await?;
        }
        Some(Misbehavior::OtherCall) => {
            // Connections attributed to calls that the job never made: `step-77.1`, `step-1.9`.
            for name in ["c3RlcC03Ny4xOng=", "c3RlcC0xLjk6eA=="] {
                let mut own = link.open().await?;
                own.send(&GuestRequest::Egress).await?;
                let mut raw = own.into_raw();
                let head = format!(
                    "CONNECT forged.example:443 HTTP/1.1\r\nHost: forged.example:443\r\nProxy-Authorization: Basic {name}\r\n\r\n"
                );
                raw.write_all(head.as_bytes()).await?;
                raw.flush().await?;
                // The policy refuses the connection, and it is logged.
                let mut answer = [0; 12];
                raw.read_exact(&mut answer).await?;
            }
            stream.send_output(&chunk(0, b"honest")).await?;
            stream.send(&ended(0, 1)).await?;
        }
        Some(Misbehavior::Flood) => {
            let mut held = Vec::new();
            for _ in 0..1500 {
                match link.open().await {
                    Ok(own) => held.push(own),
                    Err(_) => break,
                }
            }
            stream.send(&ended(0, 0)).await?;
        }
        _ => {
            stream.send_output(&chunk(0, b"honest")).await?;
            stream.send(&ended(0, 1)).await?;
        }
    }
    stream.close().await
}
