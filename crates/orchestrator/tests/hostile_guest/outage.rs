//! The backend goes away and comes back. Jobs wait for it with a reason, and nothing that was saved is lost.

use std::time::Duration;

use job::{CallRef, CallStatus, Event, EventBody, Fence, JobDefaults, JobId, JobState, JobView, NewJob};
use orchestrator::{Bringing, DataFolder, NewSandbox, Settings, Submission};
use sandbox::{Image, SandboxId};
use store::{Created, LocalDatabase as _, NewRecord, Sqlite};

use crate::guest::Misbehavior;
use crate::trouble::begun;
use crate::{TIMEOUT, TestServer};

const UNAVAILABLE: Option<&str> = Some("backend_unavailable");

fn job(json: &str) -> NewJob {
    serde_json::from_str(json).unwrap()
}

fn is_over(view: &JobView) -> bool {
    view.state.is_over()
}

impl TestServer {
    pub(crate) async fn accept(&self, json: &str) -> JobView {
        let submission = Submission { job: job(json), bringing: Bringing::Nothing, ..Submission::default() };
        self.orchestrator.submit(submission).await.unwrap().view
    }

    async fn problems(&self) -> Vec<String> {
        self.orchestrator.ready().await.problems
    }
}

const ONE_STEP: &str = r#"{"steps":[{"tool":"shell","command":"true"}]}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn jobs_and_sandboxes_wait_for_the_backend_and_lost_work_is_repeated() {
    let world = TestServer::new().await;
    let sandbox = world.orchestrator.create_sandbox(NewSandbox::default(), None).await.unwrap().view.job_id;
    let id = world.submit(Some(Misbehavior::Held)).await;
    world.until_event(id, begun).await;
    world.fake_backend.stop_backend();
    let waits = |event: &Event| matches!(&event.body, EventBody::Note { text } if text.contains("the engine is stopped"));
    for waiting in [id, sandbox] {
        world.until_event(waiting, waits).await;
        let view = world.orchestrator.job(waiting).await.unwrap();
        assert_eq!((view.state, view.code.as_deref()), (JobState::Running, UNAVAILABLE));
        assert!(view.reason.unwrap().contains("start it"));
    }
    assert!(world.problems().await[0].contains("the engine is stopped"), "{:?}", world.problems().await);
    let refused = world.orchestrator.stats(sandbox).await.unwrap_err();
    assert_eq!(refused.code(), "backend_unavailable", "{refused}");
    let refused = world.orchestrator.create_sandbox(NewSandbox::default(), None).await.unwrap_err();
    assert_eq!(refused.code(), "backend_unavailable", "{refused}");
    world.fake_backend.ends_with.send_replace(Some(0));
    world.fake_backend.is_backend_stopped.send_replace(false);
    let view = world.until(id, is_over).await;
    assert_eq!((view.state, view.losses), (JobState::Complete, 1), "{:?}", view.reason);
    let interrupted = |event: &Event| matches!(&event.body, EventBody::CallEnded(end) if end.status == CallStatus::Interrupted);
    world.until_event(id, interrupted).await;
    let view = world.until(sandbox, is_over).await;
    assert_eq!(view.code.as_deref(), Some("sandbox_lost"), "{:?}", view.reason);
    // A result from just before may still be recorded.
    let ready = async {
        while !world.problems().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, ready).await.expect("the server is ready");
    world.orchestrator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelled_job_does_not_wait_for_the_backend() {
    let world = TestServer::new().await;
    let id = world.submit(Some(Misbehavior::Held)).await;
    world.until_event(id, begun).await;
    world.fake_backend.stop_backend();
    world.orchestrator.cancel(id).await.unwrap();
    let view = world.until(id, is_over).await;
    assert_eq!((view.state, view.code.as_deref()), (JobState::Cancelled, Some("cancelled")));
    world.until_event(id, |event| matches!(event.body, EventBody::CallEnded(_))).await;
    world.orchestrator.shutdown().await;
}

