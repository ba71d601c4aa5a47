//! Prometheus metrics of the server. Counters start at zero with the process; the number of jobs per state is read
//! from the store on each scrape. `docs/operations/monitoring.md` lists all metrics.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use egress::{EgressEvent, Verdict};
use job::{CallStatus, Event, EventBody, JobState, step_of_call};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};
use store::StoreObserver;

/// Label names and values. Values come from small sets, because a label that callers could choose would use unbounded
/// memory.
type Labels<const COUNT: usize> = [(&'static str, String); COUNT];

/// All states, so that a state without jobs is reported as 0.
pub(crate) const STATES: [JobState; 9] = [
    JobState::Draft,
    JobState::Queued,
    JobState::Starting,
    JobState::Running,
    JobState::Paused,
    JobState::Collecting,
    JobState::Complete,
    JobState::Failed,
    JobState::Cancelled,
];

pub struct Metrics {
    registry: Mutex<Registry>,
    pub(crate) jobs: Family<Labels<1>, Gauge>,
    pub(crate) jobs_driven: Gauge,
    pub(crate) sandboxes: Gauge,
    jobs_submitted: Counter,
    jobs_finished: Family<Labels<2>, Counter>,
    sandboxes_made: Counter,
    sandboxes_lost: Family<Labels<1>, Counter>,
    sandbox_create: Histogram,
    steps: Family<Labels<1>, Histogram>,
    events: Counter,
    output: Counter,
    egress: Family<Labels<1>, Counter>,
    http_requests: Family<Labels<3>, Counter>,
    store_commit: Histogram,
    resident_memory: Gauge,
    open_files: Gauge,
}

/// From a millisecond up to half a minute and beyond.
fn short_times() -> Histogram {
    Histogram::new(exponential_buckets(0.001, 2.0, 16))
}

/// From ten milliseconds up to an hour and beyond.
fn long_times() -> Histogram {
    Histogram::new(exponential_buckets(0.01, 3.0, 12))
}

/// From a tenth of a millisecond up to seconds.
fn disk_times() -> Histogram {
    Histogram::new(exponential_buckets(0.0001, 2.0, 16))
}

impl Default for Metrics {
    fn default() -> Self {
        let metrics = Self {
            registry: Mutex::new(Registry::with_prefix("caisson")),
            jobs: Family::default(),
            jobs_driven: Gauge::default(),
            sandboxes: Gauge::default(),
            jobs_submitted: Counter::default(),
            jobs_finished: Family::default(),
            sandboxes_made: Counter::default(),
            sandboxes_lost: Family::default(),
            sandbox_create: short_times(),
            steps: Family::new_with_constructor(long_times),
            events: Counter::default(),
            output: Counter::default(),
            egress: Family::default(),
            http_requests: Family::default(),
            store_commit: disk_times(),
            resident_memory: Gauge::default(),
            open_files: Gauge::default(),
        };
        metrics.register();
        metrics
    }
}

impl Metrics {
    fn register(&self) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register("jobs", "Jobs in the store by state", self.jobs.clone());
        registry.register("jobs_driven", "Jobs that this server drives now", self.jobs_driven.clone());
        registry.register("sandboxes", "Bare sandboxes of this server", self.sandboxes.clone());
        registry.register("jobs_submitted", "Jobs accepted", self.jobs_submitted.clone());
        registry.register(
            "jobs_finished",
            "Jobs that ended, by outcome and code",
            self.jobs_finished.clone(),
        );
        registry.register(
            "sandboxes_made",
            "Sandboxes whose guest has answered",
            self.sandboxes_made.clone(),
        );
        registry.register(
            "sandboxes_lost",
            "Sandboxes that ended under a job, by reason",
            self.sandboxes_lost.clone(),
        );
        registry.register_with_unit(
            "sandbox_create",
            "Time to make a sandbox for a job",
            Unit::Seconds,
            self.sandbox_create.clone(),
        );
        registry.register_with_unit(
            "step",
            "Time that a step took, by how it ended",
            Unit::Seconds,
            self.steps.clone(),
        );
        registry.register("events", "Events written to the logs of jobs", self.events.clone());
        registry.register_with_unit(
            "output",
            "Output of jobs that was kept",
            Unit::Bytes,
            self.output.clone(),
        );
        registry.register("egress_connections", "Outgoing connections, by verdict", self.egress.clone());
        registry.register(
            "http_requests",
            "Requests by method, route and status",
            self.http_requests.clone(),
        );
        registry.register_with_unit(
            "store_commit",
            "Time to make a group of writes durable",
            Unit::Seconds,
            self.store_commit.clone(),
        );
        registry.register_with_unit(
            "process_resident_memory",
            "Memory of the server itself",
            Unit::Bytes,
            self.resident_memory.clone(),
        );
        registry.register(
            "process_open_files",
            "File descriptors of the server itself",
            self.open_files.clone(),
        );
    }

    /// Records how long creating a sandbox took.
    pub(crate) fn sandbox_created(&self, took: Duration) {
        self.sandbox_create.observe(took.as_secs_f64());
    }

    /// Counts an HTTP request. `route` is the route pattern, never the requested path.
    pub fn http_request(&self, method: &str, route: &str, status: u16) {
        let labels =
            [("method", method.to_owned()), ("route", route.to_owned()), ("status", status.to_string())];
        self.http_requests.get_or_create(&labels).inc();
    }

    fn count(&self, event: &Event) {
        match &event.body {
            EventBody::StateChanged { state, code, .. } if state.is_over() => {
                let code = code.clone().unwrap_or_default();
                self.jobs_finished.get_or_create(&[("outcome", name_of(*state)), ("code", code)]).inc();
            }
            EventBody::SandboxReady { .. } => drop(self.sandboxes_made.inc()),
            EventBody::SandboxLost { reason, .. } => {
                self.sandboxes_lost.get_or_create(&[("reason", name_of(*reason))]).inc();
            }
            EventBody::CallOutput { text, .. } => drop(self.output.inc_by(text.len() as u64)),
            EventBody::CallEnded(end) => {
                let is_step = event.call.as_ref().is_some_and(|call| step_of_call(&call.id).is_some());
                if is_step && end.status != CallStatus::Interrupted {
                    let seconds = Duration::from_millis(end.duration_ms).as_secs_f64();
                    self.steps.get_or_create(&[("status", name_of(end.status))]).observe(seconds);
                }
            }
            EventBody::Egress(EgressEvent::Opened(_)) => self.connection(Verdict::Allowed),
            EventBody::Egress(EgressEvent::Refused(connection)) => self.connection(connection.verdict),
            _ => {}
        }
    }

    fn connection(&self, verdict: Verdict) {
        self.egress.get_or_create(&[("verdict", name_of(verdict))]).inc();
    }

    pub(crate) fn render(&self) -> String {
        let mut text = String::new();
        let registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        // Writing to a string does not fail.
        let _ = encode(&mut text, &registry);
        text
    }

    /// Reads memory and file descriptor usage of this process from `/proc`.
    pub(crate) fn look_at_process(&self) {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kibibytes = resident.and_then(|rest| rest.trim().trim_end_matches(" kB").parse::<i64>().ok());
        self.resident_memory.set(kibibytes.unwrap_or_default().saturating_mul(1024));
        // One of the entries is the descriptor of the directory being read.
        let files = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count().saturating_sub(1));
        self.open_files.set(i64::try_from(files).unwrap_or(i64::MAX));
    }
}

