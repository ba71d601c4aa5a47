//! Runs calls against a guest that the test plays, request by request, over links in memory.

use std::collections::BTreeMap;
use std::future::pending;
use std::time::Duration;

use bytes::Bytes;
use protocol::{
    CallKey, CallStatus, Exec, ExecEnd, ExecEvent, ExecOutcome, FileReply, FileResult, Follow, GuestClient,
    IncomingStreams, Link, LinkCredentials, MessageStream, OutputChunk, OutputStream, Program, ProtocolError,
    Reply, Request, Side, VERSION, Welcome,
};
use store::StoreError;
use tokio::sync::watch;
use tokio::time::Instant;

use super::{Begin, CallHost, Consumer, Followed, Interrupt, run};

use crate::error::OrchestratorError;

const KILL_TIMEOUT: Duration = Duration::from_secs(15);

fn key() -> CallKey {
    CallKey::new("call", 1)
}

fn exec() -> Box<Exec> {
    Box::new(Exec {
        key: key(),
        program: Program::Shell("make".into()),
        environment: BTreeMap::new(),
        directory: None,
        stdin: None,
        keep_stdin_open: false,
        terminal: None,
        timeout_ms: None,
        kill_grace_ms: 2000,
    })
}

fn started() -> Request {
    Request::Exec { exec: *exec(), follow: Follow::Capped }
}

fn followed_from(from_sequence: u64) -> Request {
    Request::Follow { key: key(), from_sequence, follow: Follow::Capped }
}

/// The guest's end of a link.
struct Guest {
    link: Link,
    streams: IncomingStreams,
}

impl Guest {
    async fn connected() -> (GuestClient, Self) {
        let (host, guest) = tokio::io::duplex(1 << 20);
        let (link, streams) = Link::start(guest, Side::Guest);
        let mut guest = Self { link, streams };
        let greeting = async {
            let (_, stream) = guest.request().await;
            let (boot_id, build) = ("boot".to_owned(), "test".to_owned());
            let welcome = Welcome { newest_version: VERSION, oldest_version: 1, boot_id, build };
            reply(stream, &Reply::Welcome(welcome)).await;
        };
        let (connected, ()) =
            tokio::join!(GuestClient::connect(host, LinkCredentials::new("test", 1)), greeting);
        (connected.unwrap().0, guest)
    }

    /// The next request, and the stream for what answers it. Pings are answered.
    async fn request(&mut self) -> (Request, MessageStream) {
        loop {
            let mut stream = self.streams.next().await.unwrap();
            let request: Request = stream.receive_message().await.unwrap();
            match request {
                Request::Ping => reply(stream, &Reply::Done).await,
                request => return (request, stream),
            }
        }
    }

    /// Receives the request and returns the stream for the output.
    async fn expect(&mut self, expected: &Request) -> MessageStream {
        let (request, stream) = self.request().await;
        assert_eq!(&request, expected);
        stream
    }

    async fn answer_status(&mut self, status: CallStatus) {
        let stream = self.expect(&Request::CallStatus { key: key() }).await;
        reply(stream, &Reply::Call(status)).await;
    }

    /// Asserts that no other request came before the host dropped its client.
    async fn expect_nothing(&mut self) {
        assert!(self.streams.next().await.is_none(), "there is another request");
    }
}

async fn reply(mut stream: MessageStream, reply: &Reply) {
    stream.send(reply).await.unwrap();
    stream.close().await.unwrap();
}

async fn print(stream: &mut MessageStream, sequence: u64, text: &'static str) {
    let bytes = Bytes::from_static(text.as_bytes());
    stream.send_output(&OutputChunk { sequence, stream: OutputStream::Stdout, bytes }).await.unwrap();
}

async fn end(mut stream: MessageStream, next_sequence: u64) {
    let outcome = ExecOutcome {
        end: ExecEnd::Code(0),
        duration_ms: 1,
        output_bytes: 0,
        output_lines: 0,
        dropped_bytes: 0,
        next_sequence,
        disk_free_bytes: 1 << 30,
        disk_free_inodes: 1000,
        note: None,
        kernel: None,
    };
    stream.send(&ExecEvent::Ended(outcome)).await.unwrap();
    stream.close().await.unwrap();
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Nothing,
    Expire,
    Kill,
}

/// Has some links, and starts a call at most so many times.
struct TestHost {
    links: std::vec::IntoIter<GuestClient>,
    most_starts: usize,
    starts: usize,
    asked: watch::Receiver<Asked>,
}

fn host(links: Vec<GuestClient>) -> (TestHost, watch::Sender<Asked>) {
    let (ask, asked) = watch::channel(Asked::Nothing);
    (TestHost { links: links.into_iter(), most_starts: usize::MAX, starts: 0, asked }, ask)
}

impl CallHost for TestHost {
    type Exit = String;

    async fn client(&mut self) -> Result<GuestClient, String> {
        self.links.next().ok_or_else(|| "there is no other link".into())
    }

