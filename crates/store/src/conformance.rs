//! The test suite that every store must pass, whatever the database.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use job::{
    Actor, CallEnd, ControlRequest, Event, EventBody, Fence, Generation, JobDefaults, JobFilter, JobId,
    JobSpec, JobState, JobView, Key, KeyUse, Kinds, NewEvent, NewJob, Role, SessionId, ShareId, SharedLink,
    StepStatus, call_of_step,
};

use crate::clock::now_ms;
use crate::error::StoreError;
use crate::observer::StoreObserver;
use crate::{Created, NewRecord, Removable, Store};

/// Runs the suite; each call of `open` opens the same, initially empty, database.
pub(super) async fn run<S: Store>(open: impl Fn() -> S) {
    let store = open();
    idempotency_keys_are_stored(&store).await;
    event_pages_are_bounded_by_size(&store).await;
    events_are_numbered_and_seen_by_watchers(&store).await;
    event_actors_are_stored(&store).await;
    a_stale_owner_is_refused(&store).await;
    queue_is_ordered_by_priority_then_age(&store).await;
    lists_are_filtered_and_paged(&store).await;
    large_payloads_round_trip(&store).await;
    a_deleted_job_leaves_nothing(&store).await;
    old_payloads_are_dropped_and_the_events_stay(&store).await;
    api_keys_are_stored(&store).await;
    jobs_belong_to_keys(&store).await;
    ended_logins_and_shared_links_are_stored(&store).await;
    durable_writes_are_reported_to_the_observer(&store).await;
    let job = steps_are_part_of_the_view(&store).await;
    let before = store.job(job).await.unwrap();
    drop(store);
    everything_is_there_after_a_restart(&open(), job, before).await;
}

fn spec(json: &str) -> JobSpec {
    serde_json::from_str::<NewJob>(json).unwrap().check(&JobDefaults::default()).unwrap()
}

fn state(state: JobState) -> NewEvent {
    EventBody::StateChanged { state, code: None, reason: None }.into()
}

fn note(text: &str) -> NewEvent {
    EventBody::Note { text: text.into() }.into()
}

async fn create(store: &impl Store, json: &str) -> JobId {
    let id = JobId::generate();
    let record = NewRecord { id, spec: spec(json), events: vec![state(JobState::Queued)], idempotency: None };
    assert!(matches!(store.create(record).await.unwrap(), Created::New(_)));
    id
}

async fn finish(store: &impl Store, job: JobId) {
    store.append(job, Fence::Anybody, vec![state(JobState::Complete)]).await.unwrap();
}

const ONE_STEP: &str = r#"{"steps":[{"tool":"shell","command":"true"}]}"#;

