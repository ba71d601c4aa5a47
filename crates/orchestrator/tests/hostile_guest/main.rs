//! Tests with a lying guest. The orchestrator and its store are real. In place of a sandbox, there is a guest
//! that speaks the real protocol over a real link but, at one point, sends something that no honest guest sends.
//!
//! Whatever it sends, the job must end with a reason, the log must contain only the job's own calls, memory and disk
//! usage must stay bounded, and the next job on the same server must work.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

mod guest;
mod outage;
mod trouble;
mod usage;

use std::sync::Arc;
use std::time::Duration;

use guest::{FakeBackend, Misbehavior};
use job::{Event, EventBody, JobId, JobView, NewJob};
use orchestrator::{
    DataFolder, ExecRequest, ExecStreamOptions, LiveUpdate, NewSandbox, Orchestrator, Settings, Submission,
};
use store::{LocalDatabase as _, Sqlite};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// Generous timeout that only detects hangs.
const TIMEOUT: Duration = Duration::from_secs(120);

struct TestServer {
    folder: tempfile::TempDir,
    orchestrator: Orchestrator,
    fake_backend: Arc<FakeBackend>,
}

impl TestServer {
    async fn new() -> Self {
        Self::with(Settings { max_losses: 1, ..Settings::default() }, None).await
    }

    /// A server that soon gives up on a guest that sends a bad handshake or never ends a call.
    async fn for_misbehavior(lie: Misbehavior) -> Self {
        let defaults = Settings::default();
        let is_given_up = matches!(lie, Misbehavior::Garbage | Misbehavior::HangUp | Misbehavior::NoWelcome)
            || needs_deadline(lie);
        let guest_answer_timeout =
            if is_given_up { Duration::from_secs(1) } else { defaults.guest_answer_timeout };
        Self::with(Settings { max_losses: 1, guest_answer_timeout, ..defaults }, None).await
    }

    async fn with(settings: Settings, lie: Option<Misbehavior>) -> Self {
        Self::start_on(tempfile::tempdir().unwrap(), settings, lie).await
    }

    /// A server on an existing data folder.
    async fn over(folder: tempfile::TempDir, settings: Settings) -> Self {
        Self::start_on(folder, settings, None).await
    }

    async fn start_on(folder: tempfile::TempDir, settings: Settings, lie: Option<Misbehavior>) -> Self {
        let fake_backend = Arc::new(FakeBackend::default());
        fake_backend.set_misbehavior(lie);
        let data = DataFolder::open(folder.path()).unwrap();
        let backend: Arc<dyn sandbox::Backend> = Arc::<FakeBackend>::clone(&fake_backend);
        let store = Sqlite.open(folder.path()).unwrap();
        let orchestrator = Orchestrator::start(data, store, backend, settings).await.unwrap();
        Self { folder, orchestrator, fake_backend }
    }

    /// Runs a job with one step to its end.
    async fn run(&self, lie: Option<Misbehavior>) -> (JobView, Vec<Event>) {
        let id = self.submit(lie).await;
        let Ok(view) = tokio::time::timeout(TIMEOUT, self.end_of(id)).await else {
            panic!("the job does not come to an end: {:#?}", self.orchestrator.events(id, 0, 100).await);
        };
        let mut log: Vec<Event> = Vec::new();
        loop {
            let after = log.last().map_or(0, |event| event.sequence);
            let page = self.orchestrator.events(id, after, 100_000).await.unwrap();
            if page.is_empty() {
                return (view, log);
            }
            log.extend(page);
        }
    }