/// Waits before a shutdown, which leaves the rest of the cleanup to the next start.
async fn until_sandboxes_are_removed(world: &TestServer) {
    let removed = async {
        while !world.fake_backend.sandboxes().is_empty() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(TIMEOUT, removed).await.expect("its sandbox is removed");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_can_be_cancelled_while_its_sandbox_is_starting() {
    let world = TestServer::new().await;
    let id = world.submit(Some(Misbehavior::NeverReady)).await;
    let mut observed = world.fake_backend.observed_starting.subscribe();
    tokio::time::timeout(TIMEOUT, observed.wait_for(|count| *count > 1)).await.unwrap().unwrap();
    assert_eq!(world.orchestrator.job(id).await.unwrap().state, JobState::Starting);
    world.orchestrator.cancel(id).await.unwrap();
    let view = world.until(id, is_over).await;
    assert_eq!((view.state, view.code.as_deref()), (JobState::Cancelled, Some("cancelled")));
    until_sandboxes_are_removed(&world).await;
    world.orchestrator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_can_be_cancelled_while_its_sandbox_is_being_created() {
    let world = TestServer::new().await;
    let id = world.submit(Some(Misbehavior::NeverMade)).await;
    let mut never_made = world.fake_backend.never_made.subscribe();
    tokio::time::timeout(TIMEOUT, never_made.wait_for(|count| *count > 0)).await.unwrap().unwrap();
    world.orchestrator.cancel(id).await.unwrap();
    let view = world.until(id, is_over).await;
    assert_eq!((view.state, view.code.as_deref()), (JobState::Cancelled, Some("cancelled")));
    until_sandboxes_are_removed(&world).await;
    world.orchestrator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restarted_guest_counts_as_a_lost_sandbox() {
    let world = TestServer::new().await;
    let id = world.submit(Some(Misbehavior::Held)).await;
    world.until_event(id, begun).await;
    let before = world.fake_backend.sandboxes();
    world.fake_backend.restart_guests();
    let lost = |event: &Event| matches!(&event.body, EventBody::SandboxLost { detail, .. } if detail.contains("the guest restarted"));
    world.until_event(id, lost).await;
    world.fake_backend.ends_with.send_replace(Some(0));
    let view = world.until(id, is_over).await;
    assert_eq!((view.state, view.losses), (JobState::Complete, 1), "{:?}", view.reason);
    assert!(
        !before.is_empty() && !before.contains(&view.sandbox.unwrap()),
        "the work is repeated in another sandbox"
    );
    let interrupted = |event: &Event| matches!(&event.body, EventBody::CallEnded(end) if end.status == CallStatus::Interrupted);
    world.until_event(id, interrupted).await;
    world.orchestrator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_jobs_are_validated_once_the_backend_is_back() {
    let world = TestServer::new().await;
    // Refused at once while the backend can check.
    for (asked, code) in
        [(r#""image":"missing""#, "invalid_field"), (r#""limits":{"pids":64}"#, "limit_unenforceable")]
    {
        let json = ONE_STEP.replacen('{', &format!("{{{asked},"), 1);
        let submission = Submission { job: job(&json), ..Submission::default() };
        let refused = world.orchestrator.submit(submission).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
    }
    world.fake_backend.stop_backend();
    let good = world.accept(r#"{"image":"host","steps":[{"tool":"shell","command":"true"}]}"#).await;
    let image = world.accept(&ONE_STEP.replacen('{', r#"{"image":"missing","#, 1)).await;
    let limit = world
        .accept(r#"{"image":"host","limits":{"pids":64},"steps":[{"tool":"shell","command":"true"}]}"#)
        .await;
    for view in [&good, &image, &limit] {
        assert_eq!((view.state, view.code.as_deref()), (JobState::Queued, UNAVAILABLE), "{view:?}");
        assert!(view.reason.as_deref().unwrap().contains("the engine is stopped"), "{view:?}");
    }
    assert!(world.problems().await[0].contains("the engine is stopped"));
    world.fake_backend.is_backend_stopped.send_replace(false);
    assert_eq!(world.until(good.job_id, is_over).await.state, JobState::Complete);
    assert_eq!(world.until(image.job_id, is_over).await.code.as_deref(), Some("image_not_found"));
    assert_eq!(world.until(limit.job_id, is_over).await.code.as_deref(), Some("limit_unenforceable"));
    let log = world.orchestrator.events(good.job_id, 0, 1000).await.unwrap();
    let states: Vec<JobState> = log
        .iter()
        .filter_map(|event| match &event.body {
            EventBody::StateChanged { state, .. } => Some(*state),
            _ => None,
        })
        .collect();
    assert_eq!(states[..2], [JobState::Queued, JobState::Starting], "it was not tried in vain: {states:?}");
    world.orchestrator.shutdown().await;
}

/// The previous server died in the second step, after a checkpoint of the first; the image has been removed since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_that_cannot_continue_delivers_its_checkpoint_and_ends_all_calls() {
    let folder = tempfile::tempdir().unwrap();
    let json = r#"{"image":"removed","steps":[{"tool":"shell","command":"true"},{"tool":"shell","command":"true"}]}"#;
    let mut spec = job(json).check(&JobDefaults::default()).unwrap();
    spec.image = Image::Named("removed".into());
    let id = JobId::generate();
    let call = |step: usize| CallRef { id: format!("step-{step}"), attempt: 1 };
    let started = |step: usize| EventBody::CallStarted {
        step: Some(step - 1),
        tool: "shell".into(),
        input: serde_json::Value::Null,
    };
    let state = |state| EventBody::StateChanged { state, code: None, reason: None }.into();
    let events = vec![
        state(JobState::Queued),
        state(JobState::Starting),
        EventBody::SandboxRequested { sandbox: SandboxId::generate() }.into(),
        state(JobState::Running),
        started(1).of(&call(1)),
        EventBody::CallEnded(job::CallEnd::default()).of(&call(1)),
        EventBody::Checkpoint { steps: 1, bytes: 1 }.into(),
        started(2).of(&call(2)),
    ];
    {
        let data = DataFolder::open(folder.path()).unwrap();
        let store = Sqlite.open(folder.path()).unwrap();
        let created =
            store.create(NewRecord { id, spec, events: Vec::new(), idempotency: None }).await.unwrap();
        assert!(matches!(created, Created::New(_)));
        store.append(id, Fence::Anybody, events).await.unwrap();
        let saved = data.checkpoint(id, 1);
        std::fs::create_dir_all(saved.parent().unwrap()).unwrap();
        let writer = zstd::Encoder::new(std::fs::File::create(saved).unwrap(), 1).unwrap();
        tar::Builder::new(writer).into_inner().unwrap().finish().unwrap();
    }
    let world = TestServer::over(folder, Settings::default()).await;
    let view = world.until(id, is_over).await;
    assert_eq!((view.state, view.code.as_deref()), (JobState::Failed, Some("image_not_found")));
    assert!(view.artifact.is_some(), "the checkpoint is the result");
    let ended = |event: &Event| {
        event.call.as_ref() == Some(&call(2)) && matches!(&event.body, EventBody::CallEnded(_))
    };
    world.until_event(id, ended).await;
    world.orchestrator.shutdown().await;
}