impl StoreObserver for Metrics {
    fn job_created(&self, events: usize) {
        self.jobs_submitted.inc();
        self.events.inc_by(events as u64);
    }

    fn events_appended(&self, events: &[Event]) {
        self.events.inc_by(events.len() as u64);
        for event in events {
            self.count(event);
        }
    }

    fn committed(&self, took: Duration) {
        self.store_commit.observe(took.as_secs_f64());
    }
}

/// The serialized name, the same as in the API.
pub(crate) fn name_of(value: impl serde::Serialize) -> String {
    match serde_json::to_value(value) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use job::{CallEnd, CallRef};

    fn event(call: Option<&str>, body: EventBody) -> Event {
        let call = call.map(|id| CallRef { id: id.to_owned(), attempt: 1 });
        Event { sequence: 1, time_ms: 0, call, actor: None, body }
    }

    #[test]
    fn job_events_are_counted_in_metrics_with_units() {
        let metrics = Metrics::default();
        let end = CallEnd { duration_ms: 20, ..CallEnd::default() };
        metrics.events_appended(&[
            event(Some("step-1"), EventBody::CallEnded(end.clone())),
            event(Some("exec-1"), EventBody::CallEnded(end)),
            event(
                None,
                EventBody::StateChanged {
                    state: JobState::Failed,
                    code: Some("step_failed".into()),
                    reason: None,
                },
            ),
        ]);
        metrics.http_request("GET", "/v1/jobs/{id}", 200);
        metrics.committed(Duration::from_millis(3));
        metrics.look_at_process();
        let text = metrics.render();
        for line in [
            "caisson_events_total 3",
            "caisson_jobs_finished_total{outcome=\"failed\",code=\"step_failed\"} 1",
            "caisson_http_requests_total{method=\"GET\",route=\"/v1/jobs/{id}\",status=\"200\"} 1",
            "caisson_store_commit_seconds_count 1",
        ] {
            assert!(text.contains(line), "{line} is missing in\n{text}");
        }
        let steps = text.lines().find(|line| line.starts_with("caisson_step_seconds_count"));
        assert!(steps.is_some_and(|line| line.ends_with(" 1")), "{text}");
        assert!(text.ends_with("# EOF\n"), "{text}");
        let memory =
            text.lines().find_map(|line| line.strip_prefix("caisson_process_resident_memory_bytes "));
        assert!(memory.is_some_and(|bytes| bytes.parse::<u64>().unwrap() > 1 << 20), "{text}");
    }
}