async fn idempotency_keys_are_stored(store: &impl Store) {
    let record = |key: &str, digest: &[u8]| NewRecord {
        id: JobId::generate(),
        spec: spec(r#"{"task":"x"}"#),
        events: Vec::new(),
        idempotency: Some((key.to_owned(), digest.to_vec())),
    };
    let Created::New(first) = store.create(record("k1", b"a")).await.unwrap() else { panic!("not new") };
    assert_eq!(store.create(record("k1", b"a")).await.unwrap(), Created::Repeated(first.job_id));
    assert_eq!(store.create(record("k1", b"b")).await.unwrap(), Created::Mismatch);
    assert!(matches!(store.create(record("k2", b"a")).await.unwrap(), Created::New(_)));
}

/// What a store has reported.
#[derive(Default)]
struct Reports {
    first_events: AtomicUsize,
    appended: AtomicUsize,
    commits: AtomicUsize,
}

impl StoreObserver for Reports {
    fn job_created(&self, events: usize) {
        self.first_events.fetch_add(events, Ordering::SeqCst);
    }

    fn events_appended(&self, events: &[Event]) {
        self.appended.fetch_add(events.len(), Ordering::SeqCst);
    }

    fn committed(&self, _: Duration) {
        self.commits.fetch_add(1, Ordering::SeqCst);
    }
}

async fn durable_writes_are_reported_to_the_observer(store: &impl Store) {
    let reports = Arc::new(Reports::default());
    let observer: Arc<dyn StoreObserver> = Arc::<Reports>::clone(&reports);
    store.observe(observer);
    let job = create(store, ONE_STEP).await;
    store.append(job, Fence::Anybody, vec![note("one"), note("two")]).await.unwrap();
    let stale = store.append(job, Fence::Owner(Generation(7)), vec![note("three")]).await;
    assert!(matches!(stale, Err(StoreError::Fenced(_))));
    let [first_events, appended, commits] = [&reports.first_events, &reports.appended, &reports.commits]
        .map(|count| count.load(Ordering::SeqCst));
    assert_eq!((first_events, appended), (2, 2), "the creation counts as an event");
    assert!(commits >= 2, "{commits}");
}

async fn old_payloads_are_dropped_and_the_events_stay(store: &impl Store) {
    let (old, going) = (create(store, ONE_STEP).await, create(store, ONE_STEP).await);
    for job in [old, going] {
        store.append(job, Fence::Anybody, vec![note("secret"), note(&"long ".repeat(4000))]).await.unwrap();
    }
    finish(store, old).await;
    let view = store.job(old).await.unwrap();
    let ended = view.ended_ms.unwrap();
    assert!(
        !store.with_old_payloads(ended, None, 1000).await.unwrap().contains(&old),
        "it is not older than that"
    );
    let found = store.with_old_payloads(ended + 1, None, 1000).await.unwrap();
    assert!(found.contains(&old) && !found.contains(&going));
    let later = store.with_old_payloads(ended + 1, Some(old), 1000).await.unwrap();
    assert!(!later.contains(&old), "it does not follow itself");
    store.drop_payloads(old).await.unwrap();
    assert!(!store.with_old_payloads(ended + 1, None, 1000).await.unwrap().contains(&old), "only once");
    let events = store.events(old, 0, 100).await.unwrap();
    let dropped = |kind: &str| EventBody::PayloadDropped { kind: kind.into() };
    assert!(matches!(events[0].body, EventBody::JobCreated { .. }));
    assert_eq!([&events[2].body, &events[3].body], [&dropped("note"), &dropped("note")]);
    assert!(matches!(events[4].body, EventBody::StateChanged { .. }));
    assert_eq!(store.spec(old).await.unwrap(), spec(ONE_STEP));
    assert_eq!(store.job(old).await.unwrap(), view);
    assert!(store.verify(old).await.unwrap().faults.is_empty());
    store.drop_payloads(old).await.unwrap();
    assert_eq!(store.events(old, 0, 100).await.unwrap(), events);
    // Leave nothing in the queue for the other tests.
    finish(store, going).await;
}

fn key(name: &str) -> Key {
    let new = serde_json::json!({"id": name, "name": name, "role": "submitter", "created_ms": 7});
    serde_json::from_value(new).unwrap()
}

async fn api_keys_are_stored(store: &impl Store) {
    store.put_key([1; 32], key("one")).await.unwrap();
    store.put_key([2; 32], key("two")).await.unwrap();
    assert!(store.put_key([2; 32], key("three")).await.is_err(), "a secret belongs to one key");
    store.remove_key(key("two").id).await.unwrap();
    assert_eq!(store.keys().await.unwrap(), [([1; 32], key("one"))]);
    store.remove_key(key("one").id).await.unwrap();
    let ada = key("ada").id;
    for role in [Role::Viewer, Role::Operator] {
        store.put_oidc_user(ada.clone(), role).await.unwrap();
    }
    assert_eq!(store.people().await.unwrap(), [(ada, Role::Operator)], "the role of the last login");
}

async fn ended_logins_and_shared_links_are_stored(store: &impl Store) {
    let (id, until_ms) = (SessionId::from("one".to_owned()), now_ms() + 1000);
    for _ in 0..2 {
        store.end_session(id.clone(), until_ms).await.unwrap();
    }
    assert_eq!(store.ended_sessions().await.unwrap(), [(id, until_ms)]);
    let (job, other) = (create(store, ONE_STEP).await, create(store, ONE_STEP).await);
    let link = |id: &str, job| SharedLink {
        id: ShareId::from(id.to_owned()),
        job,
        view: "desktop".into(),
        may_use: false,
        by: Actor::named("ada"),
        session: None,
        created_ms: now_ms(),
        until_ms,
    };
    let [first, second, elsewhere] = [link("1", job), link("2", job), link("3", other)];
    for link in [&first, &second, &elsewhere] {
        store.put_share(link.clone()).await.unwrap();
    }
    store.remove_share(second.id).await.unwrap();
    assert_eq!(store.shares().await.unwrap(), [first, elsewhere.clone()]);
    finish(store, job).await;
    store.delete(job, Actor::named("server")).await.unwrap();
    assert_eq!(store.shares().await.unwrap(), [elsewhere], "a link goes with its job");
    finish(store, other).await;
}

async fn jobs_belong_to_keys(store: &impl Store) {
    let (mine, other) = (key("mine"), key("other"));
    let mut jobs = Vec::new();
    for owner in [&mine, &mine, &other] {
        let id = JobId::generate();
        let spec = JobSpec { submitter: Some(owner.into()), ..spec(ONE_STEP) };
        let record = NewRecord { id, spec, events: vec![state(JobState::Queued)], idempotency: None };
        store.create(record).await.unwrap();
        jobs.push(id);
    }
    assert_eq!(store.submitter(jobs[0]).await.unwrap(), Some(mine.id.clone()));
    let filter = JobFilter { submitter: Some(mine.id.clone()), limit: 10, ..JobFilter::default() };
    assert_eq!(store.jobs(filter).await.unwrap().len(), 2);
    assert_eq!(store.next_queued(10, vec![mine.id.clone()]).await.unwrap(), [jobs[2]]);
    store.claim(jobs[0], 60_000).await.unwrap();
    let used = store.key_use(mine.id.clone(), 0).await.unwrap();
    assert_eq!((used.queued, used.running, used.nanodollars), (1, 1, 0), "a claimed job works");
    for job in jobs {
        finish(store, job).await;
    }
    assert_eq!(store.key_use(mine.id, 0).await.unwrap(), KeyUse::default());
}

async fn events_are_numbered_and_seen_by_watchers(store: &impl Store) {
    let job = create(store, ONE_STEP).await;
    let mut watch = store.watch(job);
    let placed = store.append(job, Fence::Anybody, vec![note("a"), note("b")]).await.unwrap();
    assert_eq!(placed.iter().map(|event| event.sequence).collect::<Vec<_>>(), [3, 4]);
    assert_eq!(*watch.wait_for(|sequence| *sequence >= 4).await.unwrap(), 4);
    let read = store.events(job, 2, 10).await.unwrap();
    assert_eq!(read, placed);
    assert_eq!(store.events(job, 0, 1).await.unwrap().len(), 1);
    for (after, limit, is_last) in [(0, 3, false), (2, 10, true), (4, 10, true)] {
        let page = store.page(job, Kinds::All, after, limit).await.unwrap();
        assert_eq!(page.is_last, is_last, "after {after}, up to {limit}: {page:?}");
    }
    finish(store, job).await;
    let missing = store.append(JobId::generate(), Fence::Anybody, vec![note("x")]).await;
    assert!(matches!(missing, Err(StoreError::NoJob(_))));
}

async fn event_pages_are_bounded_by_size(store: &impl Store) {
    let job = create(store, ONE_STEP).await;
    let large = "x".repeat(5 * 1024 * 1024);
    let call = job::CallRef { id: "call".into(), attempt: 1 };
    let output = || EventBody::CallOutput {
        stream: "stdout".into(),
        next_chunk: 1,
        text: large.clone(),
        base64: false,
        held_bytes: 0,
    };
    let events = vec![output().of(&call), note("a"), output().of(&call), note("b"), output().of(&call)];
    let placed = store.append(job, Fence::Anybody, events).await.unwrap();
    let first = store.page(job, Kinds::All, 2, 100).await.unwrap();
    assert_eq!(first.events, placed[..3], "it ends after eight mebibytes");
    assert!(!first.is_last, "a short one is not the last");
    assert_eq!(store.events(job, 5, 100).await.unwrap(), placed[3..]);
    assert_eq!(store.all_events(job, Kinds::All, 2).await.unwrap(), placed);
    let notes = store.events_of(job, job::WITHOUT_OUTPUT, 2, 100).await.unwrap();
    assert_eq!(notes, [placed[1].clone(), placed[3].clone()]);
    let outputs = store.all_events(job, job::OUTPUT, 3).await.unwrap();
    assert_eq!(outputs, [placed[2].clone(), placed[4].clone()]);
    finish(store, job).await;
}

async fn a_stale_owner_is_refused(store: &impl Store) {
    let job = create(store, ONE_STEP).await;
    let first = store.claim(job, 60_000).await.unwrap().unwrap();
    assert_eq!(store.claim(job, 60_000).await.unwrap(), None, "somebody holds it");
    store.append(job, Fence::Owner(first), vec![note("mine")]).await.unwrap();
    store.release(job, first).await.unwrap();
    let second = store.claim(job, 60_000).await.unwrap().unwrap();
    assert!(second > first);
    let stale = store.append(job, Fence::Owner(first), vec![note("late")]).await;
    assert!(matches!(stale, Err(StoreError::Fenced(_))));
    store.release(job, second).await.unwrap();
    let expired = store.claim(job, -1).await.unwrap().unwrap();
    assert!(
        store.claim(job, 60_000).await.unwrap() > Some(expired),
        "a lease that is over counts for nothing"
    );
    assert_eq!(store.claim(JobId::generate(), 1).await.unwrap(), None::<Generation>);
    finish(store, job).await;
}

async fn queue_is_ordered_by_priority_then_age(store: &impl Store) {
    let drafts = store.count_waiting().await.unwrap() - store.count_queued().await.unwrap();
    let old = create(store, ONE_STEP).await;
    let young = create(store, ONE_STEP).await;
    let urgent = create(store, r#"{"priority":9,"steps":[{"tool":"shell","command":"true"}]}"#).await;
    assert_eq!(store.next_queued(10, Vec::new()).await.unwrap(), [urgent, old, young]);
    assert_eq!(store.next_queued(1, Vec::new()).await.unwrap(), [urgent]);
    assert_eq!(store.count_queued().await.unwrap(), 3);
    assert_eq!(store.count_waiting().await.unwrap(), drafts + 3, "drafts of other parts, and these");
    store
        .append(
            old,
            Fence::Anybody,
            vec![EventBody::ControlRequested { request: ControlRequest::Cancel }.into()],
        )
        .await
        .unwrap();
    assert!(store.unfinished().await.unwrap().contains(&old), "a control_request wants attention");
    for job in [old, young, urgent] {
        finish(store, job).await;
    }
    assert!(store.unfinished().await.unwrap().is_empty());
}

async fn lists_are_filtered_and_paged(store: &impl Store) {
    let mut mine = Vec::new();
    for _ in 0..3 {
        mine.push(
            create(store, r#"{"labels":{"team":"a"},"steps":[{"tool":"shell","command":"true"}]}"#).await,
        );
    }
    let label = Some(("team".to_owned(), "a".to_owned()));
    let filter = JobFilter { label: label.clone(), limit: 2, ..JobFilter::default() };
    let page = store.jobs(filter.clone()).await.unwrap();
    assert_eq!(page.iter().map(|view| view.job_id).collect::<Vec<_>>(), [mine[2], mine[1]]);
    let next = store.jobs(JobFilter { before: Some(mine[1]), ..filter.clone() }).await.unwrap();
    assert_eq!(next.iter().map(|view| view.job_id).collect::<Vec<_>>(), [mine[0]]);
    let none = store.jobs(JobFilter { states: vec![JobState::Running], ..filter }).await.unwrap();
    assert!(none.is_empty());
    assert_eq!(page[0].labels, BTreeMap::from([("team".to_owned(), "a".to_owned())]));
    finish_some_and_list_what_may_be_removed(store, &mine).await;
}

/// Lists removable jobs page by page, oldest first; unfinished jobs must not be listed.
async fn finish_some_and_list_what_may_be_removed(store: &impl Store, jobs: &[JobId]) {
    let (last, over) = jobs.split_last().unwrap();
    for job in over {
        finish(store, *job).await;
    }
    let mut listed: Vec<Removable> = Vec::new();
    loop {
        let page = store.removable(listed.last().map(|found| found.job), 2).await.unwrap();
        assert!(page.len() <= 2);
        if page.is_empty() {
            break;
        }
        listed.extend(page);
    }
    assert!(listed.is_sorted_by(|one, next| one.job < next.job), "each once, in order: {listed:?}");
    for job in over {
        let found = listed.iter().find(|found| found.job == *job).unwrap();
        let ended = store.job(*job).await.unwrap().ended_ms;
        assert_eq!((found.is_draft, Some(found.since_ms)), (false, ended));
    }
    assert!(!listed.iter().any(|found| found.job == *last), "it waits for its turn");
    finish(store, *last).await;
}

async fn large_payloads_round_trip(store: &impl Store) {
    let job = create(store, ONE_STEP).await;
    let text = "0123456789abcdef".repeat(10_000);
    store.append(job, Fence::Anybody, vec![note(&text)]).await.unwrap();
    let read = store.events(job, 2, 1).await.unwrap();
    assert_eq!(read[0].body, EventBody::Note { text });
    finish(store, job).await;
}

async fn event_actors_are_stored(store: &impl Store) {
    let job = create(store, ONE_STEP).await;
    let ada: Actor = serde_json::from_str(r#"{"name": "ada", "key": "0193"}"#).unwrap();
    let events = vec![
        NewEvent::from(EventBody::ControlRequested { request: ControlRequest::Pause }).with_actor(Some(&ada)),
        note("nobody's"),
        // A job cannot forge an actor through the content of its events.
        EventBody::Note { text: r#"{"actor":{"name":"root"}}"#.into() }.into(),
        EventBody::CallStarted {
            step: None,
            tool: "exec".into(),
            input: serde_json::json!({"actor": {"name": "root"}}),
        }
        .into(),
        note(&"long ".repeat(4000)).with_actor(Some(&Actor::named("anybody"))),
    ];
    store.append(job, Fence::Anybody, events).await.unwrap();
    let read = store.events(job, 2, usize::MAX).await.unwrap();
    let names: Vec<Option<&str>> =
        read.iter().map(|event| event.actor.as_ref().map(|actor| actor.name.as_str())).collect();
    assert_eq!(names, [Some("ada"), None, None, None, Some("anybody")]);
    assert_eq!(read[0].actor, Some(ada));
    assert_eq!(read[0].body, EventBody::ControlRequested { request: ControlRequest::Pause });
    finish(store, job).await;
}

async fn a_deleted_job_leaves_nothing(store: &impl Store) {
    let job = create(store, ONE_STEP).await;
    finish(store, job).await;
    store.delete(job, Actor::named("server")).await.unwrap();
    assert!(matches!(store.job(job).await, Err(StoreError::NoJob(_))));
    assert!(store.events(job, 0, 10).await.unwrap().is_empty());
    store.delete(job, Actor::named("server")).await.unwrap();
}

async fn steps_are_part_of_the_view(store: &impl Store) -> JobId {
    let job =
        create(store, r#"{"steps":[{"tool":"shell","command":"a"},{"tool":"shell","command":"b"}]}"#).await;
    let call = job::CallRef { id: call_of_step(0), attempt: 1 };
    let started =
        EventBody::CallStarted { step: Some(0), tool: "shell".into(), input: serde_json::Value::Null };
    let ended = EventBody::CallEnded(CallEnd { exit_code: Some(0), ..CallEnd::default() });
    store.append(job, Fence::Anybody, vec![started.of(&call), ended.of(&call)]).await.unwrap();
    let view = store.job(job).await.unwrap();
    assert_eq!(view.steps[0].status, StepStatus::Succeeded);
    assert_eq!(view.steps[1].status, StepStatus::Pending);
    assert_eq!(view.steps_succeeded, 1);
    let log = store.events(job, 0, usize::MAX).await.unwrap();
    assert_eq!(JobView::of_log(job, &log).unwrap(), view, "the stored view is the one that the log gives");
    store.claim(job, 600_000).await.unwrap();
    job
}

async fn everything_is_there_after_a_restart(store: &impl Store, job: JobId, before: JobView) {
    assert_eq!(store.job(job).await.unwrap(), before);
    assert!(store.claim(job, 1).await.unwrap().is_some(), "leases of an earlier life are void");
    store.check().await.unwrap();
}