    async fn submit(&self, lie: Option<Misbehavior>) -> JobId {
        self.fake_backend.set_misbehavior(lie);
        let seconds = match lie {
            Some(lie) if needs_deadline(lie) => 3,
            // These end by themselves and must not hit the deadline. After a panic, it takes a while until another
            // driver continues.
            None
            | Some(
                Misbehavior::PanicOnce
                | Misbehavior::Panic
                | Misbehavior::UnaskedResults
                | Misbehavior::OtherCall
                | Misbehavior::LongName
                | Misbehavior::NoRoom
                | Misbehavior::Held,
            ) => 600,
            Some(_) => 20,
        };
        let limits = format!(r#"{{"wall_clock_s":{seconds}}}"#);
        let json = format!(r#"{{"steps":[{{"tool":"shell","command":"true"}}],"limits":{limits}}}"#);
        let job: NewJob = serde_json::from_str(&json).unwrap();
        let submission = Submission { job, ..Submission::default() };
        self.orchestrator.submit(submission).await.unwrap().view.job_id
    }

    async fn end_of(&self, id: JobId) -> JobView {
        let mut changes = self.orchestrator.watch(id);
        loop {
            let view = self.orchestrator.job(id).await.unwrap();
            if view.state.is_over() {
                return view;
            }
            changes.changed().await.unwrap();
        }
    }

    /// Checks that the job fails, that its log contains only its own calls, and that an honest guest is served
    /// afterwards.
    async fn assert_survives(&self, lie: Misbehavior) {
        let (view, log) = self.run(Some(lie)).await;
        assert_eq!(format!("{:?}", view.state), "Failed", "{lie:?}: {:?}", view.reason);
        assert!(view.code.is_some() && view.reason.is_some(), "{lie:?}: an end has a code and a reason");
        assert_own(&log, lie);
        let (view, _) = self.run(None).await;
        assert_eq!(format!("{:?}", view.state), "Complete", "after {lie:?}: {:?}", view.reason);
        self.orchestrator.shutdown().await;
    }
}

/// Whether only the deadline ends a job with this lie.
fn needs_deadline(lie: Misbehavior) -> bool {
    matches!(lie, Misbehavior::Silence | Misbehavior::EndlessOutput | Misbehavior::Flood)
}

/// Checks that the log contains no call that the job did not make, and no more output than a guest may send.
fn assert_own(log: &[Event], lie: Misbehavior) {
    let mut bytes = 0;
    for event in log {
        if let Some(call) = &event.call {
            assert!(call.id.starts_with("step-1"), "{lie:?}: {call:?} is nobody's call");
        }
        if let EventBody::CallOutput { .. } = &event.body {
            bytes += serde_json::to_vec(&event.body).unwrap().len();
        }
        if let EventBody::CallEnded(end) = &event.body {
            assert!(!format!("{end:?}").contains("forged"), "{lie:?}: {end:?}");
        }
    }
    assert!(bytes < 64 * 1024 * 1024, "{lie:?}: {bytes} bytes of output were written down");
}

macro_rules! misbehaviors {
    ($($name:ident: $lie:expr;)*) => {
        $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
        async fn $name() {
            TestServer::for_misbehavior($lie).await.assert_survives($lie).await;
        })*
    };
}

misbehaviors! {
    garbage_on_the_link_is_refused: Misbehavior::Garbage;
    immediately_closed_link_is_refused: Misbehavior::HangUp;
    handshake_with_an_unknown_version_is_refused: Misbehavior::FutureVersion;
    wrong_reply_to_the_handshake_is_refused: Misbehavior::NoWelcome;
    made_up_later_owner_does_not_hold_up_the_job: Misbehavior::LaterOwner;
    oversized_frame_is_refused: Misbehavior::LongFrame;
    endless_message_is_refused: Misbehavior::EndlessMessage;
    wrong_reply_type_is_refused: Misbehavior::WrongAnswer;
    reply_that_is_not_json_is_refused: Misbehavior::NoJson;
    data_frame_in_place_of_output_is_refused: Misbehavior::Data;
    deadline_ends_a_call_that_never_ends: Misbehavior::Silence;
    endless_output_is_truncated_in_the_log: Misbehavior::EndlessOutput;
    jumping_output_sequence_numbers_are_harmless: Misbehavior::JumpingNumbers;
    endless_workspace_is_not_collected: Misbehavior::EndlessWorkspace;
}

/// Streams that the guest opens carry connections to the proxy and nothing else: the result of a call cannot be
/// injected there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsolicited_call_results_are_ignored() {
    let world = TestServer::new().await;
    let (view, log) = world.run(Some(Misbehavior::UnaskedResults)).await;
    assert_eq!(format!("{:?}", view.state), "Complete", "{:?}", view.reason);
    assert_own(&log, Misbehavior::UnaskedResults);
    let ends = log.iter().filter(|event| matches!(event.body, EventBody::CallEnded(_))).count();
    assert_eq!(ends, 1, "one call was made");
    world.orchestrator.shutdown().await;
}

