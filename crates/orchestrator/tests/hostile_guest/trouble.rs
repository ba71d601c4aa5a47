//! Trouble on the host: a full disk, or a server that ends at the wrong moment. No job loses anything.

use std::sync::Arc;

use job::{CallStatus, Event, EventBody, JobId, JobState, JobView};
use orchestrator::{DataFolder, Orchestrator, Settings};
use store::{LocalDatabase as _, Sqlite};

use crate::guest::{KILLED, Misbehavior};
use crate::{TIMEOUT, TestServer};

impl TestServer {
    /// Waits until a job's view satisfies a condition, and returns it.
    pub(crate) async fn until(&self, id: JobId, is_so: impl Fn(&JobView) -> bool) -> JobView {
        let mut changes = self.orchestrator.watch(id);
        let reached = async {
            loop {
                let view = self.orchestrator.job(id).await.unwrap();
                if is_so(&view) {
                    return view;
                }
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(TIMEOUT, reached).await.expect("the job gets there")
    }

    /// Waits until a job has a matching event.
    pub(crate) async fn until_event(&self, id: JobId, is_it: impl Fn(&Event) -> bool) {
        let mut changes = self.orchestrator.watch(id);
        let reached = async {
            while !self.orchestrator.events(id, 0, 1000).await.unwrap().iter().any(&is_it) {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(TIMEOUT, reached).await.expect("the event comes");
    }

    /// Shuts this server down and starts another one on the same folder.
    pub(crate) async fn succeeded(self, settings: Settings) -> Self {
        let Self { folder, orchestrator, fake_backend } = self;
        orchestrator.shutdown().await;
        drop(orchestrator);
        let data = DataFolder::open(folder.path()).unwrap();
        let backend: Arc<dyn sandbox::Backend> = Arc::<crate::guest::FakeBackend>::clone(&fake_backend);
        let store = Sqlite.open(folder.path()).unwrap();
        let orchestrator = Orchestrator::start(data, store, backend, settings).await.unwrap();
        Self { folder, orchestrator, fake_backend }
    }
}

pub(crate) fn begun(event: &Event) -> bool {
    matches!(event.body, EventBody::CallStarted { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn result_stays_in_the_sandbox_until_the_disk_has_room() {
    let world = TestServer::new().await;
    let id = world.submit(Some(Misbehavior::Held)).await;
    world.until_event(id, begun).await;
    // Every write to this path fails because the disk is full. The first failed attempt removes it.
    let partial = world.folder.path().join(format!("jobs/{id}/output.zip.partial"));
    std::os::unix::fs::symlink("/dev/full", &partial).unwrap();
    world.fake_backend.ends_with.send_replace(Some(0));
    let view = world.until(id, |view| view.state.is_over()).await;
    assert_eq!((view.state, view.losses), (JobState::Complete, 0), "{:?}", view.reason);
    assert!(view.artifact.is_some() && !partial.exists());
    let is_told = |event: &Event| matches!(&event.body, EventBody::Note { text } if text.contains("waits to be stored") && text.contains("is full"));
    world.until_event(id, is_told).await;
    world.orchestrator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_stays_queued_until_the_disk_has_room_for_its_sandbox() {
    let world = TestServer::new().await;
    let waits = |view: &JobView| {
        view.state == JobState::Queued
            && view.code.as_deref() == Some("server_disk_full")
            && view.sandbox.is_none()
    };
    let (goes_on, cancelled) =
        (world.submit(Some(Misbehavior::NoRoom)).await, world.submit(Some(Misbehavior::NoRoom)).await);
    for id in [goes_on, cancelled] {
        let view = world.until(id, waits).await;
        assert!(view.reason.unwrap().contains("no sandbox can be made: making a disk"));
    }
    world.orchestrator.cancel(cancelled).await.unwrap();
    assert_eq!(world.until(cancelled, |view| view.state.is_over()).await.state, JobState::Cancelled);
    let ready = world.orchestrator.ready().await;
    assert!(!ready.ready && ready.problems[0].contains("a job cannot continue"), "{:?}", ready.problems);
    world.fake_backend.set_misbehavior(None);
    let view = world.until(goes_on, |view| view.state.is_over()).await;
    assert_eq!(view.state, JobState::Complete, "{:?}", view.reason);
    let ready = world.orchestrator.ready().await;
    assert!(ready.ready, "{:?}", ready.problems);
    world.orchestrator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn call_of_a_job_cancelled_before_a_restart_is_killed_and_ended() {
    let world = TestServer::new().await;
    let id = world.submit(Some(Misbehavior::Held)).await;
    world.until_event(id, begun).await;
    // The cancel is in the log, but nobody has acted on it.
    world.orchestrator.shutdown().await;
    world.orchestrator.cancel(id).await.unwrap();
    let world = world.succeeded(Settings::default()).await;
    let view = world.until(id, |view| view.state.is_over()).await;
    assert_eq!(view.state, JobState::Cancelled, "{:?}", view.reason);
    assert_eq!(*world.fake_backend.ends_with.borrow(), Some(KILLED), "the process does not run on");
    let ended = |event: &Event| {
        let EventBody::CallEnded(end) = &event.body else { return false };
        end.status == CallStatus::Failed && end.code.as_deref() == Some("cancelled")
    };
    world.until_event(id, ended).await;
    world.orchestrator.shutdown().await;
}

/// The guest answers nothing, and a cancelled job does not wait for it as long as one that goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn job_with_a_frozen_guest_is_cancelled_without_waiting() {
    let settings =
        Settings { guest_answer_timeout: std::time::Duration::from_secs(1), ..Settings::default() };
    let world = TestServer::with(settings, None).await;
    let id = world.submit(Some(Misbehavior::Held)).await;
    world.until_event(id, begun).await;
    world.fake_backend.is_stopped.send_replace(true);
    world.orchestrator.cancel(id).await.unwrap();
    let view = world.until(id, |view| view.state.is_over()).await;
    assert_eq!((view.state, view.code.as_deref()), (JobState::Cancelled, Some("cancelled")));
    let lost = |event: &Event| matches!(&event.body, EventBody::SandboxLost { detail, .. } if detail.contains("after the cancellation"));
    world.until_event(id, lost).await;
    world.orchestrator.shutdown().await;
}

/// This guest answers nonsense when it is asked for its services.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failed_last_screenshot_does_not_disturb_the_end() {
    let world = TestServer::new().await;
    let json = r#"{"image":"host","desktop":{},"steps":[{"tool":"shell","command":"true"}]}"#;
    let id = world.accept(json).await.job_id;
    let view = world.until(id, |view| view.state.is_over()).await;
    assert_eq!((view.state, view.artifact.is_some()), (JobState::Complete, true), "{:?}", view.reason);
    world.orchestrator.shutdown().await;
}
