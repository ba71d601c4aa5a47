//! Trouble on the host: a full disk, or a server that ends at the wrong moment. No job loses anything.

use std::sync::Arc;

use orchestrator::{
    CallStatus, DataFolder, Event, EventBody, JobId, JobState, JobView, Orchestrator, Settings,
};

use crate::guest::{KILLED, Lie};
use crate::{PATIENCE, World};

impl World {
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
        tokio::time::timeout(PATIENCE, reached).await.expect("the job gets there")
    }

    /// Waits until a job has a matching event.
    pub(crate) async fn until_event(&self, id: JobId, is_it: impl Fn(&Event) -> bool) {
        let mut changes = self.orchestrator.watch(id);
        let reached = async {
            while !self.orchestrator.events(id, 0, 1000).await.unwrap().iter().any(&is_it) {
                changes.changed().await.unwrap();
            }
        };
        tokio::time::timeout(PATIENCE, reached).await.expect("the event comes");
    }

    /// Shuts this server down and starts another one on the same folder.
    async fn succeeded(self) -> Self {
        let Self { folder, orchestrator, liar } = self;
        orchestrator.shutdown().await;
        drop(orchestrator);
        let data = DataFolder::open(folder.path()).unwrap();
        let backend: Arc<dyn sandbox::Backend> = Arc::<crate::guest::Liar>::clone(&liar);
        let orchestrator = Orchestrator::start(data, backend, Settings::default()).await.unwrap();
        Self { folder, orchestrator, liar }
    }
}

pub(crate) fn begun(event: &Event) -> bool {
    matches!(event.body, EventBody::CallStarted { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_result_that_finds_no_room_stays_in_its_sandbox_until_there_is_some() {
    let world = World::new().await;
    let id = world.submit(Some(Lie::Held)).await;
    world.until_event(id, begun).await;
    // Every write to this path fails because the disk is full. The first failed attempt removes it.
    let partial = world.folder.path().join(format!("jobs/{id}/output.zip.partial"));
    std::os::unix::fs::symlink("/dev/full", &partial).unwrap();
    world.liar.ends_with.send_replace(Some(0));
    let view = world.until(id, |view| view.state.is_over()).await;
    assert_eq!((view.state, view.losses), (JobState::Complete, 0), "{:?}", view.reason);
    assert!(view.artifact.is_some() && !partial.exists());
    let is_told = |event: &Event| matches!(&event.body, EventBody::Note { text } if text.contains("waits to be stored") && text.contains("is full"));
    world.until_event(id, is_told).await;
    world.orchestrator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_sandbox_finds_no_room_stays_queued_until_there_is_some() {
    let world = World::new().await;
    let waits = |view: &JobView| {
        view.state == JobState::Queued
            && view.code.as_deref() == Some("server_disk_full")
            && view.sandbox.is_none()
    };
    let (goes_on, cancelled) = (world.submit(Some(Lie::NoRoom)).await, world.submit(Some(Lie::NoRoom)).await);
    for id in [goes_on, cancelled] {
        let view = world.until(id, waits).await;
        assert!(view.reason.unwrap().contains("no sandbox can be made: making a disk"));
    }
    world.orchestrator.cancel(cancelled).await.unwrap();
    assert_eq!(world.until(cancelled, |view| view.state.is_over()).await.state, JobState::Cancelled);
    let ready = world.orchestrator.ready().await;
    assert!(!ready.ready && ready.problems[0].contains("a job cannot go on"), "{:?}", ready.problems);
    world.liar.tell(None);
    let view = world.until(goes_on, |view| view.state.is_over()).await;
    assert_eq!(view.state, JobState::Complete, "{:?}", view.reason);
    let ready = world.orchestrator.ready().await;
    assert!(ready.ready, "{:?}", ready.problems);
    world.orchestrator.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_call_of_a_job_that_was_cancelled_before_the_server_ended_is_killed_and_has_an_end() {
    let world = World::new().await;
    let id = world.submit(Some(Lie::Held)).await;
    world.until_event(id, begun).await;
    // The cancel is in the log, but nobody has acted on it.
    world.orchestrator.shutdown().await;
    world.orchestrator.cancel(id).await.unwrap();
    let world = world.succeeded().await;
    let view = world.until(id, |view| view.state.is_over()).await;
    assert_eq!(view.state, JobState::Cancelled, "{:?}", view.reason);
    assert_eq!(*world.liar.ends_with.borrow(), Some(KILLED), "the process does not run on");
    let ended = |event: &Event| {
        let EventBody::CallEnded(end) = &event.body else { return false };
        end.status == CallStatus::Failed && end.code.as_deref() == Some("cancelled")
    };
    world.until_event(id, ended).await;
    world.orchestrator.shutdown().await;
}

/// The guest answers nothing, and a cancelled job does not wait for it as long as one that goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_job_whose_guest_stands_still_is_cancelled_without_waiting_for_it() {
    let settings =
        Settings { guest_answer_timeout: std::time::Duration::from_secs(1), ..Settings::default() };
    let world = World::with(settings, None).await;
    let id = world.submit(Some(Lie::Held)).await;
    world.until_event(id, begun).await;
    world.liar.is_stopped.send_replace(true);
    world.orchestrator.cancel(id).await.unwrap();
    let view = world.until(id, |view| view.state.is_over()).await;
    assert_eq!((view.state, view.code.as_deref()), (JobState::Cancelled, Some("cancelled")));
    let lost = |event: &Event| matches!(&event.body, EventBody::SandboxLost { detail, .. } if detail.contains("when the job was cancelled"));
    world.until_event(id, lost).await;
    world.orchestrator.shutdown().await;
}