/// The client states which call a connection belongs to; the log accepts it only for calls that the job has made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_claiming_unknown_calls_are_not_attributed() {
    let world = TestServer::new().await;
    let (view, log) = world.run(Some(Misbehavior::OtherCall)).await;
    assert_eq!(format!("{:?}", view.state), "Complete", "{:?}", view.reason);
    let connections: Vec<_> = log.iter().filter(|event| matches!(event.body, EventBody::Egress(_))).collect();
    assert_eq!(connections.len(), 2, "{connections:?}");
    assert!(connections.iter().all(|event| event.call.is_none()), "{connections:?}");
    assert_own(&log, Misbehavior::OtherCall);
    let ends = log.iter().filter(|event| matches!(event.body, EventBody::CallEnded(_))).count();
    assert_eq!(ends, 1, "one call was made");
    world.orchestrator.shutdown().await;
}

/// Thousands of streams at once: excess streams are reset, and the call continues.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flood_of_streams_does_not_stop_the_call() {
    let world = TestServer::for_misbehavior(Misbehavior::Flood).await;
    let (view, log) = world.run(Some(Misbehavior::Flood)).await;
    assert!(view.state.is_over());
    assert_own(&log, Misbehavior::Flood);
    let (view, _) = world.run(None).await;
    assert_eq!(format!("{:?}", view.state), "Complete", "{:?}", view.reason);
    world.orchestrator.shutdown().await;
}

/// Without this, only a server restart would help such a job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_is_driven_again_after_its_driver_panics() {
    let world = TestServer::new().await;
    let (view, _) = world.run(Some(Misbehavior::PanicOnce)).await;
    assert_eq!(format!("{:?}", view.state), "Complete", "{:?}", view.reason);
    world.orchestrator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_driver_always_panics_can_be_cancelled() {
    let world = TestServer::new().await;
    let mut panics = world.fake_backend.panics.subscribe();
    let id = world.submit(Some(Misbehavior::Panic)).await;
    tokio::time::timeout(TIMEOUT, panics.wait_for(|count| *count > 0)).await.unwrap().unwrap();
    world.orchestrator.cancel(id).await.unwrap();
    let view = tokio::time::timeout(TIMEOUT, world.end_of(id)).await.expect("the job comes to an end");
    assert_eq!((format!("{:?}", view.state), view.code.as_deref()), ("Cancelled".into(), Some("cancelled")));
    world.orchestrator.shutdown().await;
}