    fn before_start(&mut self) -> Result<(), String> {
        self.starts += 1;
        if self.starts > self.most_starts { Err("not again".into()) } else { Ok(()) }
    }

    async fn interrupted(&mut self) -> Interrupt<String> {
        let asked = self.asked.wait_for(|asked| *asked != Asked::Nothing).await.map(|asked| *asked);
        match asked {
            Ok(Asked::Expire) => Interrupt::Expired,
            Ok(Asked::Kill) => Interrupt::Kill("cancelled".into()),
            Ok(Asked::Nothing) | Err(_) => pending().await,
        }
    }

    async fn after_break(&mut self, error: ProtocolError) -> Result<(), String> {
        if error.is_retryable() { Ok(()) } else { Err(error.to_string()) }
    }

    fn unrecorded(&self, error: OrchestratorError) -> Interrupt<String> {
        Interrupt::Kill(error.code().into())
    }

    fn kill_timeout(&self) -> Duration {
        KILL_TIMEOUT
    }
}

struct Output {
    /// The number after the newest chunk.
    next_chunk: watch::Sender<u64>,
    taken: Vec<String>,
    is_full: bool,
    is_flushed: bool,
}

impl Output {
    fn new() -> Self {
        Self { next_chunk: watch::Sender::new(0), taken: Vec::new(), is_full: false, is_flushed: false }
    }
}

impl Consumer for Output {
    fn wanted_chunk(&self) -> u64 {
        *self.next_chunk.borrow()
    }

    async fn take(&mut self, chunk: OutputChunk) -> Result<(), OrchestratorError> {
        if self.is_full {
            return Err(StoreError::DiskFull.into());
        }
        self.taken.push(format!("{} {}", chunk.sequence, String::from_utf8_lossy(&chunk.bytes)));
        self.next_chunk.send_replace(chunk.sequence + 1);
        Ok(())
    }

    async fn skip(&mut self, next_chunk: u64, bytes: u64) -> Result<(), OrchestratorError> {
        self.taken.push(format!("{bytes} bytes are missing"));
        self.next_chunk.send_replace(next_chunk);
        Ok(())
    }

    async fn flush_all(&mut self) -> Result<(), OrchestratorError> {
        self.is_flushed = true;
        Ok(())
    }
}

async fn run_call(host: &mut TestHost, begin: Begin, output: &mut Output) -> Result<Followed, String> {
    run(host, &key(), begin, output).await
}

#[tokio::test]
async fn call_starts_once_when_the_link_breaks_before_the_first_answer() {
    let (first, mut before) = Guest::connected().await;
    let (second, mut after) = Guest::connected().await;
    let (mut host, _ask) = host(vec![first, second]);
    let mut output = Output::new();
    let guest = async {
        let _stream = before.expect(&started()).await;
        before.link.close();
        after.answer_status(CallStatus::Running { next_sequence: 0 }).await;
        end(after.expect(&followed_from(0)).await, 0).await;
        after.expect_nothing().await;
    };
    let (followed, ()) = tokio::join!(run_call(&mut host, Begin::Start(exec()), &mut output), guest);
    assert!(matches!(followed, Ok(Followed::Ended(_))), "{followed:?}");
    assert_eq!(host.starts, 1);
}

