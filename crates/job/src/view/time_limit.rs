//! How long a job may work, and when its time ends.

use std::time::Duration;

use super::JobView;
use crate::spec::JobSpec;
use crate::state::JobState;

impl JobView {
    /// The time limit after its last change; `None` if the spec's applies.
    #[must_use]
    pub fn changed_time_limit(&self) -> Option<Duration> {
        self.changed_time_limit_ms.map(|limit| Duration::from_millis(u64::try_from(limit).unwrap_or(0)))
    }

    /// How long the job may work. `spec` is the spec of the job.
    #[must_use]
    pub fn time_limit(&self, spec: &JobSpec) -> Duration {
        self.changed_time_limit().unwrap_or(spec.wall_clock)
    }

    /// When a job with this time limit ends at the latest, as Unix time in milliseconds. `None` if the time does not
    /// run: the job has not started, waits, or has done its work.
    #[must_use]
    pub fn deadline_ms(&self, limit: Duration) -> Option<i64> {
        let is_working = matches!(self.state, JobState::Starting | JobState::Running);
        if !is_working || self.paused_since_ms.is_some() {
            return None;
        }
        let limit = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
        Some(self.started_ms?.saturating_add(self.paused_ms).saturating_add(limit))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, EventBody};
    use crate::ids::JobId;
    use crate::spec::{JobDefaults, NewJob};

    const LIMIT: Duration = Duration::from_secs(60);

    fn spec() -> JobSpec {
        let json = r#"{"steps":[{"tool":"shell","command":"true"}],"limits":{"wall_clock_s":60}}"#;
        serde_json::from_str::<NewJob>(json).unwrap().check(&JobDefaults::default()).unwrap()
    }

    fn at(time_ms: i64, state: JobState) -> (i64, EventBody) {
        (time_ms, EventBody::StateChanged { state, code: None, reason: None })
    }

    /// The view after these events, which follow the creation at 0.
    fn view_after(events: Vec<(i64, EventBody)>) -> JobView {
        let created = (0, EventBody::JobCreated { spec: Box::new(spec()) });
        let events = std::iter::once(created).chain(events).zip(1..);
        let log: Vec<Event> = events
            .map(|((time_ms, body), sequence)| Event { sequence, time_ms, call: None, actor: None, body })
            .collect();
        JobView::of_log(JobId::generate(), &log).unwrap()
    }

    #[test]
    fn time_limit_is_the_specs_until_it_is_changed() {
        assert_eq!(view_after(Vec::new()).time_limit(&spec()), LIMIT);
        let changes = [(60_000, 75_500), (75_500, 90_000)];
        let changed =
            changes.map(|(before_ms, after_ms)| (5, EventBody::TimeLimitChanged { before_ms, after_ms }));
        let view = view_after(changed.to_vec());
        assert_eq!(view.time_limit(&spec()), Duration::from_secs(90));
        let stored: JobView = serde_json::from_str(&serde_json::to_string(&view).unwrap()).unwrap();
        assert_eq!(stored, view);
    }

    #[test]
    fn view_of_an_unchanged_job_is_stored_without_the_limit() {
        let stored = serde_json::to_string(&view_after(Vec::new())).unwrap();
        assert!(!stored.contains("time_limit"), "{stored}");
    }

    #[test]
    fn deadline_moves_with_the_time_that_the_job_waited() {
        let deadline = |events: &[(i64, EventBody)]| view_after(events.to_vec()).deadline_ms(LIMIT);
        let mut events = vec![at(10, JobState::Queued)];
        assert_eq!(deadline(&events), None, "it has not started");
        events.push(at(1_000, JobState::Starting));
        assert_eq!(deadline(&events), Some(61_000));
        events.extend([at(2_000, JobState::Running), at(3_000, JobState::Paused)]);
        assert_eq!(deadline(&events), None, "it waits");
        events.push(at(10_000, JobState::Running));
        assert_eq!(deadline(&events), Some(68_000));
        events.push(at(11_000, JobState::Collecting));
        assert_eq!(deadline(&events), None, "its work is done");
    }
}