/// A task job with this model, once it is stored.
async fn task(world: &TestServer, model: &str) -> JobView {
    let json = format!(r#"{{"task":"anything","model":"{model}"}}"#);
    let job: NewJob = serde_json::from_str(&json).unwrap();
    let submission = Submission { job, ..Submission::default() };
    world.orchestrator.submit(submission).await.unwrap().view
}

/// A server that lists a model, and supports nothing else.
async fn serve_a_model(listener: tokio::net::TcpListener) {
    while let Ok((mut stream, _)) = listener.accept().await {
        tokio::spawn(async move {
            let mut head = vec![0; 8192];
            let length = stream.read(&mut head).await.unwrap_or(0);
            let (status, body) = match String::from_utf8_lossy(&head[..length]).contains("/models ") {
                true => ("200 OK", r#"{"object":"list","data":[{"id":"late","object":"model"}]}"#),
                false => ("404 Not Found", "{}"),
            };
            let head =
                format!("HTTP/1.1 {status}\r\ncontent-type: application/json\r\nconnection: close\r\n");
            let answer = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
            let _ = stream.write_all(answer.as_bytes()).await;
        });
    }
}

/// Each server is waited for some seconds. One after another, they would block everyone for minutes, each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_model_servers_do_not_delay_other_jobs() {
    let world = TestServer::new().await;
    // Accepts connections, but never answers.
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = silent.local_addr().unwrap();
    let names: Vec<String> = (0..60).map(|number| format!("http://{silent}/v1#model-{number}")).collect();
    let strangers = futures::future::join_all(names.iter().map(|name| task(&world, name))).await;
    assert!(strangers.iter().all(|view| view.code.as_deref() == Some("no_model")), "{strangers:?}");
    // Another silent server, which starts to answer later.
    let late = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let view = task(&world, &format!("http://{}/v1", late.local_addr().unwrap())).await;
    assert_eq!(view.code.as_deref(), Some("no_model"));
    tokio::spawn(serve_a_model(late));
    let mut changes = world.orchestrator.watch(view.job_id);
    let goes_on = async {
        while world.orchestrator.job(view.job_id).await.unwrap().code.as_deref() == Some("no_model") {
            changes.changed().await.unwrap();
        }
    };
    tokio::time::timeout(TIMEOUT, goes_on).await.expect("it goes on although others wait");
    world.orchestrator.shutdown().await;
}

#[tokio::test]
async fn shutdown_does_not_wait_for_a_pending_pool_sandbox() {
    let settings = Settings { pool_size: 1, ..Settings::default() };
    let world = TestServer::with(settings, Some(Misbehavior::NeverMade)).await;
    let mut never_made = world.fake_backend.never_made.subscribe();
    tokio::time::timeout(TIMEOUT, never_made.wait_for(|count| *count > 0)).await.unwrap().unwrap();
    tokio::time::timeout(TIMEOUT, world.orchestrator.shutdown()).await.expect("the server stops");
}

/// A server that streams a call to a client sometimes interrupts reading, for example to check whether the client is
/// still there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn exec_end_is_delivered_while_the_log_lags_behind() {
    // This many reads time out before the log gets any output of the call.
    const MIN_TIMEOUTS: u32 = 10;
    let world = TestServer::with(Settings::default(), Some(Misbehavior::LogLagsBehind)).await;
    let sandbox = world.orchestrator.create_sandbox(NewSandbox::default(), None).await.unwrap();
    let request = ExecRequest { command: Some("true".into()), ..ExecRequest::default() };
    let mut exec = world
        .orchestrator
        .open_exec(sandbox.view.job_id, request, ExecStreamOptions::default())
        .await
        .unwrap();
    let mut asked = 0;
    let end = loop {
        match tokio::time::timeout(Duration::from_millis(20), exec.output.next()).await {
            Ok(Ok(LiveUpdate::Ended(end))) => break end,
            Ok(update) => assert!(matches!(update.unwrap(), LiveUpdate::Output { .. })),
            Err(_) => {
                asked += 1;
                world.fake_backend.is_log_served.send_replace(asked >= MIN_TIMEOUTS);
            }
        }
    };
    assert_eq!(end.exit_code, Some(0), "{end:?}");
    assert!(asked >= MIN_TIMEOUTS, "the end was told before the log had it");
    world.orchestrator.shutdown().await;
}

/// The length of a name in a tar is whatever the archive says; such names must not be read into memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn overlong_tar_name_is_refused_before_it_is_read() {
    let world = TestServer::new().await;
    let (view, log) = world.run(Some(Misbehavior::LongName)).await;
    assert_eq!(format!("{:?}", view.state), "Failed", "{:?}", view.reason);
    assert_eq!(view.code.as_deref(), Some("collect_failed"));
    let reason = view.reason.unwrap_or_default();
    assert!(reason.contains("a header of 33554432 bytes for names"), "{reason}");
    assert_own(&log, Misbehavior::LongName);
    let (view, _) = world.run(None).await;
    assert_eq!(format!("{:?}", view.state), "Complete", "{:?}", view.reason);
    world.orchestrator.shutdown().await;
}