#[tokio::test]
async fn call_starts_again_only_if_the_guest_does_not_know_it_and_the_host_agrees() {
    for most_starts in [2, 1] {
        let (first, mut before) = Guest::connected().await;
        let (second, mut after) = Guest::connected().await;
        let (mut host, _ask) = host(vec![first, second]);
        host.most_starts = most_starts;
        let mut output = Output::new();
        let guest = async {
            let _stream = before.expect(&started()).await;
            before.link.close();
            after.answer_status(CallStatus::Unknown).await;
            if most_starts == 2 {
                end(after.expect(&started()).await, 0).await;
            }
            after.expect_nothing().await;
        };
        let (followed, ()) = tokio::join!(run_call(&mut host, Begin::Start(exec()), &mut output), guest);
        match followed {
            Ok(Followed::Ended(_)) => assert_eq!(most_starts, 2),
            Err(stop) => assert_eq!((most_starts, stop.as_str()), (1, "not again")),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test]
async fn call_resumes_at_the_chunk_that_is_wanted() {
    let (first, mut before) = Guest::connected().await;
    let (second, mut after) = Guest::connected().await;
    let (mut host, _ask) = host(vec![first, second]);
    let mut output = Output::new();
    let mut taken = output.next_chunk.subscribe();
    let guest = async {
        let mut stream = before.expect(&started()).await;
        stream.send(&ExecEvent::Started { pid: 7 }).await.unwrap();
        print(&mut stream, 0, "a").await;
        print(&mut stream, 1, "b").await;
        taken.wait_for(|next| *next == 2).await.unwrap();
        before.link.close();
        after.answer_status(CallStatus::Running { next_sequence: 3 }).await;
        let mut stream = after.expect(&followed_from(2)).await;
        print(&mut stream, 2, "c").await;
        end(stream, 3).await;
    };
    let (followed, ()) = tokio::join!(run_call(&mut host, Begin::Start(exec()), &mut output), guest);
    assert!(matches!(followed, Ok(Followed::Ended(_))), "{followed:?}");
    assert_eq!(output.taken, ["0 a", "1 b", "2 c"]);
    assert!(!output.is_flushed, "the rest is flushed together with the end");
}

#[tokio::test]
async fn attaching_to_an_unknown_call_reports_the_refusal() {
    let (link, mut guest) = Guest::connected().await;
    let (mut host, _ask) = host(vec![link]);
    let mut output = Output::new();
    let guest = async {
        let stream = guest.expect(&followed_from(0)).await;
        reply(stream, &Reply::Refused { message: "no such call".into() }).await;
    };
    let (followed, ()) = tokio::join!(run_call(&mut host, Begin::Attach, &mut output), guest);
    assert!(matches!(&followed, Ok(Followed::Refused(message)) if message == "no such call"), "{followed:?}");
}

#[tokio::test]
async fn key_of_a_file_operation_is_refused() {
    let (link, mut guest) = Guest::connected().await;
    let (mut host, _ask) = host(vec![link]);
    let mut output = Output::new();
    let guest = async {
        guest.answer_status(CallStatus::File(FileResult::Ok(FileReply::Done))).await;
        guest.expect_nothing().await;
    };
    let (followed, ()) = tokio::join!(run_call(&mut host, Begin::Resume(exec()), &mut output), guest);
    assert!(followed.unwrap_err().contains("the result of something else"));
}

#[tokio::test]
async fn cancelled_call_is_killed_and_its_remaining_output_taken() {
    let (link, mut guest) = Guest::connected().await;
    let (mut host, ask) = host(vec![link]);
    let mut output = Output::new();
    let mut taken = output.next_chunk.subscribe();
    let guest = async {
        let mut running = guest.expect(&started()).await;
        print(&mut running, 0, "a").await;
        taken.wait_for(|next| *next == 1).await.unwrap();
        ask.send_replace(Asked::Kill);
        let stream = guest.expect(&Request::Kill { key: key() }).await;
        reply(stream, &Reply::Done).await;
        let mut stream = guest.expect(&followed_from(1)).await;
        let gap = ExecEvent::Gap { from_sequence: 1, to_sequence: 5, bytes: 100 };
        stream.send(&gap).await.unwrap();
        print(&mut stream, 5, "z").await;
        end(stream, 6).await;
    };
    let (followed, ()) = tokio::join!(run_call(&mut host, Begin::Start(exec()), &mut output), guest);
    assert_eq!(followed.unwrap_err(), "cancelled");
    assert_eq!(output.taken, ["0 a", "100 bytes are missing", "5 z"]);
    assert!(output.is_flushed);
}

#[tokio::test]
async fn call_whose_output_cannot_be_recorded_is_killed() {
    let (link, mut guest) = Guest::connected().await;
    let (mut host, _ask) = host(vec![link]);
    let mut output = Output { is_full: true, ..Output::new() };
    let guest = async {
        let mut running = guest.expect(&started()).await;
        print(&mut running, 0, "a").await;
        let stream = guest.expect(&Request::Kill { key: key() }).await;
        reply(stream, &Reply::Done).await;
        end(guest.expect(&followed_from(0)).await, 1).await;
    };
    let (followed, ()) = tokio::join!(run_call(&mut host, Begin::Start(exec()), &mut output), guest);
    assert_eq!(followed.unwrap_err(), "server_disk_full");
}

#[tokio::test(start_paused = true)]
async fn frozen_guest_is_not_waited_for_as_long_as_one_that_kills() {
    let (link, mut guest) = Guest::connected().await;
    let (mut host, ask) = host(vec![link]);
    let mut output = Output::new();
    let since = Instant::now();
    let guest = async {
        let stream = guest.expect(&started()).await;
        ask.send_replace(Asked::Kill);
        (stream, guest)
    };
    let (followed, _frozen) = tokio::join!(run_call(&mut host, Begin::Start(exec()), &mut output), guest);
    assert_eq!(followed.unwrap_err(), "cancelled");
    assert!(since.elapsed() < KILL_TIMEOUT / 2, "{:?}", since.elapsed());
}

#[tokio::test]
async fn call_keeps_running_when_the_wait_is_over() {
    let (link, mut guest) = Guest::connected().await;
    let (mut host, ask) = host(vec![link]);
    let mut output = Output::new();
    let guest = async {
        let _running = guest.expect(&started()).await;
        ask.send_replace(Asked::Expire);
        guest.expect_nothing().await;
    };
    let (followed, ()) = tokio::join!(run_call(&mut host, Begin::Start(exec()), &mut output), guest);
    assert!(matches!(followed, Ok(Followed::StillRunning)), "{followed:?}");
}
